// SPDX-License-Identifier: GPL-2.0-only
//! What the BPF programs have recorded, read from their maps.

use crate::Scheduler;
use crate::bpf_intf::*;
use crate::counted;
use anyhow::{Context, Result, bail};
use baton_counters::Metrics;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::{BTreeMap, BTreeSet};
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
        let threads = self.threads()?;
        let mut by_vm = BTreeMap::new();
        for (slot, known) in vms {
            // Read again, right before its vCPUs: what has ended in between would be counted in
            // the next answer only. On a crowded host all of them take a third of a second.
            let Some(vm) = self.vm(slot)?.filter(|vm| vm.gen_ == known.gen_) else { continue };
            let mut vcpus = Vec::new();
            for pid in threads.get(&slot).into_iter().flatten() {
                let report = self.probes.as_ref().map(|probes| probes.report(*pid)).transpose()?;
                vcpus.extend(report.flatten().filter(|report| report.slot == slot));
            }
            vcpus.sort_by_key(|vcpu| vcpu.vcpu_id);
            let told = counted::vm(&vm, self.names.of(slot, &vm), &vcpus);
            by_vm.insert(key(&(slot, vm)), told);
        }
        Ok(counted::host(&sum, self.began.elapsed(), self.policy.clone(), by_vm))
    }

    /// The threads of vCPUs, by their VM's slot. Keys of a map that changes meanwhile may come
    /// twice.
    fn threads(&self) -> Result<BTreeMap<u32, BTreeSet<i32>>> {
        let mut by_slot: BTreeMap<u32, BTreeSet<i32>> = BTreeMap::new();
        for bytes in self.skel.maps.vcpus.keys() {
            let Some(vcpu) = self.skel.maps.vcpus.lookup(&bytes, MapFlags::ANY)? else { continue };
            let pid = vcpu.get(offset_of!(vcpu_ctx, pid)..).and_then(|bytes| bytes.first_chunk());
            let pid = pid.context("a vCPU's record is too short")?;
            let key = bytes.first_chunk().context("a vCPU's key is too short")?;
            by_slot
                .entry(slot_of(u64::from_ne_bytes(*key)))
                .or_default()
                .insert(i32::from_ne_bytes(*pid));
        }
        Ok(by_slot)
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
        let Some(bytes) = self.skel.maps.vms.lookup(&slot.to_ne_bytes(), MapFlags::ANY)? else {
            return Ok(None);
        };
        if bytes.len() < size_of::<vm_ctx>() {
            bail!("a VM's record has {} bytes, {} expected", bytes.len(), size_of::<vm_ctx>());
        }
        // SAFETY: plain integers of the layout that bindgen read from intf.h; the length was
        // checked, and read_unaligned() asks for no alignment.
        let vm = unsafe { bytes.as_ptr().cast::<vm_ctx>().read_unaligned() };
        Ok(Some(vm).filter(|vm| vm.kvm > VM_DYING.into()))
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

/// Of the key of a vCPU's record (vcpu_key(), owing.bpf.h).
fn slot_of(key: u64) -> u32 {
    (key >> 32) as u32
}

/// Of a VM among all that there ever are: a slot's next VM has another generation.
fn key((slot, vm): &(u32, vm_ctx)) -> String {
    format!("{}.{slot}.{}", vm.tgid, vm.gen_)
}
