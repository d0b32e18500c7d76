// SPDX-License-Identifier: GPL-2.0-only
//! What people call the VMs: read once for each, as every line of statistics has it.

use crate::bpf_intf::vm_ctx;
use baton_hostinfo::{Host, name};
use std::collections::BTreeMap;

/// By slot and generation.
#[derive(Default)]
pub struct Names {
    known: BTreeMap<(u32, u64), String>,
}

impl Names {
    /// These are the VMs that there are now.
    pub fn learn(&mut self, vms: &[(u32, vm_ctx)]) {
        let mut before = std::mem::take(&mut self.known);
        let host = Host::here();
        for (slot, vm) in vms {
            let id = (*slot, vm.gen_);
            let known = before.remove(&id).unwrap_or_else(|| name(&host, vm.tgid));
            self.known.insert(id, known);
        }
    }

    /// Empty if it is not known.
    pub fn of(&self, slot: u32, vm: &vm_ctx) -> String {
        self.known.get(&(slot, vm.gen_)).cloned().unwrap_or_default()
    }
}
