// SPDX-License-Identifier: GPL-2.0-only
//! The few statistics that an experiment reports. All functions ignore nothing and clean nothing:
//! what goes in was measured.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The middle of the values (mean of the middle two); `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The `q` quantile (0 to 1), linear between neighbours; `None` without values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64))
}

/// Interquartile range as a share of the median; `None` without values or with a median of 0.
pub fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values).filter(|m| *m != 0.0)?;
    Some((quantile(values, 0.75)? - quantile(values, 0.25)?) / middle)
}

/// Smallest and greatest; `None` without values.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().min_by(f64::total_cmp)?;
    let high = values.iter().copied().max_by(f64::total_cmp)?;
    Some((low, high))
}

/// Jain's fairness index, (Σx)² / (n·Σx²): 1 when all get the same, 1/n when one gets everything.
/// `None` without values or when nobody got anything.
pub fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// A ratio with a confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    /// `None` with a single pair, which bounds nothing.
    pub interval: Option<(f64, f64)>,
    pub pairs: usize,
}

/// How many times `b` each `a` is, from pairs `(a, b)` measured next to each other: the geometric
/// mean, with a t-interval on the logarithms. Pairs with a value that is not above 0 have no
/// logarithm; with one of these the answer is `None`, since dropping it would flatter the rest.
/// `confidence` is above 0 and below 1.
pub fn paired_ratio(pairs: &[(f64, f64)], confidence: f64) -> Option<Ratio> {
    if pairs.is_empty() || pairs.iter().any(|(a, b)| !(*a > 0.0 && *b > 0.0)) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    let n = logs.len();
    let mean = logs.iter().sum::<f64>() / n as f64;
    let interval = (n >= 2).then(|| {
        let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let half = t(n - 1, 0.5 + confidence / 2.0) * (variance / n as f64).sqrt();
        ((mean - half).exp(), (mean + half).exp())
    });
    Some(Ratio { ratio: mean.exp(), interval, pairs: n })
}

/// A quantile of Student's t distribution; `freedom` from 1, `q` between 0 and 1.
fn t(freedom: usize, q: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(q))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists of 1 to 12 positive values from a fixed linear congruential generator.
    fn lists() -> impl Iterator<Item = Vec<f64>> {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        (0..500).map(move |i| (0..i % 12 + 1).map(|_| next() * 1000.0 + 0.001).collect())
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn median_has_as_many_below_as_above() {
        for list in lists() {
            let middle = median(&list).unwrap();
            let below = list.iter().filter(|x| **x < middle).count();
            let above = list.iter().filter(|x| **x > middle).count();
            assert_eq!(below, above, "{list:?}");
        }
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
    }

    #[test]
    fn quantiles_are_ordered_and_within_the_range() {
        for list in lists() {
            let (low, high) = range(&list).unwrap();
            let quantiles: Vec<f64> =
                (0..=8).map(|q| quantile(&list, q as f64 / 8.0).unwrap()).collect();
            assert!(close(quantiles[0], low) && close(quantiles[8], high));
            assert!(quantiles.is_sorted());
        }
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
        assert_eq!(spread(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(2.0 / 3.0));
        assert_eq!(spread(&[7.0]), Some(0.0));
    }

    #[test]
    fn jain_follows_from_the_coefficient_of_variation() {
        for list in lists() {
            let n = list.len() as f64;
            let mean = list.iter().sum::<f64>() / n;
            let variance = list.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let naive = 1.0 / (1.0 + variance / (mean * mean));
            let index = jain(&list).unwrap();
            assert!(close(index, naive) && index <= 1.0 + 1e-12 && index >= 1.0 / n - 1e-12);
        }
        assert_eq!(jain(&[5.0, 0.0]), Some(0.5));
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn paired_ratio_sees_through_drift() {
        // The machine slows down tenfold over the pairs, the ratio stays.
        let pairs: Vec<_> = (1..=10).map(|i| (20.0 / i as f64, 10.0 / i as f64)).collect();
        let found = paired_ratio(&pairs, 0.95).unwrap();
        let (low, high) = found.interval.unwrap();
        assert!(close(found.ratio, 2.0) && close(low, 2.0) && close(high, 2.0));
    }

    #[test]
    fn paired_ratio_turns_over_with_its_pairs() {
        for (a, b) in lists().zip(lists().skip(12)) {
            let pairs: Vec<_> = a.iter().copied().zip(b).collect();
            let turned: Vec<_> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
            let (one, other) =
                (paired_ratio(&pairs, 0.95).unwrap(), paired_ratio(&turned, 0.95).unwrap());
            assert!(close(one.ratio * other.ratio, 1.0));
            if let (Some((low, high)), Some((_, other_high))) = (one.interval, other.interval) {
                assert!(low <= one.ratio && one.ratio <= high);
                assert!(low == 0.0 || other_high.is_infinite() || close(low * other_high, 1.0));
            }
        }
    }

    #[test]
    fn paired_ratio_knows_its_limits() {
        assert_eq!(paired_ratio(&[], 0.95), None);
        assert_eq!(paired_ratio(&[(1.0, 2.0), (0.0, 1.0)], 0.95), None);
        assert_eq!(paired_ratio(&[(1.0, 2.0)], 0.95).unwrap().interval, None);
        // Logs 0 and ln 4: mean ln 2, half width t · ln 4 / 2 with t = tan(0.95 π / 2).
        let (low, high) = paired_ratio(&[(1.0, 1.0), (4.0, 1.0)], 0.95).unwrap().interval.unwrap();
        let half = (0.475 * std::f64::consts::PI).tan() * 4f64.ln() / 2.0;
        assert!(close(low, (2f64.ln() - half).exp()) && close(high, (2f64.ln() + half).exp()));
    }

    #[test]
    fn t_quantiles_shrink_to_the_normal_one() {
        assert!((1..200).all(|n| t(n, 0.975) > t(n + 1, 0.975)));
        // As tables have them.
        for (freedom, q, value) in [(13, 0.975, 2.160), (30, 0.975, 2.042), (5, 0.995, 4.032)] {
            assert!((t(freedom, q) - value).abs() < 0.001, "{freedom} {q}");
        }
    }
}
