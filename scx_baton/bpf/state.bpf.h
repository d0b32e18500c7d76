/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps that the scheduler and its KVM probes share, and the way to look into them.
 */
#ifndef BATON_STATE_BPF_H
#define BATON_STATE_BPF_H

#include "policy.h"

/*
 * A function that the verifier looks at once in each program, whatever its arguments are: one that
 * is static it looks at for each way to each of its calls. Loops that do more than a step or two
 * call one of these. So a load looks at 30,000 instructions; it was 131,000 without. Linux before
 * 7.0 allows eight calls one in another, the callback's included, and all allow 512 bytes of stack.
 */
#define verified_once __attribute__((noinline))

/* One map, which the KVM probes and the loader have mapped, too: no look-up, only an address. */
struct baton_shared shared SEC(".bss.shared") __attribute__((aligned(64)));
_Static_assert(sizeof(struct vm_ctx) % 64 == 0, "a VM's record is a number of cache lines");

/* Address of struct kvm -> slot. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, u64);
	__type(value, u32);
	__uint(max_entries, MAX_VMS);
} vm_by_kvm SEC(".maps");

/* vCPUs by slot (upper half) and vcpu_id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct vcpu_ctx);
	__uint(max_entries, 65536);
} vcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, u32);
	__type(value, struct baton_stats);
	__uint(max_entries, 1);
} stats SEC(".maps");

/*
 * 0, which neither the compiler nor the verifier knows: a loop whose counter begins with it is not
 * unrolled, and its counter is one state, not one for each of its values.
 */
static volatile u32 zero;

/* @of is an element of @map that has a timer. */
#define init_timer(of, map, callback)                                                              \
	(bpf_timer_init(&(of)->timer, &(map), CLOCK_MONOTONIC)                                     \
		 ?: bpf_timer_set_callback(&(of)->timer, callback))

/* @i, below 2 * @n, counted round. */
static inline u32 around(u32 i, u32 n)
{
	return i < n ? i : i - n;
}

static inline void stat_add(u32 stat, u64 n)
{
	u32 only = 0;
	struct baton_stats *s = bpf_map_lookup_elem(&stats, &only);

	if (s && stat < BATON_NR_STATS)
		s->count[stat] += n;
}

static inline struct vm_ctx *vm_slot(u32 slot)
{
	return slot == NO_VM ? NULL : &shared.vms[slot & (MAX_VMS - 1)];
}

static inline u64 count(enum baton_count which)
{
	return shared.counts[which].n;
}

static inline void count_add(enum baton_count which, s64 more)
{
	__sync_fetch_and_add(&shared.counts[which].n, more);
}

static inline struct cpu_runs_vcpu *runs_on(s32 cpu)
{
	return &shared.runs[cpu & (MAX_CPUS - 1)];
}

/* So that nobody walks 1,024 slots for three VMs. */
static inline u32 vm_end(void)
{
	return count(COUNT_SLOTS_END);
}

static inline struct task_ctx *task_ctx(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* The VM that @t is a vCPU of; NULL for any other task, also if its VM is gone. */
static inline struct vm_ctx *vm_of(const struct task_ctx *t)
{
	struct vm_ctx *vm = vm_slot(t->vm);

	return vm && vm->gen == t->vm_gen && vm->kvm ? vm : NULL;
}

/* Time in which any vCPU of @vm ran, up to @now. */
static inline u64 vm_busy(const struct vm_ctx *vm, u64 now)
{
	u64 since = vm->busy_since;

	return vm->busy_ns + (vm->nr_running > 0 ? elapsed(since, now) : 0);
}

/*
 * In how much of the @waited ns for which @t, a vCPU of @vm, has waited did siblings run? A sibling
 * that is just stopping is not in vm_busy() for a moment.
 */
static inline u64 waited_beside(const struct task_ctx *t, const struct vm_ctx *vm, u64 waited,
				u64 now)
{
	u64 busy = elapsed(t->queued_busy, vm_busy(vm, now));

	return busy < waited ? busy : waited;
}

/*
 * Give the slot of a dead VM back. A task that still names it is told by the generation,
 * which therefore changes before anybody can claim the slot. The VM's destruction and the
 * end of its last vCPU may both come here at once.
 */
static inline void vm_forget(struct vm_ctx *vm)
{
	u64 kvm = vm->kvm;

	if (kvm <= VM_DYING || __sync_val_compare_and_swap(&vm->kvm, kvm, VM_DYING) != kvm)
		return;
	bpf_map_delete_elem(&vm_by_kvm, &kvm);
	__sync_fetch_and_add(&vm->gen, 1);
	vm->kvm = 0;
}

#endif /* BATON_STATE_BPF_H */
