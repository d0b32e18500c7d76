// SPDX-License-Identifier: GPL-2.0-only
//! From a scenario to a simulation that can begin.

use anyhow::Result;

use crate::fair::Fair;
use crate::guest::{GuestTask, TaskState, Vm};
use crate::locks::Locks;
use crate::machine::{CpuSet, Group, Machine, NONE, Ns, Scheduler, State, Task};
use crate::random;
use crate::scenario::{Made, Noise, Scenario, VmSpec, made, object};
use crate::scx::Scx;
use crate::sim::{HostThread, Setup, Sim};
use crate::slots::Slots;

/// What a simulation begins with, table by table of the scenario.
struct Parts<'a> {
    scenario: &'a Scenario,
    machine: Machine,
    vms: Vec<Vm>,
    groups: Vec<Group>,
    threads: Vec<HostThread>,
}

impl Scenario {
    /// Everything that the simulation begins with, and its scheduler.
    ///
    /// Errors: an impossible machine, an unknown workload, a scheduler that does not load.
    pub fn build(&self) -> Result<Sim> {
        let host = self.host()?;
        let (costs, kvm) = (self.costs(&host)?, self.kvm(&host)?);
        let pcpus = self.pcpus(&host)?;
        let machine = Machine {
            now: 0,
            cpus: host.cpus(pcpus),
            tasks: Vec::new(),
            online: CpuSet::all(pcpus as usize),
            tick_ns: 1_000_000_000 / u64::from(host.hz),
            staggered_ticks: self.staggered_ticks,
            to_resched: Vec::new(),
            locks: Locks::new(costs.lock_ns),
        };
        let (vms, groups, threads) = (Vec::new(), Vec::new(), Vec::new());
        let mut parts = Parts { scenario: self, machine, vms, groups, threads };
        parts.add_vms()?;
        parts.add_cgroups()?;
        parts.add_threads()?;
        if let Some(noise) = &host.noise {
            parts.add_noise(noise);
        }
        let tasks = parts.machine.tasks.len() as u64;
        let faults = (0..self.faults.len()).map(|place| self.fault(place, pcpus, tasks));
        let faults = faults.collect::<Result<Vec<_>>>()?;
        let scheduler = parts.scheduler()?;
        let ns = |seconds: f64| (seconds * 1e9) as Ns;
        let setup = Setup {
            machine: parts.machine,
            costs,
            kvm,
            vms: parts.vms,
            threads: parts.threads,
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

impl Parts<'_> {
    fn only(&self, cpu: u32) -> CpuSet {
        let mut one = CpuSet::empty(self.machine.cpus.len());
        one.insert(cpu);
        one
    }

    /// One that has not run yet; of the host if `vm` is [`NONE`].
    fn task(&self, vm: u32, cpu: u32, allowed: CpuSet) -> Task {
        Task {
            state: State::Blocked,
            cpu: cpu % self.machine.cpus.len() as u32,
            allowed,
            weight: 100,
            vm,
            ran_on: NONE,
            moved_at: 0,
            group: None,
            kernel: false,
            idle: false,
            new: false,
            ran: 0,
            since: 0,
            waited: 0,
            longest_wait: 0,
        }
    }

    /// Where the cgroup of this name, among the first N, is in `groups`: behind the VMs'.
    fn group(&self, name: &Option<String>, first: usize) -> Result<Option<usize>> {
        let n: usize = self.scenario.vms.iter().map(|vm| vm.count as usize).sum();
        Ok(self.scenario.cgroup(name, first)?.map(|place| n + place))
    }

    fn add_vms(&mut self) -> Result<()> {
        for spec in &self.scenario.vms {
            let parent = self.group(&spec.cgroup, self.scenario.cgroups.len())?;
            for number in 0..spec.count {
                let first = self.machine.tasks.len() as u32;
                let vm = spec.vm(first)?;
                let group = if spec.own_cgroup { Some(self.vms.len()) } else { parent };
                let (at, cpus) = (spec.cpus.as_ref(), &self.machine.cpus);
                let allowed = self.scenario.allowed(at, &spec.cgroup, number, cpus)?;
                for vcpu in 0..spec.vcpus {
                    let pinned = allowed.iter().nth((vcpu % allowed.len()) as usize);
                    let pinned = pinned.filter(|_| spec.pin);
                    let at = pinned.map_or(allowed.clone(), |cpu| self.only(cpu));
                    // In the order in which they are made, as a host of its own would place them.
                    let vcpu = self.task(self.vms.len() as u32, first + vcpu, at);
                    let group = group.map(|group| group as u32);
                    self.machine.tasks.push(Task { group, ..vcpu });
                }
                self.vms.push(vm);
                self.groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
            }
        }
        Ok(())
    }

    fn add_cgroups(&mut self) -> Result<()> {
        for (place, spec) in self.scenario.cgroups.iter().enumerate() {
            let parent = self.group(&spec.parent, place)?;
            self.groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
        }
        Ok(())
    }

    fn add_threads(&mut self) -> Result<()> {
        for spec in &self.scenario.threads {
            let parent = self.group(&spec.cgroup, self.scenario.cgroups.len())?;
            for number in 0..spec.count {
                let mut group = parent;
                if spec.own_cgroup {
                    group = Some(self.groups.len());
                    self.groups.push(Group { weight: spec.weight, quota: spec.cpu_max, parent });
                }
                let (at, cpus) = (spec.cpus.as_ref(), &self.machine.cpus);
                let mut allowed = self.scenario.allowed(at, &spec.cgroup, number, cpus)?;
                if let Some(cpu) = spec.cpu {
                    allowed = self.only(cpu);
                }
                let at = spec.cpu.unwrap_or(self.machine.tasks.len() as u32);
                let idle = spec.sched_idle;
                let group = group.map(|group| group as u32);
                // WEIGHT_IDLEPRIO, 3 of 1,024, as sched_weight_to_cgroup() tells it.
                let weight = if idle { 1 } else { 100 };
                let task = Task { group, idle, weight, ..self.task(NONE, at, allowed) };
                self.machine.tasks.push(task);
                let thread = HostThread::new(ns(spec.run_us), ns(spec.sleep_us), spec.spread);
                self.threads.push(HostThread { ends: spec.processes, ..thread });
            }
        }
        Ok(())
    }

    fn add_noise(&mut self, noise: &Noise) {
        for cpu in 0..self.machine.cpus.len() as u32 {
            let task = Task { kernel: true, ..self.task(NONE, cpu, self.only(cpu)) };
            self.machine.tasks.push(task);
            self.threads.push(HostThread::new(ns(noise.run_us), ns(noise.sleep_us), 0.0));
        }
    }

    fn scheduler(&mut self) -> Result<Box<dyn Scheduler>> {
        let Parts { scenario, machine, groups, .. } = self;
        let (name, file) = (&scenario.scheduler, &scenario.scheduler_file);
        if let Some(Made::Fair { kind, debooster }) = made(name) {
            return Ok(Box::new(Fair::new(kind, debooster, machine, groups)));
        }
        let (object, policy) = (object(name, file)?, scenario.yield_reasons()?);
        Ok(Box::new(Scx::new(&object, machine, groups, &policy, scenario.seed)?))
    }
}

fn ns(us: f64) -> Ns {
    (us * 1e3) as Ns
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
            random: random::unseeded(),
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
