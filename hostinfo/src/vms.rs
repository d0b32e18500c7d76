// SPDX-License-Identifier: GPL-2.0-only
//! The VMs of a host and their vCPU threads, without a BPF program.

use crate::{Host, name};
use std::collections::{BTreeMap, BTreeSet};

/// A process that runs a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    pub pid: i32,
    /// What people call it.
    pub name: String,
    /// By KVM's id of each.
    pub vcpus: Vec<Vcpu>,
    /// Its directory in debugfs, with what KVM counts of it, where that can be read.
    pub debugfs: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    pub id: u32,
    pub tid: i32,
}

/// The VMs, by pid. KVM's own list (debugfs, `kvm/PID-FD/vcpuN/pid`, Linux 5.20 and later) needs
/// root; without it, and for a VM that it has no threads of, threads tell by the names that QEMU
/// (`debug-threads=on`, as libvirt and Proxmox set it), Firecracker, Cloud Hypervisor, crosvm and
/// kvmtool give them.
pub fn vms(host: &Host) -> Vec<Vm> {
    vms_of(host, |_| true)
}

/// Those of the processes that are `wanted`, as [`vms`] finds them: nothing is read of others.
pub fn vms_of(host: &Host, wanted: impl Fn(i32) -> bool) -> Vec<Vm> {
    let mut threads = by_debugfs(host, &wanted);
    for pid in pids(host, "/proc").into_iter().filter(|pid| wanted(*pid)) {
        threads.entry(pid).or_insert_with(|| vec![(None, by_thread_names(host, pid))]);
    }
    let mut found = Vec::new();
    for (pid, mut of_vms) in threads {
        of_vms.retain(|(_, vcpus)| !vcpus.is_empty());
        let several = of_vms.len() > 1;
        for (place, (debugfs, vcpus)) in of_vms.into_iter().enumerate() {
            let name = name(host, pid);
            // As Baton's own bench runs them.
            let name = if several { format!("{name}.{}", place + 1) } else { name };
            let vcpus = vcpus.into_iter().map(|(id, tid)| Vcpu { id, tid }).collect();
            found.push(Vm { pid, name, vcpus, debugfs });
        }
    }
    found
}

/// A VM's directory in debugfs, and the threads of its vCPUs.
type Threads = (Option<String>, BTreeMap<u32, i32>);

/// By process, each of its VMs. A directory has the number of the thread that created the VM.
fn by_debugfs(host: &Host, wanted: impl Fn(i32) -> bool) -> BTreeMap<i32, Vec<Threads>> {
    const DIR: &str = "/sys/kernel/debug/kvm";
    let mut found: BTreeMap<i32, Vec<Threads>> = BTreeMap::new();
    for vm in host.list(DIR) {
        let creator = vm.split_once('-').map(|(tid, _)| tid.parse().ok());
        let Some(creator) = creator else { continue };
        if creator.is_some_and(|tid| !wanted(tid)) {
            continue;
        }
        let (mut vcpus, mut of) = (BTreeMap::new(), None);
        for vcpu in host.list(&format!("{DIR}/{vm}")) {
            let Some(id) = vcpu.strip_prefix("vcpu").and_then(|id| id.parse().ok()) else {
                continue;
            };
            let Some(tid) = number(host.read(&format!("{DIR}/{vm}/{vcpu}/pid"))) else { continue };
            // 0: it has not run.
            let status = host.read(&format!("/proc/{tid}/status")).filter(|_| tid > 0);
            if let Some(pid) = status.and_then(|status| field(&status, "Tgid:")) {
                of = Some(pid);
                vcpus.insert(id, tid);
            }
        }
        if let Some(pid) = of.filter(|pid| wanted(*pid)) {
            found.entry(pid).or_default().push((Some(format!("{DIR}/{vm}")), vcpus));
        }
    }
    found
}

fn by_thread_names(host: &Host, pid: i32) -> BTreeMap<u32, i32> {
    let task = format!("/proc/{pid}/task");
    let vcpu = |tid: i32| {
        let comm = host.read(&format!("{task}/{tid}/comm"))?;
        vcpu_of(&comm).map(|id| (id, tid))
    };
    pids(host, &task).into_iter().filter_map(vcpu).collect()
}

