// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim compare`: some keys varied, side by side.

use anyhow::{Result, bail, ensure};
use baton_output::interrupt::{self, Interrupted};
use baton_output::{open_all, say};
use baton_report::columns::aligned;
use baton_report::stats::{median, paired_ratio, range};
use baton_sim::outcome::{Outcome, short};
use baton_sim::sweep::{axis, check, each, points};
use clap::Args;

use super::output::Output;
use super::{
    Jobs, Named, as_paths, failed, in_words, no_key_twice, plot, progress, stopped, varied,
    warn_of_ignored,
};

#[derive(Args)]
pub struct Compare {
    #[command(flatten)]
    named: Named,
    /// What to vary, and its values; several times for all combinations. With the first value of
    /// each the others are compared
    #[arg(long, value_name = "KEY=A,B,…", required = true)]
    vary: Vec<String>,
    /// Seeds of each, from 1
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    output: Output,
}

/// Points and outcomes that a comparison may hold.
const MOST_POINTS: usize = 1_000_000;

pub fn compare(compare: &Compare) -> Result<()> {
    let axes = compare.vary.iter().map(|text| axis(text)).collect::<Result<Vec<_>>>()?;
    let asked = compare.named.read()?;
    no_key_twice(&asked.base, &axes)?;
    let sets_seed = asked.base.iter().map(|(key, _)| key).chain(axes.iter().map(|(key, _)| key));
    ensure!(
        sets_seed.clone().all(|key| key != "seed"),
        "compare sets the seeds itself; --seeds says how many"
    );
    let seeds: Vec<String> = (1..=compare.seeds).map(|seed| seed.to_string()).collect();
    let n = compare.seeds as usize;
    let values = axes.iter().map(|(_, values)| values.len());
    let all = values.fold(n, usize::saturating_mul);
    ensure!(all <= MOST_POINTS, "{all} points are too many; at most {MOST_POINTS}");
    let compared = points(&axes);
    if compared.len() < 2 {
        bail!("--vary {} has one value only", axes[0].0);
    }
    let all = points(&[&axes[..], &[("seed".to_string(), seeds)]].concat());
    let jobs = compare.jobs.number();
    check(&asked.text, &asked.base, &all, jobs).map_err(|error| varied(&error, &axes))?;
    let inputs = asked.inputs(&all)?;
    let [json, csv, svg] = open_all(compare.output.options(), &as_paths(&inputs))?;
    interrupt::install();
    let done = std::sync::atomic::AtomicUsize::new(0);
    let results = each(all.len(), jobs, stopped, |place| {
        let result = unless_stopped(asked.simulate(&all[place]));
        progress(1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed), all.len());
        result
    });
    let results: Vec<_> = results.into_iter().map(Option::flatten).collect();
    progress(all.len(), all.len());
    let keys: Vec<&str> = axes.iter().map(|(key, _)| key.as_str()).collect();
    let key = keys.join(", ");
    let name = |point: &[(String, String)]| {
        point.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    };
    let first = rates(&results[..n]);
    let mut rows = vec![heading(&key)];
    let (mut failures, mut shown) = (Vec::new(), Vec::new());
    for (point, of) in compared.iter().zip(results.chunks(n)) {
        failures.extend(of.iter().flatten().filter_map(|result| {
            result.as_ref().err().map(|why| format!("{}: {why}", in_words(point)))
        }));
        let value = name(point);
        let first = (rows.len() > 1).then_some(&first[..]);
        rows.push(row(&value, of, first));
        let outcomes = of.iter().flatten().flatten();
        let work: Vec<f64> = outcomes.map(Outcome::rate).collect();
        let spread = range(&work).zip(median(&work));
        shown.extend(spread.map(|((low, high), m)| (value, [m, low, high])));
    }
    let told = say(&aligned(&rows, false));
    warn_of_ignored(results.iter().flatten().flatten());
    let title = format!("Work a second by {key}; whiskers: least and most of {n} seeds");
    Output::files(json, csv, svg).save_all(&all, &results, &[], || plot::bars(&title, &shown))?;
    told?;
    if stopped() {
        return Err(Interrupted.into());
    }
    failed(&failures, results.len())
}

type Simulated = Option<Result<Outcome, String>>;

fn heading(key: &str) -> Vec<String> {
    let others = ["work/s", "spread", "× first [95 %]", "Jain", "PLE/s", "yields/s", "IPIs/s"];
    let words = [key].into_iter().chain(others).chain(["longest wait ms"]);
    words.map(String::from).collect()
}

/// Of each seed, if it was simulated.
fn rates(of: &[Simulated]) -> Vec<Option<f64>> {
    let ok = |result: &Simulated| {
        result.as_ref().and_then(|result| result.as_ref().ok()).map(Outcome::rate)
    };
    of.iter().map(ok).collect()
}

/// Medians of all seeds, and the ratio to those of the `first` row, seed by seed.
fn row(value: &str, of: &[Simulated], first: Option<&[Option<f64>]>) -> Vec<String> {
    let outcomes: Vec<&Outcome> = of.iter().flatten().flatten().collect();
    let figure = |figure: fn(&Outcome) -> f64| {
        median(&outcomes.iter().map(|outcome| figure(outcome)).collect::<Vec<_>>())
    };
    let work: Vec<f64> = outcomes.iter().map(|outcome| outcome.rate()).collect();
    let some = median(&work).filter(|m| *m > 0.0);
    let spread = range(&work).zip(some).map_or("–".into(), |((low, high), m)| {
        format!("{:.0} %", (high - low) / 2.0 / m * 100.0)
    });
    let pairs = |first: &[Option<f64>]| -> Vec<(f64, f64)> {
        rates(of).into_iter().zip(first).filter_map(|(a, b)| a.zip(*b)).collect()
    };
    let ratio = first.and_then(|first| paired_ratio(&pairs(first), 0.95));
    let ratio = ratio.map_or("–".into(), |ratio| match ratio.interval {
        Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", ratio.ratio),
        None => format!("{:.2}", ratio.ratio),
    });
    let number = |value: Option<f64>| value.map_or("–".into(), short);
    vec![
        value.to_string(),
        number(median(&work)),
        spread,
        ratio,
        figure(|o| o.jain.unwrap_or(f64::NAN))
            .filter(|jain| jain.is_finite())
            .map_or("–".into(), |jain| format!("{jain:.3}")),
        number(figure(|o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())),
        number(figure(|o| o.vms.iter().map(|vm| vm.yields_per_s).sum())),
        number(figure(|o| o.vms.iter().map(|vm| vm.ipis_per_s).sum())),
        number(figure(|o| o.longest_wait_ms)),
    ]
}

/// What Ctrl-C has ended was not simulated.
pub fn unless_stopped(result: Result<Outcome, String>) -> Option<Result<Outcome, String>> {
    (result.is_ok() || !stopped()).then_some(result)
}
