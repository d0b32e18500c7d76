// SPDX-License-Identifier: GPL-2.0-only
//! `baton bench`: what this KVM host can do, measured in seconds.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use baton_bench::against;
use baton_bench::plot::plot;
use baton_bench::report::{Report, comparison};
use baton_bench::{Bench as Measurements, Options, all, find};
use baton_output::interrupt;
use baton_output::{OutFile, directory, note, open_all, say};
use baton_testbed::plan::KERNEL_SCHEDULER;
use baton_testbed::scheduler::{self, StartError};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::peers;

/// Measures this KVM host with a micro-VMM and bare-metal guests: what exits, IPIs, timers,
/// wake-ups, locks and barriers cost here, one VM alone or several at once.
#[derive(Args)]
#[command(
    after_help = "Begin with: baton bench ipi timer. 'baton bench list' says what each measures, \
    docs/bench.md what the columns mean.\n\n\
    Needs /dev/kvm (root, or the group kvm). --schedulers needs root and puts these schedulers in \
    charge of the whole host while it measures; --weights needs root and makes cgroups. Both, and \
    KVM's parameters that some measurements set, are put back at the end, after Ctrl-C too.\n\n\
    Exit status: 0; 1 if something could not be measured, after one line that says \
    why; 2 for options that it does not know; 130 after Ctrl-C (what was measured until then is \
    printed and saved).\n\n\
    Example, without KVM hardware: baton testbed run -- baton bench ipi timer"
)]
pub struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    /// What to measure: names or their beginnings, see 'baton bench list' [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The NAMEs are whole names: 'barrier' is not 'barrier-pause', too
    #[arg(long, requires = "names")]
    exact: bool,
    /// VMs at once; of latencies the first one measures, the others compute
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    vms: u32,
    /// Start enough VMs to reach RATIO vCPUs for each CPU of the host
    #[arg(long, value_name = "RATIO", conflicts_with = "vms")]
    overcommit: Option<f64>,
    /// Bind vCPU i of every VM to CPU i, counted round
    #[arg(long)]
    pin: bool,
    /// vCPUs of each VM, where a measurement leaves a choice; several: all of them, as a curve
    /// [default: one for each CPU of the host]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    vcpus: Vec<u32>,
    /// Each VM in a cgroup of its own, with these values of cpu.weight; 100 where the list ends
    #[arg(long, value_name = "W,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    weights: Vec<u32>,
    /// Runs of everything, interleaved
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Latencies of one run, at most 8192
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=8192))]
    samples: u64,
    /// Length of one run that measures a rate
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// What one run of latencies may take before the guest counts as hung
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    deadline: u64,
    /// Compare schedulers: eevdf (the kernel's own) and commands of sched_ext schedulers; in every
    /// repetition each is in charge once
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    schedulers: Vec<String>,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One line for each run to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Say where this run differs from an earlier one, whose --json this is
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// What the VMs did together, as the last line: for 'baton testbed ab'
    #[arg(long, hide = true)]
    measured: bool,
    /// Draw distributions, curves and bars (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// What can be measured, a line each
    List,
}

/// Returns the exit status.
pub fn main(bench: Bench) -> i32 {
    if let Some(What::List) = bench.what {
        return list();
    }
    match measure(&bench) {
        Ok(false) => 0,
        Ok(true) => interrupt::STATUS,
        Err(error) => {
            note(&format!("baton bench: {error:#}"));
            1
        }
    }
}

fn list() -> i32 {
    let all = all();
    let width = all.iter().map(|test| test.name.len()).max().unwrap_or(0);
    let lines = all.iter().map(|test| format!("{:width$}  {}\n", test.name, test.what));
    match say(&lines.collect::<String>()) {
        Ok(()) => 0,
        Err(error) => {
            note(&format!("baton bench: {error:#}"));
            1
        }
    }
}

