// SPDX-License-Identifier: GPL-2.0-only
//! Threads of the host that work for VMs: vhost, I/O threads, the VMM's own loop. They are looked
//! for only where somebody looks at them.

use crate::sample::{ThreadSample, VmSample};
use crate::schedstat::Schedstat;
use baton_hostinfo::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// As seldom as VMs are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Of one VM. QEMU has at most 64 threads for asynchronous I/O, and a vhost thread for each queue.
const MOST: usize = 256;

#[derive(Default)]
pub struct HostThreads {
    looked: Option<Instant>,
    /// Processes that need no second look.
    seen: BTreeSet<i32>,
    /// Threads of the kernel, by the thread that they work for.
    vhost: BTreeMap<i32, Vec<i32>>,
    /// By process.
    known: BTreeMap<i32, Vec<Thread>>,
}

struct Thread {
    tid: i32,
    name: String,
    schedstat: Schedstat,
}

impl HostThreads {
    /// Adds theirs to VMs that are `wanted`.
    pub fn sample(
        &mut self,
        host: &Host,
        vms: &mut [VmSample],
        wanted: impl Fn(&VmSample) -> bool,
    ) {
        let mut those: Vec<&mut VmSample> =
            vms.iter_mut().filter(|vm| vm.pid > 0 && wanted(vm)).collect();
        if those.is_empty() {
            return;
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            self.known.clear();
            self.look_for_vhost(host);
        }
        let mut told = BTreeSet::new();
        for vm in &mut those {
            // Of several VMs in a process the first one has its threads.
            if told.insert(vm.pid) {
                let vhost = &self.vhost;
                let threads = self.known.entry(vm.pid);
                let threads = threads.or_insert_with(|| threads_of(host, vm.pid, vhost));
                vm.threads = threads.iter().filter_map(Thread::sample).collect();
            }
        }
    }

    /// In older kernels, and in newer ones where the VMM asks for it, a vhost thread is one of the
    /// kernel, named by the thread that set it up.
    fn look_for_vhost(&mut self, host: &Host) {
        let numbers = host.list("/proc");
        let now: BTreeSet<i32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
        self.seen.retain(|pid| now.contains(pid));
        self.vhost.values_mut().for_each(|tids| tids.retain(|tid| now.contains(tid)));
        self.vhost.retain(|_, tids| !tids.is_empty());
        for pid in now {
            if !self.seen.insert(pid) {
                continue;
            }
            let comm = host.read(&format!("/proc/{pid}/comm")).unwrap_or_default();
            let owner = comm.strip_prefix("vhost-").and_then(|owner| owner.parse().ok());
            if let Some(owner) = owner.filter(|_| is_of_kernel(host, pid)) {
                self.vhost.entry(owner).or_default().push(pid);
            }
        }
    }
}

/// A process may call itself whatever it likes; kthreadd's children are no processes.
fn is_of_kernel(host: &Host, pid: i32) -> bool {
    let stat = host.read(&format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)) == Some("2")
}

fn threads_of(host: &Host, pid: i32, vhost: &BTreeMap<i32, Vec<i32>>) -> Vec<Thread> {
    let tids = host.list(&format!("/proc/{pid}/task"));
    let tids: Vec<i32> = tids.iter().filter_map(|tid| tid.parse().ok()).collect();
    let of_kernel = tids.iter().filter_map(|tid| vhost.get(tid)).flatten().map(|tid| (*tid, *tid));
    let all = tids.iter().map(|tid| (pid, *tid)).chain(of_kernel);
    let thread = |(pid, tid): (i32, i32)| {
        let name = host.read(&format!("/proc/{pid}/task/{tid}/comm"))?;
        let works = tid == pid || is_for_io(&name);
        let name = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let schedstat = works.then(|| Schedstat::open(host, pid, tid))??;
        Some(Thread { tid, name, schedstat })
    };
    all.filter_map(thread).take(MOST).collect()
}

