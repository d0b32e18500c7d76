/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A pCPU that somebody gave away, to a sibling or a visitor: who has it, and who has it back.
 */
#ifndef BATON_GIVEN_BPF_H
#define BATON_GIVEN_BPF_H

#include "start.bpf.h"

/*
 * A visit to @cpu has ended, of which the VM in @host_vm goes on: a vCPU that is behind its due and
 * waits visits next.
 */
static bool dispatch_visitor(u32 host_vm, s32 cpu, u64 now)
{
	struct vm_ctx *host = vm_slot(host_vm), *vm;
	struct vms_seen seen = {.llc = llc_of(cpu)};
	u32 best;

	/* Else, of visitors without end, nobody would look for who is bound here. */
	if (!host || count(COUNT_WAITING) < 2)
		return false;
	best = next_vm(NO_VM, NO_VM, cpu, now, &seen);
	vm = vm_slot(best);
	if (!vm || !vm_behind(vm, vnow) || !vtime_before(vm->vtime, host->vtime) ||
	    !dispatch_vcpu(best, cpu, true, now))
		return false;
	cpu_ctx(cpu)->back_at = 0;
	stat_add(STAT_VISITS, 1);
	return true;
}

/*
 * The pCPU is given away: to the vCPU that a directed yield named, or back to who it was taken
 * from, if that still may run. @asked: somebody else asks for this pCPU.
 */
static bool dispatch_given(s32 cpu, bool asked, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	s32 pid = c->boost_pid ?: c->resume_pid;
	u32 slot = c->boost_pid ? c->boost_vm : c->resume_vm;
	u32 why = c->boost_pid ? BOOST_SIBLING : BOOST_NONE;
	u64 slice = c->boost_slice;
	bool started;

	if (why == BOOST_NONE) {
		slice = elapsed(now, c->donates_until);
		if (asked || !slice || host_is_due(cpu, vm_slot(slot), now, now))
			pid = 0;
		else if (dispatch_visitor(slot, cpu, now))
			return true;
		c->resume_pid = 0;
	}
	started = pid && start_vcpu(pid, slot, slice, why, cpu);
	if (why == BOOST_NONE) {
		if (started)
			c->resuming = pid;
		return started;
	}
	c->boost_pid = 0;
	c->back_at = 0;
	stat_add(started ? STAT_OBEYED : STAT_MISSED_RACED, 1);
	if (!started)
		c->resume_pid = 0;
	else if (c->resume_pid)
		gives_back(cpu, now);
	return started;
}

#endif /* BATON_GIVEN_BPF_H */
