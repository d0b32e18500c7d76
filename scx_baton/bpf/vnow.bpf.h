/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The common axis of virtual time: how far those that compete have come. vnow is the mean of what
 * each last-level cache sees. The greatest of them was tried: where two threads of a low weight
 * compete near one cache they are far ahead, and vnow with them, so that all others were behind
 * their due for ever, who keep little of that, and nobody got what its weight says. The least of
 * them is that of a cache where nobody who waits has used its share.
 */
#ifndef BATON_VNOW_BPF_H
#define BATON_VNOW_BPF_H

#include "policy.h"
#include "wanted.bpf.h"

static u64 vnow;

/* How often the mean is taken: oftener than a host task's slice ends, 3 ms. */
#define VNOW_EVERY_NS (1ULL * 1000 * 1000)

/* Of each last-level cache; who has not seen anybody wait for two turns does not count. */
static struct near_vnow {
	u64 vnow;
	u64 seen_at; /* ns */
} __attribute__((aligned(64))) near_vnows[MAX_LLCS];

static u64 mean_taken_at;

/* By how much the mean of those that count is ahead of vnow. */
verified_once s64 mean_ahead(u64 now)
{
	s64 sum = 0, nr = zero;
	struct near_vnow *n;
	u32 i;

	bpf_for(i, 0, nr_llcs) {
		n = &near_vnows[i & (MAX_LLCS - 1)];
		if (vtime_before(n->seen_at + 2 * TURN_NS, now))
			continue;
		sum += (s64)(n->vnow - vnow);
		nr++;
	}
	return nr ? sum / nr : 0;
}

/* As raise_vnow(), where there are several last-level caches. */
verified_once int raise_near(u32 llc, u64 vtime, u64 now)
{
	struct near_vnow *n = &near_vnows[llc & (MAX_LLCS - 1)];
	u64 taken_at = mean_taken_at;
	s64 ahead;

	if (vtime_before(n->seen_at + 2 * TURN_NS, now) && vtime_before(n->vnow, vnow))
		n->vnow = vnow;
	n->seen_at = now;
	if (vtime_before(n->vnow, vtime))
		n->vnow = vtime;
	/* Of the pCPUs that come here at once, one does it. */
	if (vtime_before(now, taken_at + VNOW_EVERY_NS) ||
	    __sync_val_compare_and_swap(&mean_taken_at, taken_at, now) != taken_at)
		return 0;
	ahead = mean_ahead(now);
	if (ahead > 0)
		vnow += ahead;
	return 0;
}

/* There is a choice near @llc, and the one that is furthest behind is at @vtime. */
static void raise_vnow(u32 llc, u64 vtime, u64 now)
{
	if (nr_llcs > 1)
		raise_near(llc, vtime, now);
	else if (vtime_before(vnow, vtime))
		vnow = vtime;
}

#endif /* BATON_VNOW_BPF_H */
