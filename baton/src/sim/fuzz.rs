// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim fuzz`: random scenarios with faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use baton_output::{OutFile, note, say};
use baton_sim::build::{is_source, known};
use baton_sim::fuzz::{Failure, fuzz, generate, in_process};
use baton_sim::outcome::Outcome;
use baton_sim::scenario::Text;
use baton_testbed::interrupt::{self, Interrupted};
use clap::Args;

use super::{Jobs, apart, progress, stopped};

#[derive(Args)]
pub struct Fuzz {
    /// One scenario for each of these numbers, the second one excluded
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds)]
    seeds: (u64, u64),
    /// For so long, from A on; B does not matter then
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
    // TOML's whole numbers end there.
    let fine = |(a, b): &(u64, u64)| a < b && *b <= i64::MAX as u64;
    parsed.filter(fine).ok_or_else(|| "write 0..1000; numbers go to 2^63 - 1".to_string())
}

pub fn fuzz_all(options: &Fuzz) -> Result<()> {
    let (first, last) = options.seeds;
    let scheduler = &options.scheduler;
    let text = generate(first, scheduler);
    if options.show {
        return say(&text);
    }
    let simulate = |text: &str| -> Result<Outcome, String> {
        match is_source(scheduler) {
            true => {
                let text = Text { text: text.into(), ..Text::default() };
                apart::simulate(&text, &[], None).map(|done| done.outcome)
            }
            false => in_process(text),
        }
    };
    // A scheduler that does not exist breaks no invariant.
    known(scheduler, scheduler.as_ref())
        .map_err(|error| anyhow!("--{}", error.to_string().trim_start_matches("key ")))?;
    interrupt::install();
    let start = Instant::now();
    let last = if options.seconds.is_some() { i64::MAX as u64 } else { last };
    let (next, events, done) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let late = || options.seconds.is_some_and(|seconds| start.elapsed().as_secs() >= seconds);
    thread::scope(|scope| {
        for _ in 0..options.jobs.number() {
            scope.spawn(|| {
                loop {
                    let step = |seed: u64| (seed < last).then(|| seed + 1);
                    let Ok(seed) = next.fetch_update(Relaxed, Relaxed, step) else { return };
                    if late() || stopped() {
                        return;
                    }
                    match fuzz(seed, scheduler, &simulate) {
                        Ok(n) => drop(events.fetch_add(n, Relaxed)),
                        Err(_) if stopped() => return,
                        Err(failure) => keep(&failures, failure),
                    }
                    let done = 1 + done.fetch_add(1, Relaxed);
                    if options.seconds.is_none() {
                        progress(done as usize, (last - first) as usize);
                    }
                }
            });
        }
    });
    let done = done.into_inner();
    let told = say(&format!(
        "{done} scenarios from seed {first} on, {} events in {:.0} s, under {scheduler}\n",
        events.load(Relaxed),
        start.elapsed().as_secs_f64(),
    ));
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort_by_key(|(failure, _)| failure.seed);
    for (failure, smaller) in &failures {
        let seed = failure.seed;
        let smaller = smaller.as_ref().map_or_else(|error| format!("{error:#}"), Clone::clone);
        say(&format!(
            "seed {seed}: {}\n  again: baton sim fuzz --seeds {seed}..{} --scheduler {scheduler}\n  \
             smaller: {smaller}\n",
            failure.why,
            seed + 1
        ))?;
    }
    told?;
    if stopped() {
        return Err(Interrupted.into());
    }
    if !failures.is_empty() {
        bail!("{} of {done} scenarios broke an invariant", failures.len());
    }
    Ok(())
}

type Kept = (Failure, Result<String>);

/// At once: who interrupts the rig, or loses its machine, has what it found.
fn keep(failures: &Mutex<Vec<Kept>>, failure: Failure) {
    note(&format!("seed {}: {}", failure.seed, failure.why));
    let file = format!("fuzz-{}.toml", failure.seed);
    let written = OutFile::open(file.as_ref()).and_then(|out| out.finish(&failure.scenario));
    if let Ok(mut all) = failures.lock() {
        all.push((failure, written.map(|()| file)));
    }
}
