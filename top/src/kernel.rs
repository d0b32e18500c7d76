// SPDX-License-Identifier: GPL-2.0-only
//! VMs as /proc tells of their vCPU threads, whatever schedules them.

use crate::polls::Polls;
use crate::sample::{Times, VcpuSample, VmSample};
use crate::schedstat::Schedstat;
use baton_hostinfo::{Host, Vcpu, Vm, vms_of};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// VMs come and go seldom, and to look for them reads a file of every thread: at processes that
/// are not older than `YOUNG`, and from time to time at all.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(60);

/// Until then a VMM has started its vCPUs' threads.
const YOUNG: Duration = Duration::from_secs(60);

/// The VMs that were found.
#[derive(Default)]
pub struct Kernel {
    looked: Option<Instant>,
    looked_at_all: Option<Instant>,
    /// When a process was seen first; `None`: it was old then.
    seen: BTreeMap<i32, Option<Instant>>,
    vms: Vec<Known>,
    polls: Polls,
}

struct Known {
    pid: i32,
    name: String,
    threads: Vec<Thread>,
    debugfs: Option<String>,
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
        let mut samples = Vec::new();
        self.vms.retain(|vm| {
            let sample = vm.sample();
            if sample.is_none() {
                // Another process that gets its number is new.
                self.seen.remove(&vm.pid);
            }
            let lives = sample.is_some();
            samples.extend(sample);
            lives
        });
        let debugfs = self.vms.iter().map(|vm| vm.debugfs.as_deref());
        self.polls.add(host, debugfs, &mut samples);
        samples
    }

    fn look(&mut self, host: &Host) {
        if self.looked.is_none() {
            // A file for each vCPU: the usual soft limit is 1,024. Without more some are missing.
            let _ = getrlimit(Resource::RLIMIT_NOFILE)
                .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
        }
        let now = Instant::now();
        let is_first = self.looked.replace(now).is_none();
        let pids = host.list("/proc");
        let pids: BTreeSet<i32> = pids.iter().filter_map(|pid| pid.parse().ok()).collect();
        self.seen.retain(|pid, _| pids.contains(pid));
        let uptime = uptime(host);
        for pid in pids {
            let is_new = || !is_first || is_young(host, pid, uptime);
            self.seen.entry(pid).or_insert_with(|| is_new().then_some(now));
        }
        let all = self.looked_at_all.is_none_or(|at| now - at >= LOOK_AT_ALL_EVERY);
        if all {
            self.looked_at_all = Some(now);
        }
        let seen = &self.seen;
        let is_wanted = |pid| {
            let is_new = |at: &Option<Instant>| at.is_some_and(|at| now - at < YOUNG);
            all || seen.get(&pid).is_none_or(is_new)
        };
        let found = vms_of(host, is_wanted);
        let before = std::mem::take(&mut self.vms);
        let (mut again, kept): (Vec<_>, Vec<_>) =
            before.into_iter().partition(|vm| is_wanted(vm.pid));
        self.vms = kept;
        self.vms.extend(found.into_iter().map(|vm| {
            let same = again.iter().position(|known| {
                known.threads.iter().map(|t| t.tid).eq(vm.vcpus.iter().map(|v| v.tid))
            });
            same.map_or_else(|| Known::of(host, vm), |place| again.swap_remove(place))
        }));
        self.vms.sort_by_key(|vm| vm.pid);
    }
}

