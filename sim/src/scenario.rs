// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios as people write them: TOML that says which machine, which VMs, what they do, and which
//! scheduler and KVM there are.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use toml::Table;

use crate::build;
use crate::guest::{Features, Op};
use crate::keys::{Change, Source, did_you_mean, ensure_key, inside, typed, wrong};
use crate::kvm::{HaltPoll, Kvm};
use crate::machine::{Costs, Cpu, CpuSet, Ns, Quota};
use crate::program;
use crate::sim::Fault;
use crate::topology::{Siblings, Where};
use crate::workload::{self, Program};

/// Machines that come with the simulator, each with the sources of its figures.
pub const MACHINES: [(&str, &str); 12] = [
    ("exact", include_str!("../machines/exact.toml")),
    ("testbed", include_str!("../machines/testbed.toml")),
    ("xeon-x7560", include_str!("../machines/xeon-x7560.toml")),
    ("xeon-8", include_str!("../machines/xeon-8.toml")),
    ("xeon-16", include_str!("../machines/xeon-16.toml")),
    ("xeon-2014", include_str!("../machines/xeon-2014.toml")),
    ("cascade-lake-96", include_str!("../machines/cascade-lake-96.toml")),
    ("rome-192", include_str!("../machines/rome-192.toml")),
    ("ryzen-16", include_str!("../machines/ryzen-16.toml")),
    ("ice-lake-160", include_str!("../machines/ice-lake-160.toml")),
    ("rome-256", include_str!("../machines/rome-256.toml")),
    ("genoa-384", include_str!("../machines/genoa-384.toml")),
];

/// What one may be at most: 4 × 1,024 vCPUs are simulated in docs, and sched_ext counts CPUs in 4,096
/// bits here.
const MOST_CPUS: u32 = 4096;
const MOST_VCPUS: u32 = 65_536;
const MOST_TASKS: u64 = 1_000_000;

/// Of a scenario's text: a thousand times the longest that ships.
const MOST_BYTES: u64 = 1 << 22;

/// Numbers of locks that programs cannot name.
const TLB_LOCKS: u32 = 10_000;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Host {
    pub sockets: u32,
    /// Of a socket.
    pub cores: u32,
    /// Of a core.
    pub threads: u32,
    /// Cores that share a last-level cache; else all of a socket.
    pub llc_cores: Option<u32>,
    /// Of a socket.
    #[serde(default = "one_u32")]
    pub nodes: u32,
    #[serde(default)]
    pub siblings: Siblings,
    pub hz: u32,
    /// What the host's own kernel does on each of its pCPUs, if anything.
    pub noise: Option<Noise>,
    pub costs: Table,
    /// What KVM there is, if the scenario does not say otherwise.
    #[serde(default)]
    pub kvm: Table,
}

