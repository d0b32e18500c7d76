/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Room for a task that wakes, where no pCPU is idle: whom it preempts.
 */
#ifndef BATON_ROOM_BPF_H
#define BATON_ROOM_BPF_H

#include "first.bpf.h"

/*
 * pCPUs looked at for a task that wakes, of those that share the cache of its last one: on a host
 * of hundreds, looking at all of them would take longer than the wake-up, and those of another
 * cache do not look into the queue of a host task.
 */
#define MAX_LOOKS 32

/* Once one is found that may be preempted, this many more are looked at for a better one. */
#define MORE_LOOKS 8

/* What a task that wakes finds on a pCPU, the better the higher. */
enum room {
	ROOM_NONE,
	ROOM_IN_GANG, /* it may preempt what runs there, one of a whole gang */
	ROOM_TAKEN, /* another one that it may preempt */
	ROOM_POLLS, /* a vCPU that has halted: it costs nobody anything */
};

/*
 * The best room that was found, for a vCPU of the VM in @slot, or else a host task at @vtime that
 * has the @weight.
 */
struct room_found {
	u64 vtime;
	u64 now;
	u32 slot;
	u32 weight;
	u32 room; /* enum room */
	s32 cpu;
	u32 enough; /* nothing better is looked for */
	u32 bound; /* it may run on one pCPU alone */
	u32 more; /* looks, with the first that may be preempted */
};

/*
 * May the waking task preempt what @cpu runs? A vCPU that may run on no other pCPU does not wait
 * for a task that may, if its VM is behind its due, or further behind than that.
 */
verified_once int may_preempt(s32 cpu, const struct room_found *found __arg_nonnull)
{
	struct vm_ctx *vm, *running;
	struct cpu_ctx *c = cpu_ctx(cpu);
	bool behind;

	if (c->kicked || c->boost_pid || c->runs == RUNS_NOTHING)
		return false;
	vm = vm_slot(found->slot);
	running = vm_slot(c->runs == RUNS_VCPU ? c->vm : NO_VM);
	behind = vm && vm_behind(vm, vnow);
	if (vm && found->bound && !c->runs_bound &&
	    (behind || vtime_before(vm->vtime, running ? running->vtime : c->host_vtime)))
		return true;
	if (c->runs == RUNS_HOST)
		return vm ? behind && vtime_before(vm->vtime, c->host_vtime)
			  : host_preempts_host(found->vtime, c->host_vtime);
	/* A visit is short, and a sibling's boost, too. */
	if (vm)
		return (!c->resume_pid || behind) && vm_takes(cpu, found->slot, vm, found->now);
	return running && goes_before(found->vtime, found->weight, running, found->now);
}

/* Is there room on @cpu, and better than what was found? True: that will do. */
verified_once int look_for_room(s32 cpu, struct room_found *found __arg_nonnull)
{
	u32 room = ROOM_NONE;

	if (found->enough == ROOM_POLLS && !cpu_ctx(cpu)->kicked && polls(cpu))
		room = ROOM_POLLS;
	else if (found->room < ROOM_TAKEN && may_preempt(cpu, found))
		room = runs_whole_gang(cpu) ? ROOM_IN_GANG : ROOM_TAKEN;
	if (room > found->room) {
		found->room = room;
		found->cpu = cpu;
	}
	if (found->room == ROOM_IN_GANG && found->enough == ROOM_TAKEN && !--found->more)
		return true;
	return found->room >= found->enough;
}

/*
 * The pCPU with the best room for @p, which has just woken and found no idle one, at home if
 * possible; negative if there is none.
 */
verified_once s32 find_room(struct task_struct *p __arg_trusted, u32 slot, u64 vtime, u32 weight,
			    u64 now)
{
	s32 home = scx_bpf_task_cpu(p), cpu;
	u32 i, looks = is_bound(p) ? 1 : nr_near(home) < MAX_LOOKS ? nr_near(home) : MAX_LOOKS;
	struct room_found found = {
		.vtime = vtime,
		.now = now,
		.slot = slot,
		.weight = weight,
		.bound = is_bound(p),
		.cpu = -1,
		.enough = count(COUNT_POLLING) ? ROOM_POLLS : ROOM_TAKEN,
		.more = MORE_LOOKS,
	};

	bpf_for(i, 0, looks) {
		cpu = near_cpu(home, i);
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && look_for_room(cpu, &found))
			break;
	}
	return found.cpu;
}

