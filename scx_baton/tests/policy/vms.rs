// SPDX-License-Identifier: GPL-2.0-only
//! VMs: their order, turns, slices, visits, and what their vCPUs give each other.

use super::*;

proptest! {
    /// Half a turn for each vCPU, but of one a whole one, and of more two at least.
    #[test]
    fn a_vm_that_runs_keeps_turns_of_its_vcpus(nr_vcpus in 1i32..1000, weight in 1u32..1 << 20) {
        let vm = vm_ctx { weight, nr_vcpus, ..vm() };
        let turns = f64::from(nr_vcpus.min(2)).max(f64::from(nr_vcpus) / 2.0);
        let due = unsafe { t_weighted((turns * turn() as f64) as u64, weight) };
        prop_assert_eq!(unsafe { t_vm_credit(&vm) }, due);
    }

    /// Of any two VMs the rank says what the order says in words, also where the clock wraps.
    #[test]
    fn the_rank_is_the_order((now, [a, b, c]) in clock_and_vms(), behind in 0u64..100 * MS) {
        let vnow = c.vtime.wrapping_sub(behind);
        let naive = naive_rank(&a, vnow, now).cmp(&naive_rank(&b, vnow, now));
        prop_assert_eq!(rank(&a, vnow, now).cmp(&rank(&b, vnow, now)), naive);
    }

    /// Two VMs can not take a pCPU from each other in a circle; one that waits for its turn takes
    /// none unless it is a turn behind.
    #[test]
    fn preemption_has_no_circle((now, [a, b, c]) in clock_and_vms(), behind in 0u64..100 * MS) {
        let vnow = c.vtime.wrapping_sub(behind);
        let preempts = |w: &vm_ctx, r: &vm_ctx| unsafe {
            t_rank_preempts(rank(w, vnow, now), rank(r, vnow, now), turn_of(r))
        };
        prop_assert!(!preempts(&a, &a));
        prop_assert!(!(preempts(&a, &b) && preempts(&b, &a)));
        let (waker, running) = (naive_rank(&a, vnow, now), naive_rank(&b, vnow, now));
        let naive = waker < running && (waker.0 < 2 || running.1 - waker.1 > turn_of(&b) as i64);
        prop_assert_eq!(preempts(&a, &b), naive);
    }

    /// A visit is short, and as long as what its VM is behind.
    #[test]
    fn visits_are_short(behind in 0u64..100 * MS, weight in 1u32..1 << 20) {
        let mut vm = vm();
        vm.weight = weight;
        let ns = unsafe { t_vm_visit(&vm, behind) };
        let naive = behind as f64 * f64::from(weight) / f64::from(ONE);
        prop_assert!((ns as f64 - naive.clamp(0.25e6, turn() as f64 / 4.0)).abs() <= 1.0);
    }

    /// A VM pays in full that wants its share of the pCPUs or more, and in proportion if fewer.
    #[test]
    fn who_wants_less_than_its_share_pays_less(
        vtime in 0u64..100 * MS, wants in 0i32..64, n in 0u64..64, cpus in 1u32..64,
        allowed in 1u32..64, weight in 1u32..1 << 20
    ) {
        let mut vm = vm();
        (vm.nr_running, vm.nr_queued, vm.weight) = (wants / 2, wants - wants / 2, weight);
        let share = unsafe { t_vm_share(&vm, 256 * n, cpus, allowed) };
        let price = unsafe { t_vm_price(&vm, vtime, share) } as f64;
        // The share is rounded down to sixteenths of a pCPU.
        let share = f64::from(cpus) * f64::from(weight) / f64::from(ONE) / n.max(1) as f64;
        let share = ((16.0 * share + 1e-9).floor() / 16.0).max(1e-9).min(f64::from(allowed));
        let naive = vtime as f64 * (f64::from(wants.max(1)) / share).min(1.0);
        prop_assert!((price - naive).abs() <= 1.0 + vtime as f64 / (16.0 * share.max(1.0)), "{price} {naive}");
    }

    /// A vCPU waits behind a sibling for no more than four turns of that one.
    #[test]
    fn a_vcpu_is_at_most_four_turns_ahead(vtime in 0u64..1000 * MS, first in 0u64..1000 * MS) {
        let limited = unsafe { t_vcpu_limit(vtime, first) };
        prop_assert_eq!(limited, vtime.min(first + 4 * turn()));
    }

    /// A pinned VM pays for what it has alone where others wait, as if that were one pCPU at least.
    #[test]
    fn a_pinned_vm_pays_for_what_it_has_alone(
        contested in 0u64..100 * MS, alone in 0u64..100_000 * MS, vcpus in 0i32..1024
    ) {
        let mut vm = vm();
        vm.nr_vcpus = vcpus;
        let extra = unsafe { t_bound_extra(&vm, contested + alone, alone) };
        let naive = alone as f64 / contested as f64;
        let naive = (256.0 * naive.min(f64::from((vcpus - 1).max(0)))).floor();
        prop_assert!((f64::from(extra) - naive).abs() <= 1.0, "{extra} {naive}");
    }

    /// No guest lives on interrupting itself: two turns ahead of its due is the most.
    #[test]
    fn visits_for_ipis_end_two_turns_ahead(ahead in 0u64..100 * MS, now in any::<u64>()) {
        let mut vm = vm();
        vm.vtime = now.wrapping_add(ahead);
        prop_assert_eq!(unsafe { t_vm_may_visit(&vm, now) }, ahead < 2 * turn());
    }

    /// A turn claims the pCPUs where it began or where another VM ran, and not the one where an
    /// older turn of the same VM ran until now; and none once the VM is a turn ahead.
    #[test]
    fn a_turn_claims_no_pcpu_twice((now, [a, _, _]) in clock_and_vms(), ago in 1u64..40 * MS) {
        let claims = |ran_turn| unsafe { t_vm_claims(&a, ran_turn, a.vtime, now) };
        let ahead = a.vtime.wrapping_sub(turn_of(&a) + ago);
        let claims_ahead = unsafe { t_vm_claims(&a, 0, ahead, now) };
        prop_assert!(!claims_ahead);
        let in_turn = unsafe { t_vm_in_turn(&a, now) };
        let older = a.turn_start.wrapping_sub(ago);
        prop_assert_eq!(claims(0), in_turn);
        prop_assert_eq!(claims(a.turn_start), in_turn);
        prop_assert!(older == 0 || !claims(older));
    }

    /// To the end of the turn, or a turn; up to the pCPU's next millisecond where not all fit, and
    /// spins do not exit.
    #[test]
    fn slices_are_short_where_not_all_fit(
        (now, [mut vm, _, _]) in clock_and_vms(),
        queued in 0i32..4, cpus in 1i32..6, cpu in 0u32..1024, spins in 0u64..8,
    ) {
        vm.exits = unsafe { t_vm_spins_exit(&vm, 16 * MS, spins) }.into();
        prop_assert_eq!(vm.exits == 1, spins > 4);
        // Once so, with hysteresis.
        prop_assert_eq!(vm.exits == 1 && unsafe { t_vm_spins_exit(&vm, 16 * MS, 2) }, spins > 4);
        vm.nr_queued = queued;
        let slice = unsafe { t_vm_slice(&vm, cpus, cpu, now) };
        let left = vm.turn_start.wrapping_add(turn()).wrapping_sub(now);
        let turn = if unsafe { t_vm_in_turn(&vm, now) } { left } else { turn() };
        let fit = queued == 0 || vm.nr_running + queued <= cpus || spins > 4 || vm.spread == 1;
        let most = MS + MS / 16;
        if fit || turn <= most {
            prop_assert_eq!(slice, turn);
        } else {
            prop_assert!((MS / 16..=most).contains(&slice));
            let phase = now.wrapping_add(u64::from(cpu) * 618_000) % MS;
            prop_assert_eq!((phase + slice) % MS, 0);
        }
    }

    /// The short slices of n pCPUs end one after the other: no two at once, and at no time more
    /// than two and a half times as long after each other as if they were spread evenly.
    #[test]
    fn short_slices_end_one_after_the_other(now in 1u64 << 40..1 << 50, n in 2u32..64) {
        let mut vm = vm();
        vm.nr_queued = 1;
        vm.torn = 1;
        let end = |cpu| unsafe { t_vm_slice(&vm, 1, cpu, now) } % MS;
        let mut ends: Vec<u64> = (0..n).map(end).collect();
        ends.sort_unstable();
        ends.push(ends[0] + MS);
        for at in ends.windows(2) {
            let apart = at[1] - at[0];
            prop_assert!(apart > 0 && 2 * apart * u64::from(n) <= 5 * MS, "{apart} of {n}");
        }
    }

    /// A VM is torn whose vCPUs wait half as long as others run, and until it is half of that.
    #[test]
    fn a_vm_is_torn_that_waits_while_it_runs(ran in 0u64..1_000 * MS, costop in 0u64..1_000 * MS) {
        let mut vm = vm();
        let begins = unsafe { t_vm_torn(&vm, ran, costop) };
        prop_assert_eq!(begins, 2 * costop > ran);
        vm.torn = 1;
        let stays = unsafe { t_vm_torn(&vm, ran, costop) };
        prop_assert_eq!(stays, 4 * costop > ran);
        prop_assert!(stays || !begins);
    }

    /// A vCPU that is bound, and waits while siblings run, gets nothing within two turns, and half
    /// of its part then: a millisecond to a turn.
    #[test]
    fn a_bound_vcpu_gets_half_of_its_part(
        torn in 0u64..10_000 * MS, weight in 1u32..1 << 20, against in 1u32..1 << 20,
        queued in 1i32..300, running in 0i32..300,
    ) {
        let mut vm = vm();
        vm.weight = weight;
        vm.nr_queued = queued;
        let slice = unsafe { t_torn_slice(&vm, torn, against, running) };
        let part = torn as f64 / 2.0 / f64::from(queued) * f64::from(weight) / f64::from(against);
        let naive = (part * f64::from(running.max(1))).clamp(MS as f64, turn() as f64);
        if torn < 2 * turn() {
            prop_assert_eq!(slice, 0);
        } else {
            // Integers round down, by less than one a step.
            let step = 1.0 + f64::from(weight) / f64::from(against);
            let off = 1.0 + f64::from(running.max(1)) * step;
            prop_assert!((slice as f64 - naive).abs() <= off, "{slice}, not {naive}");
        }
    }

    /// Beside a host task that computes a bound vCPU gets its part, among those that are bound
    /// there, once that is a slice of the host task; or long enough for an interrupt, if siblings
    /// lack it that do not exit as they spin.
    #[test]
    fn a_bound_vcpu_gets_its_part_beside_a_host_task(
        waited in 0u64..1_000 * MS, weight in 1u32..1 << 20, others in 0i32..20,
        running in 0i32..8, exits in 0u32..2,
    ) {
        let mut vm = vm();
        vm.weight = weight;
        vm.nr_queued = 1;
        vm.nr_running = running;
        vm.exits = exits;
        let slice = unsafe { t_bound_slice(&vm, waited, ONE, others) };
        let each = f64::from(1 + running) * f64::from(1 + others);
        let part = waited as f64 * f64::from(weight) / f64::from(ONE) / each;
        let least = if exits == 0 && running >= 2 { MS as f64 / 4.0 } else { 3.0 * MS as f64 };
        let off = 2.0 + f64::from(weight) / f64::from(ONE);
        if slice == 0 {
            prop_assert!(part < least + off, "{part}");
        } else {
            let naive = part.min(turn() as f64);
            prop_assert!(slice as f64 + off > least, "{slice}, less than {least}");
            prop_assert!((slice as f64 - naive).abs() <= off, "{slice}, not {naive}");
        }
    }

    /// What it waits for a visit in its part makes that its part, also beside one of many vCPUs of
    /// a VM that has a low weight.
    #[test]
    fn a_visit_costs_what_it_is_worth(
        weight in 1u32..1 << 16, against in 1u32..1 << 16, running in 0i32..512,
        (others, bound) in (0i32..20, 0i32..20),
    ) {
        let mut vm = vm();
        vm.weight = weight;
        vm.nr_queued = 1;
        let needs = unsafe { t_visit_needs(&vm, against, running, others, bound) } as f64;
        let each = f64::from(against) / f64::from(running.max(1));
        let part = needs * f64::from(weight) / each / f64::from(1 + others);
        let visit = 250_000.0 / f64::from(bound.max(1));
        let off = 1.0 + 2.0 * f64::from(weight) / each;
        prop_assert!((part - visit).abs() <= off, "{part}, not {visit}");
    }

    /// Nobody starves within a tenth of a second, nor within four turns of all who wait; one who
    /// starves does so the longer he waits. Nor one that another pCPU has queued since this one
    /// looked at its clock, or that does not wait.
    #[test]
    fn starving_takes_turns_of_everybody(
        since in 1u64..1 << 60, waited in 0u64..100_000 * MS, waiting in 0u32..10_000,
        cpus in 0u32..512,
    ) {
        let starves = unsafe { t_starves(since, since + waited, waiting, cpus) };
        let later = unsafe { t_starves(since + waited + 1, since, waiting, cpus) };
        let never = unsafe { t_starves(0, since + waited, waiting, cpus) };
        prop_assert!(!later && !never);
        let turns = 4.0 * f64::from(waiting) / f64::from(cpus.max(1));
        // The kernel's watchdog does not wait for ten thousand of them.
        let naive = waited as f64 / MS as f64 - (100.0 + turn() as f64 / MS as f64 * turns).min(10_000.0);
        prop_assert!(naive.abs() < 1e-3 || starves == (naive > 0.0));
        let later = unsafe { t_starves(since, since + waited + MS, waiting, cpus) };
        prop_assert!(!starves || later);
    }

    /// Of two spread VMs that are level, the one with fewer vCPUs running goes first.
    #[test]
    fn spread_vms_run_apart((now, [mut a, mut b, _]) in clock_and_vms()) {
        (a.spread, b.spread) = (1, 1);
        b.vtime = a.vtime;
        let first = rank(&a, a.vtime, now) < rank(&b, a.vtime, now);
        prop_assert_eq!(first, a.nr_running < b.nr_running);
    }

    /// Spread is decided by the CPU time of vCPUs that halt often, with hysteresis: what is spread
    /// stays so where nothing becomes so. Who spins more often is not spread.
    #[test]
    fn frequent_halts_spread(ran in 0u64..1_000 * MS, part in 0.0f64..1.0, spins in 0u64..20_000) {
        let halting = (ran as f64 * part) as u64;
        let mut vm = vm();
        let becomes = unsafe { t_vm_spreads(&vm, ran, halting, spins) };
        vm.spread = 1;
        let stays = unsafe { t_vm_spreads(&vm, ran, halting, spins) };
        prop_assert!(stays || !becomes);
        prop_assert_eq!(becomes, spins * MS / 5 < ran && ran < 2 * halting);
        prop_assert_eq!(stays, spins * MS / 10 < ran && ran < 2 * halting);
    }

    /// Siblings that start inside a turn end with it; the next turn is a whole one.
    #[test]
    fn siblings_end_together((now, [mut a, _, _]) in clock_and_vms(), later in 0u64..9 * MS) {
        a.spread = 0;
        let first = unsafe { t_vm_join_turn(&mut a, now) };
        a.nr_running = 1;
        prop_assert!(first.wrapping_sub(now) <= turn());
        if first.wrapping_sub(now) > later + 2 * MS {
            prop_assert_eq!(unsafe { t_vm_join_turn(&mut a, now.wrapping_add(later)) }, first);
        }
        let next = unsafe { t_vm_join_turn(&mut a, first) };
        prop_assert_eq!(next, first.wrapping_add(turn()));
    }

    /// Slice by slice on two pCPUs, VMs that always want the CPU share it by weight, spread or
    /// not.
    #[test]
    fn shares_follow_weights(kinds in prop::collection::vec((10u32..1000, any::<bool>()), 2..6)) {
        let weights: Vec<u32> = kinds.iter().map(|(weight, _)| *weight).collect();
        let new = |&(weight, spread): &(u32, bool)| vm_ctx { weight, spread: spread.into(), ..vm() };
        let mut vms: Vec<vm_ctx> = kinds.iter().map(new).collect();
        let mut used = vec![0u64; vms.len()];
        let mut vnow = 0;
        let mut runs: [Option<usize>; 2] = [None; 2];
        for slice in 0..80_000 {
            let pcpu = &mut runs[slice % 2];
            if let Some(done) = pcpu.take() {
                let v = &mut vms[done];
                v.nr_running -= 1;
                v.vtime += unsafe { t_weighted(turn(), v.weight) };
                v.vtime = unsafe { t_vtime_clamp(v.vtime, vnow, t_vm_credit(v), t_vm_lead(v)) };
                used[done] += turn();
            }
            let mut best = 0;
            for i in 1..vms.len() {
                if rank(&vms[i], vnow, 0) < rank(&vms[best], vnow, 0) {
                    best = i;
                }
            }
            vnow = vnow.max(vms[best].vtime);
            vms[best].nr_running += 1;
            *pcpu = Some(best);
        }
        let all: u64 = used.iter().sum();
        let weight: u32 = weights.iter().sum();
        for (u, w) in used.iter().zip(&weights) {
            let (got, due) = (*u as f64 / all as f64, f64::from(*w) / f64::from(weight));
            prop_assert!((got / due - 1.0).abs() < 0.02, "weight {} of {}: {} instead of {}", w, weight, got, due);
        }
    }

    #[test]
    fn a_spinner_is_kept_out_for_a_while_only(now: u64, until in -10_000_000i64..10_000_000, pid: i32) {
        // SAFETY: as in vm().
        let mut t: task_ctx = unsafe { std::mem::zeroed() };
        t.wait_for = pid;
        t.kept_until = now.wrapping_add_signed(until);
        prop_assert_eq!(unsafe { t_kept_out(&t, now) }, pid != 0 && until > 0);
    }

    /// A chain of yields ends at most a millisecond after the slice that it shares.
    #[test]
    fn donations_share_one_slice(start: u64, slice in 0..30 * MS, used in 0..3 * MS) {
        let until = start.wrapping_add(slice);
        let (mut now, mut left) = (start, slice);
        for _ in 0..100_000 {
            now = now.wrapping_add(used + 1000);
            left = unsafe { t_donated_slice(left.saturating_sub(used + 1000), now, until) };
            if left == 0 {
                return Ok(());
            }
            prop_assert!(now.wrapping_add(left).wrapping_sub(until).cast_signed() <= MS as i64);
        }
        prop_assert!(false, "handed on for ever");
    }

    /// Several run, and all that want to, together.
    #[test]
    fn a_gang_is_whole_of_which_nobody_waits(
        running in -1i32..8,
        queued in -1i32..3,
        spread: bool,
    ) {
        let mut vm = vm();
        (vm.nr_running, vm.nr_queued, vm.spread) = (running, queued, spread.into());
        prop_assert_eq!(unsafe { t_vm_is_whole(&vm) }, running >= 2 && queued < 1 && !spread);
    }

    /// Where one in five or more waits.
    #[test]
    fn a_vm_lends_of_which_a_part_waits(running in 0i32..1024, queued in 0i32..1024) {
        let mut vm = vm();
        (vm.nr_running, vm.nr_queued) = (running, queued);
        let all = running + queued;
        prop_assert_eq!(unsafe { t_vm_lends(&vm) }, all == 0 || 5 * queued >= all);
    }

    /// Within 4 ms of CPU time since it did; a VM that is spread stays so up to 16 ms.
    #[test]
    fn a_vcpu_halts_often_with_hysteresis(ran in 0..100 * MS) {
        let mut vm = vm();
        prop_assert_eq!(unsafe { t_vcpu_halts(&vm, ran) }, ran < 4 * MS);
        vm.spread = 1;
        prop_assert_eq!(unsafe { t_vcpu_halts(&vm, ran) }, ran < 16 * MS);
    }

    /// All slots below the end have their bit in these words, and there are no more: the next one
    /// is another cache's first. VM 1,024 is bit 0, as a slot 0 would be.
    #[test]
    fn no_vm_is_beyond_the_words(end in 1u32..=1025) {
        let words = unsafe { t_vm_words(end) };
        prop_assert!(words <= 16);
        prop_assert!((1..end).all(|slot| slot % 1024 / 64 < words));
    }

    /// Both have run for 4 ms, wherever the clock wraps.
    #[test]
    fn a_core_is_shared_by_two_that_stay(now: u64, since in 0..20 * MS, beside in 0..20 * MS) {
        let at = |ago: u64| now.wrapping_sub(ago);
        let shared = unsafe { t_core_is_shared(at(since), at(beside), now) };
        prop_assert_eq!(shared, since.min(beside) >= 4 * MS);
    }
}
