/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a pCPU runs next: whoever is given the pCPU, goes before all others, or is the first one in
 * order.
 */
#ifndef BATON_PICK_BPF_H
#define BATON_PICK_BPF_H

#include "bound.bpf.h"
#include "given.bpf.h"
#include "host.bpf.h"
#include "room.bpf.h"

/*
 * VMs tried one after the other, in order, when affinity keeps the first ones off. Beyond
 * that, all in the order of their slots: a search in order is quadratic.
 */
#define MAX_TRIES 8

/* VMs, and vCPUs of each, that are looked at in one pick, in case they starve. */
#define MAX_STARVED_WALK 8
#define MAX_STARVED_VCPUS 4

/*
 * A vCPU that has waited too long, of a VM that may well have had its share meanwhile. Those
 * furthest behind are the first in their VM's queue; a few are looked at each time. @waiting:
 * vCPUs that wait in all.
 */
verified_once int dispatch_starved(s32 cpu, u64 waiting, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 i, slot, seen, end = vm_end(), walk = end - 1;
	struct task_struct *p;
	struct task_ctx *t;
	struct vm_ctx *vm;
	bool moved = false;

	if (walk > MAX_STARVED_WALK)
		walk = MAX_STARVED_WALK;
	bpf_for(i, 0, walk) {
		slot = c->starved >= 1 && c->starved < end ? c->starved : 1;
		c->starved = slot + 1;
		vm = vm_slot(slot);
		if (!vm || vm->nr_queued <= 0)
			continue;
		seen = zero;
		bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
			t = task_ctx(p);
			if (t && !throttled_until(t, now) &&
			    starves(t->queued_at, now, waiting, nr_online) &&
			    bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
				scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, TURN_NS);
				moved = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			}
			if (moved || ++seen >= MAX_STARVED_VCPUS)
				break;
		}
		if (moved)
			return true;
	}
	return false;
}

/* @cpu would go idle: it takes a vCPU that is kept for another pCPU of this cache. */
verified_once int dispatch_kept(s32 cpu, u64 now)
{
	u32 i, looks = nr_near(cpu) < MAX_LOOKS ? nr_near(cpu) : MAX_LOOKS, slot;
	struct cpu_ctx *c;
	struct vm_ctx *vm;
	s32 kept;

	bpf_for(i, 1, looks) {
		c = cpu_ctx(near_cpu(cpu, i));
		kept = *(volatile s32 *)&c->kept;
		slot = c->kept_vm;
		vm = kept ? vm_slot(slot) : NULL;
		if (!vm || !start_vcpu(kept, slot, vm_slice(vm, false, cpu, now), BOOST_NONE, cpu))
			continue;
		join_turn(slot, vm->nr_queued - 1, cpu, now);
		return true;
	}
	return false;
}

/* @cpu would go idle, where @waiting vCPUs wait in all. */
verified_once int dispatch_rest(s32 cpu, u64 waiting, u64 now)
{
	/* Known as it is loaded: one LLC is no loop. */
	if ((nr_llcs > 1 && steal_host_task(cpu)) || (waiting && dispatch_kept(cpu, now)))
		return true;
	if (nr_llcs > 1 && waiting)
		look_when_idle(cpu);
	return false;
}

/* None of those that go first may run here: any VM that may, round robin, from @c's last on. */
static bool dispatch_any(struct cpu_ctx *c, s32 cpu, u64 now)
{
	u32 i, slot, end = vm_end();

	bpf_for(i, 0, end) {
		slot = around(c->vm + 1 + i, end);
		if (dispatch_vcpu(slot, cpu, false, now))
			return true;
	}
	return false;
}

/*
 * Somebody goes before all others on @cpu: one that waits for this pCPU alone, where a host task
 * of @weight leaves it (0: none does), one that has waited for too long, or one of the VM
 * @invited.
 */
verified_once int dispatch_urgent(s32 cpu, u32 weight, u32 invited, u64 waiting, u64 now)
{
	if (bound_queue(cpu)->nr > 0 && dispatch_bound(cpu, weight, now))
		return true;
	return (waiting && dispatch_starved(cpu, waiting, now)) ||
	       (invited && dispatch_vcpu(invited, cpu, false, now));
}

/*
 * May @prev, which has run on @cpu, not go on there? One that polls gives way to whoever has
 * @asked.
 */
static bool must_leave(const struct task_struct *prev, const struct task_ctx *t, s32 cpu,
		       bool asked, u64 now)
{
	return !bpf_cpumask_test_cpu(cpu, prev->cpus_ptr) || t->leaves_for ||
	       throttled_until(t, now) || (asked && has_halted(t) && !t->slept_at);
}

