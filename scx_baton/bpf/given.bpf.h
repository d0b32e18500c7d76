/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A pCPU that somebody gave away, to a sibling or a visitor: who has it, and who has it back.
 */
#ifndef BATON_GIVEN_BPF_H
#define BATON_GIVEN_BPF_H

#include "start.bpf.h"

/* A directed yield named the vCPU to run here. */
static bool dispatch_boosted(struct cpu_ctx *c, s32 cpu)
{
	bool moved = start_vcpu(c->boost_pid, c->boost_vm, c->boost_slice, BOOST_SIBLING, cpu);

	c->boost_pid = 0;
	if (moved && c->resume_pid)
		look_soon(cpu, BOOST_IPI_NS);
	stat_add(moved ? STAT_OBEYED : STAT_MISSED_RACED, 1);
	return moved;
}

/* The boosted vCPU has had its time: who it was taken from goes on, if it still may. */
static bool dispatch_resuming(struct cpu_ctx *c, s32 pid, s32 cpu, u64 now)
{
	u64 until = c->donates_until;

	if (!vtime_before(now, until) ||
	    !start_vcpu(pid, c->resume_vm, until - now, BOOST_NONE, cpu))
		return false;
	c->resuming = pid;
	return true;
}

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
	if (!host || count(COUNT_WAITING) < 2 || !vtime_before(now, cpu_ctx(cpu)->donates_until))
		return false;
	best = next_vm(NO_VM, NO_VM, cpu, now, &seen);
	vm = vm_slot(best);
	if (!vm || !vm_behind(vm, vnow) || !vtime_before(vm->vtime, host->vtime) ||
	    !dispatch_vcpu(best, cpu, true, now))
		return false;
	stat_add(STAT_VISITS, 1);
	return true;
}

/*
 * The pCPU is given away: to a vCPU that is boosted, or back to who it was taken from; @asked:
 * somebody else asks for this pCPU.
 */
verified_once int dispatch_given(s32 cpu, bool asked, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	s32 pid = c->resume_pid;

	if (c->boost_pid) {
		if (dispatch_boosted(c, cpu))
			return true;
		pid = 0;
	} else if (pid && !asked && dispatch_visitor(c->resume_vm, cpu, now)) {
		return true;
	}
	c->resume_pid = 0;
	return pid && !asked && dispatch_resuming(c, pid, cpu, now);
}

#endif /* BATON_GIVEN_BPF_H */
