/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who used how much, and who waits where: the bookkeeping that the decisions in policy.h read.
 */
#ifndef BATON_ACCOUNT_BPF_H
#define BATON_ACCOUNT_BPF_H

#include "confined.bpf.h"
#include "polling.bpf.h"
#include "waits.bpf.h"
#include "wanted.bpf.h"

/* @t waits from now on, in the queue of the VM whose vCPU it is, or in one for host tasks. */
verified_once int join_queue(struct task_struct *p __arg_trusted, struct task_ctx *t __arg_nonnull,
			     struct vm_ctx *vm, u64 now)
{
	if (vm && t->queued_vm == t->vm)
		return 0;
	leave_host(t);
	if (!vm) {
		join_host(t, scx_bpf_task_cpu(p), is_bound(p));
	} else {
		if (is_bound(p) && !t->queued_cpu)
			join_bound(p, t, vm, scx_bpf_task_cpu(p));
		if (!t->queued_llc)
			join_near(t, t->vm, scx_bpf_task_cpu(p));
		t->queued_busy = vm_busy(vm, now);
		count_add(COUNT_WAITING, 1);
		t->queued_vm = t->vm;
		if (__sync_fetch_and_add(&vm->nr_queued, 1) <= 0)
			vm->queued_since = now;
	}
	/* Last: now it can leave. */
	t->queued_at = now ?: 1;
	return 0;
}

/*
 * It waits no longer. Two pCPUs may come here at once, one that runs it and one that has put it
 * into the queue: one of them counts.
 */
verified_once int leave_queue(struct task_ctx *t __arg_nonnull, u64 now)
{
	u64 since, waited, busy;
	struct vm_ctx *vm;

	if (!t->queued_at)
		return 0;
	since = __sync_lock_test_and_set(&t->queued_at, 0);
	if (!since)
		return 0;
	waited = elapsed(since, now);
	vm = vm_slot(t->queued_vm);
	if (t->queued_llc)
		leave_near(t, t->queued_vm);
	t->queued_vm = NO_VM;
	leave_host(t);
	if (!vm) {
		t->wants += waited;
		return 0;
	}
	note_wait(waited);
	if (waited >= LONG_WAIT_NS && !t->woken_at)
		vm->limited_at = now;
	busy = waited_beside(t, vm, waited, now);
	if (t->queued_cpu) {
		leave_bound(t, vm);
		if (halts_followed())
			__sync_fetch_and_add(&vm->seen_waited, waited);
	} else if (halts_followed()) {
		__sync_fetch_and_add(&vm->seen_costop, busy);
	}
	__sync_fetch_and_add(&vm->times.ready_ns, waited);
	__sync_fetch_and_add(&vm->times.costop_ns, busy);
	t->times.ready_ns += waited;
	t->times.costop_ns += busy;
	__sync_fetch_and_sub(&vm->nr_queued, 1);
	count_add(COUNT_WAITING, -1);
	return 0;
}

/*
 * The vCPU @t of @vm ran for another @ran ns, @alone of them on a pCPU that nobody else could have
 * had: do they halt often, or exit as they spin, and how much do they have alone?
 */
verified_once int observe(struct vm_ctx *vm __arg_nonnull, struct task_ctx *t __arg_nonnull,
			  s32 cpu, u64 ran, u64 alone)
{
	u64 seen, halting, spins, costop, waited;

	if (!halts_followed())
		return 0;
	seen = __sync_fetch_and_add(&vm->seen_ns, ran) + ran;
	if (vcpu_halts(vm, t->ran))
		__sync_fetch_and_add(&vm->seen_halting, ran);
	if (alone)
		__sync_fetch_and_add(&vm->seen_alone, alone);
	t->ran += ran;

	/* A gang hardly spins within its turn: it takes more than one turn to tell. */
	if (seen < 2 * vm_turn(vm))
		return 0;
	/* Of the pCPUs that come here at once, one decides. */
	if (__sync_val_compare_and_swap(&vm->seen_ns, seen, 0) != seen)
		return 0;
	halting = __sync_lock_test_and_set(&vm->seen_halting, 0);
	spins = __sync_lock_test_and_set(&vm->seen_spins, 0);
	costop = __sync_lock_test_and_set(&vm->seen_costop, 0);
	alone = __sync_lock_test_and_set(&vm->seen_alone, 0);
	waited = __sync_lock_test_and_set(&vm->seen_waited, 0);
	vm->ran_at_once = vm->most_running;
	vm->most_running = vm->nr_running;
	/* Two of them wait for it one after the other until then, or may run elsewhere by now. */
	if (vm->stacked)
		vm->stacked--;
	vm->extra = bound_extra(vm, seen + waited, alone);
	vm->spread = vm_spreads(vm, seen, halting, spins);
	vm->exits = vm_spins_exit(vm, seen, spins);
	/* One that needs more than a cache's pCPUs is to wait for them: see gang.bpf.h. */
	vm->torn = vm->nr_vcpus <= nr_near(cpu) && vm_torn(vm, seen, costop);
	return 0;
}

