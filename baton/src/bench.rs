// SPDX-License-Identifier: GPL-2.0-only
//! `baton bench`: what this KVM host can do, measured in seconds.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use baton_bench::{Options, all, find, run};
use clap::{Args, Subcommand};

/// Measures this KVM host with a micro-VMM and bare-metal guests: what exits, IPIs, timers, wake-ups,
/// locks and barriers cost here, one VM alone or several at once.
#[derive(Args)]
#[command(after_help = "Exit status: 0; 1 if nothing could be measured, after one line that says \
    why; 130 after Ctrl-C (what was measured until then is printed and saved).\n\n\
    Example, without KVM hardware: baton testbed run -- baton bench ipi timer")]
pub struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    /// What to measure: names or their beginnings, see 'baton bench list' [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// VMs at once; of latencies the first one measures, the others compute
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    vms: u32,
    /// vCPUs of each VM, where a measurement leaves a choice [default: one for each CPU of the host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    vcpus: Option<u32>,
    /// Runs of everything, interleaved
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Latencies of one run, at most 8192
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=8192))]
    samples: u64,
    /// Length of one run that measures a rate
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One line for each run to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
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
        Ok(interrupted) => {
            if interrupted {
                130
            } else {
                0
            }
        }
        Err(error) => {
            eprintln!("baton bench: {error:#}");
            1
        }
    }
}

fn list() -> i32 {
    let all = all();
    let width = all.iter().map(|test| test.name.len()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for test in all {
        // Nobody reads on: then nobody misses the rest.
        if writeln!(out, "{:width$}  {}", test.name, test.what).is_err() {
            break;
        }
    }
    0
}

fn measure(bench: &Bench) -> Result<bool> {
    let tests = find(&bench.names).map_err(|name| {
        anyhow::anyhow!("there is no measurement {name}; 'baton bench list' shows all")
    })?;
    if !(bench.seconds >= 0.01 && bench.seconds <= 3600.0) {
        bail!("--seconds must be between 0.01 and 3600, not {}", bench.seconds);
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let options = Options {
        vms: bench.vms,
        vcpus: bench.vcpus.unwrap_or(cpus),
        repetitions: bench.repetitions,
        samples: bench.samples,
        time: Duration::from_secs_f64(bench.seconds),
    };
    // Before anything is measured: a file that cannot be written is no reason to lose it.
    for file in [&bench.json, &bench.csv].into_iter().flatten() {
        fs::File::options()
            .append(true)
            .create(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let terminal = io::stderr().is_terminal();
    let report = run(&tests, &options, |name, repetition| {
        if terminal {
            eprint!("\r\x1b[Krun {} of {}: {name}", repetition + 1, options.repetitions);
        }
    })?;
    if terminal {
        eprint!("\r\x1b[K");
    }
    print!("{}", report.table());
    save(&bench.json, || format!("{:#}\n", report.json()))?;
    save(&bench.csv, || report.csv())?;
    if report.is_empty() && !report.interrupted {
        bail!("nothing could be measured");
    }
    Ok(report.interrupted)
}

fn save(file: &Option<PathBuf>, text: impl Fn() -> String) -> Result<()> {
    let write = |file: &Path| {
        fs::write(file, text()).with_context(|| format!("cannot write {}", file.display()))
    };
    file.as_deref().map_or(Ok(()), write)
}
