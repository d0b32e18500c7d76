// SPDX-License-Identifier: GPL-2.0-only
//! Where a value is on an axis, from 0 at its left to 1 at its right.

use super::parts::share;

/// Beyond these, ratios are drawn at the edge.
const LEAST: f64 = 1e-3;
const MOST: f64 = 1e3;

/// Even if all ratios are close to 1, this much of the axis is shown.
const CLOSEST: f64 = 1.25;

/// Labels that are closer would run into each other on a telephone.
const APART: f64 = 0.19;

/// Room for half a label at both ends.
const MARGIN: f64 = 0.1;

/// Ratios, with 1 in it.
pub struct Log {
    low: f64,
    high: f64,
}

impl Log {
    pub fn of(ratios: impl Iterator<Item = f64>) -> Log {
        let (mut low, mut high) = (1.0 / CLOSEST, CLOSEST);
        for ratio in ratios.filter(|ratio| !ratio.is_nan()) {
            low = ratio.clamp(LEAST, low);
            high = ratio.clamp(high, MOST);
        }
        Log { low: low.ln(), high: high.ln() }
    }

    pub fn at(&self, ratio: f64) -> f64 {
        let place = share(ratio.max(LEAST).ln() - self.low, self.high - self.low);
        MARGIN + (1.0 - 2.0 * MARGIN) * place
    }

    /// 1 first; then as many as have room, rounder ones rather than others.
    pub fn ticks(&self) -> Vec<f64> {
        const ROUND: [f64; 24] = [
            1.0, 0.5, 2.0, 0.1, 10.0, 0.01, 100.0, 0.001, 1000.0, 0.2, 5.0, 0.8, 1.25, 0.05, 20.0,
            0.02, 50.0, 0.3, 3.0, 0.7, 1.5, 0.9, 1.1, 0.6,
        ];
        let mut ticks: Vec<f64> = Vec::new();
        for tick in ROUND {
            let within = (self.low - 1e-9..=self.high + 1e-9).contains(&tick.ln());
            let free = |other: &f64| (self.at(*other) - self.at(tick)).abs() >= APART;
            if within && ticks.iter().all(free) {
                ticks.push(tick);
            }
        }
        ticks
    }
}

/// From 0 to a round number that is not below any of the values.
pub struct Linear {
    pub top: f64,
}

impl Linear {
    pub fn of(values: impl Iterator<Item = f64>) -> Linear {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        if most <= f64::MIN_POSITIVE * 1e3 {
            return Linear { top: 1.0 };
        }
        let ten = 10f64.powf(most.log10().floor());
        let tops = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
        let top = tops.iter().map(|top| top * ten).find(|top| *top >= most);
        Linear { top: top.filter(|top| top.is_finite()).unwrap_or(most) }
    }

    pub fn at(&self, value: f64) -> f64 {
        share(value, self.top)
    }

    /// As [`at`](Self::at), with room at both ends as [`Log`] has it.
    pub fn inset(&self, value: f64) -> f64 {
        MARGIN + (1.0 - 2.0 * MARGIN) * self.at(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_where_their_logarithms_are() {
        let log = Log::of([0.25, 2.0].into_iter());
        assert!((log.at(0.25) - MARGIN).abs() < 1e-9 && (log.at(2.0) - 1.0 + MARGIN).abs() < 1e-9);
        let step = log.at(1.0) - log.at(0.5);
        assert!((log.at(0.5) - log.at(0.25) - step).abs() < 1e-9, "halves are equally far");
        assert_eq!(log.ticks(), [1.0, 0.5, 2.0, 0.3]);
    }

    #[test]
    fn whatever_the_values_one_is_on_the_axis_and_labels_are_apart() {
        let strange = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300, 0.97, 3.0, 700.0];
        for a in strange {
            for b in strange {
                let log = Log::of([a, b].into_iter());
                let ticks = log.ticks();
                assert!(ticks[0] == 1.0 && ticks.len() >= 2 && ticks.len() <= 6, "{a} {b}");
                for value in strange {
                    assert!((MARGIN..=1.0 - MARGIN + 1e-9).contains(&log.at(value)), "{value}");
                }
                let linear = Linear::of([a, b].into_iter());
                assert!(linear.top.is_finite() && linear.top > 0.0, "{a} {b}");
                assert!([a, b].iter().all(|v| !v.is_finite() || linear.top >= *v), "{a} {b}");
            }
        }
    }
}
