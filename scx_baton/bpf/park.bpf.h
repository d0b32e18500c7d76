/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks whose cgroups have used up their CPU time (quota.bpf.h) wait apart from all others.
 */
#ifndef BATON_PARK_BPF_H
#define BATON_PARK_BPF_H

#include "account.bpf.h"

/* Tasks at the head of a queue that are looked at before one of them runs. */
#define MAX_PARK_WALK 8

/* @t, a vCPU of @vm or a host task, has waited for CPU time until @now. */
static void unparked(struct task_ctx *t, struct vm_ctx *vm, u64 now)
{
	u64 since = __sync_lock_test_and_set(&t->parked_at, 0), waited = elapsed(since, now);

	if (!vm || !since)
		return;
	t->times.throttled_ns += waited;
	__sync_fetch_and_add(&vm->times.throttled_ns, waited);
}

/* @p becomes runnable, but not before @release. */
static void park(struct task_struct *p, struct task_ctx *t, u64 release, u64 now, u64 enq_flags)
{
	/* It may wait already, and come again with another affinity. */
	leave_queue(t, now);
	t->parked_at = now;
	__sync_fetch_and_add(&nr_parks, 1);
	scx_bpf_dsq_insert(p, PARKED_DSQ, HOST_SLICE_NS, enq_flags);
	look_again(release, now);
}

/* @p waits in the queue of @it, but may not run before @release: it waits elsewhere. */
static __always_inline void park_from(struct bpf_iter_scx_dsq *it, struct task_struct *p,
				      u64 release, u64 now)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	/* First: once it is there, the timer may put it back at any moment. */
	leave_queue(t, now);
	t->parked_at = now;
	if (scx_bpf_dsq_move(it, p, PARKED_DSQ, 0))
		look_again(release, now);
	else
		t->parked_at = 0;
}

/* Tasks at the head of a queue of host tasks that may not run now. */
verified_once int park_heads(u64 dsq, u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = zero;
	u64 release;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		t = task_ctx(p);
		release = t ? throttled_until(t, now) : 0;
		if (seen++ >= MAX_PARK_WALK || !release)
			break;
		park_from(BPF_FOR_EACH_ITER, p, release, now);
	}
	return 0;
}

#endif /* BATON_PARK_BPF_H */
