/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whom a directed yield goes to.
 */
#ifndef BATON_YIELD_BPF_H
#define BATON_YIELD_BPF_H

#include "owing.bpf.h"
#include "place.bpf.h"

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

	if (!v || (sender != ANYBODY && !vm_has_bit(v->owes, sender)))
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
 * The pid of a vCPU of the VM that owes @sender, or ANYBODY; 0 if there is none. It costs a few
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

/* Whom the spinning vCPU of @t waits for, when KVM proposes @proposed; 0: for nobody that we know.
 */
static s32 choose(const struct task_ctx *t, s32 proposed, s32 cpu)
{
	s32 pid = 0;
	u32 i;

	bpf_for(i, 0, NR_YIELD_REASONS) {
		switch (yield_policy[i & (NR_YIELD_REASONS - 1)]) {
		case YIELD_IPI:
			pid = find_owing(t->vm, t->vcpu_id, cpu);
			break;
		case YIELD_PENDING:
			pid = find_owing(t->vm, ANYBODY, cpu);
			break;
		case YIELD_KVM:
			pid = proposed;
			break;
		default:
			return 0;
		}
		if (pid)
			break;
	}
	return pid;
}

#endif /* BATON_YIELD_BPF_H */
