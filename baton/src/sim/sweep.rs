// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim sweep`: all combinations of several keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use baton_output::interrupt::{self, Interrupted};
use baton_output::{note, open_all, say};
use baton_report::columns::aligned;
use baton_sim::outcome::{Outcome, short};
use baton_sim::sweep::{Point, axis, changes, check, each, points};
use clap::Args;
use serde_json::Value;

use super::compare::unless_stopped;
use super::inputs::Inputs;
use super::output::Output;
use super::{
    Jobs, Named, as_paths, failed, in_words, no_key_twice, plot, progress, ray, stopped, varied,
    warn_of_ignored,
};

#[derive(Args)]
pub struct Sweep {
    #[command(flatten)]
    named: Named,
    /// What to vary, and its values; several times for all combinations
    #[arg(long, value_name = "KEY=A,B,…", required = true)]
    vary: Vec<String>,
    #[command(flatten)]
    jobs: Jobs,
    /// On a Ray cluster: its address, "auto" for the one that this machine belongs to, "local" for
    /// one of this machine alone. Needs the Python package ray ($PYTHON, else python3)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "jobs")]
    ray: Option<String>,
    /// Go on with a sweep that was interrupted: its --json. Points that it has are not simulated
    /// again, those that failed are. Scenario, --set and --vary must be the same. Without --json
    /// the results go into FILE again
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// The JSON is written again when this has passed and writing it took a twentieth of that: a
/// machine that fails takes few points with it.
const KEEP_EVERY: Duration = Duration::from_secs(5);

struct Kept {
    results: Vec<Option<Result<Outcome, String>>>,
    done: usize,
    next: Instant,
}

pub fn sweep_all(options: &Sweep) -> Result<()> {
    let axes = options.vary.iter().map(|text| axis(text)).collect::<Result<Vec<_>>>()?;
    let asked = options.named.read()?;
    no_key_twice(&asked.base, &axes)?;
    let n = axes.iter().map(|(_, values)| values.len()).fold(1usize, usize::saturating_mul);
    ensure!(n <= 1_000_000, "{n} points are too many; at most a million");
    let all = points(&axes);
    let jobs = options.jobs.number();
    check(&asked.text, &asked.base, &all, jobs).map_err(|error| varied(&error, &axes))?;
    let mut known = Inputs::new(&asked.text);
    let number = |point: &Point| -> Result<String> {
        let scenario = asked.scenario(point)?;
        let changed = changes(&asked.base, point);
        Ok(known.of(&changed, &scenario.machine_file, &scenario.scheduler_file))
    };
    let numbers = all.iter().map(number).collect::<Result<Vec<_>>>()?;
    let earlier = match &options.resume {
        Some(file) => {
            earlier(file, &all, &numbers).with_context(|| format!("--resume {}", file.display()))?
        }
        None => vec![None; n],
    };
    let inputs = asked.inputs(&all)?;
    let [mut json, csv, svg] = options.output.options();
    if let (None, Some(file)) = (json.1, &options.resume) {
        json = ("--resume", Some(file));
    }
    let [json, csv, svg] = open_all([json, csv, svg], &as_paths(&inputs))?;
    let files = Output::files(json, csv, svg);
    interrupt::install();
    let missing: Vec<usize> =
        (0..n).filter(|place| !matches!(earlier[*place], Some(Ok(_)))).collect();
    let before = n - missing.len();
    if options.resume.is_some() {
        note(&format!("{before} of {n} points are there already"));
    }
    let results = earlier.into_iter().map(|result| result.filter(Result::is_ok)).collect();
    let next = Instant::now() + KEEP_EVERY;
    let kept = Mutex::new(Kept { results, done: before, next });
    let keep = |place: usize, result: Result<Outcome, String>| {
        let Ok(mut kept) = kept.lock() else { return };
        kept.results[place] = unless_stopped(result);
        kept.done += 1;
        progress(kept.done, n);
        let start = Instant::now();
        if start >= kept.next {
            // If it cannot be written now, it is told at the end.
            let _ = files.keep(&all, &kept.results, &numbers);
            kept.next = Instant::now() + KEEP_EVERY.max(start.elapsed() * 20);
        }
    };
    match &options.ray {
        None => {
            each(missing.len(), jobs, stopped, |number| {
                let place = missing[number];
                keep(place, asked.simulate(&all[place]));
            });
        }
        Some(address) => {
            let missed: Vec<Point> = missing.iter().map(|place| all[*place].clone()).collect();
            let put = |number: usize, result| keep(missing[number], result);
            ray::sweep(address, &asked.text, &asked.base, &missed, put)?;
        }
    }
    let kept = kept.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let results = kept.results;
    progress(n, n);
    let (rows, failures) = table(&axes, &all, &results);
    let told = say(&aligned(&rows, false));
    warn_of_ignored(results.iter().flatten().flatten());
    files.save_all(&all, &results, &numbers, || plot::points(&all, &results))?;
    told?;
    if stopped() {
        let done = results.iter().flatten().count();
        note(&format!("{done} of {n} points are done; --resume goes on with them"));
        return Err(Interrupted.into());
    }
    failed(&failures, results.len())
}

/// A row a point, and what failed.
fn table(
    axes: &[(String, Vec<String>)],
    all: &[Point],
    results: &[Option<Result<Outcome, String>>],
) -> (Vec<Vec<String>>, Vec<String>) {
    let mut rows: Vec<Vec<String>> = vec![axes.iter().map(|(key, _)| key.clone()).collect()];
    rows[0].extend(["work/s", "Jain", "PLE/s", "longest wait ms"].map(String::from));
    let mut failures = Vec::new();
    for (point, result) in all.iter().zip(results) {
        let mut row: Vec<String> = point.iter().map(|(_, value)| value.clone()).collect();
        match result {
            Some(Ok(o)) => row.extend([
                short(o.rate()),
                o.jain.map_or("–".into(), |jain| format!("{jain:.3}")),
                short(o.vms.iter().map(|vm| vm.ple_exits_per_s).sum()),
                short(o.longest_wait_ms),
            ]),
            Some(Err(why)) => {
                failures.push(format!("{}: {why}", in_words(point)));
                row.extend(["failed", "–", "–", "–"].map(String::from));
            }
            None => row.extend(["not simulated", "–", "–", "–"].map(String::from)),
        }
        rows.push(row);
    }
    (rows, failures)
}

/// What a file that `--json` wrote has of these points.
fn earlier(
    file: &Path,
    all: &[Point],
    numbers: &[String],
) -> Result<Vec<Option<Result<Outcome, String>>>> {
    let text = fs::read_to_string(file).context("cannot read it")?;
    let entries: Vec<Value> =
        serde_json::from_str(&text).context("it was not written by 'baton sim sweep --json'")?;
    ensure!(
        entries.len() == all.len(),
        "it has {} points and this sweep {}: --vary is not the same",
        entries.len(),
        all.len()
    );
    let read = |((entry, point), number): ((&Value, &Point), &String)| -> Result<_> {
        let same = entry["point"].as_object().is_some_and(|of| {
            of.len() == point.len()
                && point.iter().all(|(key, value)| of.get(key).is_some_and(|v| v == value))
        });
        ensure!(same, "it has no point {}: --vary is not the same", in_words(point));
        ensure!(
            entry["inputs"] == *number,
            "it is of another scenario, machine, scheduler or version: --set and all files must be \
             the same; without --resume all is simulated again"
        );
        if entry["outcome"].is_null() {
            return Ok(entry["error"].as_str().map(|why| Err(why.into())));
        }
        let outcome: Outcome = serde_json::from_value(entry["outcome"].clone())
            .with_context(|| format!("the outcome of {} is none", in_words(point)))?;
        Ok(Some(Ok(outcome)))
    };
    entries.iter().zip(all).zip(numbers).map(read).collect()
}