/* Is the first vCPU that waits for the VM in @slot behind @t, a sibling? */
static bool sibling_is_behind(u32 slot, const struct task_ctx *t)
{
	u64 first;

	return peek_vtime(vm_dsq(slot), &first) && vtime_before(first, t->vtime);
}

/* The vCPU @p of the VM in @slot goes on, on @cpu. */
verified_once int go_on(struct task_struct *p __arg_trusted, struct vm_ctx *vm __arg_nonnull,
			u32 slot, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_ctx *t = task_ctx(p);
	u64 slice;

	if (!t)
		return 0;
	/* A visitor that goes on is none any more: a tick looks whether it is to leave. */
	t->boosted = BOOST_NONE;
	slice = vm_slice(vm, vm_crowded(vm, vm->nr_queued, cpus_for(p, vm)), cpu, now);
	runs_until(p, vm, cpu, slice, now);
	/* Who asked has gone elsewhere. */
	c->brief = 0;
	c->donates_until = now + slice;
	scx_bpf_task_set_slice(p, slice);
	join_turn(slot, vm->nr_queued, cpu, now);
	c->turn_start = vm->turn_start;
	return 0;
}

/*
 * None of those that go first may run on @cpu: @any VM that may, or a host task, or somebody from
 * afar.
 */
verified_once int dispatch_last(s32 cpu, bool any, u64 waiting, u64 now)
{
	return (any && dispatch_any(cpu_ctx(cpu), cpu, now)) || scx_bpf_dsq_move_to_local(cpu, 0) ||
	       scx_bpf_dsq_move_to_local(llc_dsq(cpu), 0) || dispatch_rest(cpu, waiting, now);
}

/* Who goes first on a pCPU: what is known of that when one after the other is tried. */
struct order {
	struct host_pick host;
	struct vms_seen vms;
	u64 least; /* vtime of all VMs */
	u64 now;
	u32 slot; /* of the VM that is tried, after the one that went before it in order */
	u32 prev_vm;
	bool again;
	bool choice; /* the one that is furthest behind tells how far all have come */
};

/*
 * Does the host task that goes first do so before @vm? @prev is what is known of what has run. The
 * task's weight is looked up only where the VM has its turn.
 */
static bool host_before(const struct order *o, const struct vm_ctx *vm, const struct task_ctx *prev)
{
	bool waits;

	if (!o->host.found)
		return false;
	waits = vm_has_turn(vm, vnow, o->now) && can_wait(first_weight(&o->host, prev));
	return host_goes_first(o->host.vtime, vm->vtime, waits, vnow);
}

/* Start a vCPU that waits in another LLC, if that goes before those that are first here. */
static bool dispatch_far(const struct order *o, const struct task_ctx *prev, s32 cpu)
{
	u32 far = far_vm(o->slot, o->prev_vm, cpu, !o->host.found, o->now);
	struct vm_ctx *vm = vm_slot(far);

	return vm && !host_before(o, vm, prev) && dispatch_vcpu(far, cpu, false, o->now);
}

/*
 * Try the VM that is next in @o, or the host task that goes before it; @t is what is known of
 * @prev, if that may go on: it does unless a sibling that may run here is behind it. False: in
 * vain.
 */
verified_once int try_next(struct task_struct *prev __arg_trusted __arg_nullable,
			   const struct task_ctx *t, s32 cpu, struct order *o __arg_nonnull)
{
	bool starts, goes_on;
	struct vm_ctx *vm;
	u64 host;

	if (o->again)
		o->slot = next_vm(o->slot, o->prev_vm, cpu, o->now, &o->vms);
	vm = vm_slot(o->slot);
	host = o->host.vtime - o->host.later;
	if (o->host.found && (!vm || host_before(o, vm, t))) {
		if (o->choice)
			raise_vnow(llc_of(cpu), host, o->now);
		if (start_host(&o->host, cpu, prev))
			return true;
		o->host.found = false;
	}
	if (!vm)
		return false;
	goes_on = t && o->slot == o->prev_vm && !kept_out(t, o->now);
	starts = (!goes_on || sibling_is_behind(o->slot, t)) &&
		 dispatch_vcpu(o->slot, cpu, false, o->now);
	if ((starts || goes_on) && o->choice)
		/* A host task that waits for the VM's turn to end can be behind that. */
		raise_vnow(llc_of(cpu),
			   o->host.found && vtime_before(host, o->least) ? host : o->least, o->now);
	if (!starts && goes_on && prev)
		go_on(prev, vm, o->slot, cpu, o->now);
	o->again = true;
	return starts || goes_on;
}

/*
 * Whoever is furthest behind of the host tasks that may run on @cpu and the VMs, where a VM in its
 * turn goes before other VMs. @prev is a candidate like any, if @t, what is known of it, is given.
 */
