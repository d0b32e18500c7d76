// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios as people write them: TOML that says which machine, which VMs, what they do, and which
//! scheduler and KVM there are.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use toml::{Table, Value};

use crate::fair::{Fair, Kind};
use crate::guest::{Features, GuestTask, Op, TaskState, Vm};
use crate::kvm::{HaltPoll, Kvm};
use crate::machine::{Costs, Cpu, CpuSet, Machine, NONE, Ns, Quota, Scheduler, State, Task};
use crate::scx::{self, Group, Scx};
use crate::sim::{Fault, HostThread, Setup, Sim};
use crate::slots::Slots;
use crate::workload::{self, Program};

/// Machines that come with the simulator, each with the sources of its figures.
pub const MACHINES: [(&str, &str); 6] = [
    ("testbed", include_str!("../machines/testbed.toml")),
    ("xeon-x7560", include_str!("../machines/xeon-x7560.toml")),
    ("xeon-8", include_str!("../machines/xeon-8.toml")),
    ("xeon-2014", include_str!("../machines/xeon-2014.toml")),
    ("cascade-lake-96", include_str!("../machines/cascade-lake-96.toml")),
    ("rome-192", include_str!("../machines/rome-192.toml")),
];

/// What one may be at most: 4 × 1,024 vCPUs are simulated in docs, and sched_ext counts CPUs in 4,096
/// bits here.
const MOST_CPUS: u32 = 4096;
const MOST_VCPUS: u32 = 65_536;
const MOST_TASKS: u64 = 1_000_000;

/// Numbers of locks that programs cannot name.
const TLB_LOCKS: u32 = 10_000;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Host {
    pub sockets: u32,
    /// Of a socket; each socket has one last-level cache.
    pub cores: u32,
    /// Of a core.
    pub threads: u32,
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
    /// Fewer pCPUs than the machine has: the first ones.
    pub pcpus: Option<u32>,
    #[serde(default = "eevdf")]
    pub scheduler: String,
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
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VmSpec {
    #[serde(default = "one_u32")]
    pub count: u32,
    /// The one that its own cgroup is in; else the root.
    pub cgroup: Option<String>,
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
    /// vCPU i on pCPU i alone, counted round.
    #[serde(default)]
    pub pin: bool,
    /// Memory slots, looked up at each exit; 0: the machine's costs have that in them.
    #[serde(default)]
    pub memslots: u32,
    /// The largest so many of them are in use: "2-3 memslots are used extensively" (seed 004).
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
    pub cpu: Option<u32>,
    pub cgroup: Option<String>,
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
fn weight() -> u32 {
    100
}
fn starvation() -> f64 {
    30.0
}

/// A scenario's text with some keys set anew.
///
/// Errors: no TOML, a path that leads nowhere.
pub fn table(text: &str, changes: &[(String, String)]) -> Result<Table> {
    let mut table: Table = toml::from_str(text).map_err(|error| anyhow!("{}", one_line(&error)))?;
    for (path, value) in changes {
        set(&mut table, path, value)?;
    }
    Ok(table)
}

fn one_line(error: &toml::de::Error) -> String {
    let words = error.message();
    let wrong = words.split('`').nth(1);
    let known = words.split('`').skip(3).step_by(2);
    match wrong.filter(|_| words.starts_with("unknown field")) {
        Some(wrong) => {
            let near = known
                .max_by_key(|known| (strsim::normalized_levenshtein(wrong, known) * 1000.0) as u64);
            let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            format!("there is no key \"{wrong}\" here{near}")
        }
        None => words.replace('\n', " "),
    }
}

/// `kvm.on-spin=kernel`, `vm.0.vcpus=8`, `vm.vcpus=8` (all VMs).
fn set(table: &mut Table, path: &str, value: &str) -> Result<()> {
    let parsed: Value = toml::from_str::<Table>(&format!("v = {value}"))
        .ok()
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(value.into()));
    let keys: Vec<&str> = path.split('.').collect();
    ensure!(!path.is_empty() && keys.iter().all(|key| !key.is_empty()), "\"{path}\" is no key");
    let mut whole = Value::Table(std::mem::take(table));
    put(&mut whole, &keys, &parsed).with_context(|| format!("cannot set {path}"))?;
    if let Value::Table(changed) = whole {
        *table = changed;
    }
    Ok(())
}

fn put(at: &mut Value, keys: &[&str], value: &Value) -> Result<()> {
    let Some((key, rest)) = keys.split_first() else {
        *at = value.clone();
        return Ok(());
    };
    match at {
        Value::Table(table) => {
            let inner = table.entry(key.to_string()).or_insert_with(|| {
                if rest.is_empty() { value.clone() } else { Value::Table(Table::new()) }
            });
            put(inner, rest, value)
        }
        Value::Array(list) => match key.parse::<usize>() {
            Ok(place) => {
                let n = list.len();
                let inner = list.get_mut(place).with_context(|| format!("there are {n} only"))?;
                put(inner, rest, value)
            }
            Err(_) => list.iter_mut().try_for_each(|inner| put(inner, keys, value)),
        },
        _ => bail!("\"{key}\" is inside of something that has no keys"),
    }
}

/// `100us`, `1.5ms`, `2s`, `300ns`.
fn time(text: &str) -> Result<Ns> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => bail!("\"{text}\" is no time; write 300ns, 100us, 1.5ms or 2s"),
    };
    let value: f64 = digits.parse().map_err(|_| anyhow!("\"{text}\" is no time"))?;
    ensure!((0.0..=1e6).contains(&value), "\"{text}\" is no time from 0 to 1,000,000");
    Ok((value * unit) as Ns)
}

