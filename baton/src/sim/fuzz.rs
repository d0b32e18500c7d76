// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim fuzz`: random scenarios with faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use baton_output::interrupt::Interrupted;
use baton_output::{OutFile, note, say};
use baton_sim::fuzz::{Failure, fuzz, generate};

use super::seeds::Seeds;
use super::stopped;

pub fn fuzz_all(options: &Seeds) -> Result<()> {
    let (first, scheduler) = (options.first(), &options.scheduler);
    if options.show {
        return say(&generate(first, scheduler));
    }
    let (events, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let done =
        options.each(|seed| match fuzz(seed, scheduler, &|text| options.simulate(text)) {
            Ok(n) => drop(events.fetch_add(n, Relaxed)),
            Err(_) if stopped() => {}
            Err(failure) => keep(&failures, failure),
        })?;
    let told = say(&format!(
        "{} scenarios from seed {first} on, {} events in {:.0} s, under {scheduler}\n",
        done.scenarios,
        events.load(Relaxed),
        done.took.as_secs_f64(),
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
        bail!("{} of {} scenarios broke an invariant", failures.len(), done.scenarios);
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
