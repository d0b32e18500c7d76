// SPDX-License-Identifier: GPL-2.0-only
//! What a sample is asked for beyond what it has in any case.

use crate::sample::VmSample;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Each vCPU, not their sum alone.
    pub vcpus: bool,
    /// VMs whose threads on the host are looked at, by key or name.
    pub threads: Vec<String>,
}

impl Wanted {
    pub fn threads_of(&self, vm: &VmSample) -> bool {
        self.threads.iter().any(|wanted| *wanted == vm.key || *wanted == vm.name)
    }
}
