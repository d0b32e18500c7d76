// SPDX-License-Identifier: GPL-2.0-only
//! The decision: from how long HLTs were, the limit with which as few as possible sleep, for no
//! more CPU time than the budget.
//!
//! A HLT is a ski rental: polling costs CPU time for as long as it lasts, sleeping costs a fixed
//! price once, what it takes to block and to be woken (Karlin et al., "Competitive snoopy caching",
//! 1988). What a sleep costs the guest in latency and what polling costs the host in CPU time are
//! not the same money, so the exchange rate is the operator's: the budget.

/// Bucket `i` of a histogram counts what took 2^i ns or more, and less than 2^(i+1).
pub const BUCKETS: usize = 32;

/// Fewer HLTs than this tell nothing.
const ENOUGH: f64 = 50.0;

/// A higher limit must spare this part of all HLTs a sleep; twice as many, or this part of the
/// polling, to take the place of one in force: halt lengths of two seconds are never the same.
const MERIT: f64 = 0.05;

/// What is remembered of a second, a second later.
const MEMORY: f64 = 0.5;

/// The least part of what a limit allows that KVM is taken to poll, whatever was seen.
const LEAST_PART: f64 = 0.05;

/// That part, before KVM has polled. A limit that costs more than the budget at this part is never
/// tried.
const FIRST_PART: f64 = 0.25;

/// What is left of that part a second later. It is halved after 35 s: a limit that was too dear is
/// not tried again at once.
const PART_MEMORY: f64 = 0.98;

/// 2^20 ns, a millisecond. KVM polls for 200 µs by itself at most, but a limit must reach beyond
/// the wake-up, too: to a HLT that slept longer than the limit, waking up included, KVM gives no
/// poll the next time.
const LONGEST: usize = 20;

/// What the HLTs of an interval were like.
#[derive(Clone, Debug, PartialEq)]
pub struct Halts {
    /// From HLT until the guest went on.
    pub lengths: [u64; BUCKETS],
    /// Of those that slept: from being woken until running.
    pub wakeups: [u64; BUCKETS],
    /// CPU time that was polled away, ns, if it is known.
    pub polled_ns: Option<u64>,
}

