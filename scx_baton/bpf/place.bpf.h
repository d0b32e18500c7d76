/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task that becomes runnable goes: an idle pCPU, or the queue it waits in and the
 * pCPU that is preempted for it.
 */
#ifndef BATON_PLACE_BPF_H
#define BATON_PLACE_BPF_H

#include "idle.bpf.h"
#include "park.bpf.h"
#include "room.bpf.h"

/* The queue that @p waits in, which last ran on @cpu. */
static u64 queue_of(const struct task_struct *p, const struct task_ctx *t, const struct vm_ctx *vm,
		    s32 cpu)
{
	if (vm)
		return vm_dsq(t->vm);
	return is_bound(p) ? (u64)cpu : llc_dsq(cpu);
}

/*
 * A pCPU looks into the queue where @p waits now: one that it may preempt, or, if @new there, one
 * that has gone idle since it was looked for, and has not seen the queue.
 */
static void call_for(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, u64 now,
		     bool new)
{
	s32 idle = new ? scx_bpf_pick_idle_cpu(p->cpus_ptr, 0) : -EBUSY;

	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	else
		preempt_for(p, t, vm, now);
}

/*
 * @p is put back, as it has yielded to a sibling, while its VM's turn goes on. A pCPU that looked
 * for a vCPU of the VM in between has found none, and runs another VM's, in a younger turn: it is
 * taken back at once. At the next tick would be up to 4 ms later, during which the gang lacks one,
 * and whoever spins for it yields. Not where all pCPUs but this one run the VM.
 */
static bool rejoins_turn(const struct task_struct *p, const struct task_ctx *t,
			 const struct vm_ctx *vm, u64 now)
{
	return t->wait_for && vm_in_turn(vm, now) && vm->nr_running + 1 < cpus_for(p, vm);
}

/* A host task is about to wait: not for long, whatever it weighs. The slice that it gets. */
verified_once u64 limit_lead(const struct task_struct *p __arg_trusted,
			     struct task_ctx *t __arg_nonnull)
{
	u64 all = entities() >> 8, lead, at = vnow;
	s32 cpu = scx_bpf_task_cpu(p), waiting = host_waiting(cpu, is_bound(p));
	u32 cpus = is_bound(p) ? 1 : nr_online;

	/* Thousands that start at once are counted there as they come to run. */
	if (waiting > 0 && all < waiting)
		all = waiting;
	lead = host_lead(all, cpus);
	/* One that is bound is new there, or was elsewhere: the others can be far behind vnow. */
	if (is_bound(p)) {
		at = competing_level(p, t, cpu, scx_bpf_now());
		if (host_lag(t->weight) < lead)
			lead = host_lag(t->weight);
	} else if (t->queued_host - 1 < MAX_CPUS && vtime_before(t->vtime, vnow)) {
		/* It waited for one pCPU alone, may run elsewhere now: owed nothing for that. */
		t->vtime = vnow;
	}
	if (vtime_before(at + lead, t->vtime))
		t->vtime = at + lead;
	if (host_is_crowded(all, cpus))
		return crowd_slice(is_bound(p) && waiting > 0 ? waiting : all, cpus);
	return HOST_SLICE_NS;
}

/*
 * The timer's: all tasks whose cgroups have CPU time again go back to their queues, some each time.
 * Those that have none go to the end, so that the next time begins behind them.
 */
static int unpark(void *map, u32 *key, struct park_timer *timer)
{
	u64 now = scx_bpf_now(), release, again;
	struct task_struct *p;
	struct task_ctx *t;
	struct vm_ctx *vm;
	u32 looked = zero;

	parked_until = 0;
	barrier();
	if (!parked_left) {
		next_release = 0;
		round_parks = *(volatile u64 *)&nr_parks;
		parked_left = scx_bpf_dsq_nr_queued(PARKED_DSQ);
	}
	bpf_for_each(scx_dsq, p, PARKED_DSQ, 0) {
		if (!parked_left || looked++ >= MAX_UNPARKS)
			break;
		parked_left--;
		t = task_ctx(p);
		if (!t)
			continue;
		release = throttled_until(t, now);
		if (release) {
			make_earlier(&next_release, release);
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, PARKED_DSQ, 0);
			continue;
		}
		vm = vm_of(t);
		if (!vm)
			scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, limit_lead(p, t));
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->vtime);
		/* First: another pCPU that finds it in its queue may park it again. */
		unparked(t, vm, now);
		if (!scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p,
					    queue_of(p, t, vm, scx_bpf_task_cpu(p)), 0) ||
		    t->parked_at)
			continue;
		join_queue(p, t, vm, now);
		/* Another pCPU may have been faster; and it may have slept since. */
		if (scx_bpf_task_running(p) || !(p->scx.flags & SCX_TASK_QUEUED))
			leave_queue(t, now);
		call_for(p, t, vm, now, true);
	}
	if (parked_left && looked > MAX_UNPARKS) {
		set_timer(now + UNPARK_REST_NS, now);
		return 0;
	}
	/* Some may have gone meanwhile. */
	parked_left = 0;
	release = *(volatile u64 *)&next_release;
	again = now + (release ? PARK_MISSED_NS : PARK_AGAIN_NS);
	if (round_parks != seen_parks && (!release || vtime_before(again, release)))
		release = again;
	seen_parks = round_parks;
	if (release)
		set_timer(release, now);
	return 0;
}

static s32 init_park_timer(void)
{
	u32 only = 0;
	struct park_timer *timer = bpf_map_lookup_elem(&park_timers, &only);

	return timer ? init_timer(timer, park_timers, unpark) : -ENOENT;
}

