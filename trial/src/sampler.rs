// SPDX-License-Identifier: GPL-2.0-only
//! What a host has counted at one moment, as /proc tells it whoever schedules.

use std::collections::BTreeMap;

use baton_hostinfo::Host;
use baton_top::{host, kernel::Kernel};

use crate::bundle::{Sample, VmTimes};

pub struct Sampler {
    host: Host,
    kernel: Kernel,
    /// The number of each VM; its name stays on this host.
    vms: BTreeMap<String, (u32, String)>,
}

impl Sampler {
    pub fn here() -> Sampler {
        Sampler { host: Host::here(), kernel: Kernel::default(), vms: BTreeMap::new() }
    }

    pub fn sample(&mut self, at_s: f64, work: Option<f64>) -> Sample {
        let machine = host::sample(&self.host);
        let mut times = Vec::new();
        for vm in self.kernel.sample(&self.host) {
            let next = self.vms.len() as u32 + 1;
            let (number, _) = self.vms.entry(vm.key).or_insert((next, vm.name));
            times.push(VmTimes(*number, vm.nr_vcpus, round(vm.times.ran), round(vm.times.ready)));
        }
        times.sort_by_key(|vm| vm.0);
        let (busy, idle) = (machine.busy, machine.idle);
        Sample { at_s: round(at_s), busy, idle, pressure_us: machine.pressure_us, vms: times, work }
    }

    /// What people here call the VM of this number.
    pub fn name(&self, number: u32) -> &str {
        let named = self.vms.values().find(|(other, _)| *other == number);
        named.map_or("", |(_, name)| name)
    }

    pub fn count(&self) -> usize {
        self.vms.len()
    }
}

/// To the millionth of a second, or of a millisecond: more digits say nothing.
fn round(time: f64) -> f64 {
    (time * 1e6).round() / 1e6
}
