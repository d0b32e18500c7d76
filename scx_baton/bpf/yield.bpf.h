/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whom a directed yield goes to.
 */
#ifndef BATON_YIELD_BPF_H
#define BATON_YIELD_BPF_H

#include "owing.bpf.h"
#include "place.bpf.h"

/* vCPUs looked at in one decision. */
#define MAX_OWING 8

/*
 * The boost of a vCPU that was to take an interrupt is over, or a vCPU polls while others wait.
 * Not a thread of the kernel that has preempted it.
 */
static int look(void *map, int *key, struct look_timer *at)
{
	struct cpu_ctx *c = cpu_ctx(at->cpu);

	if (c->runs == RUNS_VCPU && (c->donor || polls(at->cpu)))
		scx_bpf_kick_cpu(at->cpu, SCX_KICK_PREEMPT);
	return 0;
}

static s32 init_look_timer(s32 cpu)
{
	struct look_timer *at = bpf_map_lookup_elem(&look_timers, &cpu);
	s32 err;

	if (!at)
		return -ENOENT;
	at->cpu = cpu;
	err = bpf_timer_init(&at->timer, &look_timers, CLOCK_MONOTONIC);
	return err ?: bpf_timer_set_callback(&at->timer, look);
}

/* For a spinner the first that applies; --yield-policy. */
const volatile u32 yield_policy[NR_YIELD_REASONS] = {YIELD_IPI, YIELD_KVM};

/* The pid of vCPU @id of the VM, if it waits and may run on @cpu, and owes @sender; else 0. */
static s32 pid_if_owing(u32 slot, u32 id, u32 sender, s32 cpu)
{
	u64 key = vcpu_key(slot, id);
	struct vcpu_ctx *v = bpf_map_lookup_elem(&vcpus, &key);
	struct task_struct *p;
	struct task_ctx *t;
	s32 pid = 0;

	if (!v || !vm_has_bit(v->owes, sender))
		return 0;
	p = bpf_task_from_pid(v->pid);
	if (!p)
		return 0;
	t = task_ctx(p);
	if (t && t->vm == slot && t->queued_vm == slot && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		pid = p->pid;
	bpf_task_release(p);
	return pid;
}

/*
 * The pid of a vCPU of the VM that owes @sender; 0 if there is none. It costs a few
 * instructions a word of 64 vCPUs, and MAX_OWING look-ups at most.
 * Not static: the verifier looks at such a function once.
 */
__noinline s32 find_owing(u32 slot, u32 sender, s32 cpu)
{
	struct vm_ctx *vm = vm_slot(slot);
	u32 w, n, left = MAX_OWING;
	u64 word;
	s32 pid;

	if (!vm)
		return 0;
	bpf_for(w, 0, VCPU_WORDS) {
		word = vm->owing[w & (VCPU_WORDS - 1)];
		if (!word)
			continue;
		bpf_for(n, 0, MAX_OWING) {
			if (!word || !left)
				break;
			left--;
			pid = pid_if_owing(slot, w * 64 + __builtin_ctzll(word), sender, cpu);
			if (pid)
				return pid;
			word &= word - 1;
		}
	}
	return 0;
}

/* Why the spinning vCPU of @t gives its pCPU away, if KVM proposes @pid; and whom to, in @pid. */
static u32 choose(const struct task_ctx *t, s32 *pid, s32 cpu)
{
	s32 owing;
	u32 i;

	for (i = 0; i < NR_YIELD_REASONS; i++) {
		if (yield_policy[i] == YIELD_KVM)
			return YIELD_KVM;
		if (yield_policy[i] != YIELD_IPI)
			break;
		owing = find_owing(t->vm, t->vcpu_id, cpu);
		if (owing) {
			*pid = owing;
			return YIELD_IPI;
		}
	}
	return YIELD_NONE;
}

/*
 * Run @to on @c next, on the @slice that a vCPU with the pid @from gives away, if it spins for
 * @reason. The choice is carried out in dispatch().
 */
static void boost(struct cpu_ctx *c, struct task_ctx *from_t, s32 from, struct task_struct *to,
		  struct task_ctx *to_t, u32 reason, u64 slice, u64 now)
{
	c->boost_vm = to_t->vm;
	c->boost_slice = slice;
	c->boost_pid = to->pid;
	/* Who may hold a lock may be about to take the next one, and keeps the slice. */
	c->donor = reason == YIELD_IPI ? from : 0;
	/* One that spins has nothing better to do than to wait. */
	if (reason == YIELD_NONE)
		return;
	to_t->waiter = from;
	from_t->wait_for = to->pid;
	from_t->kept_until = now + KEEP_OUT_NS;
}

#endif /* BATON_YIELD_BPF_H */
