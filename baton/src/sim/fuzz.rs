// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim fuzz`: random scenarios with faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use baton_sim::fuzz::{fuzz, generate};
use clap::Args;

use super::{Jobs, progress, show};
use crate::files::replace;

#[derive(Args)]
pub struct Fuzz {
    /// One scenario for each of these numbers, the second one excluded
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds)]
    seeds: (u64, u64),
    /// From the first of them on until so much time has passed, whatever the second is
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// As a scenario's scheduler
    #[arg(long, value_name = "NAME", default_value = "scx_baton")]
    scheduler: String,
    #[command(flatten)]
    jobs: Jobs,
    /// Print the scenario of the first number, and simulate nothing
    #[arg(long)]
    show: bool,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.filter(|(a, b)| a < b).ok_or_else(|| "write 0..1000".to_string())
}

pub fn fuzz_all(options: &Fuzz) -> Result<()> {
    let (first, last) = options.seeds;
    if options.show {
        show(&generate(first, &options.scheduler));
        return Ok(());
    }
    let start = Instant::now();
    let (next, events) = (AtomicU64::new(first), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let more = |seed: u64| match options.seconds {
        Some(seconds) => start.elapsed().as_secs() < seconds,
        None => seed < last,
    };
    let jobs = options.jobs.number();
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if !more(seed) {
                        return;
                    }
                    match fuzz(seed, &options.scheduler) {
                        Ok(n) => drop(events.fetch_add(n, Relaxed)),
                        Err(failure) => {
                            eprintln!("seed {}: {}", failure.seed, failure.why);
                            if let Ok(mut all) = failures.lock() {
                                all.push(failure);
                            }
                        }
                    }
                    if options.seconds.is_none() {
                        progress((seed - first + 1) as usize, (last - first) as usize);
                    }
                }
            });
        }
    });
    let done = next.load(Relaxed) - first - jobs as u64;
    show(&format!(
        "{done} scenarios from seed {first} on, {} events in {:.0} s, under {}\n",
        events.load(Relaxed),
        start.elapsed().as_secs_f64(),
        options.scheduler
    ));
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort_by_key(|failure| failure.seed);
    for failure in &failures {
        let file = format!("fuzz-{}.toml", failure.seed);
        replace(file.as_ref(), &failure.scenario)?;
        let (seed, scheduler) = (failure.seed, &options.scheduler);
        show(&format!(
            "seed {seed}: {}\n  again: baton sim fuzz --seeds {seed}..{} --scheduler {scheduler}\n  \
             smaller: {file}\n",
            failure.why,
            seed + 1
        ));
    }
    if !failures.is_empty() {
        bail!("{} of {done} scenarios broke an invariant", failures.len());
    }
    Ok(())
}
