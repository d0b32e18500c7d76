/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who used how much, and who waits where: the bookkeeping that the decisions in policy.h read.
 */
#ifndef BATON_ACCOUNT_BPF_H
#define BATON_ACCOUNT_BPF_H

#include "tree.bpf.h"

/* vCPUs in the queues of all VMs. */
static u32 nr_waiting;

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
	waited = vtime_before(now, t->queued_at) ? 0 : now - t->queued_at;
	if (!vm) {
		if (t->queued_at)
			t->wants += waited;
		t->queued_at = 0;
		return;
	}
	t->queued_at = 0;
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
		t->wants += ran;
		if (!vm_of(t))
			t->vtime = vtime_clamp(t->vtime + weighted(ran, t->weight), vnow,
					       host_lag(t->weight));
		return;
	}
	t->vtime += weighted(ran, t->weight);
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