/// Seconds since the host was booted; 0: that is not told.
fn uptime(host: &Host) -> f64 {
    let text = host.read("/proc/uptime").unwrap_or_default();
    text.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// By field 22 of its stat, in USER_HZ since the boot; the second one may hold blanks and
/// parentheses.
fn is_young(host: &Host, pid: i32, uptime: f64) -> bool {
    const USER_HZ: f64 = 100.0;
    let stat = host.read(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let start = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
    let start = start.and_then(|start| start.parse::<f64>().ok());
    start.is_some_and(|start| uptime - start / USER_HZ < YOUNG.as_secs_f64())
}

impl Known {
    fn of(host: &Host, vm: Vm) -> Known {
        let open = |vcpu: &Vcpu| {
            let schedstat = Schedstat::open(host, vm.pid, vcpu.tid)?;
            Some(Thread { id: vcpu.id, tid: vcpu.tid, schedstat })
        };
        let threads = vm.vcpus.iter().filter_map(open).collect();
        Known { pid: vm.pid, name: vm.name, threads, debugfs: vm.debugfs }
    }

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
    use std::io::Result;
    use std::path::Path;

    fn put(root: &Path, pid: i32, tid: i32, comm: &str, schedstat: &str) -> Result<()> {
        let directory = root.join(format!("proc/{pid}/task/{tid}"));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("comm"), comm)?;
        fs::write(directory.join("schedstat"), schedstat)
    }

    #[test]
    fn threads_times_are_summed_up() -> Result<()> {
        let root = tempfile::tempdir()?;
        put(root.path(), 70, 70, "qemu", "9 9 9")?;
        put(root.path(), 70, 71, "CPU 0/KVM", "2000000 500000 7\n")?;
        put(root.path(), 70, 72, "CPU 1/KVM", "1000000 0 3\n")?;
        let host = Host::at(root.path());
        let mut kernel = Kernel::default();
        let vms = kernel.sample(&host);
        assert_eq!((vms.len(), vms[0].nr_vcpus, vms[0].pid), (1, 2, 70));
        let expected = Times { ran: 3.0, ready: 0.5, ..Times::default() };
        assert_eq!(vms[0].times, expected);
        // What is read is no number, or nothing.
        let task = root.path().join("proc/70/task");
        fs::write(task.join("71/schedstat"), "x y z")?;
        fs::write(task.join("72/schedstat"), "")?;
        assert_eq!(kernel.sample(&host), []);
        Ok(())
    }

    /// Of each process all is read at first and from time to time, in between of new ones.
    #[test]
    fn new_vms_are_found_soon_and_others_in_time() -> Result<()> {
        let root = tempfile::tempdir()?;
        let at = root.path();
        let host = Host::at(at);
        let mut kernel = Kernel::default();
        put(at, 70, 71, "CPU 0/KVM", "1 1 1")?;
        put(at, 80, 80, "bash", "1 1 1")?;
        put(at, 90, 90, "qemu", "1 1 1")?;
        fs::write(at.join("proc/uptime"), "1000.50 1.00\n")?;
        for (pid, start) in [(80, 90_000), (90, 99_000)] {
            let fields = "0 ".repeat(18);
            let stat = format!("{pid} (a) b) S {fields}{start} 0");
            fs::write(at.join(format!("proc/{pid}/stat")), stat)?;
        }
        let pids = |kernel: &mut Kernel| -> Vec<i32> {
            kernel.sample(&host).iter().map(|vm| vm.pid).collect()
        };
        assert_eq!(pids(&mut kernel), [70]);
        put(at, 80, 81, "CPU 0/KVM", "1 1 1")?;
        put(at, 90, 91, "CPU 0/KVM", "1 1 1")?;
        put(at, 60, 60, "qemu", "1 1 1")?;
        assert_eq!(pids(&mut kernel), [70]);
        let look = |kernel: &mut Kernel| kernel.looked = kernel.looked.and(Some(long_ago()));
        look(&mut kernel);
        // 90 began 10 s before the first look, 80 100 s.
        assert_eq!(pids(&mut kernel), [70, 90]);
        // 60 is new, and its vCPU comes later; what is old is looked at with all.
        put(at, 60, 61, "CPU 0/KVM", "1 1 1")?;
        look(&mut kernel);
        assert_eq!(pids(&mut kernel), [60, 70, 90]);
        (kernel.looked, kernel.looked_at_all) = (Some(long_ago()), Some(long_ago()));
        assert_eq!(pids(&mut kernel), [60, 70, 80, 90]);
        // A process that gets the number of one that has ended is new.
        fs::write(at.join("proc/70/task/71/schedstat"), "")?;
        assert_eq!(pids(&mut kernel), [60, 80, 90]);
        put(at, 70, 72, "CPU 0/KVM", "1 1 1")?;
        look(&mut kernel);
        assert_eq!(pids(&mut kernel), [60, 70, 80, 90]);
        Ok(())
    }

    fn long_ago() -> Instant {
        let now = Instant::now();
        now.checked_sub(LOOK_AT_ALL_EVERY).unwrap_or(now)
    }
}