/// One step of a program.
fn op(text: &str) -> Result<Op> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let spread = |word: Option<&&str>| -> Result<f64> {
        let Some(word) = word else { return Ok(0.0) };
        let percent = word.strip_prefix('±').and_then(|word| word.strip_suffix('%'));
        let value: f64 = percent
            .and_then(|percent| percent.parse().ok())
            .with_context(|| format!("\"{word}\" is no spread; write ±20%"))?;
        ensure!((0.0..=100.0).contains(&value), "a spread is from 0 to 100 %");
        Ok(value / 100.0)
    };
    let number = |word: &str| -> Result<u32> {
        let value: u32 = word.parse().map_err(|_| anyhow!("\"{word}\" is no number"))?;
        ensure!(value < 10_000, "numbers go to 9,999");
        Ok(value)
    };
    Ok(match words[..] {
        ["compute", mean, ref rest @ ..] => {
            let kernel = rest.contains(&"kernel");
            let spread = spread(rest.iter().find(|word| **word != "kernel"))?;
            Op::Compute { mean: time(mean)?, spread, kernel }
        }
        ["lock", n] => Op::Lock(number(n)?),
        ["unlock", n] => Op::Unlock(number(n)?),
        ["mutex", n] => Op::Mutex(number(n)?),
        ["release", n] => Op::Release(number(n)?),
        ["call"] => Op::Call,
        ["call-one"] => Op::CallOne,
        ["barrier"] => Op::Barrier { pause: false },
        ["barrier", "pause"] => Op::Barrier { pause: true },
        ["post", n] => Op::Post(number(n)?),
        ["wait", n] => Op::Wait(number(n)?),
        ["sleep", mean, ref rest @ ..] => {
            Op::Sleep { mean: time(mean)?, spread: spread(rest.first())? }
        }
        ["io", mean] => Op::Io { mean: time(mean)? },
        ["done"] => Op::Done,
        _ => bail!(
            "\"{text}\" is no step; there are compute, lock, unlock, mutex, release, call, call-one, \
             barrier, post, wait, sleep, io and done"
        ),
    })
}

