// SPDX-License-Identifier: GPL-2.0-only
//! Halt polling of one length: KVM's module parameters for a while. They are the host's, so they
//! go back to what they were.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const PARAMETERS: &str = "/sys/module/kvm/parameters";

/// Once grown to its start, the time neither grows nor shrinks: growth by 1 and division by 1
/// (`grow_halt_poll_ns()` and `shrink_halt_poll_ns()` in virt/kvm/kvm_main.c).
fn fixed(ns: u32) -> [(&'static str, String); 3] {
    [
        ("halt_poll_ns_grow_start", ns.to_string()),
        ("halt_poll_ns_grow", "1".into()),
        ("halt_poll_ns_shrink", "1".into()),
    ]
}

/// Dropped, it is as it was.
pub struct FixedPolling(Vec<(&'static str, String)>);

impl FixedPolling {
    /// Every vCPU polls for `ns` as soon as one of its halts was shorter than its VM's limit.
    ///
    /// Errors: the parameters are not there, or only root may write them.
    pub fn set(ns: u32) -> Result<Self> {
        let mut before = FixedPolling(Vec::new());
        for (name, value) in fixed(ns) {
            let file = Path::new(PARAMETERS).join(name);
            let trouble = || format!("cannot fix halt polling: {}", file.display());
            let old = fs::read_to_string(&file).with_context(trouble)?;
            fs::write(&file, value).with_context(trouble)?;
            before.0.push((name, old.trim().to_string()));
        }
        Ok(before)
    }

    /// Why it cannot be.
    pub fn missing() -> Option<&'static str> {
        let writable = fixed(0).iter().all(|(name, _)| {
            fs::OpenOptions::new().write(true).open(Path::new(PARAMETERS).join(name)).is_ok()
        });
        (!writable).then_some("only root can set KVM's parameters halt_poll_ns_*")
    }
}

impl Drop for FixedPolling {
    fn drop(&mut self) {
        for (name, value) in &self.0 {
            // Was written a moment ago.
            let _ = fs::write(Path::new(PARAMETERS).join(name), value);
        }
    }
}
