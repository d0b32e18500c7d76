/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Those that wait near another last-level cache than a pCPU's own.
 */
#ifndef BATON_FAR_BPF_H
#define BATON_FAR_BPF_H

#include "first.bpf.h"

/* The LLC that is looked at beside that of @cpu: the next one each time. */
static u32 far_llc(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	c->far = c->far + 1 < nr_llcs ? c->far + 1 : 1;
	return around(llc_of(cpu) + c->far, nr_llcs);
}

/* Host tasks of other LLCs, when there is nothing closer to run. */
verified_once int steal_host_task(s32 cpu)
{
	u32 i, llc;

	bpf_for(i, 1, nr_llcs) {
		llc = around(llc_of(cpu) + i, nr_llcs);
		if (*host_queue(MAX_CPUS + llc) > 0 &&
		    scx_bpf_dsq_move_to_local(LLC_DSQ_BASE + llc, 0))
			return true;
	}
	return false;
}

/*
 * The first one in the queue of @vm, which has @slot, if it has waited for long; of a VM that is
 * larger than the cache of @cpu, if some vCPU or other has: those that spin take turns, and none
 * waits for long.
 */
static struct task_struct *waits_long(const struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(vm_dsq(slot));
	struct task_ctx *t = p ? task_ctx(p) : NULL;
	u64 since, any_since;
	bool late;

	if (!t)
		return NULL;
	since = t->queued_at;
	any_since = vm->queued_since;
	/* As in cpus_for(). */
	barrier_var(since);
	barrier_var(any_since);
	if (vm->nr_vcpus > nr_near(cpu))
		since = any_since;
	late = vtime_before(since + FAR_WAIT_NS, now);
	/* Else the sign masks the pointer. */
	barrier_var(late);
	return late ? p : NULL;
}

/*
 * The VM that goes first on @cpu of those that wait for long in another LLC, if well before @near,
 * of which one runs on if that is @prev_vm; any, if there is no @near and @idle. One other LLC is
 * looked at each time, or all.
 */
verified_once u32 far_vm(u32 near, u32 prev_vm, s32 cpu, bool idle, u64 now)
{
	struct vm_ctx *near_vm = vm_slot(near), *vm;
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vms_seen seen = {};
	struct task_struct *p;
	u64 rank = ~0ULL;
	u32 i, far;

	if (near_vm)
		rank = rank_on(cpu, near, near_vm, near_vm->nr_running - (near == prev_vm), now);
	bpf_for(i, 1, nr_llcs) {
		seen.llc = far_llc(cpu);
		far = next_vm(NO_VM, NO_VM, cpu, now, &seen);
		vm = vm_slot(far);
		p = vm ? waits_long(vm, far, cpu, now) : NULL;
		if (p && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    rank_on(cpu, far, vm, vm->nr_running, now) + FAR_BEHIND_NS < rank)
			return far;
		if (near_vm || !idle)
			break;
	}
	return NO_VM;
}

/*
 * @cpu goes idle, and vCPUs wait near other caches, not for long: it looks again when they have,
 * and less and less often, as they may not be allowed here.
 */
static void look_when_idle(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	c->idle_look = c->idle_look ? 2 * c->idle_look : FAR_WAIT_NS;
	if (c->idle_look > IDLE_LOOK_MAX_NS)
		c->idle_look = IDLE_LOOK_MAX_NS;
	look_soon(cpu, c->idle_look);
}

#endif /* BATON_FAR_BPF_H */
