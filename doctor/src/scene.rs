// SPDX-License-Identifier: GPL-2.0-only
//! What findings look at: a host's files, its VMs and their threads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use baton_hostinfo::{Host, Unreadable, arguments, parts, vms};

use crate::text::cpus;

/// Asks for a thread's core-scheduling cookie; 0: it has none.
pub type Cookie = Box<dyn Fn(i32) -> io::Result<u64>>;

/// A host at one moment.
pub struct Scene {
    pub host: Host,
    pub vms: Vec<SeenVm>,
    /// The kernel's release, as `uname -r` says it; empty if it is not told.
    pub release: String,
    /// CPUs that are online; empty if that is not told.
    pub online: BTreeSet<u32>,
    cookie: Cookie,
    unreadable: RefCell<BTreeMap<PathBuf, String>>,
}

#[derive(Clone, Debug)]
pub struct SeenVm {
    pub pid: i32,
    pub name: String,
    pub vcpus: Vec<SeenVcpu>,
    /// Of all its threads, in the one hierarchy of cgroup v2.
    pub cgroups: BTreeSet<String>,
    /// Where its `cpu` controller is one of cgroup v1.
    pub cgroup_v1: Option<String>,
    pub vmm: Vmm,
}

#[derive(Clone, Debug)]
pub struct SeenVcpu {
    pub id: u32,
    pub tid: i32,
    /// As sched_setscheduler(2) numbers them.
    pub policy: Option<u32>,
    /// Where it may run.
    pub allowed: Option<BTreeSet<u32>>,
}

/// What QEMU's command line says of its vCPUs. The command line itself is not kept: it may hold
/// what is nobody's business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vmm {
    /// Features of `-cpu`: `kvm-pv-unhalt` → `off`. Only those that a finding looks at.
    pub features: BTreeMap<String, String>,
    /// `-overcommit cpu-pm=on`
    pub cpu_pm: bool,
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").field("host", &self.host).field("vms", &self.vms).finish()
    }
}

impl Scene {
    /// This machine.
    pub fn here() -> Scene {
        Scene::new(Host::here(), Box::new(cookie_of))
    }

    /// A host whose files lie elsewhere, for tests.
    pub fn new(host: Host, cookie: Cookie) -> Scene {
        let vms = vms(&host).into_iter().map(|vm| seen(&host, vm)).collect();
        let release = host.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let online = host.read("/sys/devices/system/cpu/online");
        let online = online.and_then(|list| cpus(&list)).unwrap_or_default();
        Scene { host, vms, release, online, cookie, unreadable: RefCell::default() }
    }

    pub fn read(&self, path: &str) -> Option<String> {
        self.host.read(path)
    }

    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// The kernel's version: 6.12.7 of `6.12.7-cloud-amd64`.
    pub fn version(&self) -> Option<(u32, u32, u32)> {
        let digits = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..end].parse::<u32>().ok()
        };
        let mut parts = self.release.splitn(3, '.');
        let (major, minor) = (digits(parts.next()?)?, digits(parts.next()?)?);
        Some((major, minor, parts.next().and_then(digits).unwrap_or(0)))
    }

    /// A thread's core-scheduling cookie, if it has one.
    pub fn cookie(&self, tid: i32) -> Option<u64> {
        match (self.cookie)(tid) {
            Ok(cookie) => (cookie != 0).then_some(cookie),
            // Others: no SMT, a kernel without it, a thread that has ended.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let what = PathBuf::from(format!("/proc/{tid} (core-scheduling cookie)"));
                self.unreadable.borrow_mut().insert(what, error.to_string());
                None
            }
            Err(_) => None,
        }
    }

    /// scx_baton is in charge.
    pub fn baton_runs(&self) -> bool {
        self.read("/sys/kernel/sched_ext/root/ops").is_some_and(|ops| ops.starts_with("baton"))
    }

    /// What was asked for until now, is there, and could not be read.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        let mut all = self.host.unreadable();
        let own = self.unreadable.borrow();
        all.extend(
            own.iter().map(|(path, why)| Unreadable { path: path.clone(), why: why.clone() }),
        );
        all
    }
}

