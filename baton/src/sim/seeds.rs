// SPDX-License-Identifier: GPL-2.0-only
//! What the rigs that draw scenarios have in common: one for each number, on all cores, until all
//! are done, the time is over, or Ctrl-C.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use baton_output::interrupt;
use baton_sim::fuzz::in_process;
use baton_sim::outcome::Outcome;
use baton_sim::scenario::{Text, is_source, known};
use clap::Args;

use super::{Jobs, apart, progress, stopped};

#[derive(Args)]
pub struct Seeds {
    /// One scenario for each of these numbers, the second one excluded
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = range)]
    seeds: (u64, u64),
    /// For so long, from A on; B does not matter then
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// As a scenario's scheduler
    #[arg(long, value_name = "NAME", default_value = "scx_baton")]
    pub scheduler: String,
    #[command(flatten)]
    jobs: Jobs,
    /// Print the scenario of the first number, and simulate nothing
    #[arg(long)]
    pub show: bool,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    // TOML's whole numbers end there.
    let fine = |(a, b): &(u64, u64)| a < b && *b <= i64::MAX as u64;
    parsed.filter(fine).ok_or_else(|| "write 0..1000; numbers go to 2^63 - 1".to_string())
}

/// How far a rig came.
pub struct Done {
    pub scenarios: u64,
    pub took: Duration,
}

impl Seeds {
    pub fn first(&self) -> u64 {
        self.seeds.0
    }

    /// One of the user's own schedulers is simulated in a process of its own.
    pub fn simulate(&self, text: &str) -> Result<Outcome, String> {
        match is_source(&self.scheduler) {
            true => {
                let text = Text { text: text.into(), ..Text::default() };
                apart::simulate(&text, &[], None).map(|done| done.outcome)
            }
            false => in_process(text),
        }
    }

    /// Calls `each` with the numbers, several at a time.
    ///
    /// Errors: there is no such scheduler.
    pub fn each(&self, each: impl Fn(u64) + Sync) -> anyhow::Result<Done> {
        // A scheduler that does not exist breaks no invariant.
        known(&self.scheduler, self.scheduler.as_ref()).map_err(|error| {
            anyhow::anyhow!("--{}", error.to_string().trim_start_matches("key "))
        })?;
        interrupt::install();
        let start = Instant::now();
        let (first, last) = self.seeds;
        let last = if self.seconds.is_some() { i64::MAX as u64 } else { last };
        let (next, done) = (AtomicU64::new(first), AtomicU64::new(0));
        let late = || self.seconds.is_some_and(|seconds| start.elapsed().as_secs() >= seconds);
        thread::scope(|scope| {
            for _ in 0..self.jobs.number() {
                scope.spawn(|| {
                    loop {
                        let step = |seed: u64| (seed < last).then(|| seed + 1);
                        let Ok(seed) = next.fetch_update(Relaxed, Relaxed, step) else { return };
                        if late() || stopped() {
                            return;
                        }
                        each(seed);
                        if stopped() {
                            return;
                        }
                        let done = 1 + done.fetch_add(1, Relaxed);
                        if self.seconds.is_none() {
                            progress(done as usize, (last - first) as usize);
                        }
                    }
                });
            }
        });
        Ok(Done { scenarios: done.into_inner(), took: start.elapsed() })
    }
}
