/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A gang that does not stand on the caches as it runs: more of its vCPUs ran near one last than
 * there are pCPUs, and near another one, fewer. A pCPU looks near its own cache first, and finds
 * another VM there, whose turn begins as well: neither gang is ever whole. So each vCPU of a VM
 * that lacks some for long looks at another cache at its tick, and asks one pCPU there.
 */
#ifndef BATON_GANG_BPF_H
#define BATON_GANG_BPF_H

#include "far.bpf.h"
#include "room.bpf.h"

verified_once int invite(u32 slot, s32 cpu, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);
	u32 i, llc, first, looks;
	struct task_struct *p;
	struct cpu_ctx *c;
	s32 there;

	/* One for each that waits. */
	if (!vm || vm->nr_queued <= vm->nr_invited || vm->spread || !vm_in_turn(vm, now))
		return 0;
	p = waits_long(vm, slot, cpu, now);
	if (!p)
		return 0;
	llc = far_llc(cpu) & (MAX_LLCS - 1);
	first = llc_first[llc];
	looks = llc_first[llc + 1] - first;
	if (looks > MAX_LOOKS)
		looks = MAX_LOOKS;
	bpf_for(i, 0, looks) {
		there = llc_cpus[(first + i) & (MAX_CPUS - 1)];
		c = cpu_ctx(there);
		if (c->kicked || c->resume_pid || c->runs != RUNS_VCPU ||
		    !bpf_cpumask_test_cpu(there, p->cpus_ptr) || !vm_takes(there, slot, vm, now) ||
		    __sync_val_compare_and_swap(&c->invited, 0, slot))
			continue;
		__sync_fetch_and_add(&vm->nr_invited, 1);
		preempt(there);
		return 0;
	}
	return 0;
}

#endif /* BATON_GANG_BPF_H */
