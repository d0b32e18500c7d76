// SPDX-License-Identifier: GPL-2.0-only
//! `cpu.max`.

use super::*;

proptest! {
    /// Period by period, as the kernel refills (`__refill_cfs_bandwidth_runtime()`).
    #[test]
    fn quotas_are_refilled_and_paid_back(
        begin: u64,
        period in 1u64..1000,
        permille in 1u64..4000,
        burst in 0u64..1000,
        owes in 0u64..1000,
        later in 0u64..20_000,
    ) {
        let (period_ns, quota_ns) = (period * MS, (period * permille * 1000).max(1));
        let burst_ns = quota_ns * burst / 1000;
        let mut q =
            quota { quota_ns, period_ns, burst_ns, period_end: begin, left: 0, used: 1, above: 0 };
        let full = unsafe { t_quota_full(&q) };
        let floor = unsafe { t_quota_floor(&q) };
        q.left = full - ((full - floor) as f64 * owes as f64 / 1000.0) as i64;
        let now = begin.wrapping_add(later * MS / 10);

        let (mut naive, mut end) = (q.left, begin);
        while (end.wrapping_sub(now) as i64) <= 0 {
            naive = (naive + quota_ns as i64).min(full);
            end = end.wrapping_add(period_ns);
        }
        let periods = unsafe { t_quota_periods(&q, now) };
        q.left = (q.left + unsafe { t_quota_refills(&q, q.left, periods) }).min(full);
        q.period_end = begin.wrapping_add(periods * period_ns);
        prop_assert_eq!((q.left, q.period_end), (naive, end));

        let release = unsafe { t_quota_release(&q, now) };
        if naive > 0 {
            prop_assert_eq!(release, 0);
        } else {
            let mut at = end;
            while { naive += quota_ns as i64; naive <= 0 } {
                at = at.wrapping_add(period_ns);
            }
            prop_assert_eq!(release, at);
            // The kernel's watchdog bites after 30 s.
            prop_assert!(release.wrapping_sub(now) <= 3000 * MS + period_ns);
        }
    }

    /// After ten seconds, together with all whose time comes within an eighth of a second.
    #[test]
    fn who_waits_for_its_quota_is_rescued_in_time(since in 0u64..1 << 62, later in 0u64..1 << 27) {
        let at = unsafe { t_rescue_at(since) };
        let waited = at - since;
        prop_assert!((10_000 * MS..=10_000 * MS + (1 << 27)).contains(&waited), "{waited}");
        let other = unsafe { t_rescue_at(since + later) };
        prop_assert!(other == at || other == at + (1 << 27));
    }
}