/*
 * vCPU @id of the VM in @slot begins or ends to run on @cpu: it has taken, or takes, what it was
 * sent.
 */
verified_once int settle(u32 slot, u32 id, u32 cpu, bool runs, u64 now)
{
	u64 key = vcpu_key(slot, id);
	struct vm_ctx *vm = vm_slot(slot);
	struct vcpu_ctx *v;
	u32 i;

	runs_on(cpu)->vcpu = runs ? key : 0;
	if (!vm || id >= MAX_VCPUS)
		return 0;
	if (runs)
		__sync_fetch_and_or(&vm->on_cpu[vcpu_word(id)], vcpu_bit(id));
	else
		__sync_fetch_and_and(&vm->on_cpu[vcpu_word(id)], ~vcpu_bit(id));
	if (!vm_has_bit(vm->owing, id))
		return 0;
	__sync_fetch_and_and(&vm->owing[vcpu_word(id)], ~vcpu_bit(id));
	v = bpf_map_lookup_elem(&vcpus, &key);
	if (!v)
		return 0;
	__sync_fetch_and_add(&vm->times.owed_ns, elapsed(v->owes_since, now));
	for (i = 0; i < VCPU_WORDS; i++)
		v->owes[i] = 0;
	return 0;
}

/* The vtime of the first one in @dsq. */
static bool peek_vtime(u64 dsq, u64 *vtime)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(dsq);

	if (!p)
		return false;
	*vtime = p->scx.dsq_vtime;
	return true;
}

/*
 * How far the host tasks have come that wait for @cpu alone: as far as @level at most. More of them
 * than one pCPU can serve fall behind it, without a bound, as it comes on elsewhere; among
 * themselves they have their shares. @first: if the only one is on its way from the queue.
 */
static u64 bound_level(s32 cpu, u64 first, u64 level)
{
	if (host_waiting(cpu, true) <= 0)
		return level;
	peek_vtime(cpu, &first);
	return vtime_before(first, level) ? first : level;
}

/* The host task @p, or one that has just become a vCPU, ran for another @ran ns. */
verified_once int charge_host(const struct task_struct *p __arg_trusted,
			      struct task_ctx *t __arg_nonnull, s32 cpu, u64 ran)
{
	u64 level, bound;

	t->wants += ran;
	/* Its vtime is the VM's now. */
	if (vm_of(t))
		return 0;
	level = level_for(p, t, cpu, t->run_at);
	bound = bound_level(cpu, t->vtime, level);
	if (is_bound(p) && host_waiting(cpu, true) > 0)
		t->vtime = host_charge(t->vtime, weighted(ran, t->weight), bound, bound, 0,
				       host_lag(t->weight));
	else if (is_wanted(cpu, NO_VM, is_bound(p)))
		t->vtime = host_charge(t->vtime, weighted(ran, t->weight), level, vnow,
				       is_bound(p) ? level - t->seen_vnow : 0, host_lag(t->weight));
	else if (vtime_before(t->vtime, level))
		/* Who runs, and takes nothing from anybody, is owed nothing, either. */
		t->vtime = level;
	t->seen_vnow = level;
	return 0;
}

/*
 * On how many pCPUs can @vm, of which @p is a vCPU, run? One whose vCPUs are bound, each to its
 * own, on any. Where several share one, on that: else the others wait for a whole turn to end.
 */
