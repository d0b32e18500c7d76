// SPDX-License-Identifier: GPL-2.0-only
//! `cpu.max` of one cgroup, as `kernel/sched/fair.c` enforces it, but for the slices of 5 ms that a
//! pCPU takes from the cgroup at a time: what is left is one number for all pCPUs.

use crate::machine::{Ns, Quota};

#[derive(Clone, Debug)]
pub struct Bandwidth {
    quota: Ns,
    period: Ns,
    burst: Ns,
    /// Below 0: used ahead of time, until the next tick.
    left: i64,
    /// When the period ends; 0: nobody has run since the last one ended, and no timer is set.
    ends: Ns,
}

impl Bandwidth {
    pub fn new(quota: Quota) -> Self {
        let [quota, period, burst] =
            [quota.quota_us, quota.period_us, quota.burst_us].map(|us| us * 1000);
        Bandwidth { quota, period, burst, left: quota as i64, ends: 0 }
    }

    pub fn is_throttled(&self) -> bool {
        self.left <= 0
    }

    /// It has used so much (`account_cfs_rq_runtime()`); when its timer runs out, if that is to
    /// be set now (`start_cfs_bandwidth()`).
    pub fn charge(&mut self, ran: Ns, now: Ns) -> Option<Ns> {
        self.left -= ran as i64;
        if self.ends != 0 || ran == 0 {
            return None;
        }
        self.ends = now + self.period;
        Some(self.ends)
    }

    /// A period ends (`__refill_cfs_bandwidth_runtime()`). When the next one does, unless nothing
    /// was used in this one.
    pub fn refill(&mut self, now: Ns) -> Option<Ns> {
        let most = (self.quota + self.burst) as i64;
        let idle = self.left >= most;
        self.left = (self.left + self.quota as i64).min(most);
        self.ends = if idle { 0 } else { now + self.period };
        (!idle).then_some(self.ends)
    }

    /// When the timer is to run out that is set; 0: none is.
    pub fn ends(&self) -> Ns {
        self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_ahead_is_missing_later_and_the_rest_is_saved_up_to_the_burst() {
        let quota = Quota { quota_us: 10, period_us: 100, burst_us: 5 };
        let mut bandwidth = Bandwidth::new(quota);
        assert_eq!(bandwidth.charge(4_000, 0), Some(100_000));
        assert_eq!(bandwidth.charge(18_000, 50_000), None, "the timer is set");
        assert!(bandwidth.is_throttled());
        assert_eq!(bandwidth.refill(100_000), Some(200_000));
        assert!(bandwidth.is_throttled(), "12 µs too many were used");
        bandwidth.refill(200_000);
        bandwidth.refill(300_000);
        assert!(!bandwidth.is_throttled());
        bandwidth.refill(400_000);
        assert_eq!(bandwidth.refill(500_000), None, "full: nothing was used");
        bandwidth.charge(14_999, 600_000);
        assert!(!bandwidth.is_throttled(), "a burst was saved up");
    }
}
