// SPDX-License-Identifier: GPL-2.0-only
//! A healthy KVM host with two sockets, as its files show it: two libvirt VMs of four vCPUs on
//! sixteen CPUs, one of them for Windows. Tests change what they are about.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use baton_doctor::Scene;
use baton_hostinfo::Host;

pub const WEB: &str = "/machine.slice/machine-qemu\\x2d1\\x2dweb.scope";

/// A tree of files, and who has a core-scheduling cookie.
pub struct Tree {
    root: tempfile::TempDir,
    pub cookies: BTreeMap<i32, u64>,
}

impl Tree {
    pub fn empty() -> Tree {
        let root = tempfile::tempdir().expect("a directory for the tree");
        Tree { root, cookies: BTreeMap::new() }
    }

    pub fn healthy() -> Tree {
        let tree = Tree::empty();
        for (file, text) in FILES {
            tree.put(file, text);
        }
        for cpu in 0..16 {
            let cpufreq = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq");
            tree.put(&format!("{cpufreq}/scaling_driver"), "acpi-cpufreq");
            tree.put(&format!("{cpufreq}/scaling_governor"), "schedutil");
            let all = "conservative powersave schedutil performance";
            tree.put(&format!("{cpufreq}/scaling_available_governors"), all);
        }
        let linux = "-cpu host,migratable=on,kvm-pv-unhalt=on";
        tree.vm(4100, "web", WEB, linux);
        let windows = "-cpu host,hv-relaxed=on,hv-vapic=on,hv-spinlocks=0x1fff,kvm=off";
        tree.vm(4200, "win", "/machine.slice/machine-qemu\\x2d2\\x2dwin.scope", windows);
        tree
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub fn put(&self, path: &str, text: &str) {
        self.put_bytes(path, format!("{text}\n").as_bytes());
    }

    pub fn put_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("files lie in directories")).expect("writable");
        fs::write(path, bytes).expect("writable");
    }

    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("is there").trim().to_owned()
    }

    /// The command line of a VM, with these options added.
    pub fn options(&self, pid: i32, name: &str, options: &str) {
        let line = format!(
            "/usr/bin/qemu-system-x86_64 -name guest={name},debug-threads=on -S -machine q35 \
             -accel kvm -m size=4194304k -overcommit mem-lock=off -smp 4 {options}"
        );
        let line = line.replace(' ', "\0") + "\0";
        self.put_bytes(&format!("/proc/{pid}/cmdline"), line.as_bytes());
    }

    fn vm(&self, pid: i32, name: &str, scope: &str, options: &str) {
        self.options(pid, name, options);
        self.put(&format!("/proc/{pid}/comm"), "qemu-system-x86");
        self.put(&format!("/proc/{pid}/cgroup"), &format!("0::{scope}/libvirt/emulator"));
        self.put(&format!("/sys/fs/cgroup{scope}/cpu.weight"), "100");
        self.put(&format!("/sys/fs/cgroup{scope}/cpu.max"), "max 100000");
        self.put(&format!("/sys/kernel/debug/kvm/{pid}-12/halt_exits"), "250000");
        self.put(&format!("/sys/kernel/debug/kvm/{pid}-12/halt_attempted_poll"), "180000");
        let emulator = format!("{scope}/libvirt/emulator");
        self.thread(pid, pid, "qemu-system-x86", &emulator);
        for vcpu in 0..4 {
            let tid = pid + 1 + vcpu;
            let cgroup = format!("{scope}/libvirt/vcpu{vcpu}");
            self.thread(pid, tid, &format!("CPU {vcpu}/KVM"), &cgroup);
            let file = format!("/sys/kernel/debug/kvm/{pid}-12/vcpu{vcpu}/pid");
            self.put(&file, &tid.to_string());
            self.put(&format!("/proc/{tid}/status"), &format!("Tgid:\t{pid}"));
            self.allow(pid, tid, "0-15");
            self.policy(pid, tid, 0);
        }
    }

    fn thread(&self, pid: i32, tid: i32, comm: &str, cgroup: &str) {
        let task = format!("/proc/{pid}/task/{tid}");
        self.put(&format!("{task}/comm"), comm);
        self.put(&format!("{task}/cgroup"), &format!("0::{cgroup}"));
    }

    pub fn allow(&self, pid: i32, tid: i32, cpus: &str) {
        let text = format!("Name:\tCPU 0/KVM\nTgid:\t{pid}\nCpus_allowed_list:\t{cpus}");
        self.put(&format!("/proc/{pid}/task/{tid}/status"), &text);
    }

    pub fn policy(&self, pid: i32, tid: i32, policy: u32) {
        let fields = "0 ".repeat(37);
        let text = format!("{tid} (CPU 0/KVM) S {fields}{policy} 0 0 0 0");
        self.put(&format!("/proc/{pid}/task/{tid}/stat"), &text);
    }

    pub fn scene(&self) -> Scene {
        let cookies = self.cookies.clone();
        let cookie = move |tid: i32| -> io::Result<u64> {
            Ok(cookies.get(&tid).copied().unwrap_or_default())
        };
        Scene::new(Host::at(self.root.path()), Box::new(cookie))
    }

    /// Every file, from the root on.
    pub fn files(&self) -> Vec<String> {
        fn walk(at: &Path, root: &Path, all: &mut Vec<String>) {
            for entry in fs::read_dir(at).expect("readable").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    walk(&path, root, all);
                } else {
                    let path = path.strip_prefix(root).expect("below the root");
                    all.push(format!("/{}", path.display()));
                }
            }
        }
        let mut all = Vec::new();
        walk(self.root.path(), self.root.path(), &mut all);
        all.sort();
        all
    }
}

