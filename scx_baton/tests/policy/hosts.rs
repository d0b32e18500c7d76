// SPDX-License-Identifier: GPL-2.0-only
//! Tasks of the host that are no vCPUs.

use super::*;

proptest! {
    #[test]
    fn clamp_keeps_within_credit_and_lead(
        base: u64,
        d in -1_000_000_000i64..1_000_000_000,
        credit in 1u64..500_000_000,
        lead in 1u64..500_000_000,
    ) {
        let vtime = base.wrapping_add_signed(d);
        let clamped = unsafe { t_vtime_clamp(vtime, base, credit, lead) };
        let naive = d.clamp(-(credit as i64), lead as i64);
        prop_assert_eq!(clamped.wrapping_sub(base) as i64, naive);
        prop_assert_eq!(unsafe { t_vtime_clamp(clamped, base, credit, lead) }, clamped);
    }

    #[test]
    fn a_sleeper_keeps_its_credit_and_no_more(
        base: u64,
        d in -1_000_000_000i64..1_000_000_000,
        credit in 0u64..50_000_000,
    ) {
        let woken = unsafe { t_wake_vtime(base.wrapping_add_signed(d), base, credit) };
        prop_assert_eq!(woken.wrapping_sub(base) as i64, d.max(-(credit as i64)));
    }

    /// It pays for what it ran, and if bound is behind by no more than it was when that began; by
    /// two turns at most behind those that it competes with, and ahead of vnow by one.
    #[test]
    fn a_host_task_that_runs_falls_no_further_behind(
        vnow: u64,
        d in -50_000_000i64..50_000_000,
        below in 0i64..100_000_000,
        ran in 0u64..20_000_000,
        grown in 0u64..100_000_000,
        lag in 1u64..30_000_000,
    ) {
        let at = |d: i64| vnow.wrapping_add_signed(d);
        let charged = unsafe { t_host_charge(at(d), ran, at(-below), vnow, grown, lag) };
        let is = charged.wrapping_sub(vnow) as i64;
        // Where it stood relative to the level of the others when that was less by @grown.
        let stood = d + grown as i64;
        let paid = (d + ran as i64).max(if grown > 0 { stood.min(-below) } else { i64::MIN });
        prop_assert_eq!(is, paid.clamp(-below - 2 * lag as i64, lag as i64));
    }

    /// Who is led comes along by no more than its leader moves, and by as much from half the
    /// leader's bound on; who was further behind does not get ahead.
    #[test]
    fn who_is_led_stays_behind_whom_it_was_behind(
        moved in 0u64..50_000_000,
        behind in 0u64..1_000_000_000,
        more in 0u64..100_000_000,
        credit in 100_000_000u64..1_000_000_000,
    ) {
        let by = |behind| unsafe { t_led_by(moved, behind, credit) };
        prop_assert!(by(behind) <= moved);
        prop_assert!(2 * behind < credit || by(behind) == moved);
        // As it is counted in 256ths of what the leader moves.
        let left = |behind| behind as i64 - by(behind) as i64;
        prop_assert!(left(behind) <= left(behind + more) + moved as i64 / 256 + 1);
    }

    /// Who is further behind goes first; one that waits for a turn, if it is 3 ms behind its due.
    #[test]
    fn a_host_task_waits_for_a_turn_unless_it_is_a_slice_behind(
        vnow: u64, host in -20_000_000i64..20_000_000, vm in -20_000_000i64..20_000_000,
    ) {
        let at = |d: i64| vnow.wrapping_add_signed(d);
        let waits = unsafe { t_host_goes_first(at(host), at(vm), true, vnow) };
        prop_assert_eq!(waits, host < -3 * MS as i64);
        prop_assert_eq!(unsafe { t_host_goes_first(at(host), at(vm), false, vnow) }, host < vm);
    }

    /// It does where its share is less than three quarters of a pCPU.
    #[test]
    fn a_host_task_that_needs_a_pcpu_waits_for_no_turn(
        weight in 1u32..1 << 20, n in 1u64..10_000, cpus in 1u32..512,
    ) {
        let others = n.max(256) as f64 / 256.0;
        let share = f64::from(cpus) * f64::from(weight) / f64::from(ONE) / others;
        let waits = unsafe { t_host_can_wait(weight, n, cpus) };
        prop_assert!((share - 0.75).abs() < 0.01 || waits == (share < 0.75), "{share}");
    }

    /// A VM has its turn that goes before VMs without one, and is not behind its due.
    #[test]
    fn a_turn_is_that_of_the_order((now, [vm, other, _]) in clock_and_vms()) {
        let vnow = other.vtime;
        let (class, _) = naive_rank(&vm, vnow, now);
        prop_assert_eq!(unsafe { t_vm_has_turn(&vm, vnow, now) }, class == 1);
    }

    /// It keeps @credit, and is charged for no more than it could have used as it slept.
    #[test]
    fn a_short_sleep_costs_no_more_than_could_be_used_meanwhile(
        vnow: u64, d in -1_000_000_000i64..1_000_000_000, slept: u64, weight: u32,
        credit in 0u64..100 * MS, cpus in -1i32..1024,
    ) {
        let vtime = vnow.wrapping_add_signed(d);
        for slept in [slept, slept % (20 * MS)] {
            let woken = unsafe { t_slept_vtime(vtime, vnow, credit, slept, cpus, weight) };
            let used = i128::from(slept) * i128::from(cpus.max(1));
            let could = used * i128::from(ONE) / i128::from(weight.max(1));
            let kept = i128::from(d.max(-(credit as i64)));
            let most = if slept > 1000 * MS { i128::MAX } else { i128::from(d) + could };
            prop_assert_eq!(i128::from(woken.wrapping_sub(vnow) as i64), kept.min(most));
        }
    }

    /// Not unless it is a slice of 3 ms behind.
    #[test]
    fn a_host_task_preempts_one_that_is_a_slice_ahead(
        base: u64,
        behind in -50_000_000i64..50_000_000,
    ) {
        let takes = unsafe { t_host_preempts_host(base, base.wrapping_add_signed(behind)) };
        prop_assert_eq!(takes, behind > 3 * MS as i64);
    }

    /// A turn of a CPU, by weight.
    #[test]
    fn what_a_host_task_is_owed_goes_by_weight(weight in 1u32..1 << 20) {
        let naive = turn() as f64 * f64::from(ONE) / f64::from(weight);
        let lag = unsafe { t_host_lag(weight) } as f64;
        prop_assert!((lag - naive).abs() <= 1.0 + naive * 1e-6, "{lag}, not {naive}");
    }

    /// A second if there is a CPU for each, a fifth of one if there are five times as many, and
    /// less only when they are so many that all together would wait for ten seconds.
    #[test]
    fn a_host_tasks_lead_shrinks_with_the_crowd(entities in 0u64..20_000, cpus in 1u32..512) {
        let lead = unsafe { t_host_lead(entities, cpus) } as f64;
        let each = entities as f64 / f64::from(cpus);
        let naive = if each <= 1.0 { 1e9 } else { (1e9 / each).max(0.2e9).min(10e9 / each) };
        prop_assert!((lead - naive).abs() <= 2.0, "{lead}, not {naive}");
        prop_assert_eq!(unsafe { t_host_is_crowded(entities, cpus) }, each > 50.0);
        // All of them, one lead after the other, are served before the watchdog bites.
        prop_assert!(each < 1.0 || lead * each <= 10.0e9 + 2.0 * each);
    }

    /// Each of them once in ten seconds: they take no more than a 128th of the CPUs together, or
    /// 50 us each where they are too many for that, and never more than 200 us.
    #[test]
    fn a_crowd_takes_little_of_the_host(more in 1u64..100_000, cpus in 1u32..512) {
        let entities = u64::from(cpus) * 50 + more;
        let slice = unsafe { t_crowd_slice(entities, cpus) } as f64;
        let naive = (10e9 * f64::from(cpus) / 128.0 / entities as f64).clamp(50e3, 200e3);
        prop_assert!((slice - naive).abs() <= 1.0, "{slice}, not {naive}");
    }
}
