// SPDX-License-Identifier: GPL-2.0-only
//! Runs an experiment in front of the user: progress, table, files. `baton testbed ab` reads the
//! experiment from a file; `baton demo` brings its own.

mod against;
mod chart;
mod progress;
mod results;
mod table;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use baton_output::interrupt;
use baton_output::{OutFile, note, open_all, say};
use baton_testbed::ab::{self, HostSession, Notice, Record, Stop};
use baton_testbed::cache::Cache;
use baton_testbed::experiment::Experiment;
use baton_testbed::host::HostOptions;
use baton_testbed::plan::Event;
use clap::Args;

use self::against::Earlier;
use self::progress::Progress;
use self::results::Report;
use crate::host_args::HostArgs;
use crate::peers;

/// What the host needs beside its guests, MiB: kernel, its initramfs, QEMU of each guest.
const HOST_MIB: u32 = 1536;
/// Of an exact host, which has 2,048 at most: two guests of 512 fit.
const EXACT_HOST_MIB: u32 = 768;
const QEMU_MIB: u32 = 128;

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Ab {
    /// The experiment (TOML; those of this project are in testbed/experiments)
    file: PathBuf,
    #[command(flatten)]
    outputs: Outputs,
    #[command(flatten)]
    host: HostArgs,
}

const HELP: &str = "\
The least experiment, and where all keys and columns are explained: docs/testbed.md
  repetitions = 3
  seconds = 2.0
  schedulers = [\"eevdf\", \"scx_baton\"]
  [[workload]]
  name = \"barrier\"

Needs neither root nor, without --accel kvm, KVM; the host is emulated, and nothing changes on \
this one but the cache that 'baton testbed run --help' names.

Exit status: 0; 1 if something failed, after a line that says what; 2 for wrong options; 130 after \
Ctrl-C. What was measured until then is printed and saved.";

/// Where results go, beside the table on standard output.
#[derive(Args, Default)]
pub struct Outputs {
    /// Write all figures as JSON; rewritten after every run
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a bar chart
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Say where this run differs from an earlier one on an exact host, whose --json this is; the
    /// last one given counts
    #[arg(long, value_name = "FILE", overrides_with = "against")]
    against: Option<PathBuf>,
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
        for name in experiment.workloads.iter().filter_map(|workload| workload.bench()) {
            baton_bench::find(&[name.to_string()], true).map_err(|name| {
                anyhow!("there is no workload bench-{name}; 'baton bench list' shows all")
            })?;
        }
        Ok(experiment)
    };
    match read().with_context(|| format!("{}", args.file.display())) {
        Ok(experiment) => {
            measure(&experiment, Some(&args.file), args.host.options(), &args.outputs)
        }
        Err(error) => {
            note(&format!("baton: {error:#}"));
            1
        }
    }
}

/// Performs the experiment and shows its results, also those of one that did not get to its end.
/// Returns the exit status.
pub fn measure(
    experiment: &Experiment,
    input: Option<&Path>,
    options: HostOptions,
    outputs: &Outputs,
) -> i32 {
    match try_measure(experiment, input, options, outputs) {
        Ok(()) => 0,
        Err(Stop::Interrupted) => {
            note("baton: interrupted");
            interrupt::STATUS
        }
        Err(Stop::Fault(what)) => {
            note(&format!("baton: {what}"));
            1
        }
        Err(Stop::Setup(error)) => {
            note(&format!("baton: {error:#}"));
            1
        }
    }
}

fn try_measure(
    experiment: &Experiment,
    input: Option<&Path>,
    mut options: HostOptions,
    outputs: &Outputs,
) -> Result<(), Stop> {
    // All that can be known to be wrong is told before the host boots, or anything is fetched.
    experiment.check().map_err(Stop::Setup)?;
    let emulated = options.virtualization().map_err(Stop::Setup)?.is_none();
    if outputs.against.is_some() && options.exact.is_none() {
        return Err(Stop::Setup(anyhow!(
            "--against compares runs on exact hosts alone: leave it out, or add --exact"
        )));
    }
    let earlier = outputs.against.as_deref().map(Earlier::read).transpose().map_err(Stop::Setup)?;
    let wanted = [("--json", outputs.json.as_deref()), ("--svg", outputs.svg.as_deref())];
    let experiment_file = input.map(|path| ("the experiment", path));
    let against_file = outputs.against.as_deref().map(|path| ("what --against reads", path));
    let inputs: Vec<(&str, &Path)> = experiment_file.into_iter().chain(against_file).collect();
    let [json, svg] = open_all(wanted, &inputs).map_err(Stop::Setup)?;
    options.extra_bins.extend(programs(experiment, outputs.peers).map_err(Stop::Setup)?);
    options.pcpus = experiment.pcpus;
    let guests = experiment.workloads.iter().map(|w| experiment.guests(w).0).max().unwrap_or(0);
    let host = if options.exact.is_some() { EXACT_HOST_MIB } else { HOST_MIB };
    options.mem_mib = options.mem_mib.max(host + guests * (experiment.vm_mem_mib + QEMU_MIB));

    let mut progress = Progress::new(experiment.runs(), emulated);
    let mut kernel = String::new();
    let mut records: Vec<Record> = Vec::new();
    let mut unwritten = Ok(());
    let mut inputs = None;
    let mut watch = |notice: Notice| {
        progress.notice(&notice);
        match notice {
            Notice::Event(Event::HostUp { kernel: release }) => kernel.clone_from(release),
            Notice::Recorded(record) => {
                records.push(record.clone());
                records.sort_by_key(|record| record.run.id); // several may run at once
                let report = Report::new(experiment, &kernel, inputs.as_ref(), &records);
                let report = Report { emulated, ..report };
                unwritten = match &json {
                    Some(file) => in_json(&report).and_then(|text| file.keep(&text)),
                    None => Ok(()),
                };
            }
            Notice::Inputs(found) => inputs = Some(found.clone()),
            Notice::Event(_) | Notice::Retry(_) | Notice::Preparing(_) => {}
        }
    };
    let ended = match &options.exact {
        Some(_) => ab::exact::conduct(experiment, &options, &mut watch),
        None => ab::conduct(experiment, &mut HostSession::new(options), &mut watch),
    };
    progress.finish();
    let report = Report::new(experiment, &kernel, inputs.as_ref(), &records);
    let report = Report { emulated, ..report };
    if !records.is_empty() {
        let mut text = table::render(&report);
        if let Some(earlier) = earlier {
            text += &earlier.compare(&report).map_err(Stop::Setup)?;
        }
        let told = say(&text);
        save(&report, json.as_ref(), svg.as_ref()).and(unwritten).and(told).map_err(Stop::Setup)?;
    }
    ended
}

fn in_json(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

fn save(report: &Report, json: Option<&OutFile>, svg: Option<&OutFile>) -> Result<()> {
    if let Some(file) = json {
        file.finish(&in_json(report)?)?;
    }
    let Some(file) = svg else { return Ok(()) };
    match chart::render(report) {
        Some(svg) => file.finish(&svg),
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