static inline s32 cpus_for(const struct task_struct *p, const struct vm_ctx *vm)
{
	s32 online = nr_online, allowed = p->nr_cpus_allowed;

	if (vm->stacked && allowed == 1)
		return 1;
	/* Else one load from either address, which the verifier refuses. */
	barrier_var(online);
	barrier_var(allowed);
	return allowed == 1 || allowed > online ? online : allowed;
}

/*
 * Does the VM of @p want more pCPUs than it has, where others run? What it has elsewhere is part of
 * its share, though nobody waits for that: one of 29 vCPUs that compute had 17 pCPUs of 64 beside
 * one of 64 vCPUs, which had 44. Not where its vCPUs are bound: none could have another's pCPU.
 */
static bool vm_competes(const struct task_struct *p, const struct vm_ctx *vm)
{
	return !is_bound(p) && vm->nr_queued > 0 && vm->nr_running < cpus_for(p, vm);
}

/*
 * What @vtime on @cpu costs @vm, which has @slot, for its vCPU @p. Of those that are bound there a
 * host task and a VM have equal parts by their weights, and VMs have what they do not have alone.
 */
static u64 price(const struct task_struct *p, struct vm_ctx *vm, u32 slot, s32 cpu, u64 vtime)
{
	u32 allowed, share;

	allowed = cpus_for(p, vm);
	/* Its vCPUs may have different ones. */
	if (vm->ran_at_once > allowed)
		allowed = vm->ran_at_once;
	vm->allowed = is_bound(p) && !vm->stacked ? vm->nr_vcpus : allowed;
	if (is_bound(p) && host_waiting(cpu, true) > 0)
		return vtime;
	if (is_bound(p) && others_bound(cpu, slot))
		return vtime + vtime * vm->extra / 256;
	share = vm_share(vm, entities(), nr_online, allowed);
	/* That of a pinned VM does not tell what it can have where others want something. */
	vm->share = is_bound(p) ? 0 : share;
	return vm_price(vm, vtime, share);
}

/* Count what the vCPU that runs on @here has done in PAUSE exits since the last charge. */
static void charge_spins(struct vm_ctx *vm, struct cpu_runs_vcpu *here)
{
	u32 spins;

	if (!here->spins)
		return;
	spins = __sync_lock_test_and_set(&here->spins, 0);
	stat_add(STAT_SPINS, spins);
	__sync_fetch_and_add(&vm->times.spins, spins);
	__sync_fetch_and_add(&vm->times.spin_ns, __sync_lock_test_and_set(&here->spin_ns, 0));
	if (halts_followed())
		__sync_fetch_and_add(&vm->seen_spins, spins);
}

/* @p, a vCPU of @vm, ran for another @ran ns. */
verified_once int charge_vcpu(const struct task_struct *p __arg_trusted,
			      struct task_ctx *t __arg_nonnull, struct vm_ctx *vm __arg_nonnull,
			      s32 cpu, u64 ran)
{
	u64 add, level, vtime, clamped;
	bool charged;

	t->vtime += weighted(ran, t->weight);
	t->outside_ns += ran;
	t->times.ran_ns += ran;
	__sync_fetch_and_add(&vm->times.ran_ns, ran);
	if (t->boosted == BOOST_SIBLING) {
		stat_add(STAT_BOOST_NS, ran);
		__sync_fetch_and_add(&vm->times.boost_ns, ran);
	}
	charge_spins(vm, runs_on(cpu));
	charged = is_wanted(cpu, t->run_vm, is_bound(p)) || vm_competes(p, vm);
	observe(vm, t, cpu, ran, charged ? 0 : ran);
	if (!charged)
		return 0;
	add = price(p, vm, t->run_vm, cpu, weighted(ran, vm->weight));
	want_lead(vm, t->run_vm, cpu, t->run_at);
	level = level_for_vm(vm, cpu, t->run_at);
	vtime = __sync_fetch_and_add(&vm->vtime, add) + add;
	clamped = vtime_clamp(vtime, vnow, vnow - level + vm_credit(vm), vm_lead(vm));
	/* A charge from another pCPU in between must not be lost; it clamps, too. */
	if (clamped == vtime || __sync_val_compare_and_swap(&vm->vtime, vtime, clamped) != vtime)
		return 0;
	if (vtime_before(vtime, clamped) && vm_may_lead(vm, nr_online, t->run_at))
		__sync_fetch_and_add(&vm->moved, clamped - vtime);
	return 0;
}

