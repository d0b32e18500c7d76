/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who used how much, what it weighs, and who waits where: the bookkeeping that the
 * decisions in policy.h read.
 */
#ifndef BATON_ACCOUNT_BPF_H
#define BATON_ACCOUNT_BPF_H

#include "quota.bpf.h"

/* The common axis of virtual time: how far the entities that compete have come. */
static u64 vnow;

/* vCPUs in the queues of all VMs. */
static u32 nr_waiting;

/* Rises with every change of a weight or a quota anywhere in the cgroup tree. */
static u64 cgroup_gen = 1;

const volatile bool smt_active;

struct cgrp_ctx {
	u32 weight; /* cpu.weight */
	u32 quota; /* slot of its cpu.max; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cgrp_ctx);
} cgroups SEC(".maps");

/* Kernels without CONFIG_SCHED_CORE have no cookie. */
struct task_struct___core {
	unsigned long core_cookie;
} __attribute__((preserve_access_index));

static bool has_core_cookie(struct task_struct *p)
{
	struct task_struct___core *core = (void *)p;

	return bpf_core_field_exists(core->core_cookie) && BPF_CORE_READ(core, core_cookie);
}

/*
 * The weight of @p: its own times those of the cgroups above it, each relative to 100.
 * Siblings in one cgroup get exactly their ratio. And the quotas above it.
 */
static void refresh_weight(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm)
{
	u64 weight = p->scx.weight;
	struct cgroup *cgrp, *above;
	struct cgrp_ctx *c;
	u32 nr = 0, i;
	int level;

	if (t->weight_gen == cgroup_gen && (!vm || vm->weight_gen == cgroup_gen))
		return;
	t->weight_gen = cgroup_gen;
	for (i = 0; i < MAX_QUOTA_LEVELS; i++)
		t->quotas[i] = 0;
	cgrp = scx_bpf_task_cgroup(p);
	if (cgrp) {
		bpf_for(level, 1, cgrp->level + 1) {
			above = bpf_cgroup_ancestor(cgrp, level);
			if (!above)
				break;
			c = bpf_cgrp_storage_get(&cgroups, above, 0, 0);
			if (c) {
				weight = weight * c->weight / WEIGHT_DFL;
				if (c->quota && nr < MAX_QUOTA_LEVELS)
					t->quotas[nr++] = c->quota;
				else if (c->quota)
					scx_bpf_exit(EXIT_CPU_MAX,
						     "%s[%d] is below more than %d cgroups with "
						     "cpu.max set",
						     p->comm, p->pid, MAX_QUOTA_LEVELS);
			}
			bpf_cgroup_release(above);
		}
		bpf_cgroup_release(cgrp);
	}
	t->weight = weight < 1 ? 1 : weight > 1000000 ? 1000000 : weight;
	if (!vm)
		return;
	if (smt_active && has_core_cookie(p))
		scx_bpf_exit(EXIT_CORE_SCHED, "vCPU thread %s[%d] has a core-scheduling cookie",
			     p->comm, p->pid);
	/* A VM seen for the first time starts level with the others. */
	if (!vm->weight_gen)
		vm->vtime = vnow;
	vm->weight_gen = cgroup_gen;
	vm->weight = t->weight;
}

static void join_queue(struct task_ctx *t, u32 slot, struct vm_ctx *vm, u64 now)
{
	if (t->queued_vm == slot)
		return;
	t->queued_at = now;
	t->queued_busy = vm_busy(vm, now);
	__sync_fetch_and_add(&nr_waiting, 1);
	t->queued_vm = slot;
	__sync_fetch_and_add(&vm->nr_queued, 1);
}

static void leave_queue(struct task_ctx *t, u64 now)
{
	struct vm_ctx *vm = vm_slot(t->queued_vm);
	u64 waited, busy;

	t->queued_vm = NO_VM;
	if (!vm)
		return;
	waited = vtime_before(now, t->queued_at) ? 0 : now - t->queued_at;
	busy = vm_busy(vm, now) - t->queued_busy;
	__sync_fetch_and_add(&vm->times.ready_ns, waited);
	__sync_fetch_and_add(&vm->times.costop_ns, busy < waited ? busy : waited);
	__sync_fetch_and_sub(&vm->nr_queued, 1);
	__sync_fetch_and_sub(&nr_waiting, 1);
}

/* A VM's vCPUs ran for another @ran ns: do they halt often? */
static void observe(struct vm_ctx *vm, u64 ran)
{
	u64 seen = __sync_fetch_and_add(&vm->seen_ns, ran) + ran;

	if (seen < SPREAD_WINDOW_NS)
		return;
	/* Of the pCPUs that come here at once, one decides. */
	if (__sync_val_compare_and_swap(&vm->seen_ns, seen, 0) != seen)
		return;
	vm->spread = vm_spreads(vm, seen, __sync_lock_test_and_set(&vm->seen_halts, 0));
}

/* Charge the time since the last charge: to the VM and inside it, or to the host task. */
static void charge(struct task_ctx *t, u64 now)
{
	struct vm_ctx *vm = vm_slot(t->run_vm);
	u64 ran = vtime_before(now, t->run_at) ? 0 : now - t->run_at, add, vtime, clamped;

	t->run_at = now;
	charge_quotas(t, ran);
	if (!vm) {
		/* A task that has just become a vCPU: its vtime is the VM's now. */
		if (!vm_of(t))
			t->vtime = vtime_clamp(t->vtime + weighted(ran, t->weight), vnow,
					       host_lag(t->weight));
		return;
	}
	t->vtime += ran;
	__sync_fetch_and_add(&vm->times.ran_ns, ran);
	if (t->boosted) {
		stat_add(STAT_BOOST_NS, ran);
		__sync_fetch_and_add(&vm->times.boost_ns, ran);
	}
	add = weighted(ran, vm->weight);
	vtime = __sync_fetch_and_add(&vm->vtime, add) + add;
	clamped = vtime_clamp(vtime, vnow, vm_lag(vm));
	/* A charge from another pCPU in between must not be lost; it clamps, too. */
	if (clamped != vtime)
		__sync_val_compare_and_swap(&vm->vtime, vtime, clamped);
	observe(vm, ran);
}

/*
 * The VM that @t is a vCPU of. One whose VM is gone becomes a host task again; its vtime
 * was that VM's.
 */
static struct vm_ctx *vm_now(struct task_ctx *t)
{
	struct vm_ctx *vm = vm_of(t);

	if (!vm && t->vm != NO_VM) {
		t->vm = NO_VM;
		t->vtime = vnow;
	}
	return vm;
}

/* A sleeper comes back: what it may keep of the time that it did not use is limited. */
static void wake(struct task_ctx *t, struct vm_ctx *vm)
{
	if (!vm) {
		t->vtime = wake_vtime(t->vtime, vnow, HOST_CREDIT_NS);
		return;
	}
	t->vtime = wake_vtime(t->vtime, vm->vcpu_vnow, VM_CREDIT_NS);
	if (vm->nr_running <= 0 && vm->nr_queued <= 0)
		vm->vtime = wake_vtime(vm->vtime, vnow, VM_CREDIT_NS);
}

#endif /* BATON_ACCOUNT_BPF_H */
