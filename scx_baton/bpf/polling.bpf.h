/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vCPUs that have halted, while KVM polls for what may wake them: their pCPUs are as good as
 * idle. And how long HLTs are.
 */
#ifndef BATON_POLLING_BPF_H
#define BATON_POLLING_BPF_H

#include "owing.bpf.h"

/*
 * Polling is cut so long after it began, where somebody waits: the program that notices has
 * ended by then.
 */
#define POLL_CUT_NS 2000

/* A look at what runs on a pCPU: no tick is that fine. */
struct look_timer {
	struct bpf_timer timer;
	s32 cpu;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct look_timer);
	__uint(max_entries, MAX_CPUS);
} look_timers SEC(".maps");

static inline void look_soon(u32 cpu, u64 ns)
{
	struct look_timer *look = bpf_map_lookup_elem(&look_timers, &cpu);

	if (look)
		bpf_timer_start(&look->timer, ns, 0);
}

/* HLTs are followed only while somebody waits for a pCPU, or asks for what is counted. */
#define HALTS_NOT_SEEN (~0ULL)

static inline bool halts_followed(void)
{
	return !shared.halts_off;
}

/* Is @t in HLT? */
static inline bool has_halted(const struct task_ctx *t)
{
	return t->halted_at > shared.halts_since;
}

/* The thread may be preempted here, where its pCPU, and the next one, do the same. */
static inline void poll_begins(struct vm_ctx *vm, u32 id)
{
	if (id >= MAX_VCPUS || vm_has_bit(vm->polling, id))
		return;
	if (!(__sync_fetch_and_or(&vm->polling[vcpu_word(id)], vcpu_bit(id)) & vcpu_bit(id)))
		count_add(COUNT_POLLING, 1);
}

/* Only the vCPU's own thread comes here, and the pCPU that it leaves. */
static inline void poll_ends(struct vm_ctx *vm, u32 id)
{
	if (!vm_has_bit(vm->polling, id))
		return;
	if (__sync_fetch_and_and(&vm->polling[vcpu_word(id)], ~vcpu_bit(id)) & vcpu_bit(id))
		count_add(COUNT_POLLING, -1);
}

/* The bucket of a time: its binary logarithm. BPF has no instruction for that. */
verified_once u32 halt_bucket(u64 ns)
{
	u32 bucket = 0, step;

	if (ns >> HALT_BUCKETS)
		return HALT_BUCKETS - 1;
#pragma unroll
	for (step = HALT_BUCKETS / 2; step; step /= 2) {
		if (ns >> step) {
			ns >>= step;
			bucket += step;
		}
	}
	return bucket;
}

static inline void count_in(u64 *buckets, u64 ns)
{
	u32 bucket = halt_bucket(ns);

	barrier_var(bucket);
	__sync_fetch_and_add(&buckets[bucket & (HALT_BUCKETS - 1)], 1);
}

/* The guest of @t goes on, which halted. */
static inline void halt_ends(struct halt_times *halt, const struct task_ctx *t, u64 now)
{
	u64 ns = elapsed(t->halted_at, now);

	count_in(halt->lengths, ns);
	if (!t->slept_at) {
		__sync_fetch_and_add(&halt->polled, 1);
		__sync_fetch_and_add(&halt->polled_ns, ns);
		return;
	}
	__sync_fetch_and_add(&halt->slept, 1);
	__sync_fetch_and_add(&halt->vain_ns, elapsed(t->halted_at, t->slept_at));
}

#endif /* BATON_POLLING_BPF_H */
