// SPDX-License-Identifier: GPL-2.0-only
//! What the BPF programs have recorded, read from their maps.

use crate::Scheduler;
use crate::bpf_intf::*;
use crate::counted;
use anyhow::{Context, Result, bail};
use baton_counters::Metrics;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;
use std::mem::offset_of;

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
        let mut vcpus = self.vcpus()?;
        let mut of = |(slot, vm): &(u32, vm_ctx)| {
            let mut its = vcpus.remove(slot).unwrap_or_default();
            its.sort_by_key(|vcpu| vcpu.vcpu_id);
            counted::vm(vm, self.names.of(*slot, vm), &its)
        };
        let by_vm = vms.iter().map(|vm| (key(vm), of(vm))).collect();
        Ok(counted::host(&sum, self.began.elapsed(), self.policy.clone(), by_vm))
    }

    /// What each vCPU has done until now, by its VM's slot.
    fn vcpus(&self) -> Result<BTreeMap<u32, Vec<vcpu_report>>> {
        let mut by_slot: BTreeMap<u32, Vec<vcpu_report>> = BTreeMap::new();
        let Some(probes) = &self.probes else { return Ok(by_slot) };
        for bytes in self.skel.maps.vcpus.keys() {
            let Some(vcpu) = self.skel.maps.vcpus.lookup(&bytes, MapFlags::ANY)? else { continue };
            let pid = vcpu.get(offset_of!(vcpu_ctx, pid)..).and_then(|bytes| bytes.first_chunk());
            let pid = pid.context("a vCPU's record is too short")?;
            if let Some(report) = probes.report(i32::from_ne_bytes(*pid))? {
                by_slot.entry(report.slot).or_default().push(report);
            }
        }
        Ok(by_slot)
    }

    /// All VMs, by slot.
    pub fn vms(&self) -> Result<Vec<(u32, vm_ctx)>> {
        let mut vms = Vec::new();
        for slot in 1..self.count(baton_count_COUNT_SLOTS_END)? as u32 {
            let Some(bytes) = self.skel.maps.vms.lookup(&slot.to_ne_bytes(), MapFlags::ANY)? else {
                continue;
            };
            if bytes.len() < size_of::<vm_ctx>() {
                bail!("a VM's record has {} bytes, {} expected", bytes.len(), size_of::<vm_ctx>());
            }
            // SAFETY: plain integers of the layout that bindgen read from intf.h; the length
            // was checked, and read_unaligned() asks for no alignment.
            let vm = unsafe { bytes.as_ptr().cast::<vm_ctx>().read_unaligned() };
            if vm.kvm > VM_DYING.into() {
                vms.push((slot, vm));
            }
        }
        Ok(vms)
    }

    pub fn count(&self, which: u32) -> Result<u64> {
        match self.skel.maps.counts.lookup(&which.to_ne_bytes(), MapFlags::ANY)? {
            Some(bytes) => {
                let n = bytes.first_chunk().context("a count has less than 8 bytes")?;
                Ok(u64::from_ne_bytes(*n))
            }
            None => Ok(0),
        }
    }
}

/// Of a VM among all that there ever are: a slot's next VM has another generation.
fn key((slot, vm): &(u32, vm_ctx)) -> String {
    format!("{}.{slot}.{}", vm.tgid, vm.gen_)
}