impl Scenario {
    /// Errors: one line that names the key that is wrong, and what to write instead.
    pub fn parse(text: &str, changes: &[(String, String)]) -> Result<Scenario> {
        let table = table(text, changes)?;
        let scenario: Scenario =
            table.try_into().map_err(|error: toml::de::Error| anyhow!("{}", one_line(&error)))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Reads a file, or one of the scenarios that come with the simulator.
    pub fn text(name: &str) -> Result<String> {
        if let Some((_, text)) = SCENARIOS.iter().find(|(known, _)| *known == name) {
            return Ok(text.to_string());
        }
        fs::read_to_string(name).with_context(|| {
            format!(
                "cannot read the scenario {name} (\"baton sim list\" names those that are built in)"
            )
        })
    }

    fn check(&self) -> Result<()> {
        let seconds = self.seconds.is_finite() && (0.001..=36_000.0).contains(&self.seconds);
        ensure!(seconds, "seconds is {}; it must be from 0.001 to 36,000", self.seconds);
        let warmup = self.warmup.is_finite() && (0.0..=3600.0).contains(&self.warmup);
        ensure!(warmup, "warmup is {}; it must be from 0 to 3,600", self.warmup);
        let starvation = self.starvation_s.is_finite() && self.starvation_s > 0.0;
        ensure!(starvation, "starvation-s is {}; it must be above 0", self.starvation_s);
        ensure!(!self.vms.is_empty() || !self.threads.is_empty(), "there is no [[vm]]");
        let (mut vcpus, mut tasks) = (0, 0);
        for (place, vm) in self.vms.iter().enumerate() {
            vm.check().with_context(|| format!("vm {}", place + 1))?;
            vcpus += u64::from(vm.count) * u64::from(vm.vcpus);
            let programs = vm.programs.iter().map(|program| u64::from(program.count)).sum::<u64>();
            tasks += u64::from(vm.count) * u64::from(vm.tasks.unwrap_or(0)).max(programs);
        }
        ensure!(
            vcpus <= MOST_VCPUS.into(),
            "{vcpus} vCPUs are too many; at most {MOST_VCPUS} in all"
        );
        ensure!(tasks <= MOST_TASKS, "{tasks} tasks are too many; at most {MOST_TASKS} in all");
        for thread in &self.threads {
            let run = thread.run_us.is_finite() && (0.1..=1e9).contains(&thread.run_us);
            ensure!(run, "run-us is {}; it must be from 0.1 to 10^9", thread.run_us);
            let sleep = thread.sleep_us.is_finite() && (0.0..=1e9).contains(&thread.sleep_us);
            ensure!(sleep, "sleep-us is {}; it must be from 0 to 10^9", thread.sleep_us);
            ensure!((1..=10_000).contains(&thread.count), "count must be from 1 to 10,000");
        }
        Ok(())
    }

    /// The machine's description.
    pub fn host(&self) -> Result<Host> {
        let known = MACHINES.iter().find(|(name, _)| *name == self.machine);
        let text = match known {
            Some((_, text)) => text.to_string(),
            None => fs::read_to_string(&self.machine).map_err(|_| {
                let names: Vec<&str> = MACHINES.iter().map(|(name, _)| *name).collect();
                let near = names.iter().max_by_key(|name| {
                    (strsim::normalized_levenshtein(&self.machine, name) * 1000.0) as u64
                });
                anyhow!(
                    "there is no machine \"{}\", and no such file; did you mean \"{}\"? There are {}",
                    self.machine,
                    near.unwrap_or(&""),
                    names.join(", ")
                )
            })?,
        };
        let host: Host = toml::from_str(&text)
            .map_err(|error| anyhow!("machine {}: {}", self.machine, one_line(&error)))?;
        let [sockets, cores, threads] =
            [host.sockets, host.cores, host.threads].map(|n| u64::from(n.min(MOST_CPUS + 1)));
        let cpus = sockets * cores * threads;
        ensure!(
            (1..=u64::from(MOST_CPUS)).contains(&cpus),
            "a machine of {cpus} CPUs is impossible"
        );
        ensure!((1..=2).contains(&host.threads), "threads of a core must be 1 or 2");
        let noise = |us: f64| us.is_finite() && (1.0..=1e9).contains(&us);
        let fine = host.noise.as_ref().is_none_or(|n| noise(n.run_us) && noise(n.sleep_us));
        ensure!(fine, "noise is from 1 to 10^9 µs");
        ensure!((24..=10_000).contains(&host.hz), "hz must be from 24 to 10,000");
        Ok(host)
    }

    /// The machine's costs with what the scenario changes of them.
    pub fn costs(&self, host: &Host) -> Result<Costs> {
        let mut costs = host.costs.clone();
        costs.extend(self.costs.clone());
        for (name, value) in &costs {
            let fine = value.as_integer().is_none_or(|ns| (0..=1_000_000_000).contains(&ns));
            ensure!(fine, "costs: {name} is {value}; it must be from 0 to 10^9");
        }
        let costs: Costs = costs
            .try_into()
            .map_err(|error: toml::de::Error| anyhow!("costs: {}", one_line(&error)))?;
        let share = costs.smt_share;
        ensure!(share.is_finite() && (0.1..=1.0).contains(&share), "smt_share is from 0.1 to 1");
        for ns in [costs.slot_step_ns, costs.slot_search_ns] {
            let fine = ns.is_finite() && (0.0..=1e6).contains(&ns);
            ensure!(fine, "slot_step_ns and slot_search_ns are from 0 to 10^6");
        }
        Ok(costs)
    }

    /// The machine's KVM with what the scenario changes of it.
    pub fn kvm(&self, host: &Host) -> Result<Kvm> {
        let mut kvm = host.kvm.clone();
        kvm.extend(self.kvm.clone());
        let kvm: Kvm = kvm
            .try_into()
            .map_err(|error: toml::de::Error| anyhow!("kvm: {}", one_line(&error)))?;
        ensure!((1..=1000).contains(&kvm.ple_grow), "kvm: ple-grow must be from 1 to 1000");
        let missed = kvm.missed_events;
        ensure!((0.0..=1.0).contains(&missed), "kvm: missed-events must be from 0 to 1");
        if let HaltPoll::Governed(budget) = kvm.halt_poll {
            ensure!((0.0..=1.0).contains(&budget), "kvm: halt-poll: governed is from 0 to 1");
        }
        ensure!(kvm.ple_window_ns > 0, "kvm: ple-window-ns must be above 0");
        Ok(kvm)
    }

    /// Everything that the simulation begins with, and its scheduler.
    ///
    /// Errors: an impossible machine, an unknown workload, a scheduler that does not load.
    pub fn build(&self) -> Result<Sim> {
        let host = self.host()?;
        let kvm = self.kvm(&host)?;
        let per_socket = host.cores * host.threads;
        let all = host.sockets * per_socket;
        let pcpus = self.pcpus.unwrap_or(all);
        ensure!(
            (1..=all).contains(&pcpus),
            "pcpus is {pcpus}; the machine has {all} pCPUs, so it must be from 1 to {all}"
        );
        let cpus = (0..pcpus)
            .map(|cpu| {
                let sibling = if host.threads == 2 { cpu ^ 1 } else { NONE };
                let socket = cpu / per_socket;
                Cpu {
                    curr: NONE,
                    online: true,
                    resched: false,
                    sibling: if sibling < pcpus { sibling } else { NONE },
                    llc: socket,
                }
            })
            .collect();
        let mut machine = Machine {
            now: 0,
            cpus,
            tasks: Vec::new(),
            online: CpuSet::all(pcpus as usize),
            tick_ns: 1_000_000_000 / u64::from(host.hz),
            to_resched: Vec::new(),
        };
        let task = |vm, cpu: u32, weight, only: Option<u32>| -> Result<Task> {
            let allowed = match only {
                None => CpuSet::all(pcpus as usize),
                Some(cpu) => {
                    ensure!(cpu < pcpus, "there is no pCPU {cpu}; there are {pcpus}");
                    let mut one = CpuSet::empty(pcpus as usize);
                    one.insert(cpu);
                    one
                }
            };
            Ok(Task {
                state: State::Blocked,
                cpu: cpu % pcpus,
                allowed,
                weight,
                vm,
                group: None,
                kernel: false,
                ran: 0,
                since: 0,
                waited: 0,
                longest_wait: 0,
            })
        };
        let (mut vms, mut groups) = (Vec::new(), Vec::new());
        let n: usize = self.vms.iter().map(|vm| vm.count as usize).sum();
        // Behind those of the VMs.
        let find = |name: &Option<String>, among: &[CgroupSpec]| -> Result<Option<usize>> {
            let Some(name) = name else { return Ok(None) };
            let place = among.iter().position(|cgroup| cgroup.name == *name);
            let place =
                place.with_context(|| format!("there is no [[cgroup]] \"{name}\" above"))?;
            Ok(Some(n + place))
        };
        for (place, spec) in self.vms.iter().enumerate() {
            let parent = find(&spec.cgroup, &self.cgroups)?;
            for _ in 0..spec.count {
                let first = machine.tasks.len() as u32;
                let vm = spec.vm(first).with_context(|| format!("vm {}", place + 1))?;
                for vcpu in 0..spec.vcpus {
                    let pin = spec.pin.then_some(vcpu % pcpus);
                    // In the order in which they are made, as a host of its own would place them.
                    machine.tasks.push(task(vms.len() as u32, first + vcpu, 100, pin)?);
                }
                vms.push(vm);
                groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
            }
        }
        for (place, spec) in self.cgroups.iter().enumerate() {
            let before = &self.cgroups[..place];
            let known = before.iter().any(|cgroup| cgroup.name == spec.name);
            ensure!(!known, "there are two cgroups \"{}\"", spec.name);
            ensure!((1..=10_000).contains(&spec.weight), "weight must be from 1 to 10,000");
            spec.cpu_max.as_ref().map_or(Ok(()), check_quota)?;
            let parent = find(&spec.parent, before)?;
            groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
        }
        let mut threads = Vec::new();
        for spec in &self.threads {
            for _ in 0..spec.count {
                let cpu = machine.tasks.len() as u32;
                let group = find(&spec.cgroup, &self.cgroups)?.map(|group| group as u32);
                let thread = task(NONE, spec.cpu.unwrap_or(cpu), 100, spec.cpu)?;
                machine.tasks.push(Task { group, ..thread });
                let ns = |us: f64| (us * 1e3) as Ns;
                threads.push(HostThread::new(ns(spec.run_us), ns(spec.sleep_us)));
            }
        }
        if let Some(noise) = &host.noise {
            let ns = |us: f64| (us * 1e3) as Ns;
            for cpu in 0..pcpus {
                machine.tasks.push(Task { kernel: true, ..task(NONE, cpu, 100, Some(cpu))? });
                threads.push(HostThread::new(ns(noise.run_us), ns(noise.sleep_us)));
            }
        }
        let faults = self.faults.iter().map(|fault| self.fault(fault, &machine, vms.len()));
        let faults = faults.collect::<Result<Vec<_>>>()?;
        let scheduler: Box<dyn Scheduler> = match self.scheduler.as_str() {
            "cfs" => Box::new(Fair::new(Kind::Cfs, false, pcpus as usize)),
            "cfs-debooster" => Box::new(Fair::new(Kind::Cfs, true, pcpus as usize)),
            "eevdf" => Box::new(Fair::new(Kind::Eevdf, false, pcpus as usize)),
            "eevdf-debooster" => Box::new(Fair::new(Kind::Eevdf, true, pcpus as usize)),
            name => {
                let (object, policy) = (scx::object(name)?, self.yield_reasons()?);
                Box::new(Scx::new(&object, &mut machine, &groups, &policy, self.seed)?)
            }
        };
        let ns = |seconds: f64| (seconds * 1e9) as Ns;
        let setup = Setup {
            machine,
            costs: self.costs(&host)?,
            kvm,
            vms,
            threads,
            faults,
            seed: self.seed,
            warmup: ns(self.warmup),
            end: ns(self.warmup + self.seconds),
            check_every: self.check_every,
            starvation_ns: ns(self.starvation_s),
        };
        Ok(Sim::new(setup, scheduler))
    }

    /// As `enum yield_reason` of scx_baton/bpf/intf.h numbers them.
    fn yield_reasons(&self) -> Result<Vec<u32>> {
        const NAMES: [&str; 4] = ["ipi", "kvm", "sent", "kick"];
        let Some(policies) = &self.yield_policy else { return Ok(Vec::new()) };
        ensure!(!policies.is_empty(), "yield-policy: name one of {}", NAMES.join(", "));
        let mut reasons = Vec::new();
        for word in policies {
            let place = NAMES.iter().position(|name| name == word).with_context(|| {
                format!("yield-policy: there is no \"{word}\"; there are {}", NAMES.join(", "))
            })?;
            ensure!(
                !reasons.contains(&(place as u32 + 1)),
                "yield-policy: \"{word}\" is there twice"
            );
            reasons.push(place as u32 + 1);
        }
        reasons.resize(NAMES.len(), 0);
        Ok(reasons)
    }

    fn fault(&self, spec: &FaultSpec, machine: &Machine, vms: usize) -> Result<(Ns, Fault)> {
        ensure!(
            spec.at_ms.is_finite() && (0.0..=1e9).contains(&spec.at_ms),
            "fault: at-ms is {}; it must be from 0 to 10^9",
            spec.at_ms
        );
        let cpus = machine.cpus.len() as u32;
        let cpu = |cpu: u32| -> Result<u32> {
            ensure!(cpu < cpus, "fault: there is no pCPU {cpu}; there are {cpus}");
            Ok(cpu)
        };
        let vm = |vm: u32| -> Result<u32> {
            ensure!((vm as usize) < vms, "fault: there is no VM {vm}; there are {vms}");
            Ok(vm)
        };
        let f = spec;
        let of_vm = f.weight.is_some() || f.cpu_max.is_some();
        ensure!(!of_vm || f.vm.is_some(), "fault: weight and cpu-max need a vm");
        let exit_ms = f.exit_ms.unwrap_or(0.0);
        ensure!((0.0..=1e4).contains(&exit_ms), "fault: exit-ms is from 0 to 10,000");
        ensure!(f.exit_ms.is_none() || f.vm_ends.is_some(), "fault: exit-ms needs vm-ends");
        let fault = match (f.offline, f.online, f.vm_ends, f.vm, f.task, f.clock_jump_us) {
            (Some(at), None, None, None, None, None) => Fault::Offline(cpu(at)?),
            (None, Some(at), None, None, None, None) => Fault::Online(cpu(at)?),
            (None, None, None, None, None, Some(us)) => {
                let day = 86_400_000_000;
                ensure!((-day..=day).contains(&us), "fault: a clock jumps by a day at most");
                Fault::ClockJumps(us * 1000)
            }
            (None, None, Some(at), None, None, None) => {
                Fault::VmEnds(vm(at)?, (exit_ms * 1e6) as Ns)
            }
            (None, None, None, Some(at), None, None) => match (f.weight, f.cpu_max) {
                (Some(weight), None) => {
                    ensure!((1..=10_000).contains(&weight), "weight must be from 1 to 10,000");
                    Fault::Weight(vm(at)?, weight)
                }
                (None, Some(quota)) => {
                    check_quota(&quota)?;
                    Fault::Quota(vm(at)?, Some(quota))
                }
                _ => bail!("fault: vm needs either a weight or a cpu-max"),
            },
            (None, None, None, None, Some(task), None) => {
                let n = machine.tasks.len();
                ensure!((task as usize) < n, "fault: there is no thread {task}; there are {n}");
                ensure!(!spec.cpus.is_empty(), "fault: cpus is empty");
                let mut set = CpuSet::empty(cpus as usize);
                for at in &spec.cpus {
                    set.insert(cpu(*at)?);
                }
                Fault::Affinity(task, set)
            }
            _ => bail!(
                "a fault is one of offline, online, vm-ends, clock-jump-us, vm with weight or cpu-max, \
                 and task with cpus"
            ),
        };
        Ok(((spec.at_ms * 1e6) as Ns, fault))
    }
}

impl VmSpec {
    fn check(&self) -> Result<()> {
        ensure!(
            (1..=1024).contains(&self.vcpus),
            "vcpus is {}; it must be from 1 to 1,024",
            self.vcpus
        );
        ensure!((1..=1024).contains(&self.count), "count must be from 1 to 1,024");
        ensure!((1..=10_000).contains(&self.weight), "weight must be from 1 to 10,000");
        self.cpu_max.as_ref().map_or(Ok(()), check_quota)?;
        ensure!(
            self.tasks.is_none_or(|tasks| (1..=100_000).contains(&tasks)),
            "tasks must be from 1 to 100,000"
        );
        let most = memslots::MAX_SLOTS;
        ensure!(self.memslots <= most, "memslots must be from 0 to {most}");
        ensure!(self.memslots_used > 0, "memslots-used must be above 0");
        let scale = self.work_scale.is_finite() && (0.001..=1000.0).contains(&self.work_scale);
        ensure!(scale, "work-scale is {}; it must be from 0.001 to 1,000", self.work_scale);
        ensure!(
            self.workload.is_some() == self.programs.is_empty(),
            "either workload or [[vm.task]] says what it does"
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
            return workload::preset(name, self.vcpus, self.tasks).with_context(|| {
                format!(
                    "there is no workload \"{name}\"; there are {}",
                    workload::names().join(", ")
                )
            });
        }
        let mut programs = Vec::new();
        for spec in &self.programs {
            ensure!((1..=100_000).contains(&spec.count), "count must be from 1 to 100,000");
            let ops = spec.program.iter().map(|text| op(text)).collect::<Result<Vec<Op>>>()?;
            let passes = |op: &Op| match op {
                Op::Compute { mean, .. } | Op::Sleep { mean, .. } | Op::Io { mean } => *mean > 0,
                Op::Wait(_) => true,
                _ => false,
            };
            ensure!(ops.iter().any(passes), "a program takes no time: it needs a compute or sleep");
            balanced(&ops)?;
            let program = Arc::new(ops);
            programs.extend((0..spec.count).map(|_| program.clone()));
        }
        Ok(programs)
    }

