// SPDX-License-Identifier: GPL-2.0-only
//! What follows from a scenario: its machine, its costs, its KVM, who may run where.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::builtin::MACHINES;
use super::check::{checked_costs, checked_kvm};
use super::records::{Host, Scenario, weight};
use super::schedulers;
use crate::keys::{did_you_mean, ensure_key, wrong};
use crate::kvm::Kvm;
use crate::machine::{Costs, Cpu, CpuSet};
use crate::topology::Where;

impl Scenario {
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

    /// The place of a cgroup among the first N.
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
        if !schedulers::is_fair(&self.scheduler) {
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
