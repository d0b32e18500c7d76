// SPDX-License-Identifier: GPL-2.0-only
//! Reasons not to start: checked before anything on the host is touched.

use anyhow::{Result, bail};
use std::path::Path;

const STATE: &str = "/sys/kernel/sched_ext/state";
const OPS: &str = "/sys/kernel/sched_ext/root/ops";
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The first reason why this host cannot run Baton, with its remedy.
pub fn unfit_host() -> Result<()> {
    let Ok(state) = std::fs::read_to_string(STATE) else {
        bail!(
            "this kernel ({}) has no sched_ext: boot Linux 6.12 or later built with \
             CONFIG_SCHED_CLASS_EXT=y",
            release()
        );
    };
    if !Path::new(BTF).exists() {
        bail!("this kernel has no BTF ({BTF} is missing): boot one with CONFIG_DEBUG_INFO_BTF=y");
    }
    // SAFETY: geteuid() only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        bail!("no permission to load a scheduler: run it as root (sudo scx_baton)");
    }
    if state.trim() != "disabled" {
        let ops = std::fs::read_to_string(OPS).unwrap_or_default();
        let name = if ops.trim().is_empty() { state.trim() } else { ops.trim() };
        bail!("another sched_ext scheduler is loaded ({name}): stop it first");
    }
    Ok(())
}

fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|r| r.trim().to_owned())
        .unwrap_or_else(|_| "unknown release".to_owned())
}
