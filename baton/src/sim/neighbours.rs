// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim neighbours`: what random mixtures of VMs and host threads lose to EEVDF.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use baton_output::interrupt::Interrupted;
use baton_output::{OutFile, note, say};
use baton_report::stats::median;
use baton_sim::neighbours::{Late, Mixture, Row, With, generate, mixture};
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
    /// The same VMs beside more host threads, which compute, or sleep and wake
    #[arg(long)]
    host_threads: bool,
    /// The same VMs and threads, half of those that may run anywhere confined to some pCPUs
    #[arg(long)]
    cpusets: bool,
}

pub fn measure_all(
    Neighbours { seeds: options, known, host_threads, cpusets }: &Neighbours,
) -> Result<()> {
    let with = With { host_threads: *host_threads, cpusets: *cpusets };
    let (first, scheduler) = (options.first(), &options.scheduler);
    if options.show {
        return say(&generate(first, with));
    }
    let (vms, threads) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let (broken, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let simulate = |text: &str| options.simulate(text);
    let done = options.each(|seed| match mixture(seed, with, scheduler, &simulate) {
        Ok(found) => {
            let fine = keep(seed, &found) || known.contains(&seed);
            broken.fetch_add(u64::from(!fine), Relaxed);
            for (all, rows) in [(&vms, found.vms), (&threads, found.threads)] {
                if let Ok(mut all) = all.lock() {
                    all.extend(rows);
                }
            }
        }
        Err(_) if stopped() => {}
        Err(why) => {
            failed.fetch_add(1, Relaxed);
            note(&format!("seed {seed}: {why}"));
        }
    })?;
    let (vms, threads) = (vms.into_inner(), threads.into_inner());
    say(&format!(
        "{} mixtures from seed {first} on, in {:.0} s, under {scheduler}\n{}",
        done.scenarios,
        done.took.as_secs_f64(),
        summary(&vms.unwrap_or_default(), &threads.unwrap_or_default())
    ))?;
    if stopped() {
        return Err(Interrupted.into());
    }
    let (broken, failed) = (broken.into_inner(), failed.into_inner());
    if broken + failed > 0 {
        bail!(
            "of {} mixtures {broken} broke a bound, and {failed} an invariant; again: \
             baton sim neighbours --seeds SEED..SEED+1{}{} --scheduler {scheduler}",
            done.scenarios,
            if *host_threads { " --host-threads" } else { "" },
            if *cpusets { " --cpusets" } else { "" }
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

/// Work of all VMs and host threads, and lateness of the VMs.
fn summary(vms: &[Row], threads: &[Row]) -> String {
    let mut out = String::new();
    for (name, rows) in [("VMs", vms), ("tables of host threads", threads)] {
        let work: Vec<f64> = rows.iter().map(|row| row.work).collect();
        let least = work.iter().copied().fold(f64::INFINITY, f64::min);
        if let Some(middle) = median(&work) {
            out += &format!(
                "{} {name}: work, relative to EEVDF's up to their due: median {middle:.2}, \
                 least {least:.2}\n",
                rows.len()
            );
        }
    }
    for (below, name) in [(true, "below their due"), (false, "others")] {
        let of = vms.iter().filter(|row| row.below == below);
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
