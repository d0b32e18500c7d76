/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Parts of the host: tasks that may run on some pCPUs alone, as in a cpuset.
 *
 * Those in a part can be due more than it has. They fall behind vnow then, which comes on
 * elsewhere, and if each were kept at the bound of what it may be behind, weights would not count
 * among them: a VM of 16 vCPUs that is due the 8 pCPUs of its part stood further behind than any
 * host thread there may be, and went first, always. So a VM that others compete with in its part
 * has no such bound while they do, and how far it has come is what they are compared with there.
 * For all others it stays where its bound is.
 */
#ifndef BATON_PART_BPF_H
#define BATON_PART_BPF_H

#include "tree.bpf.h"

/* A VM that may run on a part of the host, and has run on this pCPU; the one furthest behind. */
static struct part {
	u64 seen_at; /* ns; when it wanted this pCPU last */
	u64 gen; /* its slot may be another one's by now */
	u32 vm;
} __attribute__((aligned(64))) parts[MAX_CPUS];

static inline bool is_confined(const struct task_struct *p)
{
	return p->nr_cpus_allowed < nr_online;
}

static inline struct part *part_of(s32 cpu)
{
	return &parts[cpu & (MAX_CPUS - 1)];
}

/* That VM, if it has wanted @cpu within two turns. */
static struct vm_ctx *part_vm(s32 cpu, u64 now)
{
	const struct part *part = part_of(cpu);
	struct vm_ctx *vm = vm_slot(part->vm);

	return vm && vm->gen == part->gen && vm_is_confined(vm, nr_online) &&
			       vtime_before(now, part->seen_at + 2 * TURN_NS)
		       ? vm
		       : NULL;
}

/*
 * How far those have come that @p competes with on @cpu, if it is a host task. Parts that lie
 * across each other are not known as such: which one is larger tells.
 */
static u64 vnow_for(const struct task_struct *p, s32 cpu, u64 now)
{
	const struct vm_ctx *vm = is_confined(p) ? part_vm(cpu, now) : NULL;

	return vm && vm->allowed >= (u32)p->nr_cpus_allowed && vm_behind(vm, vnow) ? vm->vtime
										   : vnow;
}

/* vnow for the rank of @vm on @cpu: as if the VM of its part stood at its bound. */
static u64 vnow_for_vm(const struct vm_ctx *vm, s32 cpu, u64 now)
{
	const struct vm_ctx *first;
	u64 bound;

	if (!vm_is_confined(vm, nr_online))
		return vnow;
	first = part_vm(cpu, now);
	if (!first || first->allowed != vm->allowed)
		return vnow;
	bound = first->vtime + vm_credit(first);
	return vtime_before(bound, vnow) ? bound : vnow;
}

/* How far those have come that @vm competes with in its part, beside itself. */
static u64 part_vnow(const struct vm_ctx *vm, s32 cpu, u64 now)
{
	const struct vm_ctx *first = vm_is_confined(vm, nr_online) ? part_vm(cpu, now) : NULL;

	return first && first != vm && first->allowed == vm->allowed && vm_behind(first, vnow)
		       ? first->vtime
		       : vnow;
}

/* The host task @p, which has run on @cpu, wants to go on. */
static void contend(const struct task_struct *p, s32 cpu, u64 now)
{
	struct vm_ctx *vm = is_confined(p) ? part_vm(cpu, now) : NULL;

	if (vm && vm->allowed >= (u32)p->nr_cpus_allowed)
		vm->contends_at = now;
}

/* @vm, which has @slot, is charged for @cpu. */
static void note_part(struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	struct vm_ctx *first;
	struct part *part;

	if (!vm_is_confined(vm, nr_online) ||
	    (vm->nr_queued <= 0 && vm->nr_running < (s32)vm->allowed))
		return;
	part = part_of(cpu);
	first = part_vm(cpu, now);
	if (first && first != vm && first->allowed == vm->allowed && first->nr_queued > 0 &&
	    vm->nr_queued > 0)
		first->contends_at = vm->contends_at = now;
	if (first && vtime_before(first->vtime, vm->vtime))
		return;
	part->vm = slot;
	part->gen = vm->gen;
	part->seen_at = now;
}

/*
 * Somebody is picked for @cpu: does that VM still wait? Or does the one in @slot, which goes first,
 * and has not run here yet?
 */
verified_once int look_at_part(s32 cpu, u32 slot, u64 now)
{
	struct part *part = part_of(cpu);
	const struct vm_ctx *vm = vm_slot(part->vm);
	struct task_struct *p;

	if (vm && vm->nr_queued > 0 && vm->gen == part->gen) {
		part->seen_at = now;
		return 0;
	}
	vm = vm_slot(slot);
	if (!vm || vm->nr_queued <= 0 || !vm_is_confined(vm, nr_online))
		return 0;
	p = __COMPAT_scx_bpf_dsq_peek(vm_dsq(slot));
	if (!p || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return 0;
	part->vm = slot;
	part->gen = vm->gen;
	part->seen_at = now;
	return 0;
}

#endif /* BATON_PART_BPF_H */
