// SPDX-License-Identifier: GPL-2.0-only
//! Schedulers beside each other.

use baton_report::columns::aligned;
use baton_report::stats::{Ratio, paired_ratio};

use super::Report;
use crate::record::Measured;

/// How much of the first scheduler's time, or rate, the others need, or reach: a line for each
/// figure, from runs that were neighbours, with the 95 % interval.
pub fn comparison(reports: &[(String, Report)]) -> String {
    let Some(((base, first), others)) = reports.split_first() else { return String::new() };
    let mut rows = vec![vec![format!("× {base} [95 %]")]];
    rows[0].extend(others.iter().map(|(name, _)| name.clone()));
    rows[0].push(String::new());
    for (place, measured) in first.measured.iter().enumerate() {
        for (series, (name, runs)) in measured.figures().into_iter().enumerate() {
            // Nobody computes beside it.
            if runs.is_empty() && measured.runs() > 0 {
                continue;
            }
            let mut row = vec![name];
            for (_, report) in others {
                let pairs = report.measured.get(place).map(|other| pairs(other, measured, series));
                let pairs = pairs.unwrap_or_default();
                row.push(paired_ratio(&pairs, 0.95).map_or("–".into(), ratio));
            }
            row.push(String::new());
            rows.push(row);
        }
    }
    aligned(&rows, true)
}

/// The figures of those repetitions that have both.
fn pairs(of: &Measured, base: &Measured, series: usize) -> Vec<(f64, f64)> {
    let runs = |measured: &Measured| -> Vec<(u32, f64)> {
        let (_, figures) = measured.figures().swap_remove(series);
        measured.repetitions.iter().copied().zip(figures).collect()
    };
    let base = runs(base);
    let same = |repetition| base.iter().find(|run| run.0 == repetition).map(|run| run.1);
    runs(of).into_iter().filter_map(|(repetition, run)| Some((run, same(repetition)?))).collect()
}

fn ratio(ratio: Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", ratio.ratio),
        None => format!("{:.2}", ratio.ratio),
    }
}
