/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which vCPU of a VM starts on a pCPU, and that it does.
 */
#ifndef BATON_START_BPF_H
#define BATON_START_BPF_H

#include "first.bpf.h"
#include "park.bpf.h"

/* vCPUs looked at to find one that ran here last. */
#define MAX_CACHE_WALK 16

/* Does @cpu run a vCPU that gives way to one of @vm, which begins a turn and waits there? */
static bool may_summon(const struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	return c->runs == RUNS_VCPU && !c->kicked && waits_here(vm, slot, cpu) &&
	       vm_takes(cpu, slot, vm, now);
}

/*
 * @vm begins a turn and has @want more vCPUs in its queue: take back the pCPUs of VMs whose
 * turn is over too, so that the siblings start together. A turn that still runs is left
 * alone, so nobody pays for the gang, and a pCPU where none of the siblings may run, too.
 */
static void summon_siblings(struct vm_ctx *vm, u32 slot, s32 want, s32 this_cpu, u64 now)
{
	u32 llc, place;
	s32 cpu;

	if (want <= 0 || vm->spread)
		return;
	bpf_for(llc, 0, nr_llcs) {
		if (*waiting_near(llc, slot) <= 0)
			continue;
		bpf_for(place, llc_first[llc & (MAX_LLCS - 1)],
			llc_first[(llc & (MAX_LLCS - 1)) + 1]) {
			cpu = llc_cpus[place & (MAX_CPUS - 1)];
			if (cpu == this_cpu || !may_summon(vm, slot, cpu, now))
				continue;
			preempt(cpu);
			if (--want <= 0)
				return;
		}
	}
}

/* A vCPU of the VM is about to run on @cpu, and @queued more wait. */
verified_once int join_turn(u32 slot, s32 queued, s32 cpu, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);

	if (!vm || !vm_join_turn(vm, now))
		return 0;
	stat_add(STAT_TURNS, 1);
	summon_siblings(vm, slot, queued, cpu, now);
	return 0;
}

/* Of the vCPUs of a VM that wait, which ones are looked at, one pass after the other. */
enum pass {
	PASS_CACHED, /* 0; ran here last: their state is in this pCPU's caches and VMCS */
	PASS_NEAR, /* ran near */
	PASS_ANY,
	PASS_KEPT_OUT, /* spinners, too, that wait for somebody else to run */
	NR_PASSES,
};

/* A look along the vCPUs of the VM in @slot that wait. */
struct walk_queue {
	u64 now;
	u64 first_vtime;
	u64 slice; /* of the one that starts */
	u64 release; /* until when one is parked */
	u32 slot;
	u32 pass; /* enum pass */
	u32 seen;
	bool visits;
};

/* What comes of one of them. */
enum walked { WALK_ON, WALK_PARKS, WALK_STARTS, WALK_ENDS };

/* May @p start on @cpu? */
verified_once int look_at_vcpu(struct task_struct *p __arg_trusted, s32 cpu,
			       struct walk_queue *w __arg_nonnull)
{
	struct task_ctx *t = task_ctx(p);
	struct vm_ctx *vm;
	s32 leaves;

	if (!t || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return WALK_ON;
	if ((w->pass != PASS_KEPT_OUT && kept_out(t, w->now)) || (is_kept(t) && t->last_cpu != cpu))
		return WALK_ON;
	w->release = throttled_until(t, w->now);
	if (w->release)
		return WALK_PARKS;
	if (w->pass <= PASS_NEAR) {
		if (!w->seen++)
			w->first_vtime = t->vtime;
		if (w->seen > MAX_CACHE_WALK ||
		    vtime_before(w->first_vtime + (w->pass == PASS_CACHED ? CACHE_WINDOW_NS
									  : NEAR_WINDOW_NS),
				 t->vtime))
			return WALK_ENDS;
		if (w->pass == PASS_CACHED ? t->last_cpu != cpu : t->queued_llc != llc_of(cpu) + 1)
			return WALK_ON;
	}
	vm = vm_slot(w->slot);
	if (!vm)
		return WALK_ENDS;
	/* Who gives way to a sibling waits, too. */
	leaves = runs_vm(cpu, w->slot);
	if (w->visits)
		w->slice = vm_visit(vm, vnow);
	else
		w->slice = vm_slice(vm, vm_crowded(vm, vm->nr_queued - 1 + leaves, cpus_for(p, vm)),
				    cpu, w->now);
	return WALK_STARTS;
}

/* Start the first one of the VM on @cpu that @pass looks at. */
verified_once int dispatch_pass(u32 slot, s32 cpu, u32 pass, bool visits, u64 now)
{
	struct walk_queue w = {.now = now, .slot = slot, .pass = pass, .visits = visits};
	struct task_struct *p;
	struct task_ctx *t;
	u32 walked;

	bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
		walked = look_at_vcpu(p, cpu, &w);
		if (walked == WALK_ON)
			continue;
		if (walked == WALK_ENDS)
			break;
		if (walked == WALK_PARKS) {
			park_from(BPF_FOR_EACH_ITER, p, w.release, now);
			continue;
		}
		scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, w.slice);
		if (!scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0))
			continue;
		t = task_ctx(p);
		/* It begins to run no earlier: this pCPU's runqueue is locked. */
		if (t && visits)
			t->boosted = BOOST_VISIT;
		return true;
	}
	return false;
}

/*
 * Start one vCPU of the VM on @cpu: of those that are level, the one that ran here last, else the
 * one furthest behind. For a turn, or @visits.
 */
verified_once int dispatch_vcpu(u32 slot, s32 cpu, bool visits, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);
	u32 pass;

	if (!vm || vm->nr_queued <= 0)
		return false;
	for (pass = zero; pass < NR_PASSES; pass++) {
		if ((pass == PASS_NEAR && nr_llcs == 1) ||
		    !dispatch_pass(slot, cpu, pass, visits, now))
			continue;
		/* The one that was found counts as queued until it runs. */
		if (!visits)
			join_turn(slot, vm->nr_queued - 1, cpu, now);
		return true;
	}
	return false;
}

/*
 * The thread @pid runs next on @cpu, for @slice and because of @why, if it waits for the VM in
 * @slot and may run there.
 */
verified_once int start_vcpu(s32 pid, u32 slot, u64 slice, u32 why, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct bpf_iter_scx_dsq it;
	struct task_ctx *t;
	bool moved = false;

	if (!p)
		return false;
	t = task_ctx(p);
	if (!t || t->queued_vm != slot || (t->quota && throttled_until(t, scx_bpf_now())))
		goto out;
	t->boosted = why;
	/*
	 * Its affinity is looked at while the iterator is open: a task that was put back with
	 * another one since then is refused by the move.
	 */
	if (!bpf_iter_scx_dsq_new(&it, vm_dsq(slot), 0) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		scx_bpf_dsq_move_set_slice(&it, slice);
		moved = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL_ON | cpu, SCX_ENQ_HEAD);
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (!moved)
		t->boosted = BOOST_NONE;
out:
	bpf_task_release(p);
	return moved;
}

#endif /* BATON_START_BPF_H */
