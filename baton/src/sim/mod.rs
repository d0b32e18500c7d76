// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim`: hosts of any size, simulated, under any scheduler.

mod apart;
mod compare;
mod fuzz;
mod inputs;
mod legend;
mod list;
mod neighbours;
mod output;
mod plot;
mod ray;
mod reproduce;
mod run;
mod seeds;
mod show;
mod sweep;

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use baton_output::interrupt;
use baton_output::{note, say};
use baton_sim::explain::explain;
use baton_sim::keys::{Change, overrides};
use baton_sim::outcome::{Outcome, simulate};
use baton_sim::scenario::is_source;
use baton_sim::scenario::{Scenario, Text};
use baton_sim::sweep::{Point, changes};
use clap::{Args, Subcommand};

/// Simulates KVM hosts: scx_baton's own source, the kernel's schedulers, any VMs, the same result
/// every time.
#[derive(Subcommand)]
#[command(after_help = HELP)]
pub enum Sim {
    /// Simulate one scenario
    #[command(after_help = legend::RUN)]
    Run(run::Run),
    /// The same scenario with some keys varied, side by side, for several seeds
    #[command(after_help = legend::COMPARE)]
    Compare(compare::Compare),
    /// All combinations of several keys, on all cores or on a Ray cluster
    #[command(after_help = legend::SWEEP)]
    Sweep(sweep::Sweep),
    /// The scenarios, machines, workloads and schedulers that come with the simulator, and what
    /// counters and steps of programs mean
    List,
    /// Print a scenario or a machine of 'baton sim list' as TOML: to begin one of your own
    Show(show::Show),
    /// What a scenario says, in words, with every default
    Explain(Named),
    /// The tables and claims of papers, talks and patches: theirs, ours, and what agrees
    Reproduce(reproduce::Reproduce),
    /// Random scenarios with faults, and invariants that must hold: the scheduler's test rig
    #[command(after_help = legend::FUZZ)]
    Fuzz(seeds::Seeds),
    /// Random mixtures of VMs and host threads under EEVDF and a scheduler: nobody may lose work or
    /// wake later for another one's sake
    #[command(after_help = legend::NEIGHBOURS)]
    Neighbours(neighbours::Neighbours),
    /// One simulation for another process of ours
    #[command(hide = true)]
    Apart,
}

const HELP: &str = "\
Begin with: baton sim list; baton sim explain two-barriers; baton sim compare two-barriers --vary \
scheduler=eevdf,scx_baton

Needs neither root nor KVM, and changes nothing on the host. docs/sim.md has all keys of a scenario.

Exit status: 0; 1 if something could not be simulated or written, after a line that says why; 2 \
for options that it does not know; 130 after Ctrl-C (compare, sweep, fuzz and reproduce print and \
save what was done until then).";

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

/// Returns the exit status.
pub fn main(what: Sim) -> i32 {
    let result = match &what {
        Sim::Run(run) => run::run(run),
        Sim::Compare(options) => compare::compare(options),
        Sim::Sweep(options) => sweep::sweep_all(options),
        Sim::Reproduce(options) => reproduce::reproduce_all(options),
        Sim::Fuzz(options) => fuzz::fuzz_all(options),
        Sim::Neighbours(options) => neighbours::measure_all(options),
        Sim::List => list::list().and_then(|text| say(&text)),
        Sim::Show(options) => show::show(options),
        Sim::Explain(named) => named.read().and_then(|asked| say(&explain(&asked.scenario(&[])?)?)),
        Sim::Apart => apart::serve(),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            note(&one_line(&format!("baton sim: {error:#}")));
            if stopped() { interrupt::STATUS } else { 1 }
        }
    }
}

/// What the user wants simulated: a scenario, and its changes.
struct Asked {
    name: String,
    text: Text,
    base: Point,
}

impl Named {
    fn read(&self) -> Result<Asked> {
        let base = self.changes()?;
        let text = if self.scenario == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            Text { text, dir: PathBuf::new() }
        } else {
            Text::named(&self.scenario)?
        };
        let name = match &self.scenario[..] {
            "-" => "standard input".into(),
            name => format!("scenario {name}"),
        };
        Ok(Asked { name, text, base })
    }

    fn changes(&self) -> Result<Point> {
        let mut all: Point = Vec::new();
        for text in &self.changes {
            let (key, value) = text
                .split_once('=')
                .with_context(|| format!("--set \"{text}\" is not key=value"))?;
            let twice = all.iter().any(|(other, _)| other == key);
            ensure!(!twice, "--set gives {key} twice");
            all.push((key.to_string(), value.to_string()));
        }
        Ok(all)
    }
}