impl Default for Halts {
    fn default() -> Self {
        Halts { lengths: [0; BUCKETS], wakeups: [0; BUCKETS], polled_ns: None }
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
    /// What was polled away, and what the limits in force could have polled away at most, ns.
    spent: f64,
    expected: f64,
    /// The one as part of the other: KVM gives no poll to a vCPU whose last HLT was longer than the
    /// limit.
    part: Option<f64>,
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
            spent: 0.0,
            expected: 0.0,
            part: None,
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
        self.learn(halts);
        let n: f64 = self.lengths.iter().sum();
        if n < ENOUGH * self.seconds.min(1.0) {
            return self.change(0, format!("{n:.0} HLTs are too few to poll for"));
        }
        let allowed = self.budget * self.pcpus * self.seconds * 1e9;
        let limits = std::iter::once(0).chain((10..=LONGEST).map(|power| 1u64 << power));
        let affordable: Vec<u64> = limits.filter(|limit| self.polled(*limit) <= allowed).collect();
        let fewest = affordable.iter().map(|limit| self.slept(*limit)).fold(n, f64::min);
        // Polling for all to save the last few a sleep is no bargain.
        let enough = |limit: &&u64| self.slept(**limit) <= fewest + MERIT * n;
        let best = affordable.iter().find(enough).copied().unwrap_or(0);
        let now = self.limit_ns;
        let too_dear = self.polled(now) > allowed;
        let saves_sleeps = self.slept(now) > fewest + 2.0 * MERIT * n;
        let saves_polling = self.polled(now) > (1.0 + MERIT) * self.polled(best);
        if !(too_dear || saves_sleeps || saves_polling) {
            return None;
        }
        let share = |ns: f64| ns / (self.pcpus * self.seconds * 1e9) * 100.0;
        let reason = format!(
            "{:.0} % of {:.0} HLTs/s end within it, and save {:.1} µs each; polling takes {:.2} % of the host{}",
            100.0 * (1.0 - self.slept(best) / n),
            n / self.seconds,
            self.sleep_ns() / 1e3,
            share(self.polled(best)),
            if too_dear { " (before: above the budget)" } else { "" }
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

    /// What a sleep costs in latency: the median time from being woken until running. Without one
    /// there is the time that no host is faster than.
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

    /// How much KVM polls of what it could.
    fn learn(&mut self, halts: &Halts) {
        let Some(polled) = halts.polled_ns else { return };
        if self.limit_ns == 0 {
            let forget = |known: f64| known.min((known * PART_MEMORY).max(FIRST_PART));
            self.part = Some(self.part.map_or(FIRST_PART, forget));
            return;
        }
        let lengths = halts.lengths.map(|n| n as f64);
        self.spent = self.spent * MEMORY + polled as f64;
        self.expected = self.expected * MEMORY + polled_at_most(&lengths, self.limit_ns);
        if self.expected > 0.0 {
            let part = (self.spent / self.expected).clamp(LEAST_PART, 1.0);
            self.part = Some(self.part.map_or(part, |known| part.max(known * PART_MEMORY)));
        }
    }

    /// CPU time polled with this limit, ns.
    fn polled(&self, limit: u64) -> f64 {
        self.part.unwrap_or(1.0) * polled_at_most(&self.lengths, limit)
    }

    /// HLTs that are longer.
    fn slept(&self, limit: u64) -> f64 {
        let longer = |(bucket, _): &(usize, &f64)| middle(*bucket) > limit as f64;
        self.lengths.iter().enumerate().filter(longer).map(|(_, n)| n).sum()
    }
}

/// If each HLT is polled for, ns.
fn polled_at_most(lengths: &[f64; BUCKETS], limit: u64) -> f64 {
    let polls = |(bucket, n): (usize, &f64)| n * middle(bucket).min(limit as f64);
    lengths.iter().enumerate().map(polls).sum()
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
        // 8 to 16 µs: 10,000 HLTs a second on 4 pCPUs.
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
        // It would take 12 % of one pCPU.
        let mut governor = Governor::new(0.01, 1, 0);
        assert_eq!(governor.decide(&halts(&[(13, 10_000)], 15), 1.0), None);
        let mut governor = Governor::new(0.01, 1, 1 << 20);
        assert_eq!(governor.decide(&halts(&[(13, 10_000)], 15), 1.0).map(|d| d.limit_ns), Some(0));
    }

    /// Half of the HLTs are long, and KVM does not poll for vCPUs that halt so: that leaves room
    /// for more.
    #[test]
    fn what_kvm_does_not_poll_may_be_spent() {
        let mut governor = Governor::new(0.12, 1, 0);
        let mut mixed = halts(&[(11, 5_000), (13, 5_000), (24, 10_000)], 14);
        let first = governor.decide(&mixed, 1.0).expect("a change");
        let polled = |limit: u64| {
            let short = &mixed.lengths[..20];
            short
                .iter()
                .enumerate()
                .map(|(b, n)| *n as f64 * middle(b).min(limit as f64))
                .sum::<f64>()
        };
        assert!(first.limit_ns < 1 << 14, "{}", first.reason);
        mixed.polled_ns = Some(polled(first.limit_ns) as u64);
        let next = (0..10).find_map(|_| governor.decide(&mixed, 1.0)).expect("a change");
        assert!(next.limit_ns > first.limit_ns, "{}", next.reason);
        // It takes all that the limit allows after all: back.
        let all = |limit: u64| polled_at_most(&mixed.lengths.map(|n| n as f64), limit);
        mixed.polled_ns = Some(all(next.limit_ns) as u64);
        let back = governor.decide(&mixed, 1.0).expect("a change");
        assert!(back.limit_ns < next.limit_ns, "{}", back.reason);
        mixed.polled_ns = Some(polled(back.limit_ns) as u64);
        assert_eq!(governor.decide(&mixed, 1.0), None, "it remembers");
    }

    /// Nothing was polled yet, so nobody knows how much KVM would: it is tried, and given up for
    /// half a minute if that was too dear.
    #[test]
    fn what_is_not_known_is_tried() {
        let mut governor = Governor::new(0.05, 1, 0);
        let mut seen = halts(&[(13, 10_000)], 14);
        seen.polled_ns = Some(0);
        let tried = governor.decide(&seen, 1.0).expect("a change");
        assert_eq!(tried.limit_ns, 1 << 14, "{}", tried.reason);
        seen.polled_ns = Some(120_000_000);
        assert_eq!(governor.decide(&seen, 1.0).map(|d| d.limit_ns), Some(0));
        seen.polled_ns = Some(0);
        let again = (1..1000).find(|_| governor.decide(&seen, 1.0).is_some()).expect("a change");
        assert!((20..120).contains(&again), "{again} s later");

        // Five times as dear as the budget, if KVM polls all.
        let mut governor = Governor::new(0.02, 1, 0);
        assert!((0..1000).all(|_| governor.decide(&seen, 1.0).is_none()));
    }

    #[test]
    fn an_idle_host_does_not_poll() {
        let mut governor = Governor::new(0.01, 8, 200_000);
        assert_eq!(governor.decide(&halts(&[(12, 20)], 13), 1.0).map(|d| d.limit_ns), Some(0));
    }

    proptest! {
        /// Against all limits, one by one: what is chosen is affordable, no other one that is lets
        /// many fewer sleep, and none below it would do.
        #[test]
        fn no_affordable_limit_is_better(
            lengths in prop::collection::vec((8usize..28, 1u64..10_000), 1..8),
            permille in 0u32..200,
            pcpus in 1usize..200,
        ) {
            let halts = halts(&lengths, 14);
            prop_assume!(halts.lengths.iter().sum::<u64>() >= 50);
            let budget = f64::from(permille) / 1000.0;
            let mut governor = Governor::new(budget, pcpus, 1 << 30);
            let limit = governor.decide(&halts, 1.0).map_or(1 << 30, |d| d.limit_ns) as f64;
            let polls = |limit: f64| -> f64 {
                let each = halts.lengths.iter().enumerate();
                each.map(|(b, n)| *n as f64 * middle(b).min(limit)).sum()
            };
            let sleeps = |limit: f64| -> u64 {
                let longer = halts.lengths.iter().enumerate().filter(|(b, _)| middle(*b) > limit);
                longer.map(|(_, n)| *n).sum()
            };
            let allowed = budget * pcpus as f64 * 1e9;
            let n = halts.lengths.iter().sum::<u64>() as f64;
            prop_assert!(polls(limit) <= allowed);
            for other in (10..=LONGEST).map(|power| (1u64 << power) as f64).chain([0.0]) {
                if polls(other) <= allowed {
                    prop_assert!(sleeps(limit) as f64 <= sleeps(other) as f64 + MERIT * n);
                }
            }
        }
    }
}
