// SPDX-License-Identifier: GPL-2.0-only
//! What a host has counted at one moment, as /proc tells it whoever schedules.

use std::collections::BTreeMap;
use std::time::Instant;

use baton_hostinfo::Host;
use baton_top::{host, kernel::Kernel, sample::VcpuSample};

use crate::bundle::{Sample, VmTimes};

pub struct Sampler {
    host: Host,
    kernel: Kernel,
    /// The number of each VM; its name stays on this host.
    vms: BTreeMap<String, (u32, String)>,
    /// The vCPUs of each VM at the last sample.
    looked: Vec<(String, Vec<VcpuSample>)>,
    /// By thread: what a vCPU had when it last ran or began to wait, and when that was seen.
    threads: BTreeMap<i32, (f64, f64, Instant)>,
}

impl Sampler {
    pub fn here() -> Sampler {
        Sampler {
            host: Host::here(),
            kernel: Kernel::default(),
            vms: BTreeMap::new(),
            threads: BTreeMap::new(),
            looked: Vec::new(),
        }
    }

    pub fn sample(&mut self, at_s: f64, work: Option<f64>) -> Sample {
        let machine = host::sample(&self.host);
        let mut times = Vec::new();
        self.looked.clear();
        for vm in self.kernel.sample(&self.host) {
            let next = self.vms.len() as u32 + 1;
            let (number, _) = self.vms.entry(vm.key.clone()).or_insert((next, vm.name));
            self.looked.push((vm.key, vm.vcpus));
            times.push(VmTimes(*number, vm.nr_vcpus, round(vm.times.ran), round(vm.times.ready)));
        }
        times.sort_by_key(|vm| vm.0);
        let (busy, idle) = (machine.busy, machine.idle);
        Sample { at_s: round(at_s), busy, idle, pressure_us: machine.pressure_us, vms: times, work }
    }

    /// As [`sample`](Self::sample), and by VM for how many ms by now its vCPUs wait that have not got
    /// a CPU since: the kernel adds a wait to run_delay when it is over.
    pub fn sample_waits(&mut self, at_s: f64, work: Option<f64>) -> (Sample, BTreeMap<u32, f64>) {
        let sample = self.sample(at_s, work);
        let (now, mut open) = (Instant::now(), BTreeMap::new());
        for (key, vcpus) in std::mem::take(&mut self.looked) {
            let Some((number, _)) = self.vms.get(&key) else { continue };
            for vcpu in vcpus {
                let (ran, ready) = (vcpu.times.ran, vcpu.times.ready);
                let seen = self.threads.entry(vcpu.tid).or_insert((ran, ready, now));
                if (seen.0, seen.1) != (ran, ready) || !is_runnable(&self.host, vcpu.tid) {
                    *seen = (ran, ready, now);
                }
                *open.entry(*number).or_default() += (now - seen.2).as_secs_f64() * 1e3;
            }
        }
        (sample, open)
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

/// The state in /proc/PID/stat, behind a name in parentheses that may hold anything.
fn is_runnable(host: &Host, tid: i32) -> bool {
    let stat = host.read(&format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}
