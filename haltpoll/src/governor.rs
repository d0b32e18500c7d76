// SPDX-License-Identifier: GPL-2.0-only
//! The decision: from how long HLTs were, the limit that costs least.
//!
//! A HLT is a ski rental: polling costs CPU time for as long as it lasts, sleeping costs a fixed price
//! once, what it takes to block and to be woken. Whoever knows nothing polls for as long as a sleep
//! costs, and never pays more than twice what a clairvoyant would (Karlin et al., "Competitive snoopy
//! caching", 1988). Whoever knows the distribution picks the limit with the least expected cost
//! (Karlin et al., "Competitive randomized algorithms for nonuniform problems", 1990).

/// Bucket `i` of a histogram counts what took 2^i ns or more, and less than 2^(i+1).
pub const BUCKETS: usize = 32;

/// Fewer HLTs than this tell nothing.
const ENOUGH: f64 = 50.0;

/// Another limit must be better by this factor: halt lengths of two seconds are never the same.
const HYSTERESIS: f64 = 1.1;

/// What is remembered of a second, a second later.
const MEMORY: f64 = 0.5;

/// 2^20 ns, a millisecond: nothing that long is worth waiting for awake.
const LONGEST: usize = 20;

/// What the HLTs of an interval were like.
#[derive(Clone, Debug, PartialEq)]
pub struct Halts {
    /// From HLT until the guest went on.
    pub lengths: [u64; BUCKETS],
    /// Of those that slept: from being woken until running.
    pub wakeups: [u64; BUCKETS],
}

impl Default for Halts {
    fn default() -> Self {
        Halts { lengths: [0; BUCKETS], wakeups: [0; BUCKETS] }
    }
}

/// What was decided, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// `halt_poll_ns` from now on.
    pub limit_ns: u64,
    /// In words, with the figures.
    pub reason: String,
}

/// Decides once a second.
#[derive(Clone, Debug)]
pub struct Governor {
    /// Share of all pCPUs' time that may be polled away.
    budget: f64,
    pcpus: f64,
    limit_ns: u64,
    lengths: [f64; BUCKETS],
    wakeups: [f64; BUCKETS],
    seconds: f64,
}

impl Governor {
    /// `budget` from 0 to 1; `limit_ns` is the one in force.
    pub fn new(budget: f64, pcpus: usize, limit_ns: u64) -> Self {
        let none = [0.0; BUCKETS];
        Governor {
            budget,
            pcpus: pcpus as f64,
            limit_ns,
            lengths: none,
            wakeups: none,
            seconds: 0.0,
        }
    }

    /// What happened in the last `seconds`. `None`: it stays as it is.
    pub fn decide(&mut self, halts: &Halts, seconds: f64) -> Option<Decision> {
        let remember = |old: &mut [f64; BUCKETS], new: &[u64; BUCKETS]| {
            for (old, new) in old.iter_mut().zip(new) {
                *old = *old * MEMORY + *new as f64;
            }
        };
        remember(&mut self.lengths, &halts.lengths);
        remember(&mut self.wakeups, &halts.wakeups);
        self.seconds = self.seconds * MEMORY + seconds;
        let n: f64 = self.lengths.iter().sum();
        if n < ENOUGH * self.seconds.min(1.0) {
            return self.change(0, format!("{n:.0} HLTs are too few to poll for"));
        }
        let sleep = self.sleep_ns();
        let allowed = self.budget * self.pcpus * self.seconds * 1e9;
        let cost = |limit: u64| self.polled(limit) + self.slept(limit) * sleep;
        let limits = std::iter::once(0).chain((10..=LONGEST).map(|power| 1u64 << power));
        let affordable = limits.filter(|limit| self.polled(*limit) <= allowed);
        let best = affordable.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(0);
        let now = self.limit_ns;
        let too_dear = self.polled(now) > allowed;
        if !too_dear && cost(now) <= cost(best) * HYSTERESIS {
            return None;
        }
        let share = |ns: f64| ns / (self.pcpus * self.seconds * 1e9) * 100.0;
        let reason = format!(
            "of {:.0} HLTs/s {:.0} % end within it; a sleep costs {:.1} µs; polling {:.2} % of the host{}",
            n / self.seconds,
            100.0 * (1.0 - self.slept(best) / n),
            sleep / 1e3,
            share(self.polled(best)),
            if too_dear { ", before: above the budget" } else { "" }
        );
        self.change(best, reason)
    }