    fn vm(&self, first: u32) -> Result<Vm> {
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
        let tasks = (0..).zip(programs).map(|(place, program)| GuestTask {
            program,
            pc: 0,
            state: TaskState::Ready,
            vcpu: place % self.vcpus,
            deadline: 0,
            saved: None,
        });
        Ok(Vm {
            first,
            n: self.vcpus,
            features: self.guest.clone(),
            tasks: tasks.collect(),
            slots: (self.memslots > 0).then(|| Slots::new(self.memslots, self.memslots_used)),
            locks: Vec::new(),
            mutexes: Vec::new(),
            semaphores: Vec::new(),
            arrived: 0,
            round: 0,
            done: 0,
            pending: 0,
            awake: 0,
            ended: false,
            ready: CpuSet::empty(self.vcpus as usize),
            last_boosted: 0,
        })
    }
}

/// `tg_set_cfs_bandwidth()`: 1 ms to 1 s.
fn check_quota(quota: &Quota) -> Result<()> {
    let period = (1_000..=1_000_000).contains(&quota.period_us);
    ensure!(period, "cpu-max: period-us must be from 1,000 to 1,000,000");
    let fine =
        (1_000..=1_000_000_000).contains(&quota.quota_us) && quota.burst_us <= quota.quota_us;
    ensure!(fine, "cpu-max: quota-us must be from 1,000 to 10^9, burst-us at most that");
    Ok(())
}

/// Locks are held one after the other or one in another, not over a sleep, and not when it begins anew;
/// mutexes may be, over sleeps.
fn balanced(ops: &[Op]) -> Result<()> {
    let (mut held, mut mutexes) = (Vec::new(), Vec::new());
    for op in ops {
        match op {
            Op::Lock(lock) => {
                ensure!(!held.contains(lock), "lock {lock} is taken while it is held");
                held.push(*lock);
            }
            Op::Unlock(lock) => {
                ensure!(held.contains(lock), "unlock {lock} without a lock {lock} before it");
                held.retain(|other| other != lock);
            }
            Op::Mutex(mutex) => {
                ensure!(held.is_empty(), "a program waits while it holds lock {}", held[0]);
                ensure!(!mutexes.contains(mutex), "mutex {mutex} is taken while it is held");
                mutexes.push(*mutex);
            }
            Op::Release(mutex) => {
                let holds = mutexes.contains(mutex);
                ensure!(holds, "release {mutex} without a mutex {mutex} before it");
                mutexes.retain(|other| other != mutex);
            }
            Op::Wait(_) | Op::Sleep { .. } | Op::Io { .. } | Op::Barrier { .. } => {
                ensure!(held.is_empty(), "a program waits while it holds lock {}", held[0]);
            }
            _ => {}
        }
    }
    ensure!(held.is_empty(), "a program ends with lock {} held", held[0]);
    ensure!(mutexes.is_empty(), "a program ends with mutex {} held", mutexes[0]);
    Ok(())
}

/// Scenarios that come with the simulator.
pub const SCENARIOS: [(&str, &str); 10] = [
    ("crowded", include_str!("../scenarios/crowded.toml")),
    ("call", include_str!("../scenarios/call.toml")),
    ("testbed-shootdown", include_str!("../scenarios/testbed-shootdown.toml")),
    ("testbed-hackbench", include_str!("../scenarios/testbed-hackbench.toml")),
    ("testbed-pbzip2", include_str!("../scenarios/testbed-pbzip2.toml")),
    ("testbed-barrier", include_str!("../scenarios/testbed-barrier.toml")),
    ("testbed-lock", include_str!("../scenarios/testbed-lock.toml")),
    ("scale-4x96", include_str!("../scenarios/scale-4x96.toml")),
    ("sizes", include_str!("../scenarios/sizes.toml")),
    ("two-barriers", include_str!("../scenarios/two-barriers.toml")),
];

/// Reads a scenario.
///
/// Errors: as [`Scenario::parse`], with the name in front.
pub fn load(name: &str, changes: &[(String, String)]) -> Result<Scenario> {
    let text = Scenario::text(name)?;
    let shown = Path::new(name).display();
    Scenario::parse(&text, changes).with_context(|| format!("scenario {shown}"))
}
