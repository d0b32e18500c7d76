// SPDX-License-Identifier: GPL-2.0-only
//! What the BPF programs have recorded, read from their maps.

use crate::Scheduler;
use crate::bpf_intf::*;
use crate::bpf_skel;
use crate::counted;
use anyhow::{Context, Result};
use baton_counters::Metrics;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;

impl Scheduler<'_> {
    /// All that has been counted since it began.
    pub fn metrics(&mut self) -> Result<Metrics> {
        let mut sum = baton_stats { count: [0; baton_stat_BATON_NR_STATS as usize] };
        let zero = 0u32.to_ne_bytes();
        let per_cpu = self.skel.maps.stats.lookup_percpu(&zero, MapFlags::ANY)?;
        for bytes in per_cpu.iter().flatten() {
            for (total, word) in sum.count.iter_mut().zip(bytes.chunks_exact(8)) {
                *total += u64::from_ne_bytes(word.try_into()?);
            }
        }
        let vms = self.vms()?;
        self.names.learn(&vms);
        let mut by_vm = BTreeMap::new();
        for (slot, known) in vms {
            // Read again, right before its vCPUs: what has ended in between would be counted in
            // the next answer only. On a crowded host all of them take a third of a second.
            let Some(vm) = self.vm(slot)?.filter(|vm| vm.gen_ == known.gen_) else { continue };
            let n = vm.nr_vcpus.max(0) as u32;
            let vcpus = self.probes.as_ref().map(|probes| probes.reports(slot, n)).transpose()?;
            let vcpus = vcpus.unwrap_or_default();
            let told = counted::vm(&vm, self.names.of(slot, &vm), &vcpus);
            by_vm.insert(key(&(slot, vm)), told);
        }
        Ok(counted::host(&sum, self.began.elapsed(), self.policy.clone(), by_vm))
    }

    /// All VMs, by slot.
    pub fn vms(&self) -> Result<Vec<(u32, vm_ctx)>> {
        let mut vms = Vec::new();
        for slot in 1..self.count(baton_count_COUNT_SLOTS_END)? as u32 {
            vms.extend(self.vm(slot)?.map(|vm| (slot, vm)));
        }
        Ok(vms)
    }

    /// The VM in this slot, if there is one.
    fn vm(&self, slot: u32) -> Result<Option<vm_ctx>> {
        let at = &raw const self.shared()?.vms[(slot % baton_limits_MAX_VMS) as usize];
        // SAFETY: plain integers, of which any bytes are a value, of the layout that bindgen read
        // from intf.h as libbpf did; BPF programs write them at any time.
        let vm = unsafe { at.cast::<vm_ctx>().read_volatile() };
        Ok(Some(vm).filter(|vm| vm.kvm > VM_DYING.into()))
    }

    pub fn count(&self, which: u32) -> Result<u64> {
        let at = &raw const self.shared()?.counts[which as usize].n;
        // SAFETY: an integer that BPF programs write at any time.
        Ok(unsafe { at.read_volatile() })
    }

    fn shared(&self) -> Result<&bpf_skel::types::baton_shared> {
        let bss = self.skel.maps.bss_shared_data.as_ref();
        Ok(&bss.context("the BPF object shares nothing")?.shared)
    }
}

/// Of a VM among all that there ever are: a slot's next VM has another generation.
fn key((slot, vm): &(u32, vm_ctx)) -> String {
    format!("{}.{slot}.{}", vm.tgid, vm.gen_)
}
