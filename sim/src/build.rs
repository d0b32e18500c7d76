// SPDX-License-Identifier: GPL-2.0-only
//! From a scenario to a simulation that can begin.

use std::path::Path;

use anyhow::Result;

use crate::fair::{Fair, Kind};
use crate::guest::{GuestTask, TaskState, Vm};
use crate::keys::{did_you_mean, ensure_key, wrong};
use crate::locks::Locks;
use crate::machine::{CpuSet, Group, Machine, NONE, Ns, Scheduler, State, Task};
use crate::scenario::{Scenario, VmSpec};
use crate::scx::{self, Scx};
use crate::sim::{HostThread, Setup, Sim};
use crate::slots::Slots;

/// Schedulers that come with the simulator, a line each.
pub const SCHEDULERS: [(&str, &str); 7] = [
    ("cfs", "the kernel's, with its buddies (Linux 2.6.24 to 6.5)"),
    ("cfs-debooster", "the same; the spinner is held back (Ishiguro 2021)"),
    ("eevdf", "the kernel's (6.6 on)"),
    ("eevdf-debooster", "the same; the spinner is held back (Ishiguro 2021)"),
    ("scx_baton", "Baton's own BPF source"),
    ("scx_fifo", "a small example, sim/examples/fifo.bpf.c"),
    ("scx_vtime", "a small example, sim/examples/vtime.bpf.c"),
];

/// Whether a scheduler is a source of the user's, which is compiled.
pub fn is_source(name: &str) -> bool {
    name.ends_with(".bpf.c")
}

/// Whether a scheduler is the kernel's fair one.
pub fn is_fair(name: &str) -> bool {
    name.starts_with("cfs") || name.starts_with("eevdf")
}

/// Errors: it comes not with the simulator, and is no source that compiles.
pub fn known(name: &str, file: &Path) -> Result<()> {
    if SCHEDULERS.iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    let names = SCHEDULERS.map(|(name, _)| name);
    if !is_source(name) {
        let why = format!(
            "there is no scheduler \"{name}\"{}; there are {}, and files that end in .bpf.c",
            did_you_mean(name, &names),
            names.join(", ")
        );
        return Err(wrong("scheduler", why));
    }
    scx::object(name, file).map(drop).map_err(|error| wrong("scheduler", format!("{error:#}")))
}

