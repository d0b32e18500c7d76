// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim compare`: one key varied, side by side.

use anyhow::{Result, ensure};
use baton_sim::outcome::{Outcome, short};
use baton_sim::sweep::{axis, points, sweep};
use baton_testbed::columns::aligned;
use baton_testbed::stats::{median, paired_ratio, range};
use clap::Args;

use super::output::Output;
use super::{Jobs, Named, failed, plot, progress, show};

#[derive(Args)]
pub struct Compare {
    #[command(flatten)]
    named: Named,
    /// What to vary, and its values; the first is what the others are compared with
    #[arg(long, value_name = "KEY=A,B,…")]
    vary: String,
    /// Seeds of each, from 1
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    output: Output,
}

pub fn compare(compare: &Compare) -> Result<()> {
    let (key, values) = axis(&compare.vary)?;
    ensure!(values.len() > 1, "--vary {key} has one value only");
    let (text, base) = (compare.named.text()?, compare.named.changes()?);
    compare.output.check()?;
    let seeds: Vec<String> = (1..=compare.seeds).map(|seed| seed.to_string()).collect();
    let all = points(&[(key.clone(), values.clone()), ("seed".into(), seeds)]);
    let results =
        sweep(&text, &base, &all, compare.jobs.number(), |done| progress(done, all.len()));
    let n = compare.seeds as usize;
    let mut rows = vec![
        [
            key.as_str(),
            "work/s",
            "spread",
            "× first [95 %]",
            "Jain",
            "PLE/s",
            "yields/s",
            "IPIs/s",
            "longest wait ms",
        ]
        .map(String::from)
        .to_vec(),
    ];
    let mut failures = Vec::new();
    let rates = |place: usize| -> Vec<Option<f64>> {
        let of = &results[place * n..(place + 1) * n];
        of.iter().map(|result| result.as_ref().ok().map(Outcome::rate)).collect()
    };
    let first = rates(0);
    let mut shown = Vec::new();
    for (place, value) in values.iter().enumerate() {
        let of = &results[place * n..(place + 1) * n];
        failures.extend(of.iter().filter_map(|result| {
            result.as_ref().err().map(|why| format!("{key} = {value}: {why}"))
        }));
        let outcomes: Vec<&Outcome> = of.iter().flatten().collect();
        let figure = |figure: fn(&Outcome) -> f64| {
            median(&outcomes.iter().map(|outcome| figure(outcome)).collect::<Vec<_>>())
        };
        let work: Vec<f64> = outcomes.iter().map(|outcome| outcome.rate()).collect();
        let pairs: Vec<(f64, f64)> =
            rates(place).into_iter().zip(&first).filter_map(|(a, b)| a.zip(*b)).collect();
        let ratio = paired_ratio(&pairs).map_or("–".into(), |ratio| match ratio.interval {
            Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", ratio.ratio),
            None => format!("{:.2}", ratio.ratio),
        });
        let spread = range(&work).zip(median(&work));
        shown.extend(spread.map(|((low, high), m)| (value.clone(), [m, low, high])));
        let spread = spread.map_or("–".into(), |((low, high), m)| {
            format!("{:.0} %", (high - low) / 2.0 / m * 100.0)
        });
        let number = |value: Option<f64>| value.map_or("–".into(), short);
        rows.push(vec![
            value.clone(),
            number(median(&work)),
            spread,
            if place == 0 { "–".into() } else { ratio },
            figure(|o| o.jain.unwrap_or(f64::NAN))
                .filter(|jain| jain.is_finite())
                .map_or("–".into(), |jain| format!("{jain:.3}")),
            number(figure(|o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())),
            number(figure(|o| o.vms.iter().map(|vm| vm.yields_per_s).sum())),
            number(figure(|o| o.vms.iter().map(|vm| vm.ipis_per_s).sum())),
            number(figure(|o| o.longest_wait_ms)),
        ]);
    }
    show(&aligned(&rows, false));
    let title = format!("Work a second by {key}; whiskers: least and most of {n} seeds");
    compare.output.save(&all, &results, || plot::bars(&title, &shown))?;
    failed(&failures, results.len())
}
