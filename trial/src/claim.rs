// SPDX-License-Identifier: GPL-2.0-only
//! What a trial can show.

use baton_report::stats::paired_ratio;
use serde::{Deserialize, Serialize};

/// Of the intervals.
pub const CONFIDENCE: f64 = 0.99;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    pub claim: Claim,
    /// Baton's values as multiples of the kernel's.
    pub ratio: Option<Interval>,
    /// Of two slots of the kernel in a block, the later one's value as a multiple of the earlier's.
    pub control: Option<Interval>,
    pub pairs: Vec<Pair>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    Better,
    Worse,
    /// The interval holds 1.
    NotShown,
    /// It ended early.
    Aborted,
    /// Fewer pairs of slots than a claim takes.
    TooShort,
    /// The kernel's slots differ among themselves.
    Drift,
    /// vCPUs hardly wait.
    Idle,
    /// A slot has no value above 0.
    Nothing,
}

/// A ratio with its 99 % interval; that is unknown of a single pair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    pub ratio: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub pairs: u32,
}

impl Interval {
    pub fn of(pairs: &[(f64, f64)]) -> Option<Interval> {
        // JSON has no infinity; values of an edited bundle can be that large.
        let all = paired_ratio(pairs, CONFIDENCE).filter(|all| all.ratio.is_finite())?;
        let bounds = all.interval.filter(|(_, high)| high.is_finite());
        let (low, high) = bounds.unzip();
        Some(Interval { ratio: all.ratio, low, high, pairs: all.pairs as u32 })
    }

    /// For people: the ratio, and its bounds, unless they say nothing, as those of two pairs do.
    pub fn words(&self) -> String {
        match (self.low, self.high) {
            (Some(low), Some(high)) if high < 100.0 * self.ratio => {
                format!("{:.2} ({low:.2} to {high:.2})", self.ratio)
            }
            (Some(_), Some(_)) => format!("{:.2} (too few pairs for bounds)", self.ratio),
            _ => format!("{:.2}", self.ratio),
        }
    }

    /// Whether 1 is outside of it.
    pub fn tells(&self) -> bool {
        self.low.is_some_and(|low| low > 1.0) || self.high.is_some_and(|high| high < 1.0)
    }
}

/// Two slots, one after the other; without a value if one of them has none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The place of the first of the two.
    pub slot: u32,
    pub kernel: Option<f64>,
    pub baton: Option<f64>,
}

impl Verdict {
    /// Whether it says the same: another machine's logarithms may differ in the last digit.
    pub fn is_like(&self, other: &Verdict) -> bool {
        let close = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
            (a, b) => a == b,
        };
        let alike = |a: &Option<Interval>, b: &Option<Interval>| match (a, b) {
            (Some(a), Some(b)) => {
                a.pairs == b.pairs
                    && close(Some(a.ratio), Some(b.ratio))
                    && close(a.low, b.low)
                    && close(a.high, b.high)
            }
            (a, b) => a == b,
        };
        self.claim == other.claim
            && alike(&self.ratio, &other.ratio)
            && alike(&self.control, &other.control)
            && self.pairs == other.pairs
    }
}
