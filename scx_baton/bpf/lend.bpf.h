/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that waits for a pCPU is sent an IPI: a sibling lends it the time to take it, before the
 * sender has spun for long, or the sender itself. The VM as a whole gets no more than it had.
 */
#ifndef BATON_LEND_BPF_H
#define BATON_LEND_BPF_H

#include "room.bpf.h"
#include "start.bpf.h"
#include "yield.bpf.h"

/* Where the thread @pid ran last; below 0 if it is gone. */
static s32 cpu_of(s32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	s32 cpu = -1;

	if (p) {
		cpu = scx_bpf_task_cpu(p);
		bpf_task_release(p);
	}
	return cpu;
}

/*
 * The vCPU that @owing names waits: it runs on @cpu for as long as an IPI takes, and then what runs
 * there goes on.
 */
verified_once int give(u32 slot, u64 owing, s32 cpu, u32 why)
{
	u64 key = vcpu_key(slot, owing >> 32);
	struct vcpu_ctx *v = bpf_map_lookup_elem(&vcpus, &key);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_slot(slot);
	bool part = why == BOOST_VISIT && shares_part(cpu, slot);

	/* Two may have sent it an IPI at once: one serves it. */
	if (!v || __sync_val_compare_and_swap(&v->lend_pending, 1, 0) != 1 ||
	    !lends(cpu, slot, why == BOOST_VISIT))
		return 0;
	/* Before that pCPU can look. */
	if (c->runs == RUNS_VCPU)
		resumes_later(c, c->pid, c->vm);
	if (!start_vcpu((s32)owing, slot, BOOST_IPI_NS, why, cpu)) {
		c->resume_pid = 0;
		return 0;
	}
	if (vm && part)
		spend_part(vm, cpu, scx_bpf_now());
	stat_add(why == BOOST_VISIT ? STAT_VISITS : STAT_LENT, 1);
	preempt(cpu);
	/* A timer ends it, also where no vCPU goes on afterwards: a tick may be 4 ms later. */
	if (c->resume_pid)
		gives_back(cpu, scx_bpf_now());
	else
		ends_in(cpu, scx_bpf_now(), BOOST_IPI_NS);
	return 0;
}

/*
 * The pCPU @cpu is lent to one that owes @sender and may run there. False: there is nobody who
 * could be lent any.
 */
verified_once int lend_cpu(u32 slot, u32 sender, s32 cpu)
{
	u64 owing;

	if (!lends(cpu, slot, false))
		return true;
	owing = find_owing(slot, sender, cpu, true);
	if (owing)
		give(slot, owing, cpu, BOOST_SIBLING);
	return owing || find_owing(slot, sender, -1, true);
}

/*
 * Does @p, which waits, lose more by a move to @cpu than by waiting for a moment? It ran near
 * another cache, or something short has taken the pCPU that it is kept for.
 */
static bool waits_briefly(const struct task_struct *p, const struct task_ctx *t, s32 cpu)
{
	bool far = llc_of(scx_bpf_task_cpu(p)) != llc_of(cpu);
	u64 least = far ? FAR_WAIT_NS : is_kept(t) ? BRIEF_NS : 0;

	return vtime_before(scx_bpf_now(), t->queued_at + least);
}

/* vCPU @sender of the VM in @slot spins on @cpu: one that owes it takes its IPI there. False: none
 * may. */
verified_once int lend_own(u32 slot, u32 sender, s32 cpu)
{
	u64 owing = lends(cpu, slot, false) ? find_owing(slot, sender, cpu, true) : 0;
	struct task_struct *p = owing ? bpf_task_from_pid((s32)owing) : NULL;
	struct task_ctx *t;
	bool stays;

	if (!p)
		return 0;
	t = task_ctx(p);
	stays = !t || waits_briefly(p, t, cpu);
	bpf_task_release(p);
	if (!stays)
		give(slot, owing, cpu, BOOST_SIBLING);
	return true;
}

/*
 * Those that owe @sender, and that no sibling can lend a pCPU, visit those where they ran: as
 * vm_may_visit() says, or in their part; beside another VM, which may be due as much, only so.
 * A sender that @spins on has asked for the former before. In how many ns one has its part that has
 * none now, and is to be looked at again; else 0.
 */
verified_once u64 visit_for(u32 slot, u32 sender, bool spins)
{
	struct vm_ctx *vm = vm_slot(slot);
	u64 owing, in, now = scx_bpf_now();
	bool may, part;
	u32 i;
	s32 cpu;

	if (!vm)
		return 0;
	bpf_for(i, 0, MAX_OWING) {
		owing = find_owing(slot, sender, -1, true);
		cpu = owing ? cpu_of((s32)owing) : -1;
		if (cpu < 0)
			break;
		may = vm_may_visit(vm, vnow);
		part = shares_part(cpu, slot);
		if (!part && (spins || !may))
			break;
		part = part && (!may || cpu_ctx(cpu)->runs == RUNS_VCPU);
		in = part ? part_in(vm, cpu, now) : 0;
		if (in)
			return in;
		give(slot, owing, cpu, BOOST_VISIT);
	}
	return 0;
}

/* The timer's: each of those that owe the sender gets a sibling's pCPU, as far as they go. */
static int lend(void *map, int *key, struct lend_timer *at)
{
	u32 slot = at->sender >> 32, sender = at->sender, i;
	/* What spins on has been here before. */
	u32 looks = at->spins ? 0 : nr_cpu_ids < MAX_LOOKS ? nr_cpu_ids : MAX_LOOKS;
	u64 again;
	s32 cpu;

	if (runs_on(at->cpu)->vcpu != at->sender)
		return 0;
	if (at->spins && lend_own(slot, sender, at->cpu))
		return 0;
	bpf_for(i, 1, looks) {
		cpu = around(at->cpu + i, nr_cpu_ids);
		if (!lend_cpu(slot, sender, cpu))
			break;
	}
	again = visit_for(slot, sender, at->spins);
	if (again) {
		at->spins = true;
		bpf_timer_start(&at->timer, again, 0);
	}
	return 0;
}

static s32 init_lend_timer(s32 cpu)
{
	struct lend_timer *at = bpf_map_lookup_elem(&lend_timers, &cpu);

	/* What was not initialized cannot be started. */
	if (!yields_for(YIELD_SENT))
		return 0;
	if (!at)
		return -ENOENT;
	at->cpu = cpu;
	return init_timer(at, lend_timers, lend);
}

#endif /* BATON_LEND_BPF_H */
