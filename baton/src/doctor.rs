// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton has left on a host, and putting it right.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use baton_haltpoll::{STATE, restore_left};
use clap::Args;

use crate::files::show;

#[derive(Args, Debug)]
pub struct Doctor {
    /// Put back KVM's parameters that an scx_baton which was killed has left changed
    #[arg(long)]
    restore: bool,
}

const OPS: &str = "/sys/kernel/sched_ext/root/ops";

pub fn run(doctor: &Doctor) -> Result<()> {
    let left = Path::new(STATE).exists();
    let runs = fs::read_to_string(OPS).is_ok_and(|ops| ops.starts_with("baton"));
    if runs && left && doctor.restore {
        bail!("scx_baton runs, and puts KVM's parameters back when it ends: stop it instead");
    }
    if doctor.restore {
        show(&match restore_left()? {
            Some(ns) => format!("halt_poll_ns is {ns} again\n"),
            None => "nothing to put back\n".into(),
        });
        return Ok(());
    }
    show(match (runs, left) {
        (true, true) => "scx_baton runs, and is in charge of KVM's polling at HLT\n",
        (true, false) => "scx_baton runs; KVM's parameters are as it found them\n",
        (false, true) => {
            "an scx_baton that was killed has left KVM's parameters changed: baton doctor --restore\n"
        }
        (false, false) => "scx_baton does not run, and has left nothing behind\n",
    });
    Ok(())
}
