/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vCPUs that may run on one pCPU alone: when they do.
 */
#ifndef BATON_BOUND_BPF_H
#define BATON_BOUND_BPF_H

#include "start.bpf.h"

/* vCPUs of a VM that are looked at for one that waits for this pCPU alone. */
#define MAX_BOUND_WALK 64

/* The next VM after the one in @last, counted round, with a vCPU that waits near @llc. */
verified_once u32 next_waiting(u32 llc, u32 last)
{
	u32 w, i, first = (last + 1) / 64, words = vm_words(vm_end());
	u64 word;

	bpf_for(i, 0, words + 1) {
		w = around(first + i, words);
		word = *vms_near(llc, w);
		if (!i)
			word &= ~0ULL << (last + 1) % 64;
		if (word)
			return w * 64 + __builtin_ctzll(word) ?: MAX_VMS;
	}
	return last;
}

/* One of those in the queue of the VM in @slot that wait for @cpu alone, or 0. */
verified_once s32 find_bound(u32 slot, s32 cpu)
{
	struct vm_ctx *vm = vm_slot(slot);
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = zero;

	if (!vm || vm->nr_bound <= 0)
		return 0;
	bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
		t = task_ctx(p);
		if (t && t->queued_cpu == cpu + 1)
			return p->pid;
		if (++seen >= MAX_BOUND_WALK)
			break;
	}
	return 0;
}

/*
 * For how long @t, which waits for @cpu alone, runs there now; 0: it does not. It has waited for
 * long while its siblings ran, or slept, or a host task ran that has the @weight (0: none did), or
 * at all.
 */
static u64 part_of_bound(const struct task_ctx *t, s32 cpu, u32 weight, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_slot(t->queued_vm), *running;
	/* Several host tasks may have run since, one after the other. */
	u64 since = c->vm_ran_at;

	running = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;
	if (!vm || vm == running || throttled_until(t, now))
		return 0;
	if (starves(t->queued_at, now, count(COUNT_WAITING), nr_online))
		return TURN_NS;
	if (weight) {
		if (vtime_before(since, t->queued_at))
			since = t->queued_at;
		return vtime_before(since, now)
			       ? bound_slice(vm, now - since, weight, host_waiting(cpu, true))
			       : 0;
	}
	/* Not all of it at once: a host task that wakes meanwhile would wait for that. */
	if (running && vm_stands_still(vm, bound_queue(cpu)->nr))
		return bound_slice(vm, elapsed(t->queued_at, now), running->weight, 0)
			       ? HOST_SLICE_NS
			       : 0;
	return vm->nr_running <= 0 ? 0
				   : torn_slice(vm, elapsed(t->queued_busy, vm_busy(vm, now)),
						running ? running->weight : WEIGHT_AVERAGE,
						running ? running->nr_running : 1);
}

/* The same for the one that the pCPU's record names; else who is next is noted there. */
verified_once u64 bound_due(s32 cpu, u32 weight, u64 now)
{
	struct bound_queue *b = bound_queue(cpu);
	struct task_struct *p = bpf_task_from_pid(b->pid);
	struct task_ctx *t = p ? task_ctx(p) : NULL;
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 slot = b->vm;
	u64 slice = 0;

	if (t && t->queued_cpu == cpu + 1) {
		slice = part_of_bound(t, cpu, weight, now);
	} else {
		/* Where several VMs' vCPUs wait, one of another. */
		if (slot == MIXED_VMS)
			slot = c->bound = next_waiting(llc_of(cpu), c->bound);
		b->pid_vm = slot;
		b->pid = find_bound(slot, cpu);
	}
	if (p)
		bpf_task_release(p);
	return slice;
}

/*
 * Such a vCPU runs on @cpu next. A host task whose slice that cuts finely goes on here afterwards:
 * elsewhere it would take the pCPU of a sibling.
 */
verified_once int dispatch_bound(s32 cpu, u32 weight, u64 now)
{
	struct bound_queue *b = bound_queue(cpu);
	u64 slice = bound_due(cpu, weight, now);
	s32 pid = b->pid;

	if (!slice)
		return false;
	/* Who is next is looked for. */
	b->pid = 0;
	if (!start_vcpu(pid, b->pid_vm, slice, BOOST_VISIT, cpu))
		return false;
	if (weight && slice < HOST_SLICE_NS) {
		ends_in(cpu, now, slice);
		cpu_ctx(cpu)->brief = BRIEF_PART;
		cpu_ctx(cpu)->donates_until = now + HOST_SLICE_NS;
	}
	return true;
}

#endif /* BATON_BOUND_BPF_H */