/// A thread of the kernel that is bound to its pCPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Noise {
    pub run_us: f64,
    pub sleep_us: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    #[serde(default)]
    pub about: String,
    /// A name of [`MACHINES`], or a file.
    pub machine: String,
    /// That file, if it is one.
    #[serde(skip)]
    pub machine_file: PathBuf,
    /// Fewer pCPUs than the machine has: the first ones.
    pub pcpus: Option<u32>,
    #[serde(default = "eevdf")]
    pub scheduler: String,
    /// That file, if it is one.
    #[serde(skip)]
    pub scheduler_file: PathBuf,
    /// Of scx_baton: as its option --yield-policy.
    pub yield_policy: Option<Vec<String>>,
    #[serde(default = "two")]
    pub seconds: f64,
    /// Before that, not measured.
    #[serde(default = "warmup")]
    pub warmup: f64,
    #[serde(default = "one")]
    pub seed: u64,
    #[serde(default)]
    pub kvm: Table,
    /// What if this took another time? Instead of what the machine says.
    #[serde(default)]
    pub costs: Table,
    /// Beside those that VMs have for themselves.
    #[serde(rename = "cgroup", default)]
    pub cgroups: Vec<CgroupSpec>,
    #[serde(rename = "vm", default)]
    pub vms: Vec<VmSpec>,
    #[serde(rename = "thread", default)]
    pub threads: Vec<ThreadSpec>,
    #[serde(rename = "fault", default)]
    pub faults: Vec<FaultSpec>,
    /// The longest that a thread may wait for a pCPU before the simulation counts as failed.
    #[serde(default = "starvation")]
    pub starvation_s: f64,
    /// All invariants are checked every so many events; 0: at the end.
    #[serde(default)]
    pub check_every: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CgroupSpec {
    pub name: String,
    #[serde(default = "weight")]
    pub weight: u32,
    pub cpu_max: Option<Quota>,
    /// The name of another one, above in the file; else it is below the root.
    pub parent: Option<String>,
    /// Where what is in it may run (`cpuset.cpus`), and what is in cgroups below it.
    pub cpus: Option<Where>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VmSpec {
    #[serde(default = "one_u32")]
    pub count: u32,
    /// The one that its own cgroup is in; else the root.
    pub cgroup: Option<String>,
    /// Whether it has a cgroup of its own, as with libvirt; else its vCPUs are in that of `cgroup`.
    #[serde(default = "yes")]
    pub own_cgroup: bool,
    pub vcpus: u32,
    #[serde(default = "weight")]
    pub weight: u32,
    /// Of its cgroup; sched_ext schedulers alone know it here.
    pub cpu_max: Option<Quota>,
    /// A preset's name.
    pub workload: Option<String>,
    /// Of the preset; else what the benchmark does by itself.
    pub tasks: Option<u32>,
    /// What computes takes so many times as long as the preset says: on a CPU that is slower than
    /// those on which presets were measured.
    #[serde(default = "one_f64")]
    pub work_scale: f64,
    /// Instead of a preset.
    #[serde(rename = "task", default)]
    pub programs: Vec<TaskSpec>,
    #[serde(default)]
    pub guest: Features,
    /// Where its vCPUs may run; each VM of this table has a number of its own, from 0 on.
    pub cpus: Option<Where>,
    /// vCPU i on pCPU i alone, of those in `cpus`, counted round.
    #[serde(default)]
    pub pin: bool,
    /// Memory slots, looked up at each exit; 0: the machine's costs have that in them.
    #[serde(default)]
    pub memslots: u32,
    /// The largest so many of them are in use: "2-3 memslots are used extensively" (Mammedov 2014).
    #[serde(default = "three")]
    pub memslots_used: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    #[serde(default = "one_u32")]
    pub count: u32,
    /// "compute 100us", "lock 0", "call", "done" and so on.
    pub program: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ThreadSpec {
    #[serde(default = "one_u32")]
    pub count: u32,
    pub run_us: f64,
    #[serde(default)]
    pub sleep_us: f64,
    #[serde(default)]
    pub spread: f64,
    pub cpu: Option<u32>,
    /// Where it may run; each thread of this table has a number of its own, from 0 on.
    pub cpus: Option<Where>,
    pub cgroup: Option<String>,
    /// Whether each has a cgroup of its own, in that of `cgroup`.
    #[serde(default)]
    pub own_cgroup: bool,
    /// Of that cgroup.
    #[serde(default = "weight")]
    pub weight: u32,
    pub cpu_max: Option<Quota>,
    /// Its policy is SCHED_IDLE.
    #[serde(default)]
    pub sched_idle: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FaultSpec {
    pub at_ms: f64,
    pub offline: Option<u32>,
    pub online: Option<u32>,
    pub vm_ends: Option<u32>,
    /// How long each of its threads takes to end, in the kernel.
    pub exit_ms: Option<f64>,
    /// A VM, and what its cgroup weighs from then on, or what quota it has.
    pub vm: Option<u32>,
    pub weight: Option<u32>,
    pub cpu_max: Option<Quota>,
    /// Its vCPUs' threads do the same work from then on, but not in the guest.
    #[serde(default)]
    pub leaves_guest: bool,
    /// The scheduler's clock (`scx_bpf_now()`) jumps by so much, forth or back.
    pub clock_jump_us: Option<i64>,
    /// A thread's number (vCPUs first), and where it may run from then on.
    pub task: Option<u32>,
    #[serde(default)]
    pub cpus: Vec<u32>,
}

fn eevdf() -> String {
    "eevdf".into()
}
fn two() -> f64 {
    2.0
}
fn warmup() -> f64 {
    0.2
}
fn one() -> u64 {
    1
}
fn one_u32() -> u32 {
    1
}
fn three() -> u32 {
    3
}
fn one_f64() -> f64 {
    1.0
}
fn yes() -> bool {
    true
}

fn weight() -> u32 {
    100
}
fn starvation() -> f64 {
    30.0
}

/// The text of a scenario, and where it is from.
#[derive(Clone, Debug, Default)]
pub struct Text {
    pub text: String,
    /// Where the files that it names are looked for.
    pub dir: PathBuf,
}

impl Text {
    /// Reads a file, or one of the scenarios that come with the simulator.
    ///
    /// Errors: it is neither.
    pub fn named(name: &str) -> Result<Text> {
        if let Some((_, text)) = SCENARIOS.iter().find(|(known, _)| *known == name) {
            return Ok(Text { text: text.to_string(), dir: PathBuf::new() });
        }
        let read = || -> Result<String> {
            let mut text = String::new();
            File::open(name)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
            ensure!(text.len() as u64 <= MOST_BYTES, "it is larger than {MOST_BYTES} bytes");
            Ok(text)
        };
        let text = read().with_context(|| {
            let near = did_you_mean(name, &SCENARIOS.map(|(name, _)| name));
            format!(
                "cannot read the scenario {name}{near}; \"baton sim list\" names those that are built \
                 in"
            )
        })?;
        let dir = Path::new(name).parent().unwrap_or(Path::new("")).into();
        Ok(Text { text, dir })
    }
}

/// `fine` says whether a number from outside, which may be none at all, is between two limits.
fn within(value: f64, least: f64, most: f64) -> bool {
    value.is_finite() && (least..=most).contains(&value)
}

impl Scenario {
    /// As [`read`](Self::read), of a text from nowhere.
    pub fn parse(text: &str, changes: &[Change]) -> Result<Scenario> {
        Scenario::read(&Text { text: text.into(), dir: PathBuf::new() }, changes)
    }

    /// Reads a scenario with some keys changed, and checks all of it but what only running the
    /// scheduler can tell.
    ///
    /// Errors: one line that names the key that is wrong, where it stands, and what to write
    /// instead.
    pub fn read(from: &Text, changes: &[Change]) -> Result<Scenario> {
        let source = Source { text: &from.text, changes };
        let mut scenario: Scenario = source.read()?;
        // What the command line names is meant as seen from there.
        let place = |key: &str| {
            let set = changes.iter().any(|(changed, _)| changed == key);
            if set { Path::new("") } else { &from.dir }
        };
        scenario.machine_file = place("machine").join(&scenario.machine);
        scenario.scheduler_file = place("scheduler").join(&scenario.scheduler);
        scenario.check().map_err(|error| source.locate(error))?;
        Ok(scenario)
    }

    fn check(&self) -> Result<()> {
        let Scenario { seconds, warmup, starvation_s, .. } = *self;
        ensure_key!(
            within(seconds, 0.001, 36_000.0),
            "seconds",
            "must be from 0.001 to 36,000, not {seconds}"
        );
        ensure_key!(within(warmup, 0.0, 3600.0), "warmup", "must be from 0 to 3,600, not {warmup}");
        ensure_key!(
            starvation_s.is_finite() && starvation_s > 0.0,
            "starvation-s",
            "must be above 0, not {starvation_s}"
        );
        ensure!(!self.vms.is_empty() || !self.threads.is_empty(), "there is no [[vm]]");
        let (mut vcpus, mut tasks) = (0, 0);
        for (place, vm) in self.vms.iter().enumerate() {
            vm.check().map_err(|error| inside(format!("vm.{place}"), error))?;
            vcpus += u64::from(vm.count) * u64::from(vm.vcpus);
            let programs = vm.programs.iter().map(|program| u64::from(program.count)).sum::<u64>();
            tasks += u64::from(vm.count) * u64::from(vm.tasks.unwrap_or(0)).max(programs);
        }
        ensure!(
            vcpus <= MOST_VCPUS.into(),
            "{vcpus} vCPUs are too many; at most {MOST_VCPUS} in all"
        );
        ensure!(tasks <= MOST_TASKS, "{tasks} tasks are too many; at most {MOST_TASKS} in all");
        // Only now: programs of millions of tasks take memory.
        for (place, vm) in self.vms.iter().enumerate() {
            vm.check_programs().map_err(|error| inside(format!("vm.{place}"), error))?;
        }
        for (place, thread) in self.threads.iter().enumerate() {
            thread.check().map_err(|error| inside(format!("thread.{place}"), error))?;
        }
        self.check_cgroups()?;
        self.yield_reasons()?;
        let host = self.host()?;
        self.costs(&host)?;
        self.kvm(&host)?;
        let pcpus = self.pcpus(&host)?;
        for (place, thread) in self.threads.iter().enumerate() {
            let cpu = thread.cpu.unwrap_or(0);
            let key = format!("thread.{place}.cpu");
            ensure_key!(cpu < pcpus, key, "there is no pCPU {cpu}; there are {pcpus}, from 0 on");
        }
        self.check_places(&host.cpus(pcpus))?;
        let threads = self.threads.iter().map(|thread| u64::from(thread.count)).sum::<u64>();
        let noise = if host.noise.is_some() { u64::from(pcpus) } else { 0 };
        for place in 0..self.faults.len() {
            self.fault(place, pcpus, vcpus + threads + noise)?;
        }
        build::known(&self.scheduler, &self.scheduler_file)
    }

    fn check_cgroups(&self) -> Result<()> {
        for (place, spec) in self.cgroups.iter().enumerate() {
            let key = |name: &str| format!("cgroup.{place}.{name}");
            let known = self.cgroups[..place].iter().any(|cgroup| cgroup.name == spec.name);
            ensure_key!(!known, key("name"), "there are two cgroups \"{}\"", spec.name);
            check_weight(spec.weight).map_err(|error| inside(format!("cgroup.{place}"), error))?;
            if let Some(quota) = &spec.cpu_max {
                check_quota(quota).map_err(|error| inside(format!("cgroup.{place}"), error))?;
            }
            self.cgroup(&spec.parent, place).map_err(|why| wrong(key("parent"), why))?;
        }
        let all = self.cgroups.len();
        for (place, vm) in self.vms.iter().enumerate() {
            let found = self.cgroup(&vm.cgroup, all);
            found.map_err(|why| wrong(format!("vm.{place}.cgroup"), why))?;
        }
        for (place, thread) in self.threads.iter().enumerate() {
            let found = self.cgroup(&thread.cgroup, all);
            found.map_err(|why| wrong(format!("thread.{place}.cgroup"), why))?;
        }
        Ok(())
    }

    /// Is there a pCPU for each?
    fn check_places(&self, cpus: &[Cpu]) -> Result<()> {
        for (place, spec) in self.cgroups.iter().enumerate() {
            let key = format!("cgroup.{place}.cpus");
            self.allowed(None, &Some(spec.name.clone()), 0, cpus).map_err(|why| wrong(key, why))?;
        }
        let (vms, threads) = (self.vms.iter().enumerate(), self.threads.iter().enumerate());
        let vms = vms.map(|(place, vm)| (format!("vm.{place}"), vm.count, &vm.cpus, &vm.cgroup));
        let threads =
            threads.map(|(place, t)| (format!("thread.{place}"), t.count, &t.cpus, &t.cgroup));
        for (key, count, at, cgroup) in vms.chain(threads) {
            for number in 0..count.min(cpus.len() as u32) {
                self.allowed(at.as_ref(), cgroup, number, cpus)
                    .map_err(|why| wrong(format!("{key}.cpus"), why))?;
            }
        }
        Ok(())
    }

    /// Where something may run that is in a cgroup.
    ///
    /// Errors: nowhere, or that is no list of pCPUs.
    pub(crate) fn allowed(
        &self,
        at: Option<&Where>,
        cgroup: &Option<String>,
        number: u32,
        cpus: &[Cpu],
    ) -> Result<CpuSet> {
        let mut set = CpuSet::all(cpus.len());
        let mut above = self.cgroup(cgroup, self.cgroups.len())?;
        let mut places: Vec<&Where> = at.into_iter().collect();
        while let Some(place) = above {
            let spec = &self.cgroups[place];
            places.extend(&spec.cpus);
            above = self.cgroup(&spec.parent, place)?;
        }
        for place in places {
            set.retain(&place.of(number, cpus)?);
        }
        ensure!(!set.is_empty(), "it may run nowhere: its cgroup has none of these pCPUs");
        Ok(set)
    }

    /// The place of a cgroup among the first so many.
    pub(crate) fn cgroup(&self, name: &Option<String>, first: usize) -> Result<Option<usize>> {
        let Some(name) = name else { return Ok(None) };
        let place = self.cgroups[..first].iter().position(|cgroup| cgroup.name == *name);
        place.map(Some).with_context(|| format!("there is no [[cgroup]] \"{name}\" above"))
    }

    /// How many of the machine's pCPUs there are.
    pub fn pcpus(&self, host: &Host) -> Result<u32> {
        let all = host.all_pcpus();
        let pcpus = self.pcpus.unwrap_or(all);
        ensure_key!(
            (1..=all).contains(&pcpus),
            "pcpus",
            "the machine has {all} pCPUs, so it must be from 1 to {all}, not {pcpus}"
        );
        Ok(pcpus)
    }

    /// The machine's description.
    pub fn host(&self) -> Result<Host> {
        let known = MACHINES.iter().find(|(name, _)| *name == self.machine);
        let text = match known {
            Some((_, text)) => text.to_string(),
            None => fs::read_to_string(&self.machine_file).map_err(|error| {
                let names: Vec<&str> = MACHINES.iter().map(|(name, _)| *name).collect();
                let why = format!(
                    "there is no machine \"{}\"{}; there are {}; and {} cannot be read: {error}",
                    self.machine,
                    did_you_mean(&self.machine, &names),
                    names.join(", "),
                    self.machine_file.display()
                );
                wrong("machine", why)
            })?,
        };
        Host::parse(&text).with_context(|| match known {
            Some((name, _)) => format!("machine {name}"),
            None => format!("machine {}", self.machine_file.display()),
        })
    }

    /// The machine's costs with what the scenario changes of them, under its scheduler.
    pub fn costs(&self, host: &Host) -> Result<Costs> {
        let mut costs = host.costs.clone();
        costs.extend(self.costs.clone());
        let mut costs = checked_costs(costs)?;
        if !build::is_fair(&self.scheduler) {
            costs.switch_ns += costs.sched_ext_ns;
            costs.spin_exit_ns += costs.sched_ext_spin_ns;
            costs.resched_ns += costs.sched_ext_ns;
        }
        Ok(costs)
    }

    /// The machine's KVM with what the scenario changes of it.
    pub fn kvm(&self, host: &Host) -> Result<Kvm> {
        let mut kvm = host.kvm.clone();
        kvm.extend(self.kvm.clone());
        checked_kvm(kvm)
    }

    /// As `enum yield_reason` of scx_baton/bpf/intf.h numbers them.
    pub(crate) fn yield_reasons(&self) -> Result<Vec<u32>> {
        const NAMES: [&str; 4] = ["ipi", "kvm", "sent", "kick"];
        let Some(policies) = &self.yield_policy else { return Ok(Vec::new()) };
        let key = "yield-policy";
        ensure_key!(!policies.is_empty(), key, "name one of {}", NAMES.join(", "));
        let mut reasons = Vec::new();
        for word in policies {
            let place = NAMES.iter().position(|name| name == word).ok_or_else(|| {
                wrong(key, format!("there is no \"{word}\"; there are {}", NAMES.join(", ")))
            })?;
            ensure_key!(!reasons.contains(&(place as u32 + 1)), key, "\"{word}\" is there twice");
            reasons.push(place as u32 + 1);
        }
        reasons.resize(NAMES.len(), 0);
        Ok(reasons)
    }

    /// A fault: when, and what.
    pub(crate) fn fault(&self, place: usize, pcpus: u32, tasks: u64) -> Result<(Ns, Fault)> {
        let spec = &self.faults[place];
        let vms: u64 = self.vms.iter().map(|vm| u64::from(vm.count)).sum();
        spec.fault(pcpus, vms, tasks).map_err(|error| inside(format!("fault.{place}"), error))
    }

    /// Weights and quotas of the scenario, as keys: some schedulers know neither.
    pub fn weights_and_quotas(&self) -> (Vec<String>, Vec<String>) {
        let (mut weights, mut quotas) = (Vec::new(), Vec::new());
        let mut note = |table: &str, place: usize, weight: bool, quota: bool| {
            weights.extend(weight.then(|| format!("{table}.{place}.weight")));
            quotas.extend(quota.then(|| format!("{table}.{place}.cpu-max")));
        };
        for (place, vm) in self.vms.iter().enumerate() {
            note("vm", place, vm.weight != weight(), vm.cpu_max.is_some());
        }
        for (place, thread) in self.threads.iter().enumerate() {
            note("thread", place, thread.weight != weight(), thread.cpu_max.is_some());
        }
        for (place, cgroup) in self.cgroups.iter().enumerate() {
            note("cgroup", place, cgroup.weight != weight(), cgroup.cpu_max.is_some());
        }
        for (place, fault) in self.faults.iter().enumerate() {
            note("fault", place, fault.weight.is_some(), fault.cpu_max.is_some());
        }
        (weights, quotas)
    }
}

impl Host {
    /// Errors: a key that is wrong, with its line; an impossible machine.
    pub fn parse(text: &str) -> Result<Host> {
        let source = Source { text, changes: &[] };
        let host: Host = source.read()?;
        host.check().map_err(|error| source.locate(error))?;
        Ok(host)
    }

    fn check(&self) -> Result<()> {
        let [sockets, cores, threads] =
            [self.sockets, self.cores, self.threads].map(|n| u64::from(n.min(MOST_CPUS + 1)));
        let cpus = sockets * cores * threads;
        ensure_key!(
            (1..=u64::from(MOST_CPUS)).contains(&cpus),
            "sockets",
            "a machine of {cpus} pCPUs is impossible; at most {MOST_CPUS}"
        );
        ensure_key!((1..=2).contains(&self.threads), "threads", "of a core there are 1 or 2");
        let cores = self.cores;
        for (key, n) in [("llc-cores", self.cores_of_llc()), ("nodes", self.nodes)] {
            let fine = n > 0 && cores.is_multiple_of(n);
            ensure_key!(fine, key, "must divide the {cores} cores of a socket, not {n}");
        }
        if let Some(noise) = &self.noise {
            for (key, us) in [("noise.run-us", noise.run_us), ("noise.sleep-us", noise.sleep_us)] {
                ensure_key!(within(us, 1.0, 1e9), key, "must be from 1 to 10^9, not {us}");
            }
        }
        ensure_key!(
            (24..=10_000).contains(&self.hz),
            "hz",
            "must be from 24 to 10,000, not {}",
            self.hz
        );
        checked_costs(self.costs.clone())?;
        checked_kvm(self.kvm.clone())?;
        Ok(())
    }
}

fn checked_costs(costs: Table) -> Result<Costs> {
    for (name, value) in &costs {
        let fine = value.as_integer().is_none_or(|ns| (0..=1_000_000_000).contains(&ns));
        ensure_key!(fine, format!("costs.{name}"), "must be from 0 to 10^9, not {value}");
    }
    let costs: Costs = typed(costs).map_err(|error| inside("costs", error))?;
    let share = costs.smt_share;
    ensure_key!(within(share, 0.1, 1.0), "costs.smt_share", "must be from 0.1 to 1, not {share}");
    let slots = [("slot_step_ns", costs.slot_step_ns), ("slot_search_ns", costs.slot_search_ns)];
    for (key, ns) in slots {
        let key = format!("costs.{key}");
        ensure_key!(within(ns, 0.0, 1e6), key, "must be from 0 to 10^6, not {ns}");
    }
    let key = "costs.idle_exits";
    let rises = costs.idle_exits.windows(2).all(|two| two[0].0 < two[1].0);
    ensure_key!(
        rises,
        key,
        "must be sorted by the first number of each, from how long on a state is used"
    );
    let fine = costs.idle_exits.iter().all(|(_, exit)| *exit <= 1_000_000_000);
    ensure_key!(fine, key, "leaving an idle state takes from 0 to 10^9");
    Ok(costs)
}

fn checked_kvm(kvm: Table) -> Result<Kvm> {
    let kvm: Kvm = typed(kvm).map_err(|error| inside("kvm", error))?;
    let Kvm { ple_grow, ple_window_ns, missed_events, .. } = kvm;
    ensure_key!(
        (1..=1000).contains(&ple_grow),
        "kvm.ple-grow",
        "must be from 1 to 1000, not {ple_grow}"
    );
    ensure_key!(
        within(missed_events, 0.0, 1.0),
        "kvm.missed-events",
        "must be from 0 to 1, not {missed_events}"
    );
    if let HaltPoll::Governed(budget) = kvm.halt_poll {
        let key = "kvm.halt-poll.governed";
        ensure_key!(within(budget, 0.0, 1.0), key, "must be from 0 to 1, not {budget}");
    }
    ensure_key!(ple_window_ns > 0, "kvm.ple-window-ns", "must be above 0");
    Ok(kvm)
}

impl ThreadSpec {
    fn check(&self) -> Result<()> {
        let ThreadSpec { run_us, sleep_us, count, .. } = *self;
        ensure_key!(within(run_us, 0.1, 1e9), "run-us", "must be from 0.1 to 10^9, not {run_us}");
        let fine = within(sleep_us, 0.0, 1e9);
        ensure_key!(fine, "sleep-us", "must be from 0 to 10^9, not {sleep_us}");
        let spread = self.spread;
        ensure_key!(within(spread, 0.0, 1.0), "spread", "must be from 0 to 1, not {spread}");
        let fine = (1..=10_000).contains(&count);
        ensure_key!(fine, "count", "must be from 1 to 10,000, not {count}");
        let at = self.cpu.is_none() || self.cpus.is_none();
        ensure_key!(at, "cpus", "either cpu or cpus says where it may run");
        check_weight(self.weight)?;
        self.cpu_max.as_ref().map_or(Ok(()), check_quota)?;
        let of_own = self.weight == weight() && self.cpu_max.is_none();
        ensure_key!(of_own || self.own_cgroup, "own-cgroup", "weight and cpu-max need one");
        Ok(())
    }
}

impl FaultSpec {
    fn fault(&self, cpus: u32, vms: u64, tasks: u64) -> Result<(Ns, Fault)> {
        let at_ms = self.at_ms;
        ensure_key!(within(at_ms, 0.0, 1e9), "at-ms", "must be from 0 to 10^9, not {at_ms}");
        let cpu = |key: &str, cpu: u32| -> Result<u32> {
            ensure_key!(cpu < cpus, key, "there is no pCPU {cpu}; there are {cpus}, from 0 on");
            Ok(cpu)
        };
        let vm = |key: &str, vm: u32| -> Result<u32> {
            ensure_key!(
                u64::from(vm) < vms,
                key,
                "there is no VM {vm}; there are {vms}, from 0 on"
            );
            Ok(vm)
        };
        let f = self;
        if f.vm.is_none() {
            ensure_key!(f.weight.is_none(), "weight", "needs a vm");
            ensure_key!(f.cpu_max.is_none(), "cpu-max", "needs a vm");
            ensure_key!(!f.leaves_guest, "leaves-guest", "needs a vm");
        }
        let exit_ms = f.exit_ms.unwrap_or(0.0);
        ensure_key!(
            within(exit_ms, 0.0, 1e4),
            "exit-ms",
            "must be from 0 to 10,000, not {exit_ms}"
        );
        ensure_key!(f.exit_ms.is_none() || f.vm_ends.is_some(), "exit-ms", "needs vm-ends");
        ensure_key!(f.cpus.is_empty() || f.task.is_some(), "cpus", "needs a task");
        let fault = match (f.offline, f.online, f.vm_ends, f.vm, f.task, f.clock_jump_us) {
            (Some(at), None, None, None, None, None) => Fault::Offline(cpu("offline", at)?),
            (None, Some(at), None, None, None, None) => Fault::Online(cpu("online", at)?),
            (None, None, None, None, None, Some(us)) => {
                let day = 86_400_000_000;
                let fine = (-day..=day).contains(&us);
                ensure_key!(fine, "clock-jump-us", "a clock jumps by a day at most, not {us}");
                Fault::ClockJumps(us * 1000)
            }
            (None, None, Some(at), None, None, None) => {
                Fault::VmEnds(vm("vm-ends", at)?, (exit_ms * 1e6) as Ns)
            }
            (None, None, None, Some(at), None, None) => match (f.weight, f.cpu_max, f.leaves_guest)
            {
                (None, None, true) => Fault::LeavesGuest(vm("vm", at)?),
                (Some(weight), None, false) => {
                    check_weight(weight)?;
                    Fault::Weight(vm("vm", at)?, weight)
                }
                (None, Some(quota), false) => {
                    check_quota(&quota)?;
                    Fault::Quota(vm("vm", at)?, Some(quota))
                }
                _ => return Err(wrong("vm", "needs one of weight, cpu-max and leaves-guest")),
            },
            (None, None, None, None, Some(task), None) => {
                let fine = u64::from(task) < tasks;
                ensure_key!(
                    fine,
                    "task",
                    "there is no thread {task}; there are {tasks}, from 0 on"
                );
                ensure_key!(!f.cpus.is_empty(), "task", "needs cpus, those where it may run then");
                let mut set = CpuSet::empty(cpus as usize);
                for at in &f.cpus {
                    set.insert(cpu("cpus", *at)?);
                }
                Fault::Affinity(task, set)
            }
            _ => bail!(
                "a fault is one of offline, online, vm-ends, clock-jump-us, vm with weight, \
                 cpu-max or leaves-guest, and task with cpus"
            ),
        };
        Ok(((at_ms * 1e6) as Ns, fault))
    }
}

impl VmSpec {
    fn check(&self) -> Result<()> {
        let VmSpec { vcpus, count, memslots, work_scale, .. } = *self;
        ensure_key!((1..=1024).contains(&vcpus), "vcpus", "must be from 1 to 1,024, not {vcpus}");
        ensure_key!((1..=1024).contains(&count), "count", "must be from 1 to 1,024, not {count}");
        check_weight(self.weight)?;
        self.cpu_max.as_ref().map_or(Ok(()), check_quota)?;
        if let Some(tasks) = self.tasks {
            let fine = (1..=100_000).contains(&tasks);
            ensure_key!(fine, "tasks", "must be from 1 to 100,000, not {tasks}");
            ensure_key!(
                self.programs.is_empty(),
                "tasks",
                "belongs to a workload, not to [[vm.task]]"
            );
        }
        let most = memslots::MAX_SLOTS;
        ensure_key!(memslots <= most, "memslots", "must be from 0 to {most}, not {memslots}");
        ensure_key!(self.memslots_used > 0, "memslots-used", "must be above 0");
        ensure_key!(
            within(work_scale, 0.001, 1000.0),
            "work-scale",
            "must be from 0.001 to 1,000, not {work_scale}"
        );
        ensure!(
            self.workload.is_some() == self.programs.is_empty(),
            "either workload or [[vm.task]] says what it does"
        );
        for (place, spec) in self.programs.iter().enumerate() {
            let key = format!("task.{place}.count");
            let fine = (1..=100_000).contains(&spec.count);
            ensure_key!(fine, key, "must be from 1 to 100,000, not {}", spec.count);
        }
        Ok(())
    }

    fn check_programs(&self) -> Result<()> {
        let programs = self.programs()?;
        let barrier = |program: &Program| program.iter().any(|op| matches!(op, Op::Barrier { .. }));
        let barriers = programs.iter().filter(|program| barrier(program)).count();
        ensure!(
            barriers == 0 || barriers == programs.len(),
            "all tasks of a VM meet at its barrier: {barriers} of {} have one",
            programs.len()
        );
        ensure!(
            barriers == 0 || programs.len() <= self.vcpus as usize,
            "tasks that spin at a barrier need a vCPU each: {} tasks, {} vCPUs",
            programs.len(),
            self.vcpus
        );
        Ok(())
    }

    pub(crate) fn programs(&self) -> Result<Vec<Program>> {
        let mut programs = self.plain_programs()?;
        if self.work_scale != 1.0 {
            let scaled = |op: &Op| match *op {
                Op::Compute { mean, spread, kernel } => {
                    let mean = (mean as f64 * self.work_scale) as Ns;
                    Op::Compute { mean: mean.max(1), spread, kernel }
                }
                op => op,
            };
            for program in &mut programs {
                *program = Arc::new(program.iter().map(scaled).collect());
            }
        }
        if self.guest.tlb_lock {
            for (task, program) in (0..).zip(&mut programs) {
                let lock = TLB_LOCKS + task % 8;
                let locked = |op: &Op| match op {
                    Op::Call => vec![Op::Lock(lock), Op::Call, Op::Unlock(lock)],
                    op => vec![*op],
                };
                *program = Arc::new(program.iter().flat_map(locked).collect());
            }
        }
        Ok(programs)
    }

    fn plain_programs(&self) -> Result<Vec<Program>> {
        if let Some(name) = &self.workload {
            return workload::preset(name, self.vcpus, self.tasks).ok_or_else(|| {
                let names = workload::names();
                let near = did_you_mean(name, &names);
                let why = format!("there is no \"{name}\"{near}; there are {}", names.join(", "));
                wrong("workload", why)
            });
        }
        let mut programs = Vec::new();
        for (place, spec) in self.programs.iter().enumerate() {
            let key = format!("task.{place}.program");
            let step = |(step, text): (usize, &String)| {
                program::step(text)
                    .map_err(|error| wrong(format!("{key}.{step}"), format!("{error:#}")))
            };
            let ops = spec.program.iter().enumerate().map(step).collect::<Result<Vec<Op>>>()?;
            program::check(&ops).map_err(|error| wrong(&key, error))?;
            let program = Arc::new(ops);
            programs.extend((0..spec.count).map(|_| program.clone()));
        }
        Ok(programs)
    }
}

/// `tg_set_cfs_bandwidth()`: 1 ms to 1 s.
fn check_quota(quota: &Quota) -> Result<()> {
    let Quota { quota_us, period_us, burst_us } = *quota;
    let fine = (1_000..=1_000_000).contains(&period_us);
    ensure_key!(fine, "cpu-max.period-us", "must be from 1,000 to 1,000,000, not {period_us}");
    let fine = (1_000..=1_000_000_000).contains(&quota_us);
    ensure_key!(fine, "cpu-max.quota-us", "must be from 1,000 to 10^9, not {quota_us}");
    let fine = burst_us <= quota_us;
    ensure_key!(fine, "cpu-max.burst-us", "must be at most quota-us, not {burst_us}");
    Ok(())
}

/// cpu.weight (Documentation/admin-guide/cgroup-v2.rst).
fn check_weight(weight: u32) -> Result<()> {
    let fine = (1..=10_000).contains(&weight);
    ensure_key!(fine, "weight", "must be from 1 to 10,000, not {weight}");
    Ok(())
}

/// Scenarios that come with the simulator.
pub const SCENARIOS: [(&str, &str); 27] = [
    ("crowded", include_str!("../scenarios/crowded.toml")),
    ("call", include_str!("../scenarios/call.toml")),
    ("file-server", include_str!("../scenarios/file-server.toml")),
    ("call-bound", include_str!("../scenarios/call-bound.toml")),
    ("io-threads", include_str!("../scenarios/io-threads.toml")),
    ("long-sleep", include_str!("../scenarios/long-sleep.toml")),
    ("vhost-crowd", include_str!("../scenarios/vhost-crowd.toml")),
    ("weights-100", include_str!("../scenarios/weights-100.toml")),
    ("testbed-shootdown", include_str!("../scenarios/testbed-shootdown.toml")),
    ("testbed-hackbench", include_str!("../scenarios/testbed-hackbench.toml")),
    ("testbed-pbzip2", include_str!("../scenarios/testbed-pbzip2.toml")),
    ("exact-barrier", include_str!("../scenarios/exact-barrier.toml")),
    ("exact-lock", include_str!("../scenarios/exact-lock.toml")),
    ("testbed-barrier", include_str!("../scenarios/testbed-barrier.toml")),
    ("testbed-lock", include_str!("../scenarios/testbed-lock.toml")),
    ("scale-4x96", include_str!("../scenarios/scale-4x96.toml")),
    ("sizes", include_str!("../scenarios/sizes.toml")),
    ("two-barriers", include_str!("../scenarios/two-barriers.toml")),
    ("big-300", include_str!("../scenarios/big-300.toml")),
    ("big-partitions", include_str!("../scenarios/big-partitions.toml")),
    ("big-threads", include_str!("../scenarios/big-threads.toml")),
    ("attack-container", include_str!("../scenarios/attack-container.toml")),
    ("attack-threads", include_str!("../scenarios/attack-threads.toml")),
    ("attack-bound", include_str!("../scenarios/attack-bound.toml")),
    ("attack-vms", include_str!("../scenarios/attack-vms.toml")),
    ("attack-crowd", include_str!("../scenarios/attack-crowd.toml")),
    ("attack-quotas", include_str!("../scenarios/attack-quotas.toml")),
];

/// Reads a scenario.
///
/// Errors: as [`Scenario::read`], with the name in front.
pub fn load(name: &str, changes: &[Change]) -> Result<Scenario> {
    let text = Text::named(name)?;
    Scenario::read(&text, changes).with_context(|| format!("scenario {name}"))
}
