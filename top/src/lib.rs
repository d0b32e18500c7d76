// SPDX-License-Identifier: GPL-2.0-only
//! `baton top`: who waits for CPU on a KVM host, and why.
//!
//! A [`source`] gives samples, two of them make [`rates`], a [`view`] says which of them to show,
//! and the [`screen`] or [`plain`] lines show them.

mod baton;
mod bottom;
mod columns;
mod feed;
mod grid;
mod history;
pub mod host;
pub mod kernel;
mod live;
mod notes;
mod plain;
mod polls;
mod rates;
pub mod sample;
mod schedstat;
mod screen;
mod shown;
mod source;
mod table;
mod tape;
mod threads;
mod view;
mod wanted;

use anyhow::{Result, bail};
use baton_output::{OutFile, interrupt, is_read, note, open_all};
use clap::Args;
use columns::Column;
use feed::Feed;
use plain::Form;
use rates::Rates;
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tape::Tape;
use view::View;
use wanted::Wanted;

const HELP: &str = "\
Columns, in percent of the time, of a VM the mean of its vCPUs: %RUN they ran; %RDY they waited for \
a pCPU while no sibling ran; %CSTP they waited for one while a sibling ran (co-stop); %MLMTD they \
waited for CPU time by cpu.max; %SPIN they spun, from one PAUSE exit to the next; %POLL KVM polled \
at their HLTs. IPIw/s: for how long IPIs waited for vCPUs that did not run, a second; PLE/s: PAUSE \
exits; BST/s: yields by spinners that were carried out; use: the part of them after which the \
spinner went on; wake99: the 99th percentile from being woken until running; %WAIT the rest: \
halted, or at work for the VMM.

Without scx_baton the kernel's figures are shown: %RUN and %RDY, in which all waiting is, and to \
root %POLL. Threads of the host that work for VMs have the kernel's figures in any case. Needs no \
root, but sees VMs of a VMM that does not name its threads only as root, and scx_baton's figures \
if its socket (/var/run/scx/root/stats) lets it. The key h explains the keys.

Exit status: 0; 1 if something failed, after a line that says what; 2 for wrong options.";

/// Who waits for CPU on this host, and why: a screen, or lines.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct Top {
    /// This VM alone, with its vCPUs
    vm: Option<String>,

    /// Seconds between samples
    #[arg(short, long, default_value = "1", value_parser = delay)]
    delay: Duration,

    /// Lines instead of a screen
    #[arg(short, long)]
    batch: bool,

    /// Intervals to print, with --batch; without it there is no end
    #[arg(short = 'n', long, value_name = "N", requires = "batch")]
    iterations: Option<u64>,

    /// Comma-separated values, a row for each VM and interval, with --batch
    #[arg(long, requires = "batch", conflicts_with = "json")]
    csv: bool,

    /// A JSON object for each interval, with --batch
    #[arg(long, requires = "batch")]
    json: bool,

    /// The vCPUs of all VMs, too, with --batch
    #[arg(long, requires = "batch")]
    vcpus: bool,

    /// Column to sort by
    #[arg(long, value_enum, default_value = "run", value_name = "COLUMN")]
    sort: Column,

    /// VMs whose name has this, whatever the case
    #[arg(long, default_value = "", value_name = "TEXT")]
    filter: String,

    /// Write the last minute here at the end, and at the key w
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Show what --write has written, not this host
    #[arg(short, long, value_name = "FILE", conflicts_with = "write")]
    read: Option<PathBuf>,
}

