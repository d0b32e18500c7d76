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

/// The middle one, or the mean of the two in the middle; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Half of the distance between the least and the most, as share of the median.
pub fn spread(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most - least) / 2.0 / median(values)
}

/// Jain's index: 1 if all have the same, 1/n if one has all.
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(spread(&[8.0, 10.0, 12.0]), 0.2);
        assert_eq!(jain(&[1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0]), 0.5);
        assert!(Distribution::of(&histogram()).is_none());
        let mut many = histogram();
        (1..=1000).for_each(|ns| many.record(ns).unwrap());
        let d = Distribution::of(&many).unwrap();
        assert_eq!((d.count, d.min, d.p50, d.p99, d.max), (1000, 1.0, 500.0, 990.0, 1000.0));
    }
}
