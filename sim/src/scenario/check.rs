// SPDX-License-Identifier: GPL-2.0-only
//! Whether what a scenario says is possible.

use anyhow::{Result, ensure};
use toml::{Table, Value};

use super::records::{Host, Scenario, ThreadSpec, VmSpec, weight};
use super::schedulers;
use crate::guest::Op;
use crate::keys::{ensure_key, inside, typed, wrong};
use crate::kvm::{HaltPoll, Kvm};
use crate::machine::{Costs, Cpu, Quota};
use crate::workload::Program;

/// What one may be at most: 4 × 1,024 vCPUs are simulated in docs, and sched_ext counts CPUs in
/// 4,096 bits here.
const MOST_CPUS: u32 = 4096;
const MOST_VCPUS: u32 = 65_536;
const MOST_TASKS: u64 = 1_000_000;

/// `fine` says whether a number from outside, which may be none at all, is between two limits.
pub fn within(value: f64, least: f64, most: f64) -> bool {
    value.is_finite() && (least..=most).contains(&value)
}

impl Scenario {
    pub fn check(&self) -> Result<()> {
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
        schedulers::known(&self.scheduler, &self.scheduler_file)
    }

    pub fn check_cgroups(&self) -> Result<()> {
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
    pub fn check_places(&self, cpus: &[Cpu]) -> Result<()> {
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
        for (place, thread) in self.threads.iter().enumerate() {
            let Some(cpu) = thread.cpu else { continue };
            let has = self.allowed(None, &thread.cgroup, 0, cpus)?.contains(cpu);
            let key = format!("thread.{place}.cpu");
            ensure_key!(has, key, "its cgroup does not have pCPU {cpu}");
        }
        Ok(())
    }
}

impl Host {
    pub fn check(&self) -> Result<()> {
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

/// Whole numbers of a table, most of them ns, are from none to a second; also those of arrays and
/// tables in it.
fn check_numbers(of: &str, table: &Table) -> Result<()> {
    fn wrong_one(value: &Value) -> Option<&Value> {
        match value {
            Value::Integer(ns) => (!(0..=1_000_000_000).contains(ns)).then_some(value),
            Value::Array(all) => all.iter().find_map(wrong_one),
            Value::Table(all) => all.values().find_map(wrong_one),
            _ => None,
        }
    }
    for (name, value) in table {
        let wrong = wrong_one(value);
        ensure_key!(
            wrong.is_none(),
            format!("{of}.{name}"),
            "must be from 0 to 10^9, not {}",
            wrong.unwrap_or(value)
        );
    }
    Ok(())
}

pub fn checked_costs(costs: Table) -> Result<Costs> {
    check_numbers("costs", &costs)?;
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
    Ok(costs)
}

pub fn checked_kvm(kvm: Table) -> Result<Kvm> {
    check_numbers("kvm", &kvm)?;
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
    pub fn check(&self) -> Result<()> {
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

impl VmSpec {
    pub fn check(&self) -> Result<()> {
        let VmSpec { vcpus, count, memslots, work_scale, .. } = *self;
        ensure_key!((1..=1024).contains(&vcpus), "vcpus", "must be from 1 to 1,024, not {vcpus}");
        ensure_key!((1..=1024).contains(&count), "count", "must be from 1 to 1,024, not {count}");
        check_weight(self.weight)?;
        self.cpu_max.as_ref().map_or(Ok(()), check_quota)?;
        let of_own = self.weight == weight() && self.cpu_max.is_none();
        ensure_key!(of_own || self.own_cgroup, "own-cgroup", "weight and cpu-max need one");
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

    pub fn check_programs(&self) -> Result<()> {
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
}

/// `tg_set_cfs_bandwidth()`: 1 ms to 1 s.
pub fn check_quota(quota: &Quota) -> Result<()> {
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
pub fn check_weight(weight: u32) -> Result<()> {
    let fine = (1..=10_000).contains(&weight);
    ensure_key!(fine, "weight", "must be from 1 to 10,000, not {weight}");
    Ok(())
}