    fn change(&mut self, limit_ns: u64, reason: String) -> Option<Decision> {
        if limit_ns == self.limit_ns {
            return None;
        }
        self.limit_ns = limit_ns;
        Some(Decision { limit_ns, reason })
    }

    /// What a sleep costs: the median time from being woken until running. Without one there is the
    /// time that no host is faster than.
    fn sleep_ns(&self) -> f64 {
        const LEAST_NS: f64 = 2_000.0;
        let half = self.wakeups.iter().sum::<f64>() / 2.0;
        let mut seen = 0.0;
        for (bucket, n) in self.wakeups.iter().enumerate() {
            seen += n;
            if seen >= half && *n > 0.0 {
                return middle(bucket).max(LEAST_NS);
            }
        }
        LEAST_NS
    }

    /// CPU time polled with this limit, ns.
    fn polled(&self, limit: u64) -> f64 {
        let polls = |(bucket, n): (usize, &f64)| n * middle(bucket).min(limit as f64);
        self.lengths.iter().enumerate().map(polls).sum()
    }

    /// HLTs that are longer.
    fn slept(&self, limit: u64) -> f64 {
        let longer = |(bucket, _): &(usize, &f64)| middle(*bucket) > limit as f64;
        self.lengths.iter().enumerate().filter(longer).map(|(_, n)| n).sum()
    }
}

/// Of a bucket, ns.
fn middle(bucket: usize) -> f64 {
    1.5 * (1u64 << bucket) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn halts(lengths: &[(usize, u64)], wakeup: usize) -> Halts {
        let mut halts = Halts::default();
        lengths.iter().for_each(|(bucket, n)| halts.lengths[*bucket] += n);
        halts.wakeups[wakeup] = 1000;
        halts
    }

    #[test]
    fn polls_for_what_comes_soon_and_not_for_what_comes_late() {
        // 8 to 16 µs, a wake-up takes twice as long: 10,000 HLTs a second on 4 pCPUs.
        let mut governor = Governor::new(0.05, 4, 0);
        let decision = governor.decide(&halts(&[(13, 10_000)], 14), 1.0).expect("a change");
        assert_eq!(decision.limit_ns, 1 << 14, "{}", decision.reason);
        assert_eq!(governor.decide(&halts(&[(13, 9_500)], 14), 1.0), None, "still the same");
        // Only long ones any more: 4 ms.
        let long = halts(&[(22, 10_000)], 14);
        let stops = (0..10).find_map(|_| governor.decide(&long, 1.0)).expect("a change");
        assert_eq!(stops.limit_ns, 0, "{}", stops.reason);
    }

    #[test]
    fn stays_within_the_budget() {
        // It would pay, but takes 12 % of 1 pCPU.
        let mut governor = Governor::new(0.01, 1, 0);
        assert_eq!(governor.decide(&halts(&[(13, 10_000)], 15), 1.0), None);
        let mut governor = Governor::new(0.01, 1, 1 << 20);
        assert_eq!(governor.decide(&halts(&[(13, 10_000)], 15), 1.0).map(|d| d.limit_ns), Some(0));
    }

    #[test]
    fn an_idle_host_does_not_poll() {
        let mut governor = Governor::new(0.01, 8, 200_000);
        assert_eq!(governor.decide(&halts(&[(12, 20)], 13), 1.0).map(|d| d.limit_ns), Some(0));
    }

    proptest! {
        /// Never more than twice what a clairvoyant pays who polls just for those HLTs that are shorter
        /// than a sleep costs; the grain of buckets and of limits comes on top (a factor of 1.5 each way).
        #[test]
        fn at_most_twice_the_optimum(
            lengths in prop::collection::vec((10usize..28, 1u64..10_000), 1..8),
            wakeup in 12usize..18,
        ) {
            let halts = halts(&lengths, wakeup);
            let mut governor = Governor::new(1.0, 1_000_000, 0);
            prop_assume!(halts.lengths.iter().sum::<u64>() >= 50);
            let limit = governor.decide(&halts, 1.0).map_or(0, |d| d.limit_ns);
            let sleep = middle(wakeup);
            let each = |cost: &dyn Fn(f64) -> f64| -> f64 {
                halts.lengths.iter().enumerate().map(|(b, n)| *n as f64 * cost(middle(b))).sum()
            };
            let optimum = each(&|ns| ns.min(sleep));
            let limit = limit as f64;
            let ours = each(&|ns| if ns <= limit { ns } else { limit + sleep });
            prop_assert!(ours <= 2.0 * HYSTERESIS * optimum, "{} of {}, limit {}", ours, optimum, limit);
        }
    }
}