/// The vCPU whose thread has this name.
fn vcpu_of(comm: &str) -> Option<u32> {
    let qemu = comm.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    let others = ["fc_vcpu ", "crosvm_vcpu", "kvm-vcpu-", "vcpu"];
    let other = || others.iter().find_map(|prefix| comm.strip_prefix(prefix));
    qemu.or_else(other)?.parse().ok()
}

fn pids(host: &Host, directory: &str) -> BTreeSet<i32> {
    host.list(directory).iter().filter_map(|name| name.parse().ok()).collect()
}

fn number(text: Option<String>) -> Option<i32> {
    text?.parse().ok()
}

/// A field of /proc/PID/status.
fn field(status: &str, key: &str) -> Option<i32> {
    status.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Result;
    use std::path::Path;

    fn put(root: &Path, file: &str, text: &str) -> Result<()> {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, text)
    }

    #[test]
    fn kvms_list_and_the_names_of_threads_are_put_together() -> Result<()> {
        let root = tempfile::tempdir()?;
        let at = root.path();
        put(at, "sys/kernel/debug/kvm/exits", "12\n")?;
        for (vcpu, tid) in [(0, 71), (1, 72), (2, 0)] {
            let file = format!("sys/kernel/debug/kvm/70-11/vcpu{vcpu}/pid");
            put(at, &file, &format!("{tid}\n"))?;
        }
        put(at, "sys/kernel/debug/kvm/99-11/vcpu0/pid", "99\n")?;
        for tid in [71, 72] {
            put(at, &format!("proc/{tid}/status"), "Name:\tx\nTgid:\t70\n")?;
        }
        put(at, "proc/70/cmdline", "qemu\0-name\0first\0")?;
        for (tid, comm) in
            [(80, "qemu"), (81, "CPU 0/KVM"), (82, "CPU 1/KVM"), (83, "IO iothread1")]
        {
            put(at, &format!("proc/80/task/{tid}/comm"), comm)?;
        }
        put(at, "proc/80/cmdline", "qemu\0-name\0second\0")?;
        put(at, "proc/90/task/90/comm", "bash")?;
        let vcpu = |id, tid| Vcpu { id, tid };
        let debugfs = Some("/sys/kernel/debug/kvm/70-11".to_owned());
        let vcpus = vec![vcpu(0, 71), vcpu(1, 72)];
        let first = Vm { pid: 70, name: "first".into(), vcpus, debugfs };
        let vcpus = vec![vcpu(0, 81), vcpu(1, 82)];
        let second = Vm { pid: 80, name: "second".into(), vcpus, debugfs: None };
        let host = Host::at(at);
        assert_eq!(vms(&host), [first.clone(), second.clone()]);
        // Of one process, whichever way it is found.
        assert_eq!(vms_of(&host, |pid| pid == 70), [first]);
        assert_eq!(vms_of(&host, |pid| pid == 80), [second]);
        assert_eq!(vms_of(&host, |_| false), []);
        Ok(())
    }

    #[test]
    fn vms_of_one_process_are_told_apart() -> Result<()> {
        let root = tempfile::tempdir()?;
        for (fd, tid) in [(4, 71), (9, 72)] {
            let vcpu = format!("sys/kernel/debug/kvm/70-{fd}/vcpu0/pid");
            put(root.path(), &vcpu, &tid.to_string())?;
            put(root.path(), &format!("proc/{tid}/status"), "Tgid:\t70\n")?;
        }
        put(root.path(), "proc/70/comm", "vmm")?;
        let found = vms(&Host::at(root.path()));
        let threads = |place: usize| found[place].vcpus.iter().map(|vcpu| vcpu.tid).collect();
        assert_eq!((found.len(), threads(0), threads(1)), (2, vec![71], vec![72]));
        assert_eq!((found[0].name.as_str(), found[1].name.as_str()), ("vmm-70.1", "vmm-70.2"));
        Ok(())
    }

    #[test]
    fn threads_are_told_by_name() {
        let names = ["CPU 12/KVM", "fc_vcpu 3", "vcpu4", "crosvm_vcpu5", "kvm-vcpu-6"];
        let ids: Vec<_> = names.into_iter().filter_map(vcpu_of).collect();
        assert_eq!(ids, [12, 3, 4, 5, 6]);
        for other in ["CPU 0/TCG", "vcpu", "vcpus", "kworker/0:1", ""] {
            assert_eq!(vcpu_of(other), None, "{other}");
        }
    }
}
