/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who has been sent an IPI and has not taken it, because it does not run: whose sender may spin
 * until it does (seed 001). There is no debt of a vCPU that runs, and it ends where one is
 * started or stopped: an IPI that was taken while running must not boost a vCPU that was
 * preempted afterwards.
 */
#ifndef BATON_OWING_BPF_H
#define BATON_OWING_BPF_H

#include "state.bpf.h"

/* vCPUs looked at in one decision. */
#define MAX_OWING 8

static inline u64 vcpu_key(u32 slot, u32 vcpu_id)
{
	return (u64)slot << 32 | vcpu_id;
}

static inline u64 vcpu_bit(u32 vcpu_id)
{
	return 1ULL << (vcpu_id % 64);
}

/* Masked where the compiler cannot tell that there is no need: the verifier cannot, either. */
static inline u32 vcpu_word(u32 vcpu_id)
{
	u32 word = vcpu_id / 64;

	barrier_var(word);
	return word & (VCPU_WORDS - 1);
}

static inline bool vm_has_bit(const u64 *words, u32 vcpu_id)
{
	return vcpu_id < MAX_VCPUS && words[vcpu_word(vcpu_id)] & vcpu_bit(vcpu_id);
}

/* The vCPU of @t begins or ends to run: it has taken, or takes, what it was sent. */
static inline void settle(struct vm_ctx *vm, const struct task_ctx *t, bool runs)
{
	u32 id = t->vcpu_id, i;
	struct vcpu_ctx *v;
	u64 key;

	if (id >= MAX_VCPUS)
		return;
	if (runs)
		__sync_fetch_and_or(&vm->on_cpu[vcpu_word(id)], vcpu_bit(id));
	else
		__sync_fetch_and_and(&vm->on_cpu[vcpu_word(id)], ~vcpu_bit(id));
	if (!vm_has_bit(vm->owing, id))
		return;
	__sync_fetch_and_and(&vm->owing[vcpu_word(id)], ~vcpu_bit(id));
	key = vcpu_key(t->run_vm, id);
	v = bpf_map_lookup_elem(&vcpus, &key);
	if (!v)
		return;
	for (i = 0; i < VCPU_WORDS; i++)
		v->owes[i] = 0;
}

/* vCPU @from sends an IPI to @to. */
static inline void owes(struct vm_ctx *vm, u32 slot, u32 from, u32 to)
{
	u64 key = vcpu_key(slot, to);
	struct vcpu_ctx *v;

	if (from == to || from >= MAX_VCPUS || to >= MAX_VCPUS || vm_has_bit(vm->on_cpu, to))
		return;
	v = bpf_map_lookup_elem(&vcpus, &key);
	if (!v)
		return;
	__sync_fetch_and_or(&v->owes[vcpu_word(from)], vcpu_bit(from));
	__sync_fetch_and_or(&vm->owing[vcpu_word(to)], vcpu_bit(to));
}

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

#endif /* BATON_OWING_BPF_H */
