/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Does anybody wait who could run on a pCPU instead of what runs there? Else its time is not
 * charged, but to a VM that competes for more (vm_competes()): who has a pCPU that nobody else may
 * have, or wants, has taken nothing from anybody. So a VM of which one bound vCPU shares its pCPU
 * with a busy host thread gets its part of that pCPU whatever its other vCPUs do, as under EEVDF,
 * whose shares are those of one pCPU.
 */
#ifndef BATON_WANTED_BPF_H
#define BATON_WANTED_BPF_H

#include "polling.bpf.h"

const volatile u16 cpu_llc[MAX_CPUS];
const volatile u32 nr_llcs = 1;

/* pCPUs by LLC; where those of each one begin there, the end last; and each pCPU's place. */
const volatile u16 llc_cpus[MAX_CPUS];
const volatile u16 llc_first[MAX_LLCS + 1];
const volatile u16 cpu_place[MAX_CPUS];

static inline u32 llc_of(s32 cpu)
{
	return cpu_llc[cpu & (MAX_CPUS - 1)] & (MAX_LLCS - 1);
}

/* pCPUs that share the LLC of @cpu. */
static inline u32 nr_near(s32 cpu)
{
	u32 llc = llc_of(cpu);

	return llc_first[llc + 1] - llc_first[llc];
}

/* The one that is @i places behind @cpu among them, counted round. */
static inline s32 near_cpu(s32 cpu, u32 i)
{
	u32 place = cpu_place[cpu & (MAX_CPUS - 1)] + i;

	if (!i)
		return cpu;
	if (place >= llc_first[llc_of(cpu) + 1])
		place -= nr_near(cpu);
	return llc_cpus[place & (MAX_CPUS - 1)];
}

/* Queues: one per pCPU for tasks bound to it, one per LLC for host tasks, one per VM. */
#define LLC_DSQ_BASE 0x10000ULL
#define VM_DSQ_BASE 0x20000ULL

static inline u64 llc_dsq(s32 cpu)
{
	return LLC_DSQ_BASE + cpu_llc[cpu & (MAX_CPUS - 1)];
}

static inline u64 vm_dsq(u32 slot)
{
	return VM_DSQ_BASE + slot;
}

static inline bool is_bound(const struct task_struct *p)
{
	return p->nr_cpus_allowed == 1;
}

/* vCPUs that wait for this pCPU alone, and whose they are. */
struct bound_queue {
	s32 nr;
	u32 vm; /* MIXED_VMS: more than one VM's */
	s32 pid; /* of one of them, if it still waits */
	u32 pid_vm; /* and its VM */
	u64 visits_from; /* ns; what they wait for their next visit counts from then on */
} __attribute__((aligned(64)));

#define MIXED_VMS (~0U)

static struct bound_queue bound_queues[MAX_CPUS];

/*
 * Host tasks that wait: for one pCPU alone, by pCPU, then the others, by LLC. The kernel counts
 * them too, but looks for a queue in a hash table each time that it is asked, some 150
 * instructions.
 */
static struct host_queue {
	s32 nr;
} __attribute__((aligned(64))) host_waits[2 * MAX_CPUS];

static inline struct bound_queue *bound_queue(s32 cpu)
{
	return &bound_queues[cpu & (MAX_CPUS - 1)];
}

static inline s32 *host_queue(u32 place)
{
	return &host_waits[place & (2 * MAX_CPUS - 1)].nr;
}

/* Host tasks that wait for @cpu alone, or for any pCPU of its LLC. */
static inline s32 host_waiting(s32 cpu, bool bound)
{
	return *host_queue(bound ? cpu : MAX_CPUS + llc_of(cpu));
}

/* The host task @t, which last ran on @cpu, waits, if @bound for that pCPU alone. */
static inline void join_host(struct task_ctx *t, s32 cpu, bool bound)
{
	u32 place = bound ? cpu : MAX_CPUS + cpu_llc[cpu & (MAX_CPUS - 1)];

	t->queued_host = place + 1;
	__sync_fetch_and_add(host_queue(place), 1);
	if (bound)
		count_add(COUNT_BOUND_HOST, 1);
}

static inline void leave_host(struct task_ctx *t)
{
	u32 place;

	if (!t->queued_host)
		return;
	place = __sync_lock_test_and_set(&t->queued_host, 0) - 1;
	/* Another pCPU has been faster. */
	if (place == ~0U)
		return;
	__sync_fetch_and_sub(host_queue(place), 1);
	if (place < MAX_CPUS)
		count_add(COUNT_BOUND_HOST, -1);
}

/*
 * vCPUs that wait, by VM and by the LLC where they ran before, and which VMs have any there, a bit
 * each: a pCPU looks at those that wait near it, however many VMs there are. VM MAX_VMS is bit 0.
 */
static s32 nr_waiting_near[MAX_LLCS * MAX_VMS];
static u64 vms_waiting_near[MAX_LLCS * MAX_VMS / 64];

static inline u64 *vms_near(u32 llc, u32 word)
{
	return &vms_waiting_near[(llc * (MAX_VMS / 64) + word) & (MAX_LLCS * MAX_VMS / 64 - 1)];
}