impl Asked {
    fn scenario(&self, point: &[Change]) -> Result<Scenario> {
        Scenario::read(&self.text, &changes(&self.base, point)).with_context(|| self.name.clone())
    }

    /// Files that simulations of these points read: none of them may be an output.
    fn inputs(&self, points: &[Point]) -> Result<Vec<(&'static str, PathBuf)>> {
        let mut files = Vec::new();
        files.extend(self.name.strip_prefix("scenario ").map(|at| ("the scenario", at.into())));
        let mut seen: Vec<Vec<&Change>> = Vec::new();
        for point in points {
            let names = |(key, _): &&Change| key == "machine" || key == "scheduler";
            let named: Vec<&Change> = point.iter().filter(names).collect();
            if !seen.contains(&named) {
                let scenario = self.scenario(point)?;
                files.push(("the machine's file", scenario.machine_file));
                files.push(("the scheduler", scenario.scheduler_file));
                seen.push(named);
            }
        }
        files.retain(|(_, file): &(_, PathBuf)| file.is_file());
        Ok(files)
    }

    /// Simulates a point; a scheduler of the user's in a process of its own, since it may do
    /// anything.
    fn simulate(&self, point: &[Change]) -> Result<Outcome, String> {
        let scenario = self.scenario(point).map_err(|error| format!("{error:#}"))?;
        if is_source(&scenario.scheduler) {
            let all = changes(&self.base, point);
            return apart::simulate(&self.text, &all, None).map(|done| done.outcome);
        }
        simulate(&scenario).map(|(outcome, _)| outcome).map_err(|error| format!("{error:#}"))
    }
}

/// Two ways to give one key a value would hide one of them.
fn no_key_twice(base: &[Change], axes: &[(String, Vec<String>)]) -> Result<()> {
    for (place, (key, values)) in axes.iter().enumerate() {
        for (other, _) in &axes[..place] {
            ensure!(other != key, "--vary gives {key} twice");
            let same = overrides(key, other) || overrides(other, key);
            ensure!(!same, "--vary gives {other} and {key}, of which one contains the other");
        }
        let set = base.iter().find(|(other, _)| overrides(key, other));
        if let Some((other, _)) = set {
            ensure!(other != key, "{key} is in --set and in --vary");
            bail!("--vary {key} would override --set {other}");
        }
        for (n, value) in values.iter().enumerate() {
            ensure!(!values[..n].contains(value), "--vary {key} has {value} twice");
        }
    }
    Ok(())
}

/// An error of a point, in the words of the option that it comes from.
fn varied(error: &anyhow::Error, axes: &[(String, Vec<String>)]) -> anyhow::Error {
    let said = |words: String, (key, _): &(String, Vec<String>)| {
        words.replace(&format!("--set {key}="), &format!("--vary {key}="))
    };
    anyhow!(axes.iter().fold(format!("{error:#}"), said))
}

fn stopped() -> bool {
    interrupt::check().is_err()
}

/// A point in words.
fn in_words(point: &[Change]) -> String {
    let words: Vec<String> = point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    words.join(", ")
}

/// One line on a terminal; whoever closed standard error does not want it.
fn line(words: fmt::Arguments) {
    let mut err = io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{words}");
        let _ = err.flush();
    }
}

fn progress(done: usize, all: usize) {
    match done == all {
        true => line(format_args!("")),
        false => line(format_args!("{done} of {all} simulated")),
    }
}

/// What went wrong, once for each kind: seeds fail alike more often than not.
fn failed(failures: &[String], all: usize) -> Result<()> {
    for (place, failure) in failures.iter().enumerate() {
        if place == 0 || failures[place - 1] != *failure {
            note(&one_line(failure));
        }
    }
    if !failures.is_empty() {
        bail!("{} of {all} simulations failed, see above", failures.len());
    }
    Ok(())
}

/// A key, or the words of a user's scheduler, may have line breaks.
fn one_line(words: &str) -> String {
    words.replace('\n', "\\n")
}

/// Says once what a scheduler ignores of the scenario.
fn warn_of_ignored<'a>(outcomes: impl Iterator<Item = &'a Outcome>) {
    let mut said: Vec<(&str, &[String])> = Vec::new();
    for outcome in outcomes.filter(|outcome| !outcome.ignored.is_empty()) {
        let words = (outcome.scheduler.as_str(), &outcome.ignored[..]);
        if !said.contains(&words) {
            said.push(words);
            note(&format!("{} ignores {}", words.0, words.1.join(", ")));
        }
    }
}

/// Inputs as [`baton_output::open_all`] takes them.
fn as_paths<'a>(inputs: &'a [(&'static str, PathBuf)]) -> Vec<(&'static str, &'a Path)> {
    inputs.iter().map(|(what, path)| (*what, path.as_path())).collect()
}