const FILES: &[(&str, &str)] = &[
    ("/etc/default/scx", "SCX_SCHEDULER=scx_bpfland\nSCX_FLAGS="),
    ("/etc/systemd/system/multi-user.target.wants/libvirtd.service", ""),
    ("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-6.17.2 root=/dev/sda1 ro quiet"),
    ("/proc/1/comm", "systemd"),
    ("/proc/1/cmdline", "/sbin/init\0"),
    ("/proc/1/task/1/comm", "systemd"),
    ("/proc/stat", "cpu  40000 0 9000 900000 100 0 200 0 30000 0\ncpu0 1 2 3 4 5 6 7 8 9 10"),
    ("/proc/sys/kernel/hung_task_panic", "0"),
    ("/proc/sys/kernel/numa_balancing", "0"),
    ("/proc/sys/kernel/osrelease", "6.17.2"),
    ("/proc/sys/kernel/panic_on_rcu_stall", "0"),
    ("/proc/sys/kernel/sched_rt_runtime_us", "950000"),
    ("/proc/sys/kernel/softlockup_panic", "0"),
    ("/proc/uptime", "100000.00 1200000.00"),
    ("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
    ("/sys/devices/system/cpu/cpuidle/current_driver", "intel_idle"),
    ("/sys/devices/system/cpu/isolated", ""),
    ("/sys/devices/system/cpu/nohz_full", "  (null)"),
    ("/sys/devices/system/cpu/online", "0-15"),
    ("/sys/devices/system/cpu/smt/active", "1"),
    ("/sys/devices/system/cpu/vulnerabilities/l1tf", "Not affected"),
    ("/sys/devices/system/node/node0/cpulist", "0-7"),
    ("/sys/devices/system/node/node1/cpulist", "8-15"),
    ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
    ("/sys/fs/cgroup/machine.slice/cpu.max", "max 100000"),
    ("/sys/kernel/btf/kvm", ""),
    ("/sys/kernel/btf/kvm_intel", ""),
    ("/sys/kernel/btf/vmlinux", ""),
    ("/sys/kernel/debug/kvm/halt_poll_fail_ns", "4000000000"),
    ("/sys/kernel/debug/kvm/halt_poll_success_ns", "9000000000"),
    ("/sys/kernel/mm/ksm/pages_sharing", "0"),
    ("/sys/kernel/mm/ksm/run", "0"),
    ("/sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
    ("/sys/kernel/sched_ext/state", "disabled"),
    ("/sys/kernel/security/lockdown", "none [integrity] confidentiality"),
    ("/sys/module/kvm/parameters/halt_poll_ns", "200000"),
    ("/sys/module/kvm/parameters/ignore_msrs", "N"),
    ("/sys/module/kvm/refcnt", "9"),
    ("/sys/module/kvm_intel/parameters/enable_ipiv", "N"),
    ("/sys/module/kvm_intel/parameters/ple_gap", "128"),
];
