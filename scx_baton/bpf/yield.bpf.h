/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whom a directed yield goes to.
 */
#ifndef BATON_YIELD_BPF_H
#define BATON_YIELD_BPF_H

#include "owing.bpf.h"
#include "place.bpf.h"

/* Ends the boost of a vCPU that was to take an interrupt: no tick is that fine. */
struct boost_timer {
	struct bpf_timer timer;
	s32 cpu;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct boost_timer);
	__uint(max_entries, MAX_CPUS);
} boost_timers SEC(".maps");

static int boost_ends(void *map, int *key, struct boost_timer *b)
{
	if (cpu_ctx(b->cpu)->donor)
		scx_bpf_kick_cpu(b->cpu, SCX_KICK_PREEMPT);
	return 0;
}

static s32 init_boost_timer(s32 cpu)
{
	struct boost_timer *b = bpf_map_lookup_elem(&boost_timers, &cpu);
	s32 err;

	if (!b)
		return -ENOENT;
	b->cpu = cpu;
	err = bpf_timer_init(&b->timer, &boost_timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&b->timer, boost_ends);
}

static void time_boost(s32 cpu)
{
	struct boost_timer *b = bpf_map_lookup_elem(&boost_timers, &cpu);

	if (b)
		bpf_timer_start(&b->timer, BOOST_IPI_NS, 0);
}

/* For a spinner the first that applies; --yield-policy. */
const volatile u32 yield_policy[NR_YIELD_REASONS] = {YIELD_IPI, YIELD_KVM};

/* Whom the spinning vCPU of @t waits for, if KVM proposes @proposed; 0: nobody that we know. */
static s32 choose(const struct task_ctx *t, s32 proposed, s32 cpu)
{
	s32 pid = 0;
	u32 i;

	for (i = 0; i < NR_YIELD_REASONS && !pid; i++) {
		if (yield_policy[i] == YIELD_IPI)
			pid = find_owing(t->vm, t->vcpu_id, cpu);
		else if (yield_policy[i] == YIELD_KVM)
			pid = proposed;
	}
	return pid;
}

/*
 * Run @to on @c next, on a part of the @slice that @from, with the pid @from_pid, gives away. The
 * choice is carried out in dispatch().
 */
static void boost(struct cpu_ctx *c, struct task_ctx *from_t, s32 from_pid, struct task_struct *to,
		  struct task_ctx *to_t, u64 slice, u64 now)
{
	struct vm_ctx *vm = vm_slot(to_t->vm);

	c->boost_vm = to_t->vm;
	c->boost_slice = slice;
	c->boost_pid = to->pid;
	/* One that spins has nothing better to do than to wait. */
	if (!from_t->spinning)
		return;
	/* Whoever holds a lock may be about to take the next one, and keeps the slice. */
	if (vm && vm_has_bit(vm->owing, to_t->vcpu_id))
		c->donor = from_pid;
	to_t->waiter = from_pid;
	from_t->wait_for = to->pid;
	from_t->kept_until = now + KEEP_OUT_NS;
}

/*
 * @prev spins, and KVM has proposed nobody: it looks at vCPUs alone that were preempted in the
 * guest's kernel. Who owes it the handling of an IPI may have been preempted in user mode.
 */
static void boost_for_spinner(struct cpu_ctx *c, struct task_struct *prev, struct task_ctx *prev_t,
			      s32 cpu, u64 now)
{
	s32 pid = choose(prev_t, 0, cpu);
	u64 slice = donated_slice(c->donates_until - now, now, c->donates_until);
	struct task_struct *to;
	struct task_ctx *to_t;

	if (!pid || !slice)
		return;
	to = bpf_task_from_pid(pid);
	if (!to)
		return;
	to_t = task_ctx(to);
	if (to_t) {
		boost(c, prev_t, prev->pid, to, to_t, slice, now);
		stat_add(STAT_SPIN_BOOSTS, 1);
	}
	bpf_task_release(to);
}

#endif /* BATON_YIELD_BPF_H */