/*
 * What has preempted @p on @cpu runs for a moment, and then @p goes on there. A vCPU, after a bound
 * thread of the kernel, 50 us later: an idle pCPU needs longer to leave its C-state, up to 400 us.
 * Its slice may be over: where nobody waits it runs on until a tick finds out.
 * One that is bound could not move, and others may go before it by now. A host task, after a visit,
 * if the VM that visits has a vCPU for each pCPU: elsewhere it would take that of a sibling.
 */
static bool goes_on_here(const struct task_struct *p, const struct task_ctx *t,
			 const struct vm_ctx *vm, s32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u32 brief = vm ? BRIEF_KERNEL : BRIEF_PART;
	const struct vm_ctx *visits = vm ? NULL : vm_slot(bound_queue(cpu)->pid_vm);

	if (!vm && (!visits || (u32)visits->nr_vcpus < nr_near(cpu)))
		return false;

	return !is_bound(p) && c->brief == brief && !c->boost_pid && !c->resume_pid &&
	       t->last_cpu == cpu && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       (vm || vtime_before(now + START_NS, c->donates_until));
}

/*
 * The vCPU @p waits already, as one that is bound, or not, or ran near another cache than @cpu: it
 * would not be seen where it may run now.
 */
static bool moves_queue(const struct task_struct *p, const struct task_ctx *t, s32 cpu)
{
	u32 bound = is_bound(p) ? cpu + 1 : 0;

	return t->queued_at &&
	       (t->queued_cpu != bound || (t->queued_llc & ~KEPT_NEAR) != llc_of(cpu) + 1);
}

/* How far those have come that @p, or its VM, competes with as it wakes on @cpu. */
static u64 level_at(const struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, s32 cpu,
		    u64 now)
{
	if (vm)
		return level_for_vm(vm, cpu, now);
	return is_bound(p) ? competing_level(p, t, cpu, now) : level_for(p, t, cpu, now);
}

static void enqueue_task(struct task_struct *p, struct task_ctx *t, u64 enq_flags)
{
	struct vm_ctx *vm = vm_now(t);
	u64 now = scx_bpf_now(), since, release, slice, first;
	s32 cpu = scx_bpf_task_cpu(p), idle;
	bool wakes = (enq_flags & SCX_ENQ_WAKEUP) || is_new(t);
	struct cpu_ctx *c = cpu_ctx(cpu);

	t->boosted = BOOST_NONE;
	/* It waits already, and comes again with another affinity. */
	since = vm && moves_queue(p, t, cpu) ? t->queued_at : 0;
	if (since)
		leave_queue(t, now);
	else if (is_kept(t))
		share_near(t, (t->queued_llc & ~KEPT_NEAR) - 1, t->queued_vm);
	refresh_weight(p, t, vm, now);
	/* As above, out of the queue of those without CPU time. */
	if (t->parked_at)
		unparked(t, vm, now);
	if (wakes)
		wake(t, vm, level_at(p, t, vm, cpu, now), now);
	release = throttled_until(t, now);
	if (release) {
		stay(t);
		park(p, t, release, now, enq_flags);
		return;
	}
	if (t->leaves_for && bpf_cpumask_test_cpu(t->leaves_for - 1, p->cpus_ptr)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | (t->leaves_for - 1), idle_slice(vm, now),
				   enq_flags);
		t->leaves_for = 0;
		stat_add(STAT_CORES_LEFT, 1);
		return;
	}
	stay(t);

	/* Bound kernel threads are part of the kernel's own machinery: before any vCPU. */
	if ((p->flags & PF_KTHREAD) && is_bound(p)) {
		if (c->runs == RUNS_VCPU) {
			c->brief = count(COUNT_WAITING) ? BRIEF_VISIT : BRIEF_KERNEL;
			if (vtime_before(c->kept_until, now + BRIEF_NS))
				c->kept_until = now + BRIEF_NS;
			enq_flags |= SCX_ENQ_PREEMPT;
		}
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, HOST_SLICE_NS, enq_flags);
		return;
	}

	if (!wakes && goes_on_here(p, t, vm, cpu, now)) {
		/* As one that waits for any pCPU: the visitor's VM pays for all that it has. */
		if (!vm)
			join_queue(p, t, vm, now);
		else
			c->goes_on = true;
		slice = vm ? idle_slice(vm, now) : c->donates_until - now;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, enq_flags);
		return;
	}

	/* select_cpu() has looked for an idle pCPU already, where it ran: not for a bound task. */
	if (is_bound(p) || !__COMPAT_is_enq_cpu_selected(enq_flags)) {
		idle = take_idle_cpu_for(p, cpu);
		if (idle >= 0) {
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, idle_slice(vm, now),
					   enq_flags);
			return;
		}
	}

	if (wakes && vm && (is_bound(p) || vm_behind(vm, vnow)) &&
	    wakes_as_visitor(p, t, vm, enq_flags, now))
		return;

	slice = vm ? HOST_SLICE_NS : limit_lead(p, t);
	if (vm && peek_vtime(vm_dsq(t->vm), &first))
		t->vtime = vcpu_limit(t->vtime, first);
	if (vm && !wakes)
		keep(p, t, cpu);
	join_queue(p, t, vm, now);
	if (since)
		t->queued_at = since;
	scx_bpf_dsq_insert_vtime(p, queue_of(p, t, vm, cpu), slice, t->vtime, enq_flags);

	/*
	 * This pCPU goes idle, and would not look again. The only one of a bound task has not gone
	 * idle since it was looked at: its runqueue is locked.
	 */
	if (!wakes && (enq_flags & SCX_ENQ_LAST))
		scx_bpf_kick_cpu(cpu, 0);
	else if (wakes || (vm && rejoins_turn(p, t, vm, now)))
		call_for(p, t, vm, now, wakes && !is_bound(p));
}

#endif /* BATON_PLACE_BPF_H */
