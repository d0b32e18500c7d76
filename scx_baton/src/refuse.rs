// SPDX-License-Identifier: GPL-2.0-only
//! Reasons not to start: checked before anything on the host is touched.

use anyhow::{Result, bail};
use baton_doctor::{Found, Scene, blockers};
use std::fmt;

const STATE: &str = "/sys/kernel/sched_ext/state";
const OPS: &str = "/sys/kernel/sched_ext/root/ops";

/// EX_CONFIG of sysexits.h: another start, unless the host is changed, ends alike.
pub const UNFIT: u8 = 78;

/// What keeps scx_baton from running on this host.
#[derive(Debug)]
pub struct Unfit(Vec<Found>);

impl std::error::Error for Unfit {}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Found { finding, evidence, .. }) in self.0.iter().enumerate() {
            let (next, first) = (if place > 0 { "; " } else { "" }, evidence.join(", "));
            write!(f, "{next}{} ({first}): {}", finding.title, finding.mend)?;
        }
        let ids: Vec<_> = self.0.iter().map(|found| found.finding.id).collect();
        write!(f, " (baton doctor --explain {})", ids.first().unwrap_or(&"ID"))
    }
}

/// Errors: [`Unfit`], no permission, or an scx_baton that runs already.
pub fn unfit_host() -> Result<()> {
    let found = blockers(&Scene::here());
    if !found.is_empty() {
        return Err(Unfit(found).into());
    }
    // SAFETY: geteuid() only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        bail!("no permission to load a scheduler: run it as root (sudo scx_baton)");
    }
    let state = std::fs::read_to_string(STATE).unwrap_or_default();
    if state.trim() != "disabled" {
        let ops = std::fs::read_to_string(OPS).unwrap_or_default();
        bail!("another scx_baton is loaded ({}): stop it first", ops.trim());
    }
    Ok(())
}
