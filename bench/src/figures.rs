// SPDX-License-Identifier: GPL-2.0-only
//! From samples to figures.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A distribution of latencies, ns.
#[derive(Clone, Debug, Serialize)]
pub struct Distribution {
    pub count: u64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// One minute, ns: beyond what anything here takes, in emulation too.
const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of latencies in ns, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds in order")
}

impl Distribution {
    /// `None` of no samples.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64;
        (!histogram.is_empty()).then(|| Distribution {
            count: histogram.len(),
            min: histogram.min() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_values() {
        assert!(Distribution::of(&histogram()).is_none());
        let mut many = histogram();
        (1..=1000).for_each(|ns| many.record(ns).unwrap());
        let d = Distribution::of(&many).unwrap();
        assert_eq!((d.count, d.min, d.p50, d.p99, d.max), (1000, 1.0, 500.0, 990.0, 1000.0));
    }
}
