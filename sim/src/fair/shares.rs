// SPDX-License-Identifier: GPL-2.0-only
//! What a cgroup weighs on each pCPU: `calc_group_shares()`. Its weight is divided by where its
//! load is; what has been there of late still counts, as in `load_avg` (PELT).

use crate::machine::Ns;

/// A period of PELT; in 32 of them what was weighs half.
const PERIOD_NS: Ns = 1 << 20;
const DECAY: f64 = 0.978_572_062_087_7;

#[derive(Clone, Debug, Default)]
struct Load {
    /// What waits or runs there weighs so much, now and on average.
    now: f64,
    average: f64,
    /// The period up to which `average` is right.
    at: Ns,
}

/// One cgroup.
#[derive(Clone, Debug)]
pub struct Shares {
    /// In the kernel's finer measure.
    pub weight: i64,
    loads: Vec<Load>,
    /// Of all averages.
    total: f64,
    /// Where nothing happens the average fades too (`update_blocked_averages()`): one pCPU at a
    /// time.
    fades: usize,
}

/// `DECAY` to the power of `n`, by products alone: the same on every machine.
fn decay(mut n: Ns) -> f64 {
    let (mut power, mut base) = (1.0, DECAY);
    while n > 0 {
        if n & 1 == 1 {
            power *= base;
        }
        base *= base;
        n >>= 1;
    }
    power
}

impl Shares {
    pub fn new(weight: i64, cpus: usize) -> Self {
        Shares { weight, loads: vec![Load::default(); cpus], total: 0.0, fades: 0 }
    }

    fn catch_up(&mut self, cpu: usize, now: Ns) {
        let here = &mut self.loads[cpu];
        let period = now / PERIOD_NS;
        if period > here.at {
            let kept = decay(period - here.at);
            let average = here.now + (here.average - here.now) * kept;
            self.total += average - here.average;
            (here.average, here.at) = (average, period);
        }
    }

    /// What runs and waits of it on `cpu` weighs `load` from now on. What the cgroup weighs there.
    pub fn update(&mut self, cpu: usize, load: i64, now: Ns) -> i64 {
        self.fades = (self.fades + 1) % self.loads.len();
        self.catch_up(self.fades, now);
        self.catch_up(cpu, now);
        let here = &mut self.loads[cpu];
        here.now = load as f64;
        let counted = here.now.max(here.average);
        let all = self.total - here.average + counted;
        let weight =
            if all > 0.0 { self.weight as f64 * counted / all } else { self.weight as f64 };
        // MIN_SHARES, scaled as weights are.
        (weight as i64).clamp(2 << 10, self.weight.max(2 << 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair::timeline::WEIGHT;

    /// Load on two pCPUs halves the weight on each; where it was of late still counts, and fades.
    #[test]
    fn a_cgroup_is_divided_by_its_load() {
        let mut shares = Shares::new(WEIGHT, 2);
        assert_eq!(shares.update(0, WEIGHT, 0), WEIGHT, "it is nowhere else");
        let second = 1_000_000_000;
        shares.update(1, WEIGHT, second);
        shares.update(0, WEIGHT, 2 * second);
        let half = shares.update(1, WEIGHT, 2 * second);
        assert!((half - WEIGHT / 2).abs() < WEIGHT / 100, "{half}");
        shares.update(0, 0, 2 * second);
        let soon = shares.update(1, WEIGHT, 2 * second + 1_000_000);
        assert!(soon < WEIGHT * 6 / 10, "{soon}");
        shares.update(1, WEIGHT, 3 * second);
        let later = shares.update(1, WEIGHT, 3 * second);
        assert!(later > WEIGHT * 99 / 100, "{later}");
    }

    #[test]
    fn half_is_left_after_32_periods() {
        assert!((decay(32) - 0.5).abs() < 1e-6);
        assert_eq!(decay(0), 1.0);
    }
}
