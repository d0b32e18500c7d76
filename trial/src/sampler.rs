// SPDX-License-Identifier: GPL-2.0-only
//! What a host has counted at one moment, as /proc tells it whoever schedules.

use std::collections::BTreeMap;
use std::time::Instant;

use baton_hostinfo::Host;
use baton_top::{host, kernel::Kernel, sample::HostSample, sample::VcpuSample};

use crate::bundle::{Sample, VmTimes};

pub struct Sampler {
    host: Host,
    kernel: Kernel,
    /// By the key of each VM.
    vms: BTreeMap<String, Known>,
    /// What the host had counted at first: for how long it has been up is nobody's business.
    first: Option<HostSample>,
    /// The vCPUs of each VM at the last sample.
    looked: Vec<(String, Vec<VcpuSample>)>,
    /// By thread: what a vCPU had when it last ran or began to wait, and when that was seen.
    threads: BTreeMap<i32, (f64, f64, Instant)>,
}

struct Known {
    number: u32,
    /// It stays on this host.
    name: String,
    /// What its vCPUs had run and waited when it was first seen: nor is its age.
    ran: f64,
    ready: f64,
}

impl Sampler {
    pub fn here() -> Sampler {
        Sampler {
            host: Host::here(),
            kernel: Kernel::default(),
            vms: BTreeMap::new(),
            first: None,
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
            let (ran, ready) = (vm.times.ran, vm.times.ready);
            let new = || Known { number: next, name: vm.name, ran, ready };
            let known = self.vms.entry(vm.key.clone()).or_insert_with(new);
            self.looked.push((vm.key, vm.vcpus));
            let (ran, ready) = (round(ran - known.ran), round(ready - known.ready));
            times.push(VmTimes(known.number, vm.nr_vcpus, ran, ready));
        }
        times.sort_by_key(|vm| vm.0);
        let first = self.first.get_or_insert_with(|| machine.clone());
        let pressure = machine.pressure_us.zip(first.pressure_us);
        Sample {
            at_s: round(at_s),
            busy: machine.busy.saturating_sub(first.busy),
            idle: machine.idle.saturating_sub(first.idle),
            pressure_us: pressure.map(|(now, first)| now.saturating_sub(first)),
            vms: times,
            work,
        }
    }

    /// As [`sample`](Self::sample), and by VM for how many ms by now its vCPUs wait that have not
    /// got a CPU since: the kernel adds a wait to run_delay when it is over.
    pub fn sample_waits(&mut self, at_s: f64, work: Option<f64>) -> (Sample, BTreeMap<u32, f64>) {
        let sample = self.sample(at_s, work);
        let (now, mut open) = (Instant::now(), BTreeMap::new());
        for (key, vcpus) in std::mem::take(&mut self.looked) {
            let Some(known) = self.vms.get(&key) else { continue };
            for vcpu in vcpus {
                let (ran, ready) = (vcpu.times.ran, vcpu.times.ready);
                let seen = self.threads.entry(vcpu.tid).or_insert((ran, ready, now));
                if (seen.0, seen.1) != (ran, ready) || !is_runnable(&self.host, vcpu.tid) {
                    *seen = (ran, ready, now);
                }
                *open.entry(known.number).or_default() += (now - seen.2).as_secs_f64() * 1e3;
            }
        }
        (sample, open)
    }

    /// What people here call the VM of this number.
    pub fn name(&self, number: u32) -> &str {
        let named = self.vms.values().find(|known| known.number == number);
        named.map_or("", |known| &known.name)
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
