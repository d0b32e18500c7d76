/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An idle pCPU for a task.
 */
#ifndef BATON_IDLE_BPF_H
#define BATON_IDLE_BPF_H

#include "cpu.bpf.h"

/* The slice of a task that starts at once on an idle pCPU. */
static u64 idle_slice(struct vm_ctx *vm, u64 now)
{
	if (!vm)
		return HOST_SLICE_NS;
	if (vm_join_turn(vm, now))
		stat_add(STAT_TURNS, 1);
	return vm_turn_end(vm, now) - now;
}

/*
 * An idle pCPU for @p, which loses @cpu, taken from the idle mask: of an idle core, or else on the
 * core that it is on, as what takes its place may be gone soon; negative if there is none.
 */
static s32 take_idle_cpu_for(struct task_struct *p, s32 cpu)
{
	s32 beside = cpu_sibling[cpu & (MAX_CPUS - 1)], idle;

	/* The idle mask is the kernel's: a look at it is a call. */
	if (is_bound(p))
		return cpu_ctx(cpu)->runs == RUNS_NOTHING && scx_bpf_test_and_clear_cpu_idle(cpu)
			       ? cpu
			       : -EBUSY;
	if (!smt_active)
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);
	if (idle >= 0)
		return idle;
	if (bpf_cpumask_test_cpu(beside, p->cpus_ptr) && scx_bpf_test_and_clear_cpu_idle(beside))
		return beside;
	return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
}

/*
 * @p shares its core on @cpu, and neither leaves by itself as long as both run: a pCPU of an idle
 * core where it may run, which is its own from now on; negative if there is none.
 */
static s32 claim_core(struct task_struct *p, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu), *beside = cpu_ctx(cpu_sibling[cpu & (MAX_CPUS - 1)]);

	/* The kernel does not move one that exits. */
	if (beside == c || beside->runs == RUNS_NOTHING || (p->flags & PF_EXITING) ||
	    !core_is_shared(c->since, beside->since, now))
		return -EBUSY;
	return scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);
}

/* It does not go there after all: what it claimed is idle again. */
static void stay(struct task_ctx *t)
{
	if (!t->leaves_for)
		return;
	scx_bpf_kick_cpu(t->leaves_for - 1, 0);
	t->leaves_for = 0;
}

#endif /* BATON_IDLE_BPF_H */