impl Scenario {
    /// Everything that the simulation begins with, and its scheduler.
    ///
    /// Errors: an impossible machine, an unknown workload, a scheduler that does not load.
    pub fn build(&self) -> Result<Sim> {
        let host = self.host()?;
        let (costs, kvm) = (self.costs(&host)?, self.kvm(&host)?);
        let pcpus = self.pcpus(&host)?;
        let cpus = host.cpus(pcpus);
        let mut machine = Machine {
            now: 0,
            cpus: cpus.clone(),
            tasks: Vec::new(),
            online: CpuSet::all(pcpus as usize),
            tick_ns: 1_000_000_000 / u64::from(host.hz),
            to_resched: Vec::new(),
            locks: Locks::new(costs.lock_ns),
        };
        let only = |cpu: u32| {
            let mut one = CpuSet::empty(pcpus as usize);
            one.insert(cpu);
            one
        };
        let task = |vm, cpu: u32, allowed: CpuSet| Task {
            state: State::Blocked,
            cpu: cpu % pcpus,
            allowed,
            weight: 100,
            vm,
            ran_on: NONE,
            moved_at: 0,
            group: None,
            kernel: false,
            idle: false,
            ran: 0,
            since: 0,
            waited: 0,
            longest_wait: 0,
        };
        let (mut vms, mut groups) = (Vec::new(), Vec::new());
        let n: usize = self.vms.iter().map(|vm| vm.count as usize).sum();
        // Behind those of the VMs.
        let find = |name: &Option<String>, first: usize| -> Result<Option<usize>> {
            Ok(self.cgroup(name, first)?.map(|place| n + place))
        };
        let all = self.cgroups.len();
        for spec in &self.vms {
            let parent = find(&spec.cgroup, all)?;
            for number in 0..spec.count {
                let first = machine.tasks.len() as u32;
                let vm = spec.vm(first)?;
                let group = if spec.own_cgroup { Some(vms.len()) } else { parent };
                let allowed = self.allowed(spec.cpus.as_ref(), &spec.cgroup, number, &cpus)?;
                for vcpu in 0..spec.vcpus {
                    let pinned = allowed.iter().nth((vcpu % allowed.len()) as usize);
                    let at = pinned.filter(|_| spec.pin).map_or(allowed.clone(), only);
                    // In the order in which they are made, as a host of its own would place them.
                    let vcpu = task(vms.len() as u32, first + vcpu, at);
                    machine.tasks.push(Task { group: group.map(|group| group as u32), ..vcpu });
                }
                vms.push(vm);
                groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
            }
        }
        for (place, spec) in self.cgroups.iter().enumerate() {
            let parent = find(&spec.parent, place)?;
            groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
        }
        let mut threads = Vec::new();
        for spec in &self.threads {
            let parent = find(&spec.cgroup, all)?;
            for number in 0..spec.count {
                let mut group = parent;
                if spec.own_cgroup {
                    group = Some(groups.len());
                    groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
                }
                let mut allowed = self.allowed(spec.cpus.as_ref(), &spec.cgroup, number, &cpus)?;
                if let Some(cpu) = spec.cpu {
                    ensure_key!(
                        allowed.contains(cpu),
                        "cpu",
                        "its cgroup does not have pCPU {cpu}"
                    );
                    allowed = only(cpu);
                }
                let at = spec.cpu.unwrap_or(machine.tasks.len() as u32);
                let idle = spec.sched_idle;
                let group = group.map(|group| group as u32);
                // WEIGHT_IDLEPRIO, 3 of 1,024, as sched_weight_to_cgroup() tells it.
                let weight = if idle { 1 } else { 100 };
                machine.tasks.push(Task { group, idle, weight, ..task(NONE, at, allowed) });
                let ns = |us: f64| (us * 1e3) as Ns;
                threads.push(HostThread::new(ns(spec.run_us), ns(spec.sleep_us), spec.spread));
            }
        }
        if let Some(noise) = &host.noise {
            let ns = |us: f64| (us * 1e3) as Ns;
            for cpu in 0..pcpus {
                machine.tasks.push(Task { kernel: true, ..task(NONE, cpu, only(cpu)) });
                threads.push(HostThread::new(ns(noise.run_us), ns(noise.sleep_us), 0.0));
            }
        }
        let tasks = machine.tasks.len() as u64;
        let faults = (0..self.faults.len()).map(|place| self.fault(place, pcpus, tasks));
        let faults = faults.collect::<Result<Vec<_>>>()?;
        let fair = |kind, debooster| -> Box<dyn Scheduler> {
            Box::new(Fair::new(kind, debooster, &machine, &groups))
        };
        let scheduler: Box<dyn Scheduler> = match self.scheduler.as_str() {
            "cfs" => fair(Kind::Cfs, false),
            "cfs-debooster" => fair(Kind::Cfs, true),
            "eevdf" => fair(Kind::Eevdf, false),
            "eevdf-debooster" => fair(Kind::Eevdf, true),
            name => {
                let object = scx::object(name, &self.scheduler_file)?;
                let policy = self.yield_reasons()?;
                Box::new(Scx::new(&object, &mut machine, &groups, &policy, self.seed)?)
            }
        };
        let ns = |seconds: f64| (seconds * 1e9) as Ns;
        let setup = Setup {
            machine,
            costs,
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
}

impl VmSpec {
    fn vm(&self, first: u32) -> Result<Vm> {
        let programs = self.programs()?;
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
