/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VMs and host tasks that may run on some pCPUs alone, as in a cpuset, beside others that want
 * more than these have.
 *
 * They fall behind vnow then, which comes on elsewhere, until each is as far behind as it may be.
 * From there on its bound moves it on with vnow; if each were moved by its own, the bounds would
 * tell who goes first, and not the weights. So one VM leads on each pCPU: of those that are
 * confined, and want it, the one that may be furthest behind. By as much as its bound moves it on
 * the others come along, and each may be as far behind that VM as it may be behind vnow elsewhere.
 */
#ifndef BATON_CONFINED_BPF_H
#define BATON_CONFINED_BPF_H

#include "tree.bpf.h"

/* The VM that leads on this pCPU. */
static struct lead {
	u64 seen_at; /* ns; when it wanted this pCPU last */
	u64 gen; /* its slot may be another one's by now */
	u32 vm;
} __attribute__((aligned(64))) leads[MAX_CPUS];

static inline struct lead *lead_on(s32 cpu)
{
	return &leads[cpu & (MAX_CPUS - 1)];
}

/* That VM, if it has wanted @cpu within two turns. */
static struct vm_ctx *leader_on(s32 cpu, u64 now)
{
	const struct lead *l = lead_on(cpu);
	struct vm_ctx *vm = vm_slot(l->vm);

	return vm && vm->gen == l->gen && vm_is_confined(vm, nr_online) &&
			       vtime_before(now, l->seen_at + 2 * TURN_NS)
		       ? vm
		       : NULL;
}

/* How far those have come that @leader leads; NULL: all. */
static u64 level_of(const struct vm_ctx *leader)
{
	return leader && vm_behind(leader, vnow) ? leader->vtime : vnow;
}

/* vnow, or what it was when @leader was at its bound, if that is further behind since it waits. */
static u64 bound_of(const struct vm_ctx *leader)
{
	u64 bound = leader->vtime + vm_credit(leader);

	return vtime_before(bound, vnow) ? bound : vnow;
}

/*
 * How far one at @vtime comes along with @leader, which has the slot @led: if it was led by that
 * one @before, and has @seen it move so far.
 */
static u64 comes_by(u64 vtime, u32 before, u64 seen, const struct vm_ctx *leader, u32 led)
{
	u64 moved = leader->moved - seen, behind = vnow - vtime;

	if (before != led || (s64)moved <= 0 || (s64)behind <= 0)
		return 0;
	moved = led_by(moved, behind, vm_credit(leader));
	return moved < behind ? moved : behind;
}

static inline bool is_confined(const struct task_struct *p)
{
	return p->nr_cpus_allowed < nr_online;
}

/* The virtual time of @p, a host task that waits, for @cpu. */
static u64 vtime_on(struct task_struct *p, s32 cpu, u64 now)
{
	const struct vm_ctx *leader = is_confined(p) ? leader_on(cpu, now) : NULL;
	const struct task_ctx *t = leader ? task_ctx(p) : NULL;
	u64 vtime = p->scx.dsq_vtime;

	return t ? vtime + comes_by(vtime, t->led, t->seen_moved, leader, lead_on(cpu)->vm) : vtime;
}

/* The host task @t, which is confined, comes along on @cpu. How far the others have come there. */
verified_once u64 come_along(struct task_ctx *t __arg_nonnull, s32 cpu, u64 now)
{
	const struct vm_ctx *leader = leader_on(cpu, now);
	u32 led = leader ? lead_on(cpu)->vm : NO_VM;

	if (leader) {
		t->vtime += comes_by(t->vtime, t->led, t->seen_moved, leader, led);
		t->seen_moved = leader->moved;
	}
	t->led = led;
	return level_of(leader);
}

/* How far those have come that the host task @p competes with on @cpu. */
static inline u64 level_for(const struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	return is_confined(p) ? come_along(t, cpu, now) : vnow;
}

/*
 * As come_along(), of @vm. One that has just come stays as far behind as it was. Where others lead
 * on some of its pCPUs alone, it comes along with the one that it met last, unless it has all that
 * it wants, on the others.
 */
verified_once u64 vm_comes_along(struct vm_ctx *vm __arg_nonnull, s32 cpu, u64 now)
{
	struct vm_ctx *here = leader_on(cpu, now), *leader;
	bool meets = here && here != vm, wider;
	u32 led = here ? lead_on(cpu)->vm : NO_VM, before;
	u64 seen, by;

	if (meets)
		vm->led_at = now;
	leader = meets ? here : vm_slot(vm->led);
	wider = leader && vm->allowed > leader->allowed;
	if (!meets && (!wider || vtime_before(vm->led_at + 4 * TURN_NS, now))) {
		vm->led = led;
		return vnow;
	}
	if (!leader || (wider && vm->nr_queued <= 0))
		return vnow;
	if (!meets)
		led = vm->led;
	/* Of the pCPUs that come here at once, each moves it on by what it has seen. */
	seen = __sync_lock_test_and_set(&vm->seen_moved, leader->moved);
	before = __sync_lock_test_and_set(&vm->led, led);
	by = comes_by(vm->vtime, before, seen, leader, led);
	__sync_fetch_and_add(&vm->moved, by);
	if (before == NO_VM && !wider)
		by = level_of(leader) - vnow;
	__sync_fetch_and_add(&vm->vtime, by);
	return level_of(leader);
}

/* How far those have come that @vm competes with on @cpu. */
static inline u64 level_for_vm(struct vm_ctx *vm, s32 cpu, u64 now)
{
	return vm_is_confined(vm, nr_online) ? vm_comes_along(vm, cpu, now) : vnow;
}

/* As waits_here(), if it may run there: of those that are not bound the first one tells. */
static bool wants_cpu(const struct vm_ctx *vm, u32 slot, s32 cpu)
{
	struct task_struct *p;

	if (!waits_here(vm, slot, cpu))
		return false;
	if (!vm_is_confined(vm, nr_online) || vm->nr_queued <= vm->nr_bound)
		return true;
	p = __COMPAT_scx_bpf_dsq_peek(vm_dsq(slot));
	return p && bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* @vm, which has @slot, wants @cpu. */
static void want_lead(const struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	const struct vm_ctx *leader = leader_on(cpu, now);
	struct lead *l = lead_on(cpu);

	if (!vm_may_lead(vm, nr_online, now))
		return;
	/* Of equals the one with the lower slot, so that it is the same one on all of them. */
	if (leader && leader != vm &&
	    (vm_credit(leader) > vm_credit(vm) ||
	     (vm_credit(leader) == vm_credit(vm) && l->vm < slot)))
		return;
	l->vm = slot;
	l->gen = vm->gen;
	l->seen_at = now;
}

/*
 * Somebody is picked for @cpu: does the VM that leads there still wait? Or else the one in @slot,
 * which goes first?
 */
verified_once int look_at_lead(s32 cpu, u32 slot, u64 now)
{
	struct lead *l = lead_on(cpu);
	const struct vm_ctx *vm = vm_slot(l->vm);

	if (vm && vm->gen == l->gen && vm_may_lead(vm, nr_online, now) &&
	    wants_cpu(vm, l->vm, cpu)) {
		l->seen_at = now;
		return 0;
	}
	vm = vm_slot(slot);
	if (vm && vm_is_confined(vm, nr_online) && wants_cpu(vm, slot, cpu))
		want_lead(vm, slot, cpu, now);
	return 0;
}

#endif /* BATON_CONFINED_BPF_H */
