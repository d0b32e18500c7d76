// SPDX-License-Identifier: GPL-2.0-only
//! Runs an experiment in front of the user: progress, table, files. `baton testbed ab` reads the
//! experiment from a file; `baton demo` brings its own.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use baton_testbed::ab::{self, HostSession, Notice, Record, Stop};
use baton_testbed::cache::Cache;
use baton_testbed::experiment::Experiment;
use baton_testbed::host::HostOptions;
use baton_testbed::plan::Event;
use clap::Args;

use crate::files::{replace, writable};
use crate::progress::Progress;
use crate::results::Report;
use crate::testbed::HostArgs;
use crate::{chart, peers, table};

/// 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// What the host needs beside its guests, MiB: kernel, its initramfs, QEMU of each guest.
const HOST_MIB: u32 = 1536;
const QEMU_MIB: u32 = 128;

#[derive(Args)]
pub struct Ab {
    /// The experiment (TOML; those of this project are in testbed/experiments)
    file: PathBuf,
    #[command(flatten)]
    outputs: Outputs,
    #[command(flatten)]
    host: HostArgs,
}

/// Where results go, beside the table on standard output.
#[derive(Args)]
pub struct Outputs {
    /// Write all figures as JSON; rewritten after every run
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a bar chart
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Install missing public schedulers with cargo, into the cache
    #[arg(long)]
    pub peers: bool,
}

/// `baton testbed ab`; returns the exit status.
pub fn main(args: Ab) -> i32 {
    let read = || -> Result<Experiment> {
        let text = fs::read_to_string(&args.file)?;
        let mut experiment = Experiment::parse(&text)?;
        experiment.pcpus = args.host.pcpus.unwrap_or(experiment.pcpus);
        Ok(experiment)
    };
    match read().with_context(|| format!("{}", args.file.display())) {
        Ok(experiment) => measure(&experiment, args.host.options(), &args.outputs),
        Err(error) => {
            eprintln!("baton: {error:#}");
            1
        }
    }
}

/// Performs the experiment and shows its results, also those of one that did not get to its end.
/// Returns the exit status.
pub fn measure(experiment: &Experiment, options: HostOptions, outputs: &Outputs) -> i32 {
    match try_measure(experiment, options, outputs) {
        Ok(()) => 0,
        Err(Stop::Interrupted) => {
            eprintln!("baton: interrupted");
            INTERRUPTED
        }
        Err(Stop::Fault(what)) => {
            eprintln!("baton: {what}");
            1
        }
        Err(Stop::Setup(error)) => {
            eprintln!("baton: {error:#}");
            1
        }
    }
}

fn try_measure(
    experiment: &Experiment,
    mut options: HostOptions,
    outputs: &Outputs,
) -> Result<(), Stop> {
    // All that can be known to be wrong is told before the host boots.
    experiment.check().map_err(Stop::Setup)?;
    for file in outputs.json.iter().chain(&outputs.svg) {
        writable(file).map_err(Stop::Setup)?;
    }
    options.extra_bins.extend(programs(experiment, outputs.peers).map_err(Stop::Setup)?);
    options.pcpus = experiment.pcpus;
    let guests = experiment.workloads.iter().map(|w| experiment.guests(w).0).max().unwrap_or(0);
    options.mem_mib = options.mem_mib.max(HOST_MIB + guests * (experiment.vm_mem_mib + QEMU_MIB));

    let mut progress = Progress::new(experiment.runs());
    let mut kernel = String::new();
    let mut records: Vec<Record> = Vec::new();
    let mut unwritten = Ok(());
    let mut session = HostSession::new(options);
    let ended = ab::conduct(experiment, &mut session, &mut |notice| {
        progress.notice(&notice);
        match notice {
            Notice::Event(Event::HostUp { kernel: release }) => kernel.clone_from(release),
            Notice::Recorded(record) => {
                records.push(record.clone());
                let report = Report::new(experiment, &kernel, &records);
                unwritten = write_json(&report, outputs);
            }
            Notice::Event(_) | Notice::Retry(_) => {}
        }
    });
    progress.finish();
    let report = Report::new(experiment, &kernel, &records);
    if !records.is_empty() {
        print!("{}", table::render(&report));
        write_svg(&report, outputs).and(unwritten).map_err(Stop::Setup)?;
    }
    ended
}

fn write_json(report: &Report, outputs: &Outputs) -> Result<()> {
    let Some(file) = &outputs.json else { return Ok(()) };
    replace(file, &(serde_json::to_string_pretty(report)? + "\n"))
}

fn write_svg(report: &Report, outputs: &Outputs) -> Result<()> {
    let Some(file) = &outputs.svg else { return Ok(()) };
    match chart::render(report) {
        Some(svg) => replace(file, &svg),
        None => bail!("there is no chart: no workload has a share of the ideal"),
    }
}

/// On the host a program is found by its file name alone.
fn distinct(mut programs: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    programs.sort();
    programs.dedup();
    let mut seen = HashMap::from([(OsString::from("scx_baton"), "the project's own".to_string())]);
    for program in &programs {
        let name = program.file_name().unwrap_or_default().to_os_string();
        let other = seen.insert(name, program.display().to_string());
        if let Some(other) = other {
            bail!("scheduler {} has the same file name as {other}; rename it", program.display());
        }
    }
    Ok(programs)
}

/// The schedulers' programs on this machine, beyond the project's own, which every host has.
fn programs(experiment: &Experiment, install: bool) -> Result<Vec<PathBuf>> {
    let wanted: Vec<&str> = experiment
        .schedulers
        .iter()
        .filter_map(|scheduler| scheduler.program())
        .filter(|program| *program != "scx_baton")
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let peers = Cache::open()?.scratch("peers")?;
    if install {
        let public: Vec<&str> =
            wanted.iter().copied().filter(|program| program.starts_with("scx_")).collect();
        peers::install(&public, &peers)?;
    }
    let found = wanted.into_iter().map(|program| peers::find(program, &peers));
    distinct(found.collect::<Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart_by_file_name() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(distinct(paths(&["/a/x", "/a/y", "/a/x"])).unwrap(), paths(&["/a/x", "/a/y"]));
        for twins in [["/a/x", "/b/x"], ["/a/x", "/a/scx_baton"]] {
            let error = distinct(paths(&twins)).unwrap_err().to_string();
            assert!(error.contains("same file name"), "{error}");
        }
    }
}