/// Seconds; 0.1 s is the least that is worth a look.
fn delay(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// Errors: no such VM, no terminal, a file that cannot be read or written.
pub fn run(top: &Top) -> Result<()> {
    if !top.batch && !stdout().is_terminal() {
        bail!("standard output is no terminal: --batch prints lines");
    }
    let input = top.read.as_deref().map(|path| ("what is read", path));
    let [write] =
        open_all([("--write", top.write.as_deref())], &input.into_iter().collect::<Vec<_>>())?;
    let feed = match &top.read {
        Some(path) => Feed::replay(Tape::read(path)?),
        None => Feed::live(),
    };
    let mut view = View::new(top.sort, &top.filter);
    interrupt::install();
    let mut watch = Watch { feed, tape: Tape::default(), write };
    let kept = match top.batch {
        true => batch(top, &mut watch, &mut view),
        false => live::screen(top.delay, top.vm.as_deref(), &mut watch, &mut view),
    };
    // What was measured is written also if showing it failed.
    let written = watch.finish();
    kept.and(written)
}

/// Samples, and where they go.
struct Watch {
    feed: Feed,
    tape: Tape,
    write: Option<OutFile>,
}

impl Watch {
    fn next(&mut self, wanted: &Wanted) -> Option<sample::Sample> {
        let sample = self.feed.next(wanted)?;
        if self.write.is_some() {
            self.tape.keep(sample.clone());
        }
        Some(sample)
    }

    fn is_over(&self) -> bool {
        interrupt::asked()
    }

    fn finish(&self) -> Result<()> {
        // An earlier recording is not replaced by one that shows nothing.
        let write = self.write.as_ref().filter(|_| self.tape.is_shown());
        write.map_or(Ok(()), |file| self.tape.write(file))
    }

    /// `false`: the user wants an end.
    fn wait_until(&self, at: Instant) -> bool {
        while !self.is_over() && Instant::now() < at {
            let left = at.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
        !self.is_over()
    }
}

/// Opens the VM of this name, and shows it alone.
///
/// Errors: there is none.
fn only(name: &str, view: &mut View, sample: &sample::Sample) -> Result<()> {
    let its: Vec<_> = sample.vms.iter().filter(|vm| vm.name == name).collect();
    if its.is_empty() {
        let mut names: Vec<_> = sample.vms.iter().map(|vm| vm.name.as_str()).collect();
        names.sort_unstable();
        let there = match names.as_slice() {
            [] => "no VM runs".to_owned(),
            few if few.len() <= 10 => format!("there are: {}", few.join(", ")),
            many => format!("there are {}: 'baton top' shows them", many.len()),
        };
        bail!("no VM is named '{name}': {there}");
    }
    (view.filter, view.whole) = (name.to_owned(), true);
    view.opened = its.iter().map(|vm| vm.key.clone()).collect();
    Ok(())
}

fn batch(top: &Top, watch: &mut Watch, view: &mut View) -> Result<()> {
    let form = match (top.csv, top.json) {
        (true, _) => Form::Csv,
        (_, true) => Form::Json,
        _ => Form::Text,
    };
    let vcpus = top.vcpus || top.vm.is_some();
    let wanted = Wanted { vcpus, threads: top.vm.iter().cloned().collect() };
    let Some(mut before) = watch.next(&wanted) else { return Ok(()) };
    if let Some(name) = &top.vm {
        only(name, view, &before)?;
    }
    let (mut at, mut told) = (Instant::now(), None);
    for interval in 0..top.iterations.unwrap_or(u64::MAX) {
        // Intervals that have passed, as nobody read or it was stopped, are one.
        at = (at + top.delay).max(Instant::now());
        if watch.feed.is_live() && !watch.wait_until(at) {
            break;
        }
        let Some(now) = watch.next(&wanted) else { break };
        let why = now.baton.as_ref().err().filter(|_| now.host.scheduler == "baton");
        if let Some(why) = why.filter(|why| told.as_ref() != Some(*why)) {
            note(&format!("baton top: figures are the kernel's, scx_baton tells none: {why}"));
        }
        told = why.cloned();
        let mut rates = Rates::between(&before, &now);
        if !vcpus {
            // A recording may have them.
            rates.vms.iter_mut().for_each(|vm| {
                vm.vcpus.clear();
                vm.threads.clear();
            });
        }
        if !is_read(&plain::interval(form, &now, &rates, view, interval == 0)?)? {
            break;
        }
        before = now;
    }
    Ok(())
}
