// SPDX-License-Identifier: GPL-2.0-only
//! `bpf/policy.h`, compiled natively, against naive models.

#![allow(
    dead_code,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::undocumented_unsafe_blocks
)]
include!(concat!(env!("OUT_DIR"), "/bpf_intf.rs"));

use proptest::prelude::*;

mod hosts;
mod quotas;
mod tree;
mod vms;

unsafe extern "C" {
    fn t_vtime_clamp(vtime: u64, vnow: u64, credit: u64, lead: u64) -> u64;
    fn t_host_charge(vtime: u64, ran: u64, level: u64, vnow: u64, grown: u64, lag: u64) -> u64;
    fn t_led_by(moved: u64, behind: u64, credit: u64) -> u64;
    fn t_wake_vtime(vtime: u64, vnow: u64, credit: u64) -> u64;
    fn t_weighted(ns: u64, weight: u32) -> u64;
    fn t_vm_credit(vm: *const vm_ctx) -> u64;
    fn t_vm_lead(vm: *const vm_ctx) -> u64;
    fn t_vm_in_turn(vm: *const vm_ctx, now: u64) -> bool;
    fn t_vm_spins_exit(vm: *const vm_ctx, ran: u64, spins: u64) -> bool;
    fn t_vm_slice(vm: *const vm_ctx, cpus: i32, cpu: u32, now: u64) -> u64;
    fn t_vm_join_turn(vm: *mut vm_ctx, now: u64) -> u64;
    fn t_vm_claims(vm: *const vm_ctx, ran_turn: u64, vnow: u64, now: u64) -> bool;
    fn t_vm_rank(vm: *const vm_ctx, running: i32, claims: bool, vnow: u64, now: u64) -> u64;
    fn t_rank_preempts(rank: u64, running: u64, turn: u64) -> bool;
    fn t_vm_spreads(vm: *const vm_ctx, ran: u64, halting: u64, spins: u64) -> bool;
    fn t_vm_torn(vm: *const vm_ctx, ran: u64, costop: u64) -> bool;
    fn t_torn_slice(vm: *const vm_ctx, torn: u64, against: u32, running: i32) -> u64;
    fn t_bound_slice(vm: *const vm_ctx, waited: u64, against: u32, others: i32) -> u64;
    fn t_visit_needs(vm: *const vm_ctx, against: u32, running: i32, others: i32, bound: i32)
    -> u64;
    fn t_vm_words(end: u32) -> u32;
    fn t_vm_visit(vm: *const vm_ctx, vnow: u64) -> u64;
    fn t_vm_may_visit(vm: *const vm_ctx, vnow: u64) -> bool;
    fn t_vm_share(vm: *const vm_ctx, n: u64, cpus: u32, allowed: u32) -> u32;
    fn t_vm_price(vm: *const vm_ctx, vtime: u64, share: u32) -> u64;
    fn t_vcpu_limit(vtime: u64, first: u64) -> u64;
    fn t_bound_extra(vm: *const vm_ctx, wanted: u64, alone: u64) -> u32;
    fn t_donated_slice(left: u64, now: u64, until: u64) -> u64;
    fn t_starves(since: u64, now: u64, waiting: u32, cpus: u32) -> bool;
    fn t_kept_out(spinner: *const task_ctx, now: u64) -> bool;
    fn t_tree_share(share: u64, weight: u32, all: u64) -> u64;
    fn t_tree_weight(share: u64, n: u64) -> u32;
    fn t_host_lag(weight: u32) -> u64;
    fn t_host_is_crowded(entities: u64, cpus: u32) -> bool;
    fn t_crowd_slice(entities: u64, cpus: u32) -> u64;
    fn t_host_lead(entities: u64, cpus: u32) -> u64;
    fn t_vm_has_turn(vm: *const vm_ctx, vnow: u64, now: u64) -> bool;
    fn t_host_can_wait(weight: u32, n: u64, cpus: u32) -> bool;
    fn t_host_goes_first(host_vtime: u64, vm_vtime: u64, waits: bool, vnow: u64) -> bool;
    fn t_slept_vtime(vtime: u64, vnow: u64, credit: u64, slept: u64, cpus: i32, weight: u32)
    -> u64;
    fn t_host_preempts_host(waker_vtime: u64, running_vtime: u64) -> bool;
    fn t_vcpu_halts(vm: *const vm_ctx, ran: u64) -> bool;
    fn t_vm_is_whole(vm: *const vm_ctx) -> bool;
    fn t_core_is_shared(since: u64, beside: u64, now: u64) -> bool;
    fn t_vm_lends(vm: *const vm_ctx) -> bool;
    fn t_rescue_at(since: u64) -> u64;
    /// TURN_NS.
    static t_turn_ns: u64;
    fn t_quota_periods(q: *const quota, now: u64) -> u64;
    fn t_quota_refills(q: *const quota, left: i64, periods: u64) -> i64;
    fn t_quota_full(q: *const quota) -> i64;
    fn t_quota_floor(q: *const quota) -> i64;
    fn t_quota_release(q: *const quota, now: u64) -> u64;
}

