/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which VM goes first on a pCPU, by its rank (policy.h).
 */
#ifndef BATON_FIRST_BPF_H
#define BATON_FIRST_BPF_H

#include "cpu.bpf.h"

/*
 * The rank of @vm, which has @slot, for @cpu while @running of its vCPUs run on others. Those that
 * one VM leads there are compared by how far behind they are alone.
 */
static inline u64 rank_of(s32 cpu, u32 slot, const struct vm_ctx *vm, s32 running, u64 now)
{
	const struct vm_ctx *like = vm_is_confined(vm, nr_online) ? leader_on(cpu, now) : NULL;
	u64 at = like ? bound_of(like) : vnow;
	const struct cpu_ctx *c = cpu_ctx(cpu);
	bool claims = vm_claims(vm, slot == c->vm ? c->turn_start : 0, at, now);

	return vm_rank(vm, like ?: vm, running, claims, at, now);
}

/* The same as a call, where it is not on the way of each VM that waits. */
verified_once u64 rank_on(s32 cpu, u32 slot, const struct vm_ctx *vm __arg_nonnull, s32 running,
			  u64 now)
{
	return rank_of(cpu, slot, vm, running, now);
}

/* May @vm, which has @slot, take @cpu from the vCPU that runs there? */
static bool vm_takes(s32 cpu, u32 slot, const struct vm_ctx *vm, u64 now)
{
	u32 here = cpu_ctx(cpu)->vm;
	struct vm_ctx *running = vm_slot(here);

	if (!running || vm == running)
		return false;
	return rank_preempts(rank_on(cpu, slot, vm, vm->nr_running, now),
			     rank_on(cpu, here, running, running->nr_running, now),
			     turns_of(running, running->nr_vcpus));
}

/* Can a host task of @weight wait for a VM's turn to end? */
static inline bool can_wait(u32 weight)
{
	return host_can_wait(weight, entities(), nr_online);
}

/* Does a host task at @vtime that has the @weight go before @vm? */
static bool goes_before(u64 vtime, u32 weight, const struct vm_ctx *vm, u64 now)
{
	return host_goes_first(vtime, vm->vtime, vm_has_turn(vm, vnow, now) && can_wait(weight),
			       vnow);
}

/* Does the first host task in @dsq go before @vm on @cpu, if it waits since @since or longer? */
verified_once int first_is_due(u64 dsq, s32 cpu, const struct vm_ctx *vm, u64 since, u64 now)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(dsq);
	struct task_ctx *t = p ? task_ctx(p) : NULL;

	return t && vm && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       vtime_before(t->queued_at, since) &&
	       goes_before(vtime_on(p, cpu, now), t->weight, vm, now);
}

/* Does a host task that waits near @cpu? */
static bool host_is_due(s32 cpu, const struct vm_ctx *vm, u64 since, u64 now)
{
	return (host_waiting(cpu, true) > 0 && first_is_due(cpu, cpu, vm, since, now)) ||
	       (host_waiting(cpu, false) > 0 && first_is_due(llc_dsq(cpu), cpu, vm, since, now));
}

/*
 * A look at the VMs with a vCPU to run that waits near @llc: how many of them may run here, and the
 * least vtime of those. One of 16 vCPUs that may run on 2 of 16 pCPUs held vnow back, and one of
 * weight 20 beside it was never behind its due, with 0.38 of a pCPU instead of 1.
 */
struct vms_seen {
	u64 least;
	u32 nr;
	u32 llc;
	/* for which pCPU; @prev_vm is about to leave it */
	s32 cpu;
	u32 prev_vm;
	/* the one after which the next in order is looked for, and that one */
	u32 last;
	u32 best;
	u64 last_rank;
	u64 best_rank;
};

/* Is the VM in @slot the one that is looked for, so far? */
verified_once int look_at_vm(u32 slot, struct vms_seen *seen __arg_nonnull, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);
	u64 rank;

	if (!vm ||
	    (slot != seen->prev_vm && (vm->nr_queued <= 0 || !waits_here(vm, slot, seen->cpu))))
		return 0;
	if ((slot == seen->prev_vm || wants_cpu(vm, slot, seen->cpu)) &&
	    (!seen->nr++ || vtime_before(vm->vtime, seen->least)))
		seen->least = vm->vtime;
	rank = rank_of(seen->cpu, slot, vm, vm->nr_running - (slot == seen->prev_vm), now);
	if (seen->last != NO_VM &&
	    (rank < seen->last_rank || (rank == seen->last_rank && slot <= seen->last)))
		return 0;
	if (seen->best == NO_VM || rank < seen->best_rank) {
		seen->best = slot;
		seen->best_rank = rank;
	}
	return 0;
}

/*
 * The VM that goes first on @cpu among those with a vCPU to run there, after @last in that order;
 * of equals, the one with the lower slot. A vCPU of @prev_vm, which is about to leave this pCPU,
 * still counts as running. All that were looked at are in @seen.
 */
verified_once u32 next_vm(u32 last, u32 prev_vm, s32 cpu, u64 now,
			  struct vms_seen *seen __arg_nonnull)
{
	u32 w, i, words = vm_words(vm_end());
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_slot(last);
	u64 word;

	seen->cpu = cpu;
	seen->prev_vm = prev_vm;
	seen->last = last;
	seen->best = NO_VM;
	seen->nr = 0;
	if (vm)
		seen->last_rank = rank_on(cpu, last, vm, vm->nr_running - (last == prev_vm), now);
	bpf_for(w, 0, words) {
		word = *vms_near(seen->llc, w);
		if (c->kept && seen->llc == llc_of(cpu) && w == (c->kept_vm & (MAX_VMS - 1)) / 64)
			word |= 1ULL << c->kept_vm % 64;
		if (prev_vm != NO_VM && w == (prev_vm & (MAX_VMS - 1)) / 64)
			word |= 1ULL << prev_vm % 64;
		bpf_for(i, 0, 64) {
			if (!word)
				break;
			look_at_vm(w * 64 + __builtin_ctzll(word) ?: MAX_VMS, seen, now);
			word &= word - 1;
		}
	}
	return seen->best;
}

#endif /* BATON_FIRST_BPF_H */