verified_once int dispatch_order(struct task_struct *prev __arg_trusted __arg_nullable,
				 const struct task_ctx *t, s32 cpu, u64 waiting, u64 now)
{
	struct order o = {.vms.llc = llc_of(cpu), .now = now, .prev_vm = NO_VM, .slot = NO_VM};
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 try;

	if (t && vm_of(t)) {
		o.prev_vm = t->vm;
	} else if (t) {
		o.host.found = o.host.runs = true;
		o.host.vtime = t->vtime;
		o.host.seen = 1;
	}
	consider_host(&o.host, cpu, now);
	if (waiting || o.prev_vm != NO_VM)
		o.slot = next_vm(NO_VM, o.prev_vm, cpu, now, &o.vms);
	if (nr_llcs > 1 && waiting && dispatch_far(&o, t, cpu))
		return true;
	o.least = o.vms.least;
	look_at_lead(cpu, o.slot, now);
	/* Who sleeps now may have been here a moment ago. */
	o.choice = o.host.seen + o.vms.nr > 1 || now - c->mixed_at < 2 * TURN_NS;

	/* Hosts without VMs, and pCPUs that go idle, come here most often. */
	if (o.slot == NO_VM) {
		if (o.host.found && (o.choice || now - c->vm_ran_at < 2 * TURN_NS))
			raise_vnow(llc_of(cpu), o.host.vtime - o.host.later, now);
		if (!o.host.found || !start_host(&o.host, cpu, prev))
			dispatch_rest(cpu, waiting, now);
		return true;
	}

	bpf_for(try, 0, MAX_TRIES) {
		if (try_next(prev, t, cpu, &o))
			return true;
		if (o.slot == NO_VM)
			break;
	}
	return dispatch_last(cpu, o.slot != NO_VM, t ? 0 : waiting, now);
}

/*
 * The next task for @cpu, where @prev has used up its slice, sleeps, or was preempted: who is
 * boosted, or goes before all others, or else the first one in order.
 */
static void pick_next(s32 cpu, struct task_struct *prev)
{
	bool prev_runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	struct task_ctx *prev_t = prev_runnable ? task_ctx(prev) : NULL;
	u64 now = scx_bpf_now(), waiting = count(COUNT_WAITING);
	struct cpu_ctx *c = cpu_ctx(cpu);
	bool asked = c->kicked;
	u32 invited;
	s32 yielded;

	c->kicked = 0;
	invited = take_invitation(c);
	if (prev_t)
		charge(prev, prev_t, cpu, now);
	yielded = c->boost_pid;
	if ((c->boost_pid || c->resume_pid) && dispatch_given(cpu, asked, now))
		return;
	if (yielded && prev_t)
		prev_t->wait_for = 0;
	if ((waiting || invited) &&
	    dispatch_urgent(cpu, prev_t && !vm_of(prev_t) ? prev_t->weight : 0, invited, waiting,
			    now))
		return;
	if (prev_t && must_leave(prev, prev_t, cpu, asked, now)) {
		prev_t = NULL;
		/*
		 * One that exits, or must not migrate now, is put back here without enqueue(), and
		 * nobody would look.
		 */
		scx_bpf_kick_cpu(cpu, 0);
	}
	/* This pCPU goes idle: known as it is loaded, one LLC alone has no other to look at. */
	if (nr_llcs == 1 && !prev_t && !waiting && host_waiting(cpu, true) <= 0 &&
	    host_waiting(cpu, false) <= 0)
		return;
	/* A spinner that is kept out has the pCPU rather than nobody. */
	if (!dispatch_order(prev, prev_t, cpu, waiting, now) && prev_t)
		scx_bpf_task_set_slice(prev, KEEP_OUT_NS);
}

/*
 * At each tick of a vCPU: may the VM, or the host task, that goes first take this pCPU? It may have
 * come while it could not.
 */
verified_once int overdue(s32 cpu, u64 now)
{
	struct vms_seen seen = {.llc = llc_of(cpu)};
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 best, far = NO_VM;
	struct vm_ctx *vm;

	/*
	 * Another pCPU may be on its way to one that has just woken. Beside several that are bound,
	 * and fall behind vnow without a bound, a bound vCPU has its part (part_of_bound()).
	 */
	if ((!c->runs_bound || host_waiting(cpu, true) == 1) &&
	    host_is_due(cpu, vm_slot(c->vm), now - START_NS, now))
		return true;
	if (!count(COUNT_WAITING))
		return false;
	best = next_vm(NO_VM, NO_VM, cpu, now, &seen);
	if (bound_queue(cpu)->nr > 0 && bound_due(cpu, 0, now))
		return true;
	if (nr_llcs > 1)
		far = far_vm(best, NO_VM, cpu, false, now);
	if (far != NO_VM)
		best = far;
	vm = vm_slot(best);

	return vm && vm_takes(cpu, best, vm, now);
}

#endif /* BATON_PICK_BPF_H */
