// SPDX-License-Identifier: GPL-2.0-only
//! Asks scx_baton at each scrape, and remembers from one to the next what Prometheus would
//! misread.

use crate::snapshot::{Info, Snapshot, Times, Vm};
use crate::told;
use baton_counters::{Client, Metrics};
use baton_hostinfo::{Host, arguments, option, parts};
use baton_output::note;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const STOPPED: &str = "stopped";
const OTHER: &str = "other-scheduler";
const NOT_STARTED: &str = "not-started";

/// How often a scheduler ended, by the reason: as the scheduler itself knows it.
#[derive(Clone, Debug, Default)]
pub struct Exits {
    by_reason: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Exits {
    /// These are the reasons that there are.
    pub fn of(reasons: &[&'static str]) -> Exits {
        let by_reason = reasons.iter().map(|reason| (*reason, 0)).collect();
        Exits { by_reason: Arc::new(Mutex::new(by_reason)) }
    }

    pub fn count(&self, reason: &'static str) {
        let mut by_reason = self.by_reason.lock().unwrap_or_else(PoisonError::into_inner);
        *by_reason.entry(reason).or_default() += 1;
    }

    fn now(&self) -> BTreeMap<&'static str, u64> {
        self.by_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub struct Exporter {
    root: PathBuf,
    vcpus: bool,
    began: Instant,
    client: Option<Client>,
    exits: Exits,
    /// Whoever counts exits knows more of them than can be seen from here.
    is_told: bool,
    /// The state at the scrape before.
    was: Option<State>,
    /// The scx_baton that was asked last began not later, in seconds by the clock here.
    baton_began: Option<f64>,
    known: BTreeMap<String, Known>,
    /// Why scx_baton could not be asked: said once.
    noted: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Baton,
    Other,
    Kernel,
}

/// What does not change while a VM lives, and the times it had.
#[derive(Default)]
struct Known {
    uuid: String,
    namespace: String,
    cgroup: String,
    times: Times,
    vcpus: BTreeMap<(u32, i32), Times>,
}

impl Exporter {
    /// Watches the scheduler of this host; each vCPU too, if `vcpus`.
    pub fn here(vcpus: bool) -> Exporter {
        Exporter::at("/", vcpus)
    }

    /// The same for the host whose root directory this is.
    pub fn at(root: impl Into<PathBuf>, vcpus: bool) -> Exporter {
        Exporter {
            root: root.into(),
            vcpus,
            began: Instant::now(),
            client: None,
            exits: Exits::of(&[STOPPED, OTHER, NOT_STARTED]),
            is_told: false,
            was: None,
            baton_began: None,
            known: BTreeMap::new(),
            noted: None,
        }
    }

    /// Exits are counted elsewhere.
    pub fn with_exits(self, exits: Exits) -> Exporter {
        Exporter { exits, is_told: true, ..self }
    }

    pub fn snapshot(&mut self) -> Snapshot {
        let host = Host::at(&self.root);
        let (state, ops) = state(&host);
        self.watch(state);
        let mut snapshot = Snapshot { enabled: state == State::Baton, ..Snapshot::default() };
        let mut info = Info {
            version: ops.split('_').nth(1).unwrap_or_default().to_owned(),
            policy: String::new(),
            kernel: host.read("/proc/sys/kernel/osrelease").unwrap_or_default(),
        };
        let told = if snapshot.enabled { self.ask(&host) } else { None };
        match told {
            Some(told) => {
                info.policy = told.policy.clone();
                snapshot.totals = Some(told::totals(&told));
                snapshot.vms = self.follow(&host, told::vms(told));
            }
            None => self.client = None,
        }
        snapshot.info = snapshot.enabled.then_some(info);
        snapshot.exits = self.exits.now();
        snapshot
    }

    /// Counts that Baton does not run, once each time.
    fn watch(&mut self, state: State) {
        let before = self.was.replace(state);
        if state == State::Baton || before == Some(state) {
            return;
        }
        self.baton_began = None;
        self.known.clear();
        self.count(match (before, state) {
            (_, State::Other) => OTHER,
            (None, _) => NOT_STARTED,
            // Baton had ended before that.
            (Some(State::Other), _) => return,
            _ => STOPPED,
        });
    }

    fn count(&self, reason: &'static str) {
        if !self.is_told {
            self.exits.count(reason);
        }
    }

    fn ask(&mut self, host: &Host) -> Option<Metrics> {
        let (socket, asked) = (host.path(Client::SOCKET), self.began.elapsed());
        // The connection that was kept may be to an scx_baton that has gone.
        let kept = self.client.as_mut().map(|client| client.totals(self.vcpus));
        let told = match kept {
            Some(Ok(told)) => Ok(told),
            _ => Client::connect(&socket).and_then(|mut client| {
                let told = client.totals(self.vcpus);
                self.client = Some(client);
                told
            }),
        };
        match told {
            Ok(told) => {
                self.noted = None;
                self.compare(asked.as_secs_f64(), told.counted_s);
                Some(told)
            }
            Err(why) => {
                let why = format!("scx_baton cannot be asked, its VMs are missing: {why:#}");
                if self.noted.as_ref() != Some(&why) {
                    note(&why);
                    self.noted = Some(why);
                }
                None
            }
        }
    }

    /// One that began later is another one: the one before ended between two scrapes. It answered,
    /// that it had counted for so long, at some time since it was `asked`.
    fn compare(&mut self, asked: f64, counted: f64) {
        let (earliest, latest) = (asked - counted, self.began.elapsed().as_secs_f64() - counted);
        // Sums of floats.
        if self.baton_began.is_some_and(|before| earliest > before + 1e-3) {
            self.known.clear();
            self.count(STOPPED);
        }
        self.baton_began = Some(latest);
    }

    fn follow(&mut self, host: &Host, mut vms: Vec<Vm>) -> Vec<Vm> {
        let mut before = std::mem::take(&mut self.known);
        for vm in &mut vms {
            let mut known = before.remove(&vm.key).unwrap_or_else(|| Known::of(host, vm));
            vm.times = vm.times.at_least(known.times);
            known.times = vm.times;
            let mut vcpus = std::mem::take(&mut known.vcpus);
            for vcpu in &mut vm.by_vcpu {
                // Another thread is a new vCPU of that number.
                let id = (vcpu.id, vcpu.tid);
                vcpu.times = vcpu.times.at_least(vcpus.remove(&id).unwrap_or_default());
                known.vcpus.insert(id, vcpu.times);
            }
            vm.uuid.clone_from(&known.uuid);
            vm.namespace.clone_from(&known.namespace);
            vm.cgroup.clone_from(&known.cgroup);
            self.known.insert(vm.key.clone(), known);
        }
        vms
    }
}

impl Known {
    fn of(host: &Host, vm: &Vm) -> Known {
        // The key begins with the process.
        let pid = vm.key.split('.').next().and_then(|pid| pid.parse::<i32>().ok());
        let Some(pid) = pid else { return Known::default() };
        let cgroups = host.read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        let pod = cgroup.contains("kubepods").then(|| vm.name.split_once('/')).flatten();
        Known {
            uuid: uuid(&arguments(host, pid)).unwrap_or_default(),
            namespace: pod.map_or("", |(namespace, _)| namespace).to_owned(),
            cgroup: cgroup.to_owned(),
            ..Known::default()
        }
    }
}

/// QEMU's `-uuid`, as libvirt gives it, or `-smbios type=1,uuid=`, as Proxmox does.
fn uuid(arguments: &[String]) -> Option<String> {
    let smbios = || {
        let parts = parts(option(arguments, "smbios")?);
        parts.iter().find_map(|part| part.strip_prefix("uuid=").map(str::to_owned))
    };
    let uuid = option(arguments, "uuid").map(str::to_owned).or_else(smbios)?;
    let is_one = uuid.len() == 36 && uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    is_one.then(|| uuid.to_ascii_lowercase())
}

/// Who schedules, and the name of the sched_ext scheduler: `baton_VERSION_…` is Baton's.
fn state(host: &Host) -> (State, String) {
    let is_on = host.read("/sys/kernel/sched_ext/state").is_some_and(|state| state != "disabled");
    let ops = host.read("/sys/kernel/sched_ext/root/ops").filter(|ops| is_on && !ops.is_empty());
    match ops {
        Some(ops) if ops.split('_').next() == Some("baton") => (State::Baton, ops),
        Some(ops) => (State::Other, ops),
        None => (State::Kernel, String::new()),
    }
}