/// The cookie, hashed by the kernel, so that it says no more than which threads share one.
fn cookie_of(tid: i32) -> io::Result<u64> {
    let mut cookie: u64 = 0;
    // SAFETY: the kernel writes eight bytes to the address of `cookie`, which is aligned and lives
    // until it returns, and reads nothing.
    let result = unsafe {
        libc::prctl(
            libc::PR_SCHED_CORE,
            libc::PR_SCHED_CORE_GET as libc::c_ulong,
            tid as libc::c_ulong,
            libc::PR_SCHED_CORE_SCOPE_THREAD as libc::c_ulong,
            &raw mut cookie as libc::c_ulong,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

fn seen(host: &Host, vm: baton_hostinfo::Vm) -> SeenVm {
    let task = format!("/proc/{}/task", vm.pid);
    let vcpu = |vcpu: baton_hostinfo::Vcpu| {
        let stat = host.read(&format!("{task}/{}/stat", vcpu.tid)).unwrap_or_default();
        let status = host.read(&format!("{task}/{}/status", vcpu.tid)).unwrap_or_default();
        SeenVcpu {
            id: vcpu.id,
            tid: vcpu.tid,
            policy: policy(&stat),
            allowed: status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .and_then(cpus),
        }
    };
    let (mut cgroups, mut cgroup_v1) = (BTreeSet::new(), None);
    for tid in host.list(&task) {
        let text = host.read(&format!("{task}/{tid}/cgroup")).unwrap_or_default();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            if path.split('/').any(|part| part == "..") {
                continue;
            }
            if controllers.is_empty() {
                cgroups.insert(path.to_owned());
            } else if controllers.split(',').any(|controller| controller == "cpu") {
                cgroup_v1 = Some(path.to_owned());
            }
        }
    }
    SeenVm {
        pid: vm.pid,
        name: vm.name,
        vcpus: vm.vcpus.into_iter().map(vcpu).collect(),
        cgroups,
        cgroup_v1,
        vmm: Vmm::of(&arguments(host, vm.pid)),
    }
}

/// Field 41 of /proc/PID/stat, whose second one may hold blanks and parentheses.
fn policy(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(38)?.parse().ok()
}

impl Vmm {
    /// Of a QEMU's command line; others have none of these options.
    pub fn of(arguments: &[String]) -> Vmm {
        let mut vmm = Vmm::default();
        let mut words = arguments.iter().skip(1);
        while let Some(word) = words.next() {
            match word.strip_prefix('-').map(|word| word.strip_prefix('-').unwrap_or(word)) {
                // The last one counts.
                Some("cpu") => vmm.features = features_of(words.next().map_or("", String::as_str)),
                Some("overcommit") => {
                    let value = words.next().map_or("", String::as_str);
                    for part in parts(value) {
                        let (key, value) = part.split_once('=').unwrap_or((&part, "on"));
                        if key == "cpu-pm" {
                            vmm.cpu_pm = is_on(value);
                        }
                    }
                }
                _ => {}
            }
        }
        vmm
    }

    pub fn is_off(&self, feature: &str) -> bool {
        self.features.get(feature).is_some_and(|value| !is_on(value))
    }

    pub fn is_on(&self, feature: &str) -> bool {
        self.features.get(feature).is_some_and(|value| is_on(value))
    }

    /// Whoever asks for Hyper-V's interface has a Windows guest.
    pub fn is_for_windows(&self) -> bool {
        let names = ["hv-vendor-id", "hv-version-id"];
        self.features.iter().any(|(feature, value)| {
            let enlightens =
                feature.starts_with("hv-") && !names.iter().any(|name| feature.starts_with(name));
            enlightens && value != "off"
        })
    }
}

/// As QEMU reads a switch.
fn is_on(value: &str) -> bool {
    ["on", "yes", "true", "y"].contains(&value)
}

/// `host,+a,-b,c=d,e`: QEMU takes `_` for `-` in names.
fn features_of(value: &str) -> BTreeMap<String, String> {
    let feature = |part: String| {
        let (name, value) = match (part.strip_prefix('+'), part.strip_prefix('-')) {
            (Some(name), _) => (name, "on"),
            (_, Some(name)) => (name, "off"),
            _ => part.split_once('=').unwrap_or((&part, "on")),
        };
        let name = name.replace('_', "-");
        let known = ["x2apic", "tsc-deadline"].contains(&&*name);
        let known = known || ["kvm", "hv-"].iter().any(|prefix| name.starts_with(prefix));
        known.then(|| (name, value.to_owned()))
    };
    parts(value).into_iter().skip(1).filter_map(feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmm(line: &str) -> Vmm {
        Vmm::of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn qemus_options_are_read_however_they_are_written() {
        let line = "qemu -overcommit mem-lock=off -cpu host,+kvm_pv_unhalt,-x2apic,hv_spinlocks=\
                    0x1fff,kvm-pv-ipi=off,vmx,secret=x --overcommit cpu-pm=on";
        let seen = vmm(line);
        assert!(seen.cpu_pm && seen.is_on("kvm-pv-unhalt") && seen.is_for_windows());
        assert!(seen.is_off("x2apic") && seen.is_off("kvm-pv-ipi") && !seen.is_off("kvm"));
        assert_eq!(seen.features.get("hv-spinlocks").map(String::as_str), Some("0x1fff"));
        assert!(!seen.features.contains_key("secret"));
        for other in ["qemu", "qemu -cpu", "qemu -cpu host", "qemu -overcommit", "x --cpus 4"] {
            assert_eq!(vmm(other), Vmm::default(), "{other}");
        }
        assert!(!vmm("qemu -cpu host,kvm=off,hv-vendor-id=x").is_for_windows());
    }

    #[test]
    fn a_policy_is_read_behind_any_name() {
        let fields = "0 ".repeat(38) + "2 0 0";
        assert_eq!(policy(&format!("7 (a) b) {fields}")), Some(2));
        for wrong in ["", "7 (a", "7 (a) S 1", ") x"] {
            assert_eq!(policy(wrong), None, "{wrong}");
        }
    }
}