/* What runs on @cpu is preempted for @p: what --stats tells of that. */
static void count_preemption(s32 cpu, s32 home, const struct vm_ctx *vm, u32 slot)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	if (vm && runs_vm(home, slot))
		stat_add(STAT_STACKING_AVOIDED, 1);
	if (polls(cpu))
		stat_add(STAT_POLLS_CUT, 1);
	else if (!vm && c->runs == RUNS_VCPU)
		stat_add(STAT_HOST_PREEMPTS, 1);
}

/* Make room for @p, which has just woken, and waits in its queue. */
verified_once int preempt_for(struct task_struct *p __arg_trusted,
			      const struct task_ctx *t __arg_nonnull, struct vm_ctx *vm, u64 now)
{
	s32 home = scx_bpf_task_cpu(p), best;
	struct cpu_ctx *c = cpu_ctx(home);

	/* The sibling there had a longer slice, as all had a pCPU. */
	if (vm && runs_vm(home, t->vm) && !c->ends_at &&
	    vm_crowded(vm, vm->nr_queued, cpus_for(p, vm)))
		ends_in(home, now, crowded_slice(home, now));
	best = find_room(p, vm ? t->vm : NO_VM, t->vtime, t->weight, now);
	if (best < 0) {
		/* Who is on its way to a pCPU that was idle cannot be preempted yet. */
		if (vm && is_bound(p) && c->runs == RUNS_NOTHING)
			c->kicked = 1;
		return 0;
	}
	count_preemption(best, home, vm, t->vm);
	cpu_ctx(best)->brief = !vm;
	preempt(best);
	return 0;
}

/*
 * A task has come to @cpu, which was idle, while a vCPU began to wait for that alone: it leaves if
 * it may run elsewhere, and is not before that one in order.
 */
static void leave_to_bound(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_slot(bound_queue(cpu)->pid_vm);

	if (vm && bound_queue(cpu)->nr > 0 && c->runs == RUNS_HOST && !c->runs_bound &&
	    !goes_before(c->host_vtime, c->host_weight, vm, now))
		preempt(cpu);
}

/*
 * One of the VM in @slot has woken and may run on @cpu alone, where a host task runs, or one of
 * another VM, which it may not preempt: may it visit that pCPU in its part? Both VMs can be as far
 * behind as they may be, several bound host tasks without a bound, and vnow, which comes on
 * elsewhere, does not tell who is due more.
 */
static bool wakes_in_part(const struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	return (c->runs == RUNS_HOST || c->vm != slot) && lends(cpu, slot, true) &&
	       !part_in(vm, cpu, now);
}

/*
 * @p has just woken, and its VM is behind its due, or it may run on one pCPU alone: it visits a
 * pCPU, past all queues. What runs there goes on when it sleeps, or at the first tick after its
 * slice.
 */
verified_once int wakes_as_visitor(struct task_struct *p __arg_trusted,
				   struct task_ctx *t __arg_nonnull,
				   struct vm_ctx *vm __arg_nonnull, u64 enq_flags, u64 now)
{
	struct cpu_ctx *c;
	bool part;
	s32 cpu;

	cpu = find_room(p, t->vm, t->vtime, t->weight, now);
	/* It takes that pCPU for a slice, from the queue. */
	if (cpu >= 0 && !vm_behind(vm, vnow))
		return false;
	part = cpu < 0 && is_bound(p) && wakes_in_part(vm, t->vm, scx_bpf_task_cpu(p), now);
	if (part)
		cpu = scx_bpf_task_cpu(p);
	if (cpu < 0)
		return false;
	c = cpu_ctx(cpu);
	count_preemption(cpu, scx_bpf_task_cpu(p), vm, t->vm);
	stat_add(STAT_VISITS, 1);
	if (c->runs == RUNS_VCPU && !c->resume_pid)
		resumes_later(c, c->pid, c->vm);
	t->boosted = BOOST_VISIT;
	c->brief = BRIEF_VISIT;
	c->kicked = 1;
	c->back_at = 0;
	if (part) {
		spend_part(vm, cpu, now);
		gives_back(cpu, now);
	}
	/* It is waited for: whoever leaves is charged. */
	join_queue(p, t, vm, now);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, part ? BOOST_IPI_NS : vm_visit(vm, vnow),
			   enq_flags | SCX_ENQ_PREEMPT);
	return true;
}

#endif /* BATON_ROOM_BPF_H */
