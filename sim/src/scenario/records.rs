// SPDX-License-Identifier: GPL-2.0-only
//! The tables of a scenario and of a machine, as TOML gives them.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Table;

use crate::guest::Features;
use crate::machine::{Cpu, NONE, Quota};
use crate::topology::{Siblings, Where};

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
    /// The pCPUs' ticks are spread over the length of one. Linux has all of them at once
    /// (`tick_setup_sched_timer()`), unless it is booted with `skew_tick=1`: then over half of it.
    #[serde(default)]
    pub staggered_ticks: bool,
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
    /// All invariants are checked after each N events; 0: at the end.
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
    /// Of its cgroup.
    pub cpu_max: Option<Quota>,
    /// A preset's name.
    pub workload: Option<String>,
    /// Of the preset; else what the benchmark does by itself.
    pub tasks: Option<u32>,
    /// What computes takes N times as long as the preset says: on a CPU that is slower than
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
    /// The N largest of them are in use: "2-3 memslots are used extensively" (Mammedov 2014).
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
    /// Each run is a process of its own, which is made as it begins, and ends.
    #[serde(default)]
    pub processes: bool,
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
    /// A cgroup, and the quota that it has from then on; without `cpu-max` it has none.
    pub cgroup: Option<String>,
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

impl Host {
    pub fn all_pcpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }

    pub(crate) fn cores_of_llc(&self) -> u32 {
        self.llc_cores.unwrap_or(self.cores)
    }

    /// The first `pcpus` of the machine.
    pub(crate) fn cpus(&self, pcpus: u32) -> Vec<Cpu> {
        let cores = self.sockets * self.cores;
        let of_node = self.cores / self.nodes;
        let cpu = |cpu: u32| {
            let (core, sibling) = match self.siblings {
                Siblings::Adjacent => (cpu / self.threads, cpu ^ 1),
                Siblings::Split => (cpu % cores, (cpu + cores) % (2 * cores)),
            };
            let sibling = if self.threads == 2 && sibling < pcpus { sibling } else { NONE };
            let (llc, node) = (core / self.cores_of_llc(), core / of_node);
            Cpu { curr: NONE, online: true, resched: false, sibling, llc, node }
        };
        (0..pcpus).map(cpu).collect()
    }
}

pub fn eevdf() -> String {
    "eevdf".into()
}
pub fn two() -> f64 {
    2.0
}
pub fn warmup() -> f64 {
    0.2
}
pub fn one() -> u64 {
    1
}
pub fn one_u32() -> u32 {
    1
}
pub fn three() -> u32 {
    3
}
pub fn one_f64() -> f64 {
    1.0
}
pub fn yes() -> bool {
    true
}

pub fn weight() -> u32 {
    100
}
pub fn starvation() -> f64 {
    30.0
}