/// Whether the user has interrupted it.
fn measure(bench: &Bench) -> Result<bool> {
    let tests = find(&bench.names, bench.exact)
        .map_err(|name| anyhow!("there is no measurement {name}; 'baton bench list' shows all"))?;
    let options = options(bench)?;
    if let (Some(vcpus), false) = (bench.vcpus.iter().min(), bench.names.is_empty())
        && let Some(test) = tests.iter().find(|test| test.least_vcpus() > *vcpus)
    {
        bail!("--vcpus {vcpus}: {} takes {} at least", test.name, test.least_vcpus());
    }
    let earlier = bench.against.as_deref().map(earlier).transpose()?;
    let wanted = [("--json", bench.json.as_deref()), ("--csv", bench.csv.as_deref())];
    let inputs: Vec<(&str, &Path)> =
        bench.against.as_deref().map(|file| ("what --against reads", file)).into_iter().collect();
    let [json, csv] = open_all(wanted, &inputs)?;
    let files = Files { json, csv };
    if let Some(path) = &bench.plot {
        directory(path)?;
    }
    let commands = bench.schedulers.iter().map(|name| command(name)).collect::<Result<Vec<_>>>()?;
    let measurements = Measurements::new(tests, options)?;
    // Whoever is in charge, if the user names nobody.
    let named = !bench.schedulers.is_empty();
    let schedulers = if named { bench.schedulers.clone() } else { vec![String::new()] };
    let commands = if named { commands } else { vec![Vec::new()] };
    let empty = measurements.report();
    let mut reports: Vec<(String, Report)> =
        schedulers.into_iter().map(|name| (name, empty.clone())).collect();
    let mut saved = Ok(());
    'all: for repetition in 0..bench.repetitions {
        // Each comes first at times.
        let n = reports.len();
        for turn in 0..n {
            let place = (turn + repetition as usize) % n;
            let (name, report) = &mut reports[place];
            under(name, &commands[place], report, |report| {
                measurements.repeat(report, repetition, |test| show(bench, repetition, name, test));
            });
            let interrupted = report.interrupted;
            // An emulated host that fails takes the files on it with it.
            if !io::stderr().is_terminal() {
                let of = if name.is_empty() { String::new() } else { format!(", {name}") };
                let figures = report.of_repetition(repetition);
                let run = repetition + 1;
                note(&format!("run {run} of {}{of}: {figures}", bench.repetitions));
            }
            saved = files.write(&reports, OutFile::keep);
            if interrupted {
                break 'all;
            }
        }
    }
    show(bench, 0, "", "");
    let text = text(&reports, named, earlier.as_ref());
    let told = say(&text);
    let saved = saved.and_then(|()| files.write(&reports, OutFile::finish));
    // Only now: what was measured is seen, whatever becomes of the files.
    saved?;
    if let Some(directory) = &bench.plot {
        let files = plot(&reports, directory)?;
        note(&format!("{} pictures in {}", files.len(), directory.display()));
    }
    told?;
    if reports.iter().any(|(_, report)| report.interrupted) {
        return Ok(true);
    }
    if reports.iter().all(|(_, report)| report.is_empty()) {
        bail!("nothing could be measured");
    }
    if reports.iter().any(|(_, report)| report.failed()) {
        bail!("not all could be measured, see above");
    }
    if bench.measured {
        let measured = reports[0].1.measured().ok_or_else(|| anyhow!("nothing measured"))?;
        say(&(serde_json::to_string(&measured)? + "\n"))?;
    }
    Ok(false)
}

/// How to measure.
///
/// Errors: options that cannot be, or do not fit each other.
fn options(bench: &Bench) -> Result<Options> {
    if !(bench.seconds >= 0.01 && bench.seconds <= 3600.0) {
        bail!("--seconds must be between 0.01 and 3600, not {}", bench.seconds);
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let vcpus = if bench.vcpus.is_empty() { vec![cpus] } else { bench.vcpus.clone() };
    let vms = match bench.overcommit {
        None => bench.vms,
        Some(ratio) if (0.01..=1000.0).contains(&ratio) => {
            (ratio * f64::from(cpus) / f64::from(vcpus[0])).ceil() as u32
        }
        Some(ratio) => bail!("--overcommit must be between 0.01 and 1000, not {ratio}"),
    };
    let options = Options {
        vms,
        vcpus,
        weights: bench.weights.clone(),
        pin: bench.pin,
        samples: bench.samples,
        time: Duration::from_secs_f64(bench.seconds),
        deadline: Duration::from_secs(bench.deadline),
    };
    ensure!(bench.weights.len() <= vms as usize, "--weights has more values than there are VMs");
    for (place, name) in bench.schedulers.iter().enumerate() {
        ensure!(!bench.schedulers[..place].contains(name), "scheduler {name} is named twice");
    }
    for (place, vcpus) in bench.vcpus.iter().enumerate() {
        ensure!(!bench.vcpus[..place].contains(vcpus), "--vcpus has {vcpus} twice");
    }
    Ok(options)
}

/// A table for each scheduler, and them beside each other.
fn text(reports: &[(String, Report)], named: bool, earlier: Option<&Value>) -> String {
    let mut text = String::new();
    for (name, report) in reports {
        text += &match named {
            true => format!("{name}\n\n{}\n", report.table()),
            false => report.table(),
        };
    }
    if reports.len() > 1 {
        text += &comparison(reports);
    }
    if let Some(earlier) = earlier {
        text += &against(reports, earlier);
    }
    text
}

fn earlier(file: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let json: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} was not written by --json", file.display()))?;
    let measured = |json: &Value| json["measurements"].is_array();
    let schedulers =
        json.as_object().is_some_and(|all| !all.is_empty() && all.values().all(measured));
    ensure!(measured(&json) || schedulers, "{} was not written by --json", file.display());
    Ok(json)
}

