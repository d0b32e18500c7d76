// SPDX-License-Identifier: GPL-2.0-only
//! What is counted in a simulation, by name.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use super::ffi::{Intf, Place};
use super::load::{BATON, Loaded};

/// Name and meaning of a counter.
pub type Counter = (&'static str, &'static str);

/// What is counted of any sched_ext scheduler.
pub const WALK: Counter =
    ("longest walk", "tasks of queues that one callback has looked at, the most");

/// Of the models of CFS and EEVDF.
pub const FAIR_COUNTERS: [Counter; 2] = [
    ("yields asked", "directed yields that KVM tried"),
    ("yields obeyed", "of them: the vCPU was picked next"),
];

/// What scx_baton counts, as its counters.h has it.
pub struct Counters {
    /// Of the whole host.
    pub of_host: Vec<Counter>,
    /// Sums over all VMs.
    pub of_vms: Vec<Counter>,
}

impl Counters {
    /// Of the scx_baton that is part of this program.
    ///
    /// Errors: no memory to load it.
    pub fn of_baton() -> Result<&'static Self> {
        static LOADED: OnceLock<(Loaded, Counters)> = OnceLock::new();
        if let Some((_, counters)) = LOADED.get() {
            return Ok(counters);
        }
        let loaded = Loaded::new(BATON)?;
        let intf = loaded.symbol::<*const Intf>("shim_intf").context("no counters in scx_baton")?;
        // SAFETY: a constant of this layout; its tables have as many records as it says. It stays
        // loaded for good, below: the strings do, too.
        let counters = unsafe {
            let intf = &*intf;
            let table = |first, n| {
                let of = |at: &'static Place| (text(at.name), text(at.meaning));
                std::slice::from_raw_parts(first, n as usize).iter().map(of).collect()
            };
            Counters {
                of_host: table(intf.counters, intf.nr_counters),
                of_vms: table(intf.vm_times, intf.nr_vm_times),
            }
        };
        Ok(&LOADED.get_or_init(|| (loaded, counters)).1)
    }
}

/// # Safety
///
/// `at` is a C string that stays.
unsafe fn text(at: *const c_char) -> &'static str {
    // SAFETY: the caller's promise.
    let words = unsafe { CStr::from_ptr(at) };
    words.to_str().unwrap_or("?")
}