const MS: u64 = 1_000_000;
/// An average weight.
const ONE: u32 = baton_limits_WEIGHT_AVERAGE;

fn turn() -> u64 {
    // SAFETY: a constant of policy.c.
    unsafe { t_turn_ns }
}

fn vm() -> vm_ctx {
    // SAFETY: a record of plain integers, for which all zeroes is a value.
    let mut vm: vm_ctx = unsafe { std::mem::zeroed() };
    vm.weight = ONE;
    vm.nr_vcpus = 2;
    // No turn, also at the clock's beginning.
    vm.turn_start = turn().wrapping_neg();
    vm
}

/// A VM somewhere around `base`, spread, in or out of its turn, whose share is known or not.
fn any_vm(base: u64) -> impl Strategy<Value = vm_ctx> {
    let state = (0u64..200 * MS, 0u64..40 * MS, 0i32..3, any::<bool>(), 0i32..10);
    (state, 0u32..200).prop_map(move |((vtime, started, running, spread, queued), share)| {
        let mut vm = vm();
        vm.share = share;
        vm.nr_queued = queued;
        vm.spread = spread.into();
        vm.vtime = base.wrapping_add(vtime);
        vm.turn_start = base.wrapping_add(started);
        vm.nr_running = running;
        vm
    })
}

/// A clock, also one that is about to wrap, and three VMs near it.
fn clock_and_vms() -> impl Strategy<Value = (u64, [vm_ctx; 3])> {
    prop_oneof![Just(0u64), Just(u64::MAX - 20 * MS), any::<u64>()].prop_flat_map(|base| {
        let now = (40 * MS..60 * MS).prop_map(move |d| base.wrapping_add(d));
        (now, [any_vm(base), any_vm(base), any_vm(base)])
    })
}

fn rank(vm: &vm_ctx, vnow: u64, now: u64) -> u64 {
    // SAFETY: pure functions of records and integers, here and below.
    unsafe { t_vm_rank(vm, vm.nr_running, t_vm_claims(vm, 0, vnow, now), vnow, now) }
}

/// What the vCPUs of a VM of average weight use in a turn.
fn turn_of(vm: &vm_ctx) -> u64 {
    turn() * vm.nr_vcpus as u64
}

/// The order in words: those behind their due by how long each vCPU that wants to run would do so
/// until they are not, and pay, then the oldest turn, then by where the VM stands once what runs
/// has used its slices, if it is spread.
fn naive_rank(vm: &vm_ctx, vnow: u64, now: u64) -> (u32, i64) {
    let ahead = vm.vtime.wrapping_sub(vnow) as i64;
    let in_turn = unsafe { t_vm_in_turn(vm, now) };
    if ahead < 0 {
        let nr = i64::from((vm.nr_running + vm.nr_queued).max(1));
        let share = if vm.share > 0 { i64::from(vm.share) } else { i64::MAX };
        (0, 16 * ahead / (nr * share.min(16 * nr)))
    } else if in_turn && ahead <= turn_of(vm) as i64 {
        (1, vm.turn_start.wrapping_sub(now) as i64)
    } else if vm.spread == 1 {
        (2, ahead + turn() as i64 * i64::from(vm.nr_running.max(0)))
    } else {
        (2, ahead)
    }
}
