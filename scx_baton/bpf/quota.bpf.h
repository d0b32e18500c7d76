/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.max. The kernel tells a sched_ext scheduler of quotas and leaves it to enforce them: each
 * cgroup with one gets so much CPU time for each period, and may save up a burst. Charged at
 * ticks and switches, so that a cgroup can use a tick too much on each pCPU; later periods pay
 * that back. A task whose cgroup, or one above it, has nothing left waits apart from all others
 * until a timer finds that it has.
 */
#ifndef BATON_QUOTA_BPF_H
#define BATON_QUOTA_BPF_H

#include "policy.h"
#include "state.bpf.h"

/* Tasks whose cgroups have used up their CPU time, in no order. */
#define PARKED_DSQ 0x30000ULL

struct park_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct park_timer);
	__uint(max_entries, 1);
} park_timers SEC(".maps");

/* When the timer looks; 0: it does not. */
static u64 parked_until;

/*
 * Tasks that were parked so far, and how many when the timer began its last two rounds. The kernel
 * puts a task into its queue only after enqueue(): a timer that looks meanwhile does not see it,
 * and looks again.
 */
static u64 nr_parks, round_parks, seen_parks;
#define PARK_AGAIN_NS (1ULL * 1000 * 1000)
/* So much later where others wait, too, for whom it looks: on a crowded host tasks are parked all
 * the time. */
#define PARK_MISSED_NS (20ULL * 1000 * 1000)

/*
 * Parked tasks that the timer looks at in one go, in a softirq: about 2 us for each. Of more it
 * looks at the others soon after; and how many are left for that.
 */
#define MAX_UNPARKS 64
#define UNPARK_REST_NS (100ULL * 1000)
static u32 parked_left;

/* The earliest time at which one of those that it has looked at may run; 0: none waits. */
static u64 next_release;

/* Of cgroups with cpu.max, and how many there are. */
static struct quota quotas[MAX_QUOTAS];
static u32 nr_quotas;

static struct quota *quota_slot(u32 slot)
{
	return &quotas[slot & (MAX_QUOTAS - 1)];
}

/* Begin the periods that have come since the last look; one of the pCPUs that see it does. */
static inline void refill(struct quota *q, u64 now)
{
	u64 end = q->period_end, periods = quota_periods(q, now);
	s64 left, add;

	if (!periods ||
	    __sync_val_compare_and_swap(&q->period_end, end, end + periods * q->period_ns) != end)
		return;
	add = quota_refills(q, q->left, periods);
	left = __sync_fetch_and_add(&q->left, add) + add;
	if (left > quota_full(q))
		__sync_val_compare_and_swap(&q->left, left, quota_full(q));
}

/* When the quota in @slot lets tasks run again; 0: it does. */
verified_once u64 released_at(u32 slot, u64 now)
{
	struct quota *q = quota_slot(slot);

	if (!q->quota_ns)
		return 0;
	refill(q, now);
	return quota_release(q, now);
}

/*
 * Until when the cgroups above @t do not let it run, ns; 0: it may, or the kernel's watchdog would
 * soon end the scheduler because it has not run. Many calls deep already: see verified_once.
 */
verified_once u64 held_until(const struct task_ctx *t __arg_nonnull, u64 now)
{
	u64 until = 0, release, rescue, since;
	u32 i, slot = t->quota;

	bpf_for(i, 0, MAX_QUOTA_CHAIN) {
		if (!slot)
			break;
		release = released_at(slot, now);
		if (release && (!until || vtime_before(until, release)))
			until = release;
		slot = quota_slot(slot)->above;
	}
	if (!until)
		return 0;
	since = t->run_at;
	if (vtime_before(since, t->woken_at))
		since = t->woken_at;
	rescue = rescue_at(since);
	if (!vtime_before(now, rescue))
		return 0;
	return vtime_before(rescue, until) ? rescue : until;
}

/* The same; most tasks have no quotas above them. */
static u64 throttled_until(const struct task_ctx *t, u64 now)
{
	return t->quota ? held_until(t, now) : 0;
}

/* A task has run that has quotas above it. */
verified_once int quotas_charge(u32 slot, u64 ran)
{
	struct quota *q;
	s64 left;
	u32 i;

	bpf_for(i, 0, MAX_QUOTA_CHAIN) {
		if (!slot)
			break;
		q = quota_slot(slot);
		slot = q->above;
		if (!q->quota_ns)
			continue;
		left = __sync_fetch_and_sub(&q->left, ran) - ran;
		if (left < quota_floor(q))
			__sync_val_compare_and_swap(&q->left, left, quota_floor(q));
	}
	return 0;
}

/* pCPUs that do so at once. */
#define MAX_RACERS 16

/* @at becomes @release, if that is earlier or @at is 0; whether it does. Of several the earliest
 * stays. */
verified_once int make_earlier(u64 *at __arg_nonnull, u64 release)
{
	u64 is = *at, was;
	u32 i;

	bpf_for(i, 0, MAX_RACERS) {
		if (is && !vtime_before(release, is))
			return false;
		was = __sync_val_compare_and_swap(at, is, release);
		if (was == is)
			break;
		is = was;
	}
	return true;
}

/* The timer is to look at @at, or before. */
verified_once int set_timer(u64 at, u64 now)
{
	struct park_timer *timer;
	u32 only = 0;
	u64 armed;

	if (!make_earlier(&parked_until, at))
		return 0;
	timer = bpf_map_lookup_elem(&park_timers, &only);
	if (!timer)
		return 0;
	bpf_timer_start(&timer->timer, vtime_before(now, at) ? at - now : 1, 0);
	/* Another pCPU may have started it for an earlier time in between, which this one was to
	 * replace. */
	armed = *(volatile u64 *)&parked_until;
	if (armed && vtime_before(armed, at))
		bpf_timer_start(&timer->timer, vtime_before(now, armed) ? armed - now : 1, 0);
	return 0;
}

/* The timer is to look at all again at @release, also if it is on its way through them now. */
static __always_inline void look_again(u64 release, u64 now)
{
	make_earlier(&next_release, release);
	set_timer(release, now);
}

/* A cgroup's quota in µs as the kernel gives it, ~0: none; *@quota is its slot, 0: none. */
static void set_quota(u32 *quota, u64 period_us, u64 quota_us, u64 burst_us)
{
	u64 now = scx_bpf_now();
	struct quota *q;
	u32 slot;

	if (quota_us == ~0ULL || !period_us) {
		if (*quota) {
			q = quota_slot(*quota);
			q->quota_ns = 0;
			q->used = 0;
			*quota = 0;
			__sync_fetch_and_sub(&nr_quotas, 1);
		}
	} else {
		if (!*quota) {
			bpf_for(slot, 1, MAX_QUOTAS) {
				q = quota_slot(slot);
				if (!q->used && !__sync_val_compare_and_swap(&q->used, 0, 1)) {
					*quota = slot;
					break;
				}
			}
			/* Those of the cgroups above hold. */
			if (!*quota) {
				count_add(COUNT_QUOTALESS, 1);
				return;
			}
			q = quota_slot(*quota);
			q->left = 0;
			q->period_end = now;
			__sync_fetch_and_add(&nr_quotas, 1);
		}
		q = quota_slot(*quota);
		q->period_ns = period_us * 1000;
		q->burst_ns = burst_us * 1000;
		q->quota_ns = quota_us * 1000 ?: 1;
	}
	/* Who waits for the old quota may run now. */
	if (parked_until)
		look_again(now, now);
}

#endif /* BATON_QUOTA_BPF_H */
