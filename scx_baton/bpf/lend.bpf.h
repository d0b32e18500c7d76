/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that waits for a pCPU is sent an IPI: a sibling lends it the time to take it, before the
 * sender has spun for long. The VM as a whole gets no more than it had.
 */
#ifndef BATON_LEND_BPF_H
#define BATON_LEND_BPF_H

#include "yield.bpf.h"

/* The pid of the vCPU that runs on @cpu, if it may be asked to lend it; else 0. */
static s32 lender(s32 cpu, u32 slot)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (c->runs != RUNS_VCPU || c->vm != slot || c->kicked || c->boost_pid || c->donor)
		return 0;
	return c->pid;
}

/* Is @id the caller's to serve? Two may have sent it an IPI at once. */
static bool serve(u32 slot, u32 id)
{
	u64 key = vcpu_key(slot, id);
	struct vcpu_ctx *v = bpf_map_lookup_elem(&vcpus, &key);

	return v && __sync_val_compare_and_swap(&v->waited, 1, 0) == 1;
}

/* No sibling can lend the vCPU with @pid a pCPU: it visits the one where it ran. */
static void visit_for_ipi(s32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct task_ctx *t;
	struct cpu_ctx *c;
	s32 cpu;

	if (!p)
		return;
	t = task_ctx(p);
	cpu = scx_bpf_task_cpu(p);
	c = cpu_ctx(cpu);
	if (t && c->runs != RUNS_NOTHING && !c->kicked && !c->boost_pid && !c->donor &&
	    bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		visit(cpu, p, t, BOOST_IPI_NS);
	bpf_task_release(p);
}

/* The timer's: each of those that owe the sender gets a sibling's pCPU, as far as they go. */
static int lend(void *map, int *key, struct lend_timer *at)
{
	struct cpu_ctx *c = cpu_ctx(at->cpu);
	u32 slot = at->slot, sender = at->sender, i;
	u32 looks = nr_cpu_ids < MAX_LOOKS ? nr_cpu_ids : MAX_LOOKS;
	struct vm_ctx *vm = vm_slot(slot);
	s32 cpu, pid;
	u64 owing;

	if (c->runs != RUNS_VCPU || c->vm != slot || c->vcpu_id != sender)
		return 0;
	bpf_for(i, 1, looks) {
		cpu = at->cpu + i;
		if (cpu >= nr_cpu_ids)
			cpu -= nr_cpu_ids;
		pid = lender(cpu, slot);
		if (!pid)
			continue;
		owing = find_owing(slot, sender, cpu, true);
		/* Nobody at all, or nobody who may run there? */
		if (!owing && !find_owing(slot, sender, -1, true))
			break;
		if (!owing || !serve(slot, owing >> 32))
			continue;
		c = cpu_ctx(cpu);
		c->boost_vm = slot;
		c->boost_slice = BOOST_IPI_NS;
		donates(c, pid, slot);
		c->visits = 0;
		c->lent = 1;
		/* Last, and as a barrier: that pCPU may look at any time. */
		__sync_lock_test_and_set(&c->boost_pid, (s32)(u32)owing);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	bpf_for(i, 0, MAX_OWING) {
		if (!vm || !vm_may_visit(vm, vnow))
			break;
		owing = find_owing(slot, sender, -1, true);
		if (!owing)
			break;
		if (serve(slot, owing >> 32))
			visit_for_ipi((s32)owing);
	}
	return 0;
}

static s32 init_lend_timer(s32 cpu)
{
	struct lend_timer *at = bpf_map_lookup_elem(&lend_timers, &cpu);
	s32 err;

	/* What was not initialized cannot be started. */
	if (!yields_for(YIELD_SENT))
		return 0;
	if (!at)
		return -ENOENT;
	at->cpu = cpu;
	err = bpf_timer_init(&at->timer, &lend_timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&at->timer, lend);
}

#endif /* BATON_LEND_BPF_H */
