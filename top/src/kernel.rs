// SPDX-License-Identifier: GPL-2.0-only
//! VMs as /proc tells of their vCPU threads, whatever schedules them.

use crate::sample::{Times, VcpuSample, VmSample};
use crate::schedstat::Schedstat;
use baton_hostinfo::{Host, vms};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::time::{Duration, Instant};

/// VMs come and go seldom, and to look for them reads a file of every thread.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The VMs that were found.
#[derive(Default)]
pub struct Kernel {
    looked: Option<Instant>,
    vms: Vec<Known>,
}

struct Known {
    pid: i32,
    name: String,
    threads: Vec<Thread>,
}

struct Thread {
    id: u32,
    tid: i32,
    schedstat: Schedstat,
}

impl Kernel {
    pub fn sample(&mut self, host: &Host) -> Vec<VmSample> {
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.look(host);
        }
        self.vms.iter().filter_map(Known::sample).collect()
    }

    fn look(&mut self, host: &Host) {
        if self.looked.is_none() {
            // A file for each vCPU: the usual soft limit is 1,024. Without more some are missing.
            let _ = getrlimit(Resource::RLIMIT_NOFILE)
                .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
        }
        self.looked = Some(Instant::now());
        let mut before = std::mem::take(&mut self.vms);
        for vm in vms(host) {
            let same = before.iter().position(|known| {
                known.threads.iter().map(|t| t.tid).eq(vm.vcpus.iter().map(|v| v.tid))
            });
            if let Some(place) = same {
                self.vms.push(before.swap_remove(place));
                continue;
            }
            let open = |vcpu: &baton_hostinfo::Vcpu| {
                let schedstat = Schedstat::open(host, vm.pid, vcpu.tid)?;
                Some(Thread { id: vcpu.id, tid: vcpu.tid, schedstat })
            };
            let threads = vm.vcpus.iter().filter_map(open).collect();
            self.vms.push(Known { pid: vm.pid, name: vm.name, threads });
        }
    }
}

impl Known {
    /// `None`: it has ended.
    fn sample(&self) -> Option<VmSample> {
        let vcpus: Vec<VcpuSample> = self.threads.iter().filter_map(Thread::sample).collect();
        let sum = |of: fn(&Times) -> f64| vcpus.iter().map(|vcpu| of(&vcpu.times)).sum();
        let times = Times { ran: sum(|t| t.ran), ready: sum(|t| t.ready), ..Times::default() };
        let nr_vcpus = vcpus.len() as u32;
        let first = self.threads.first()?.tid;
        let (key, name) = (first.to_string(), self.name.clone());
        let pid = self.pid;
        let vm = VmSample { key, name, pid, nr_vcpus, times, vcpus, ..VmSample::default() };
        (nr_vcpus > 0).then_some(vm)
    }
}

impl Thread {
    fn sample(&self) -> Option<VcpuSample> {
        let (ran, ready) = self.schedstat.read()?;
        let times = Times { ran, ready, ..Times::default() };
        Some(VcpuSample { id: self.id, tid: self.tid, cpu: -1, times })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn threads_times_are_summed_up() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let task = root.path().join("proc/70/task");
        for (tid, comm, text) in [
            (70, "qemu", "9 9 9"),
            (71, "CPU 0/KVM", "2000000 500000 7\n"),
            (72, "CPU 1/KVM", "1000000 0 3\n"),
        ] {
            let directory = task.join(tid.to_string());
            fs::create_dir_all(&directory)?;
            fs::write(directory.join("comm"), comm)?;
            fs::write(directory.join("schedstat"), text)?;
        }
        let host = Host::at(root.path());
        let mut kernel = Kernel::default();
        let vms = kernel.sample(&host);
        assert_eq!((vms.len(), vms[0].nr_vcpus), (1, 2));
        let expected = Times { ran: 3.0, ready: 0.5, costop: None, throttled: None };
        assert_eq!(vms[0].times, expected);
        // What is read is no number, or nothing.
        fs::write(task.join("71/schedstat"), "x y z")?;
        fs::write(task.join("72/schedstat"), "")?;
        assert_eq!(kernel.sample(&host), []);
        Ok(())
    }
}
