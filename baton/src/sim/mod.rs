// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim`: hosts of any size, simulated, under any scheduler.

mod compare;
mod fuzz;
mod list;
mod output;
mod plot;
mod ray;
mod reproduce;
mod run;
mod sweep;

use std::io::{self, IsTerminal, Read, Write};
use std::num::NonZero;
use std::thread;

use anyhow::{Context, Result, bail};
use baton_sim::explain::explain;
use baton_sim::scenario::Scenario;
use baton_sim::sweep::Point;
use clap::{Args, Subcommand};

/// Simulates KVM hosts: scx_baton's own source, the kernel's schedulers, any VMs, the same result every
/// time.
#[derive(Subcommand)]
pub enum Sim {
    /// Simulate one scenario
    Run(run::Run),
    /// The same scenario with one key varied, side by side, for several seeds
    Compare(compare::Compare),
    /// All combinations of several keys, on all cores or on a Ray cluster
    Sweep(sweep::Sweep),
    /// The scenarios, machines, workloads and schedulers that come with the simulator
    List,
    /// What a scenario says, in words, with every default
    Explain(Named),
    /// The tables and claims of the seed documents: theirs, ours, and what agrees
    Reproduce(reproduce::Reproduce),
    /// Random scenarios with faults, and invariants that must hold: the scheduler's test rig
    Fuzz(fuzz::Fuzz),
}

#[derive(Args)]
pub struct Named {
    /// A file (TOML), "-" for standard input, or a name of 'baton sim list'
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Change a key: scheduler=scx_baton, kvm.on-spin=kernel, vm.0.vcpus=8, vm.vcpus=8 (of all VMs)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

#[derive(Args)]
struct Jobs {
    /// Simulations at once [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
}

impl Jobs {
    fn number(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZero::get);
        self.jobs.map_or_else(cores, |jobs| jobs as usize)
    }
}

/// To standard output. If nobody reads on, nobody misses the rest.
fn show(text: &str) {
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Returns the exit status.
pub fn main(what: Sim) -> i32 {
    let result = match &what {
        Sim::Run(run) => run::run(run),
        Sim::Compare(options) => compare::compare(options),
        Sim::Sweep(options) => sweep::sweep_all(options),
        Sim::Reproduce(options) => reproduce::reproduce_all(options),
        Sim::Fuzz(options) => fuzz::fuzz_all(options),
        Sim::List => {
            show(&list::list());
            Ok(())
        }
        Sim::Explain(named) => named.scenario().and_then(|scenario| {
            show(&explain(&scenario)?);
            Ok(())
        }),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("baton sim: {error:#}");
            1
        }
    }
}

impl Named {
    fn text(&self) -> Result<String> {
        if self.scenario == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            return Ok(text);
        }
        Scenario::text(&self.scenario)
    }

    fn changes(&self) -> Result<Point> {
        let change = |text: &String| {
            let (key, value) = text
                .split_once('=')
                .with_context(|| format!("--set \"{text}\" is not key=value"))?;
            Ok((key.to_string(), value.to_string()))
        };
        self.changes.iter().map(change).collect()
    }

    fn scenario(&self) -> Result<Scenario> {
        Scenario::parse(&self.text()?, &self.changes()?)
            .with_context(|| format!("scenario {}", self.scenario))
    }
}

/// On a terminal, one line.
fn progress(done: usize, all: usize) {
    if io::stderr().is_terminal() {
        let end = if done == all { "\r\x1b[K" } else { "" };
        eprint!("\r{done} of {all} simulated{end}");
    }
}

fn failed(failures: &[String], all: usize) -> Result<()> {
    let mut last = "";
    for failure in failures {
        // Seeds fail alike more often than not.
        if failure != last {
            eprintln!("{failure}");
        }
        last = failure;
    }
    if !failures.is_empty() {
        bail!("{} of {all} simulations failed, see above", failures.len());
    }
    Ok(())
}
