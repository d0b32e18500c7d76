// SPDX-License-Identifier: GPL-2.0-only
//! What on this host stops Baton or costs its VMs, and what mends it.

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Result, anyhow};
use baton_doctor::report::{self, Report};
use baton_doctor::{Finding, Scene, find, fix};
use baton_haltpoll::{STATE, restore_left};
use baton_output::{note, say};
use clap::{Args, ValueEnum};

/// What on this host stops Baton or costs its VMs, and what mends it.
#[derive(Args, Debug)]
#[group(multiple = false)]
#[command(after_help = "\
Without options it looks at the host and its VMs, and tells what it found: what keeps scx_baton \
from starting first, each with its evidence, cost and remedy. It changes nothing without --fix \
and --restore; those need root, and so does seeing all. docs/doctor.md has the table.\n\n\
Exit status: 0 nothing found but notes, or done; 1 something costs, or --fix or --restore failed, \
after a line that says why; 2 something keeps scx_baton from starting; 64 wrong options; 74 \
nothing worse was found, but not all could be read.")]
pub struct Doctor {
    /// All that it looks for
    #[arg(long)]
    list: bool,

    /// What was found, for programs
    #[arg(long)]
    json: bool,

    /// What a finding is, how it is seen, and what mends it
    #[arg(long, value_name = "ID", value_parser = finding)]
    explain: Option<&'static Finding>,

    /// Mend it by writing to files of the kernel, until the next boot; tells what it writes
    #[arg(long, value_name = "ID", value_parser = finding)]
    fix: Option<&'static Finding>,

    /// Put back what --fix has changed, and KVM's parameters that an scx_baton which was killed has
    /// left changed
    /// ('left': those alone)
    #[arg(long, value_name = "left", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "all")]
    restore: Option<Restore>,
}

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Restore {
    #[value(hide = true)]
    All,
    Left,
}

/// The exit status of wrong options: 2 is taken.
pub const WRONG: u8 = 64;

fn finding(id: &str) -> Result<&'static Finding, String> {
    find(id).ok_or_else(|| "no such finding: 'baton doctor --list' has all".into())
}

pub fn main(doctor: &Doctor) -> i32 {
    match run(doctor) {
        Ok(status) => status,
        Err(error) => {
            note(&format!("baton doctor: {error:#}"));
            1
        }
    }
}

fn run(doctor: &Doctor) -> Result<i32> {
    if doctor.list {
        say(&report::list())?;
    } else if let Some(finding) = doctor.explain {
        say(&report::explain(finding, width()))?;
    } else if let Some(finding) = doctor.fix {
        mend(finding)?;
    } else if let Some(what) = doctor.restore {
        restore(what)?;
    } else {
        let report = Report::of(&Scene::here());
        if doctor.json {
            say(&format!("{:#}\n", report.json()))?;
        } else {
            say(&report.text(width()))?;
        }
        return Ok(report.status());
    }
    Ok(0)
}

/// Of a terminal; what is no terminal gets whole lines.
fn width() -> Option<usize> {
    let size = io::stdout().is_terminal().then(terminal_size::terminal_size)?;
    size.map(|(columns, _)| usize::from(columns.0))
}

fn mend(finding: &'static Finding) -> Result<()> {
    let lines = fix::apply(&Scene::here(), finding)?;
    if lines.is_empty() {
        return say(&format!("{}: not found on this host, nothing to mend\n", finding.id));
    }
    say(&format!("{}\n'baton doctor --restore' takes it back\n", lines.join("\n")))
}

/// What a scx_baton that governs polling is in charge of.
const KVM: &str = "/sys/module/kvm/parameters/";

fn restore(what: Restore) -> Result<()> {
    let scene = Scene::here();
    let in_charge = scene.baton_runs() && Path::new(STATE).exists();
    let (mut lines, mut errors) = (Vec::new(), Vec::new());
    // The killed scx_baton may have come after a --fix: what it found is put back first.
    match in_charge {
        true => errors.push(anyhow!(
            "scx_baton runs, and puts KVM's parameters back when it ends: stop it instead"
        )),
        false => match restore_left() {
            Ok(ns) => lines.extend(ns.map(|ns| format!("halt_poll_ns is {ns} again"))),
            Err(error) => errors.push(error),
        },
    }
    if what == Restore::All {
        match fix::undo(&scene.host, |path| in_charge && path.starts_with(KVM)) {
            Ok((undone, failed)) => {
                lines.extend(undone);
                errors.extend(failed);
            }
            Err(error) => errors.push(error),
        }
    }
    if lines.is_empty() && errors.is_empty() {
        lines.push("nothing to put back".into());
    }
    if !lines.is_empty() {
        say(&format!("{}\n", lines.join("\n")))?;
    }
    let Some(last) = errors.pop() else { return Ok(()) };
    errors.iter().for_each(|error| note(&format!("baton doctor: {error:#}")));
    Err(last)
}