/// vhost; QEMU's I/O threads and those of its pool (`worker`); Cloud Hypervisor's and crosvm's
/// devices.
fn is_for_io(name: &str) -> bool {
    ["vhost-", "IO ", "worker", "_disk", "_net", "v_"].iter().any(|begin| name.starts_with(begin))
}

impl Thread {
    /// `None`: it has ended.
    fn sample(&self) -> Option<ThreadSample> {
        let (ran, ready) = self.schedstat.read()?;
        Some(ThreadSample { tid: self.tid, name: self.name.clone(), ran, ready })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Result;
    use std::path::Path;

    fn thread(root: &Path, pid: i32, tid: i32, comm: &str) -> Result<()> {
        let task = root.join(format!("proc/{pid}/task/{tid}"));
        fs::create_dir_all(&task)?;
        fs::write(task.join("comm"), comm)?;
        fs::write(task.join("schedstat"), format!("{tid}000000 1000000 1\n"))?;
        if pid == tid {
            fs::write(root.join(format!("proc/{pid}/comm")), comm)?;
            let parent = if comm.starts_with("vhost-70") { 2 } else { 1 };
            fs::write(root.join(format!("proc/{pid}/stat")), format!("{pid} (x) S {parent} 0"))?;
        }
        Ok(())
    }

    fn vm(pid: i32) -> VmSample {
        VmSample { key: pid.to_string(), pid, ..VmSample::default() }
    }

    fn names(vm: &VmSample) -> Vec<&str> {
        vm.threads.iter().map(|thread| thread.name.as_str()).collect()
    }

    #[test]
    fn vhost_and_io_threads_of_the_wanted_vms_are_found() -> Result<()> {
        let root = tempfile::tempdir()?;
        for (pid, tid, comm) in [
            (70, 70, "qemu-system-x86"),
            (70, 71, "CPU 0/KVM"),
            (70, 72, "IO iothread1"),
            (70, 73, "vhost-70"),
            (70, 74, "worker"),
            (70, 75, "vnc_worker"),
            (80, 80, "firecracker"),
            (90, 90, "vhost-70"),
            (91, 91, "vhost-71"),
            (92, 92, "vhost-nobody"),
        ] {
            thread(root.path(), pid, tid, comm)?;
        }
        let host = Host::at(root.path());
        let mut vms = [vm(70), vm(80), vm(70), vm(0)];
        let mut threads = HostThreads::default();
        threads.sample(&host, &mut vms, |vm| vm.pid == 70);
        let expected = ["qemu-system-x86", "IO iothread1", "vhost-70", "worker", "vhost-70"];
        // 91 is no thread of the kernel, whatever its name.
        assert_eq!((names(&vms[0]), vms[0].threads[4].tid), (expected.into(), 90));
        assert_eq!((vms[0].threads[1].ran, vms[0].threads[1].ready), (72.0, 1.0));
        assert!(vms[1..].iter().all(|vm| vm.threads.is_empty()), "{vms:?}");
        // One that ends is gone at once, one that comes is found at the next look.
        fs::write(root.path().join("proc/70/task/74/schedstat"), "")?;
        thread(root.path(), 70, 76, "IO iothread2")?;
        threads.sample(&host, &mut vms, |vm| vm.pid == 70);
        assert_eq!(names(&vms[0]), ["qemu-system-x86", "IO iothread1", "vhost-70", "vhost-70"]);
        threads.looked = None;
        threads.sample(&host, &mut vms, |_| true);
        assert!(names(&vms[0]).contains(&"IO iothread2") && names(&vms[1]) == ["firecracker"]);
        Ok(())
    }

    #[test]
    fn nobody_who_looks_costs_nothing() -> Result<()> {
        let root = tempfile::tempdir()?;
        thread(root.path(), 70, 70, "qemu")?;
        let mut threads = HostThreads::default();
        threads.sample(&Host::at(root.path()), &mut [vm(70)], |_| false);
        assert!(threads.looked.is_none() && threads.seen.is_empty());
        Ok(())
    }
}