/// Where runs disagree with earlier ones of the same schedulers.
fn against(reports: &[(String, Report)], earlier: &Value) -> String {
    let then = |name: &str| if name.is_empty() { earlier } else { &earlier[name] };
    let mut out = String::new();
    for (name, report) in reports {
        let base = (&reports[0].1.json(), then(&reports[0].0));
        let now = report.json();
        if !name.is_empty() {
            out += &format!("{name}: ");
        }
        out += &against::latencies(&now, then(name));
        out += &against::ratios(name, [base.0, &now], [base.1, then(name)]);
    }
    out
}

/// The command of a scheduler, with where its program is; empty for the kernel's own.
///
/// Errors: there is no such program; with the places where it was looked for.
fn command(name: &str) -> Result<Vec<String>> {
    let mut words: Vec<String> = name.split_whitespace().map(String::from).collect();
    match words.first_mut() {
        None => bail!("--schedulers has an empty name"),
        Some(program) if program == KERNEL_SCHEDULER => return Ok(Vec::new()),
        Some(program) => *program = peers::beside_or_in_path(program)?.display().to_string(),
    }
    Ok(words)
}

/// Measures while this scheduler is in charge. If it does not take over, or does not stay, the
/// report says so.
fn under(name: &str, command: &[String], report: &mut Report, measure: impl FnOnce(&mut Report)) {
    if command.is_empty() {
        return measure(report);
    }
    match scheduler::start(command) {
        Ok(mut running) => {
            measure(report);
            report.failures.extend(running.lost().map(|why| format!("{name} did not stay: {why}")));
            if let Err(error) = running.stop() {
                report.failures.push(format!("{name} does not stop: {error:#}"));
            }
        }
        Err(StartError::Ended(why) | StartError::Hung(why)) => {
            report.failures.push(format!("not measured: {why}"));
        }
    }
}

/// On a terminal, one line; empty at the end.
fn show(bench: &Bench, repetition: u32, scheduler: &str, test: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        let run = format!("run {} of {}", repetition + 1, bench.repetitions);
        let text =
            if test.is_empty() { String::new() } else { format!("{run}: {scheduler} {test}") };
        let _ = write!(err, "\r\x1b[K{text}");
        let _ = err.flush();
    }
}

struct Files {
    json: Option<OutFile>,
    csv: Option<OutFile>,
}

impl Files {
    /// `write` is [`OutFile::keep`] or [`OutFile::finish`].
    fn write(
        &self,
        reports: &[(String, Report)],
        write: fn(&OutFile, &str) -> Result<()>,
    ) -> Result<()> {
        if let Some(file) = &self.json {
            let json = match reports {
                [(name, report)] if name.is_empty() => report.json(),
                _ => reports.iter().map(|(name, report)| (name.clone(), report.json())).collect(),
            };
            write(file, &format!("{json:#}\n"))?;
        }
        if let Some(file) = &self.csv {
            let lines = |(name, report): &(String, Report)| {
                let csv = report.csv();
                csv.lines().skip(1).map(|line| format!("{name},{line}\n")).collect::<String>()
            };
            let head = "scheduler,name,series,unit,run,count,median,p99,p999,max\n";
            write(file, &(head.to_string() + &reports.iter().map(lines).collect::<String>()))?;
        }
        Ok(())
    }
}