static inline s32 *waiting_near(u32 llc, u32 slot)
{
	return &nr_waiting_near[(llc * MAX_VMS + (slot & (MAX_VMS - 1))) &
				(MAX_LLCS * MAX_VMS - 1)];
}

/* In queued_llc: it waits for the pCPU that it was taken from, and is not counted. */
#define KEPT_NEAR (1U << 31)

/*
 * Does any vCPU of the VM in @slot wait near @llc? Others may change that at any moment: who clears
 * the bit looks once more, as nobody would see a vCPU that waits without it.
 */
static inline void mark_near(u32 llc, u32 slot, bool waits)
{
	u64 *word = vms_near(llc, (slot & (MAX_VMS - 1)) / 64), bit = 1ULL << slot % 64;
	volatile s32 *waiting = waiting_near(llc, slot);

	if (waits) {
		__sync_fetch_and_or(word, bit);
		if (*waiting > 0)
			return;
	}
	__sync_fetch_and_and(word, ~bit);
	if (*waiting > 0)
		__sync_fetch_and_or(word, bit);
}

static inline void count_near(u32 llc, u32 slot)
{
	if (__sync_fetch_and_add(waiting_near(llc, slot), 1) == 0)
		mark_near(llc, slot, true);
}

/* @t, a vCPU, waits, which ran on @cpu. */
static inline void join_near(struct task_ctx *t, u32 slot, s32 cpu)
{
	u32 llc = llc_of(cpu);

	t->queued_llc = llc + 1;
	count_near(llc, slot);
}

/*
 * @t, which waits for one pCPU, waits for any near from now on, unless it has left: whoever takes
 * its mark counts.
 */
static inline void share_near(struct task_ctx *t, u32 llc, u32 slot)
{
	u32 kept = KEPT_NEAR | (llc + 1);

	if (__sync_val_compare_and_swap(&t->queued_llc, kept, llc + 1) == kept)
		count_near(llc, slot);
}

static inline void leave_near(struct task_ctx *t, u32 slot)
{
	u32 was = __sync_lock_test_and_set(&t->queued_llc, 0);

	if (!(was & KEPT_NEAR) && __sync_fetch_and_sub(waiting_near(was - 1, slot), 1) == 1)
		mark_near(was - 1, slot, false);
}

/* @t, a vCPU of @vm, waits for @cpu alone. */
static inline void join_bound(const struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm,
			      s32 cpu)
{
	struct bound_queue *b = bound_queue(cpu);
	u64 last = vm->last_bound;

	t->queued_cpu = cpu + 1;
	if (last && last >> 32 == (u32)cpu && (u32)last != (u32)p->pid && halts_followed())
		vm->stacked = 2;
	vm->last_bound = (u64)(u32)cpu << 32 | (u32)p->pid;
	count_add(COUNT_BOUND, 1);
	__sync_fetch_and_add(&vm->nr_bound, 1);
	if (__sync_fetch_and_add(&b->nr, 1) <= 0) {
		b->vm = t->vm;
		b->pid_vm = t->vm;
		b->pid = p->pid;
		/* The timer of those without CPU time does not hold the runqueue's lock. */
		if (b->nr > 1)
			b->vm = MIXED_VMS;
	} else if (b->vm != t->vm) {
		b->vm = MIXED_VMS;
	}
}

static inline void leave_bound(struct task_ctx *t, struct vm_ctx *vm)
{
	s32 cpu = t->queued_cpu - 1;

	t->queued_cpu = 0;
	__sync_fetch_and_sub(&bound_queue(cpu)->nr, 1);
	__sync_fetch_and_sub(&vm->nr_bound, 1);
	count_add(COUNT_BOUND, -1);
}

/* Do vCPUs wait for @cpu alone that are not of the VM in @slot? */
static inline bool others_bound(s32 cpu, u32 slot)
{
	const struct bound_queue *b = bound_queue(cpu);

	return b->nr > 0 && b->vm != slot;
}

/* Does a vCPU of @vm, which has @slot, wait that may run on @cpu? As far as that is counted. */
static inline bool waits_here(const struct vm_ctx *vm, u32 slot, s32 cpu)
{
	const struct bound_queue *b = bound_queue(cpu);

	return vm->nr_queued > vm->nr_bound || (b->nr > 0 && (b->vm == slot || b->vm == MIXED_VMS));
}

/*
 * Does anybody wait who could run if a vCPU of the VM in @slot (NO_VM: a host task) did not run on
 * @cpu, and is none of that VM? If @bound, it may run on no other pCPU; who could run elsewhere
 * keeps those from running that may run there alone. Affinity to some pCPUs counts as affinity to
 * all.
 */
verified_once int is_wanted(s32 cpu, u32 slot, bool bound)
{
	const struct vm_ctx *vm = vm_slot(slot);
	s64 others = count(COUNT_WAITING);

	if (vm)
		others -= vm->nr_queued;
	if (bound) {
		others -= count(COUNT_BOUND);
		if (vm)
			others += vm->nr_bound;
		if (others_bound(cpu, slot) || host_waiting(cpu, true) > 0)
			return true;
	} else if ((s64)count(COUNT_BOUND_HOST) > 0) {
		return true;
	}
	return others > 0 || host_waiting(cpu, false) > 0;
}

#endif /* BATON_WANTED_BPF_H */
