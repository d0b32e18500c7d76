/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which host task goes first on a pCPU.
 */
#ifndef BATON_HOST_BPF_H
#define BATON_HOST_BPF_H

#include "far.bpf.h"
#include "park.bpf.h"

/* The host task that goes first on a pCPU. */
struct host_pick {
	u64 vtime;
	u64 dsq; /* where it waits, unless it runs */
	bool found;
	bool runs; /* it is the one that has just run */
	u64 later; /* what @vtime has of that for being far */
	u32 seen; /* candidates */
	u32 weight; /* 0: that of the first one in @dsq */
	u64 now;
};

/* Tasks of a queue that are looked at for one that may run on a pCPU. */
#define MAX_HOST_WALK 32

/* One that waits behind others which may not run here. */
struct behind {
	u64 vtime;
	u32 weight;
};

/*
 * The first one in @dsq that may run on @cpu; behind many that may not one like the last of those.
 * False: there is none.
 */
verified_once int look_behind(u64 dsq, s32 cpu, struct behind *b __arg_nonnull, u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = zero;
	bool found;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		found = bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
		if (!found && ++seen < MAX_HOST_WALK)
			continue;
		t = task_ctx(p);
		b->vtime = vtime_on(p, cpu, now);
		b->weight = t ? t->weight : WEIGHT_AVERAGE;
		return true;
	}
	return false;
}

/* Of equals, one of the @nr that wait goes before one that has just run; from afar it must be
 * @later. */
static void consider_queue(struct host_pick *h, u64 dsq, s32 cpu, s32 nr, u64 later)
{
	struct task_struct *p = nr > 0 ? __COMPAT_scx_bpf_dsq_peek(dsq) : NULL;
	struct behind b = {};
	u64 vtime;

	if (!p)
		return;
	b.vtime = vtime_on(p, cpu, h->now);
	if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && !look_behind(dsq, cpu, &b, h->now))
		return;
	vtime = b.vtime + later;
	h->seen += nr;
	if (h->found && vtime_before(h->vtime, vtime))
		return;
	h->found = true;
	h->runs = false;
	h->vtime = vtime;
	h->later = later;
	h->weight = b.weight;
	h->dsq = dsq;
}

/* The weight of the one that goes first; @prev is what is known of the one that has just run. */
static u32 first_weight(const struct host_pick *h, const struct task_ctx *prev)
{
	struct task_struct *p = h->runs ? NULL : __COMPAT_scx_bpf_dsq_peek(h->dsq);
	const struct task_ctx *t = p ? task_ctx(p) : prev;

	if (h->weight)
		return h->weight;
	return t ? t->weight : WEIGHT_AVERAGE;
}

/* The host tasks that wait for @cpu are candidates. */
verified_once int consider_host(struct host_pick *h __arg_nonnull, s32 cpu, u64 now)
{
	u32 far;

	h->now = now;
	if (nr_quotas) {
		park_heads(cpu, now);
		park_heads(llc_dsq(cpu), now);
	}
	consider_queue(h, cpu, cpu, host_waiting(cpu, true), 0);
	consider_queue(h, llc_dsq(cpu), cpu, host_waiting(cpu, false), 0);
	if (nr_llcs == 1)
		return 0;
	/* More may wait there, or no pCPU be online any more. */
	far = far_llc(cpu);
	consider_queue(h, LLC_DSQ_BASE + far, cpu, *host_queue(MAX_CPUS + far), HOST_FAR_NS);
	return 0;
}

/* It starts on @cpu; if only tasks are in its queue that may not run here, the next best. */
verified_once int start_host(const struct host_pick *h __arg_nonnull, s32 cpu,
			     struct task_struct *prev __arg_trusted __arg_nullable)
{
	if (h->runs && prev) {
		scx_bpf_task_set_slice(prev, HOST_SLICE_NS);
		return true;
	}
	return scx_bpf_dsq_move_to_local(h->dsq, 0) ||
	       (h->dsq != cpu && scx_bpf_dsq_move_to_local(cpu, 0));
}

#endif /* BATON_HOST_BPF_H */
