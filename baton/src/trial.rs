// SPDX-License-Identifier: GPL-2.0-only
//! `baton trial`: proof on this host.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use baton_output::note;
use baton_trial::{Options, Synthetic, trial, verify};
use clap::{Args, Subcommand};

use crate::peers;

/// Does Baton help my VMs: this host, as it is in use, under the kernel's scheduler and scx_baton
/// in turns.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
It looks at the host as 'baton doctor' does, says what it will do, and asks. Then slots of 30 s, \
in blocks of four (ABBA), the first 5 s of each dropped; the verdict is the paired ratio of slots \
with its 99 % interval, beside a control: the kernel's slots against each other. A claim takes 6 \
minutes.\n\n\
Without --probe and --synthetic it is about how long vCPUs wait for CPUs (the kernel's \
run_delay), which is not work: a guest that gets more done may wait longer.\n\n\
Whatever happens, the kernel's scheduler is in charge at the end: after q, Ctrl-C, a closed \
terminal; after a warning of the kernel, a failing probe, a VM that waits three times as long as \
before and for more than 10 % of its time, for 5 s; and if this program is killed or stopped, \
scx_baton ends by itself. What was measured is written in each case. docs/trial.md tells more.\n\n\
Exit status: 0 when it is done, whatever the verdict; 1 if it cannot begin, or ended early, after \
a line that says why; 2 for wrong options; 78 if this host has to be changed first, as 'baton \
doctor' tells; 130 after q, Ctrl-C or SIGTERM."
)]
pub struct Trial {
    #[command(subcommand)]
    what: Option<What>,

    /// How long it takes: whole blocks of four slots, at least 2m; below 6m it makes no claim
    #[arg(long = "for", value_name = "TIME", default_value = "6m", value_parser = time)]
    time: Duration,

    /// A command whose last line is a number above 0, the work it did: requests a second, say. It
    /// is run again and again, and has to end within 25 s
    #[arg(long, value_name = "CMD", conflicts_with = "synthetic")]
    probe: Option<String>,

    /// What the probe prints is better if it is lower: a latency, a time
    #[arg(long, requires = "probe")]
    lower_is_better: bool,

    /// Run VMs of its own beside those that are there, and measure their work: a name of 'baton
    /// bench list' that measures a rate
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "barrier")]
    synthetic: Option<String>,

    /// Synthetic VMs
    #[arg(long, value_name = "N", default_value_t = 2, requires = "synthetic")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    vms: u32,

    /// vCPUs of each of them [default: one for each CPU of the host]
    #[arg(long, value_name = "N", requires = "synthetic")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    vcpus: Option<u32>,

    /// Load nothing: the kernel's scheduler in all slots, which tells what noise alone gives
    #[arg(long)]
    control: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Where every sample and the verdict are written [default: baton-trial-SEED.json]
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,

    /// Write a page for a browser, too: the verdict, and what it is made of, as pictures
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Random number that the order of slots comes from [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u32>,

    /// Length of a slot; shorter ones where time is virtual, as on the exact host
    #[arg(long, value_name = "S", default_value = "30s", value_parser = time)]
    slot: Duration,
}

#[derive(Subcommand)]
enum What {
    /// Compute the verdict of a bundle again, and whether it is as the trial wrote it
    Verify {
        /// The bundle that the trial has written
        #[arg(value_name = "FILE")]
        bundle: PathBuf,

        /// Write a page for a browser: the verdict, and what it is made of, as pictures
        #[arg(long, value_name = "FILE.html")]
        report: Option<PathBuf>,
    },
}

/// `90`, `90s`, `6m`, `1h`.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "give a time such as 6m, 90s or 1h, at most 24h".to_owned();
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3600.0),
        _ => (text, 1.0),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let seconds = number * unit;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns the exit status.
pub fn main(args: Trial) -> i32 {
    let done = match &args.what {
        Some(What::Verify { bundle, report }) => verify(bundle, report.as_deref()).map(|_| 0),
        None => run(args),
    };
    done.unwrap_or_else(|error| {
        note(&format!("baton trial: {error:#}"));
        1
    })
}

fn run(args: Trial) -> Result<i32> {
    ensure!(
        args.time >= args.slot * 4,
        "--for {} s is too short: a block of four slots takes {} s",
        args.time.as_secs_f64(),
        (args.slot * 4).as_secs_f64()
    );
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let scheduler = match args.control {
        true => PathBuf::new(),
        false => peers::beside_or_in_path("scx_baton")?,
    };
    trial(&Options {
        time: args.time,
        slot: args.slot,
        seed: args.seed,
        control: args.control,
        probe: args.probe,
        lower_is_better: args.lower_is_better,
        synthetic: args.synthetic.map(|test| Synthetic {
            test,
            vms: args.vms,
            vcpus: args.vcpus.unwrap_or(cpus),
        }),
        yes: args.yes,
        bundle: args.bundle,
        report: args.report,
        scheduler,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        let seconds = |text| time(text).map(|time| time.as_secs_f64());
        for (text, expected) in [("90", 90.0), ("90s", 90.0), ("6m", 360.0), ("1.5h", 5400.0)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        for wrong in ["", "m", "0", "-5m", "25h", "6d", "inf", "nan", "ß", "6 m"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
