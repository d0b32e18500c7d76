// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim neighbours`: what random mixtures of VMs and host threads lose to EEVDF.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use baton_output::interrupt::Interrupted;
use baton_output::{OutFile, note, say};
use baton_report::stats::median;
use baton_sim::neighbours::{Late, Mixture, Row, generate, mixture};
use clap::Args;

use super::seeds::Seeds;
use super::stopped;

#[derive(Args)]
pub struct Neighbours {
    #[command(flatten)]
    seeds: Seeds,
    /// Mixtures that are known to break a bound: they are told, and are no error
    #[arg(long, value_name = "SEED,…", value_delimiter = ',')]
    known: Vec<u64>,
}

pub fn measure_all(Neighbours { seeds: options, known }: &Neighbours) -> Result<()> {
    let (first, scheduler) = (options.first(), &options.scheduler);
    if options.show {
        return say(&generate(first));
    }
    let (rows, broken, failed) = (Mutex::new(Vec::new()), AtomicU64::new(0), AtomicU64::new(0));
    let done =
        options.each(|seed| match mixture(seed, scheduler, &|text| options.simulate(text)) {
            Ok(found) => {
                let fine = keep(seed, &found) || known.contains(&seed);
                broken.fetch_add(u64::from(!fine), Relaxed);
                if let Ok(mut rows) = rows.lock() {
                    rows.extend(found.rows);
                }
            }
            Err(_) if stopped() => {}
            Err(why) => {
                failed.fetch_add(1, Relaxed);
                note(&format!("seed {seed}: {why}"));
            }
        })?;
    say(&format!(
        "{} mixtures from seed {first} on, in {:.0} s, under {scheduler}\n{}",
        done.scenarios,
        done.took.as_secs_f64(),
        summary(&rows.into_inner().unwrap_or_default())
    ))?;
    if stopped() {
        return Err(Interrupted.into());
    }
    let (broken, failed) = (broken.into_inner(), failed.into_inner());
    if broken + failed > 0 {
        bail!(
            "of {} mixtures {broken} broke a bound, and {failed} an invariant; again: \
             baton sim neighbours --seeds SEED..",
            done.scenarios
        );
    }
    Ok(())
}

/// Says at once what breaks a bound, and writes the scenario; whether nothing does.
fn keep(seed: u64, found: &Mixture) -> bool {
    let broken = found.broken();
    for why in &broken {
        note(&format!("seed {seed}: {why}"));
    }
    if !broken.is_empty() {
        let file = format!("neighbours-{seed}.toml");
        let written = OutFile::open(file.as_ref()).and_then(|out| out.finish(&found.text));
        if let Err(error) = written {
            note(&format!("seed {seed}: {error:#}"));
        }
    }
    broken.is_empty()
}

/// Work and lateness of all VMs.
fn summary(rows: &[Row]) -> String {
    let work: Vec<f64> = rows.iter().map(|row| row.work).collect();
    let least = work.iter().copied().fold(f64::INFINITY, f64::min);
    let mut out = match median(&work) {
        Some(middle) => format!(
            "{} VMs: work up to their due, relative to EEVDF's: median {middle:.2}, least {least:.2}\n",
            rows.len()
        ),
        None => String::new(),
    };
    for (below, name) in [(true, "below their due"), (false, "others")] {
        let of = rows.iter().filter(|row| row.below == below);
        let late: Vec<Late> = of.filter_map(|row| row.late).collect();
        let us = |p99: &dyn Fn(&Late) -> u64| {
            let all: Vec<f64> = late.iter().map(|late| p99(late) as f64 / 1e3).collect();
            (median(&all).unwrap_or(0.0), all.iter().copied().fold(0.0, f64::max))
        };
        let (fair, ours) = (us(&|late| late.fair[1]), us(&|late| late.ours[1]));
        out += &format!(
            "{} VMs with timers {name}: p99 of lateness {:.0} us in the median, {:.0} at most; \
             under EEVDF {:.0} and {:.0}\n",
            late.len(),
            ours.0,
            ours.1,
            fair.0,
            fair.1
        );
    }
    out
}
