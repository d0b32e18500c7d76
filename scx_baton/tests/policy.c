// SPDX-License-Identifier: GPL-2.0-only
/* The inline functions of policy.h, given names that a linker can see. */
#include "policy.h"

u64 t_vtime_clamp(u64 vtime, u64 vnow, u64 credit, u64 lead)
{
	return vtime_clamp(vtime, vnow, credit, lead);
}

u64 t_host_charge(u64 vtime, u64 ran, u64 level, u64 vnow, u64 grown, u64 lag)
{
	return host_charge(vtime, ran, level, vnow, grown, lag);
}

u64 t_led_by(u64 moved, u64 behind, u64 credit)
{
	return led_by(moved, behind, credit);
}

u64 t_wake_vtime(u64 vtime, u64 vnow, u64 credit)
{
	return wake_vtime(vtime, vnow, credit);
}

u64 t_weighted(u64 ns, u32 weight)
{
	return weighted(ns, weight);
}

u64 t_vm_credit(const struct vm_ctx *vm)
{
	return vm_credit(vm);
}

u64 t_vm_lead(const struct vm_ctx *vm)
{
	return vm_lead(vm);
}

bool t_vm_in_turn(const struct vm_ctx *vm, u64 now)
{
	return vm_in_turn(vm, now);
}

bool t_vm_spins_exit(const struct vm_ctx *vm, u64 ran, u64 spins)
{
	return vm_spins_exit(vm, ran, spins);
}

u64 t_vm_slice(const struct vm_ctx *vm, s32 cpus, u32 cpu, u64 now)
{
	return vm_slice(vm, vm_crowded(vm, vm->nr_queued, cpus), cpu, now);
}

u64 t_vm_join_turn(struct vm_ctx *vm, u64 now)
{
	vm_join_turn(vm, now);
	return vm_turn_end(vm, now);
}

bool t_vm_claims(const struct vm_ctx *vm, u64 ran_turn, u64 vnow, u64 now)
{
	return vm_claims(vm, ran_turn, vnow, now);
}

u64 t_vm_rank(const struct vm_ctx *vm, s32 running, bool claims, u64 vnow, u64 now)
{
	return vm_rank(vm, vm, running, claims, vnow, now);
}

bool t_rank_preempts(u64 rank, u64 running, u64 turn)
{
	return rank_preempts(rank, running, turn);
}

bool t_vm_spreads(const struct vm_ctx *vm, u64 ran, u64 halting, u64 spins)
{
	return vm_spreads(vm, ran, halting, spins);
}

bool t_vm_torn(const struct vm_ctx *vm, u64 ran, u64 costop)
{
	return vm_torn(vm, ran, costop);
}

u64 t_torn_slice(const struct vm_ctx *vm, u64 torn, u32 against, s32 running)
{
	return torn_slice(vm, torn, against, running);
}

u64 t_visit_needs(const struct vm_ctx *vm, u32 against, s32 running, s32 others, s32 bound)
{
	return visit_needs(vm, against, running, others, bound);
}

u64 t_bound_slice(const struct vm_ctx *vm, u64 waited, u32 against, s32 others)
{
	return bound_slice(vm, waited, against, others);
}

u32 t_vm_words(u32 end)
{
	return vm_words(end);
}

u64 t_vm_visit(const struct vm_ctx *vm, u64 vnow)
{
	return vm_visit(vm, vnow);
}

u32 t_vm_share(const struct vm_ctx *vm, u64 n, u32 cpus, u32 allowed)
{
	return vm_share(vm, n, cpus, allowed);
}

u64 t_vm_price(const struct vm_ctx *vm, u64 vtime, u32 share)
{
	return vm_price(vm, vtime, share);
}

u64 t_vcpu_limit(u64 vtime, u64 first)
{
	return vcpu_limit(vtime, first);
}

u32 t_bound_extra(const struct vm_ctx *vm, u64 wanted, u64 alone)
{
	return bound_extra(vm, wanted, alone);
}

bool t_vm_may_visit(const struct vm_ctx *vm, u64 vnow)
{
	return vm_may_visit(vm, vnow);
}

u64 t_donated_slice(u64 left, u64 now, u64 until)
{
	return donated_slice(left, now, until);
}

bool t_kept_out(const struct task_ctx *spinner, u64 now)
{
	return kept_out(spinner, now);
}

bool t_starves(u64 since, u64 now, u32 waiting, u32 cpus)
{
	return starves(since, now, waiting, cpus);
}

u64 t_quota_periods(const struct quota *q, u64 now)
{
	return quota_periods(q, now);
}

s64 t_quota_refills(const struct quota *q, s64 left, u64 periods)
{
	return quota_refills(q, left, periods);
}

s64 t_quota_full(const struct quota *q)
{
	return quota_full(q);
}

s64 t_quota_floor(const struct quota *q)
{
	return quota_floor(q);
}

u64 t_quota_release(const struct quota *q, u64 now)
{
	return quota_release(q, now);
}

u64 t_tree_share(u64 share, u32 weight, u64 all)
{
	return tree_share(share, weight, all);
}

u32 t_tree_weight(u64 share, u64 n)
{
	return tree_weight(share, n);
}

u64 t_host_lag(u32 weight)
{
	return host_lag(weight);
}

bool t_host_is_crowded(u64 entities, u32 cpus)
{
	return host_is_crowded(entities, cpus);
}

u64 t_crowd_slice(u64 entities, u32 cpus)
{
	return crowd_slice(entities, cpus);
}

u64 t_host_lead(u64 entities, u32 cpus)
{
	return host_lead(entities, cpus);
}

bool t_vm_has_turn(const struct vm_ctx *vm, u64 vnow, u64 now)
{
	return vm_has_turn(vm, vnow, now);
}

bool t_host_can_wait(u32 weight, u64 n, u32 cpus)
{
	return host_can_wait(weight, n, cpus);
}

bool t_host_goes_first(u64 host_vtime, u64 vm_vtime, bool waits, u64 vnow)
{
	return host_goes_first(host_vtime, vm_vtime, waits, vnow);
}

u64 t_slept_vtime(u64 vtime, u64 vnow, u64 credit, u64 slept, s32 cpus, u32 weight)
{
	return slept_vtime(vtime, vnow, credit, slept, cpus, weight);
}

bool t_host_preempts_host(u64 waker_vtime, u64 running_vtime)
{
	return host_preempts_host(waker_vtime, running_vtime);
}

bool t_vcpu_halts(const struct vm_ctx *vm, u64 ran)
{
	return vcpu_halts(vm, ran);
}

bool t_vm_is_whole(const struct vm_ctx *vm)
{
	return vm_is_whole(vm);
}

bool t_core_is_shared(u64 since, u64 beside, u64 now)
{
	return core_is_shared(since, beside, now);
}

bool t_vm_lends(const struct vm_ctx *vm)
{
	return vm_lends(vm);
}

u64 t_rescue_at(u64 since)
{
	return rescue_at(since);
}

const u64 t_turn_ns = TURN_NS;
