// SPDX-License-Identifier: GPL-2.0-only
//! What is scx_baton's own: what its loader tells it of the host, and its counters.

use std::ffi::CStr;

use anyhow::{Result, bail};

use super::counters::{Counter, Counters};
use super::ffi::{Intf, Map, Place};
use super::load::Loaded;
use crate::machine::{Machine, NONE};

/// What is known of a scheduler that is Baton, or a variant of it.
pub struct Baton {
    max_cpus: usize,
    /// Reasons for a yield that need to know who was sent an IPI.
    of_ipis: [u32; 2],
    /// Name of each counter, and where it is.
    counters: Vec<(&'static str, u32)>,
    vm_times: Vec<(&'static str, u32)>,
}

impl Baton {
    /// `None`: it is another scheduler.
    ///
    /// Errors: it was compiled with the sim/shim/baton.c of another version.
    pub fn of(loaded: &Loaded) -> Result<Option<Self>> {
        const OLD: &str =
            "the scheduler includes a sim/shim/baton.c of another version: copy it again";
        if loaded.symbol::<*const ()>("baton_vcpu_load").is_none() {
            return Ok(None);
        }
        let Some(intf) = loaded.symbol::<*const Intf>("shim_intf") else { bail!(OLD) };
        let known = Counters::of_baton()?;
        // SAFETY: a constant of this layout; its tables have as many records as it says, whose
        // names are C strings.
        unsafe {
            let intf = &*intf;
            let places = |table: *const Place, n: u32, known: &[Counter]| {
                let table = std::slice::from_raw_parts(table, n as usize);
                let of = |(name, _): &Counter| {
                    let named = |at: &&Place| CStr::from_ptr(at.name).to_bytes() == name.as_bytes();
                    table.iter().find(named).map(|at| (*name, at.place))
                };
                known.iter().filter_map(of).collect()
            };
            let counters = places(intf.counters, intf.nr_counters, &known.of_host);
            let vm_times = places(intf.vm_times, intf.nr_vm_times, &known.of_vms);
            let of_ipis = [intf.yield_ipi, intf.yield_sent];
            Ok(Some(Baton { max_cpus: intf.max_cpus as usize, of_ipis, counters, vm_times }))
        }
    }

    /// As the loader does: nothing asked for is the default.
    pub fn follows_ipis(&self, yield_policy: &[u32]) -> bool {
        yield_policy.is_empty() || yield_policy.iter().any(|reason| self.of_ipis.contains(reason))
    }

    /// Sets what the loader sets: the host's pCPUs, and why a vCPU gets a spinner's.
    pub fn configure(&self, loaded: &Loaded, m: &Machine, yield_policy: &[u32]) {
        for (place, reason) in yield_policy.iter().enumerate() {
            loaded.set("yield_policy", place, *reason);
        }
        let llcs = m.cpus.iter().map(|cpu| cpu.llc).max().unwrap_or(0) + 1;
        loaded.set("nr_llcs", 0, llcs);
        loaded.set("smt_active", 0, m.cpus.iter().any(|cpu| cpu.sibling != NONE));
        // It refuses more pCPUs itself.
        let cpus = m.cpus.len().min(self.max_cpus);
        let mut by_llc: Vec<usize> = (0..cpus).collect();
        by_llc.sort_by_key(|cpu| m.cpus[*cpu].llc);
        for (place, &cpu) in by_llc.iter().enumerate() {
            loaded.set("llc_cpus", place, cpu as u16);
            loaded.set("cpu_place", cpu, place as u16);
            loaded.set("llc_first", m.cpus[cpu].llc as usize + 1, place as u16 + 1);
        }
        for (cpu, at) in m.cpus.iter().enumerate().take(cpus) {
            loaded.set("cpu_llc", cpu, at.llc as u16);
            let sibling = if at.sibling == NONE { cpu as u32 } else { at.sibling };
            loaded.set("cpu_sibling", cpu, sibling as u16);
        }
    }

    /// Its counters so far, by name.
    pub fn counters(&self, loaded: &Loaded, cpus: usize) -> Vec<(&'static str, u64)> {
        let handle = loaded.symbol::<*const *const Map>("stats");
        let times = loaded.symbol::<extern "C" fn(u32) -> u64>("shim_vm_times");
        let (Some(handle), Some(times)) = (handle, times) else {
            return Vec::new();
        };
        // SAFETY: the map of this name holds a record of counters for each pCPU; its handle is null
        // until it is first used.
        unsafe {
            if (*handle).is_null() {
                return Vec::new();
            }
            let record = (**handle).value_size as usize / 8;
            let counts = (**handle).values.cast::<u64>();
            let sum = |place: u32| {
                (0..cpus).map(|cpu| counts.add(cpu * record + place as usize).read()).sum()
            };
            let of_host = self.counters.iter().map(|(name, at)| (*name, sum(*at)));
            let of_vms = self.vm_times.iter().map(|(name, at)| (*name, times(*at)));
            of_host.chain(of_vms).collect()
        }
    }
}