/* Charge the time since the last charge: to the VM and inside it, or to the host task. */
static void charge(const struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	u64 ran = elapsed(t->run_at, now);
	struct vm_ctx *vm = vm_slot(t->run_vm);

	t->run_at = now;
	if (t->quota)
		quotas_charge(t->quota, ran);
	if (vm)
		charge_vcpu(p, t, vm, cpu, ran);
	else
		charge_host(p, t, cpu, ran);
}

/*
 * The host task @p ends, or sleeps as it does: the next one that is made in its cgroup goes on in
 * its place. Else who makes one process after the other would owe nothing, ever: eight at a time
 * that end within 2 ms left none of two pCPUs to two threads that compute, in a cgroup of the same
 * weight.
 */
verified_once int bequeath(struct task_struct *p __arg_trusted, struct task_ctx *t __arg_nonnull,
			   u64 now)
{
	struct cgroup *cgrp;
	struct cgrp_ctx *c;
	u64 level;

	if (vm_of(t))
		return 0;
	cgrp = scx_bpf_task_cgroup(p);
	if (!cgrp)
		return 0;
	c = bpf_cgrp_storage_get(&cgroups, cgrp, 0, 0);
	bpf_cgroup_release(cgrp);
	if (!c)
		return 0;
	level = level_for(p, t, scx_bpf_task_cpu(p), now);
	/* Two at once may lose what one has left. */
	if (c->heir_since)
		__sync_fetch_and_add(&c->heir_vtime, t->vtime - level);
	else
		c->heir_vtime = t->vtime;
	c->heir_since = now;
	t->vtime = vnow;
	uncount(c, &t->child, p->scx.weight, __sync_lock_test_and_set(&t->wants, 0));
	return 0;
}

/* It has been made, and has not run yet. */
static bool is_new(const struct task_ctx *t)
{
	return t->last_cpu < 0 && t->run_at;
}

/* The host task @t has been made in @cgrp: as if it had slept since the last one there ended. */
static void inherit(struct task_ctx *t, struct cgroup *cgrp)
{
	struct cgrp_ctx *c = bpf_cgrp_storage_get(&cgroups, cgrp, 0, 0);
	u64 since = c ? __sync_lock_test_and_set(&c->heir_since, 0) : 0;

	t->run_at = since ?: scx_bpf_now();
	t->vtime = c && since ? c->heir_vtime : vnow;
}

/* @p, a vCPU's thread, is none any more. */
static void leave_vm(const struct task_struct *p, struct task_ctx *t)
{
	struct vm_ctx *vm = vm_of(t);
	u64 key = vcpu_key(t->vm, t->vcpu_id);
	struct vcpu_ctx *v;

	v = bpf_map_lookup_elem(&vcpus, &key);
	/* Not the entry of a thread that runs the vCPU after this one. Its VM may be gone. */
	if (v && v->pid == p->pid)
		bpf_map_delete_elem(&vcpus, &key);
	if (vm && __sync_fetch_and_sub(&vm->nr_vcpus, 1) == 1)
		vm_forget(vm);
	t->vm = NO_VM;
	t->vtime = vnow;
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

/*
 * A sleeper comes back: what it may keep of the time that it did not use is limited. @level: how
 * far those have come that it, or its VM, competes with.
 */
static void wake(struct task_ctx *t, struct vm_ctx *vm, u64 level, u64 now)
{
	u64 slept = elapsed(vm ? vm->busy_since : t->run_at, now);

	t->woken_at = now;
	if (!vm) {
		t->vtime = slept_vtime(t->vtime, level, HOST_CREDIT_NS, slept, 1, t->weight);
		return;
	}
	t->vtime = wake_vtime(t->vtime, vm->vcpu_vnow, VM_CREDIT_NS);
	if (vm->nr_running <= 0 && vm->nr_queued <= 0) {
		vm->vtime = slept_vtime(vm->vtime, level, weighted(VM_CREDIT_NS, vm->weight), slept,
					vm->nr_vcpus, vm->weight);
		/* Once: those that wake until the first one runs have slept no longer. */
		vm->busy_since = now;
	}
}

#endif /* BATON_ACCOUNT_BPF_H */
