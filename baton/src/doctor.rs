// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton has left on a host, and putting it right.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use baton_haltpoll::{STATE, restore_left};
use baton_output::{note, say};
use clap::Args;

/// What scx_baton has left on this host, and putting it right.
#[derive(Args, Debug)]
#[command(after_help = "\
Without options it only looks, and needs no root. --restore does: it writes halt_poll_ns and \
halt_poll_ns_grow_start of the module kvm, as a killed 'scx_baton --halt-poll' found them.\n\n\
Exit status: 0, whatever was found; 1 if it could not be put back, after a line that says why.")]
pub struct Doctor {
    /// Put back KVM's parameters that an scx_baton which was killed has left changed
    #[arg(long)]
    restore: bool,
}

const OPS: &str = "/sys/kernel/sched_ext/root/ops";

pub fn main(doctor: &Doctor) -> i32 {
    match run(doctor).and_then(|words| say(&format!("{words}\n"))) {
        Ok(()) => 0,
        Err(error) => {
            note(&format!("baton doctor: {error:#}"));
            1
        }
    }
}

fn run(doctor: &Doctor) -> Result<String> {
    let left = Path::new(STATE).exists();
    let runs = fs::read_to_string(OPS).is_ok_and(|ops| ops.starts_with("baton"));
    if runs && left && doctor.restore {
        bail!("scx_baton runs, and puts KVM's parameters back when it ends: stop it instead");
    }
    if doctor.restore {
        return Ok(match restore_left()? {
            Some(ns) => format!("halt_poll_ns is {ns} again"),
            None => "nothing to put back".into(),
        });
    }
    let words = match (runs, left) {
        (true, true) => "scx_baton runs, and is in charge of KVM's polling at HLT",
        (true, false) => "scx_baton runs; KVM's parameters are as it found them",
        (false, true) => {
            "an scx_baton that was killed has left KVM's parameters changed: baton doctor --restore"
        }
        (false, false) => "scx_baton does not run, and has left nothing behind",
    };
    Ok(words.into())
}
