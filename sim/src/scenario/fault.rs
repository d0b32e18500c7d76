// SPDX-License-Identifier: GPL-2.0-only
//! What happens to a host while it runs.

use anyhow::{Result, bail};

use super::check::{check_quota, check_weight, within};
use super::records::{FaultSpec, Scenario};
use crate::keys::{ensure_key, inside, wrong};
use crate::machine::{CpuSet, Ns};
use crate::sim::Fault;

impl Scenario {
    /// A fault: when, and what.
    pub(crate) fn fault(&self, place: usize, pcpus: u32, tasks: u64) -> Result<(Ns, Fault)> {
        let spec = &self.faults[place];
        let vms: u64 = self.vms.iter().map(|vm| u64::from(vm.count)).sum();
        self.cgroup(&spec.cgroup, self.cgroups.len())
            .and_then(|of| match of {
                Some(cgroup) => spec.fault_of_cgroup(vms as u32 + cgroup as u32),
                None => spec.fault(pcpus, vms, tasks),
            })
            .and_then(|fault| {
                let of_cgroup = spec.weight.is_some() || spec.cpu_max.is_some();
                let fine = !of_cgroup || spec.vm.is_none_or(|vm| self.has_own_cgroup(vm));
                ensure_key!(fine, "vm", "weight and cpu-max need a cgroup of its own");
                Ok(fault)
            })
            .map_err(|error| inside(format!("fault.{place}"), error))
    }

    /// The VM of this number, counted over all tables.
    fn has_own_cgroup(&self, vm: u32) -> bool {
        let mut all = self.vms.iter().flat_map(|spec| (0..spec.count).map(|_| spec.own_cgroup));
        all.nth(vm as usize).unwrap_or(true)
    }
}

impl FaultSpec {
    fn at(&self) -> Result<Ns> {
        let at_ms = self.at_ms;
        ensure_key!(within(at_ms, 0.0, 1e9), "at-ms", "must be from 0 to 10^9, not {at_ms}");
        Ok((at_ms * 1e6) as Ns)
    }

    fn fault_of_cgroup(&self, cgroup: u32) -> Result<(Ns, Fault)> {
        let whats = [self.offline, self.online, self.vm_ends, self.vm, self.task, self.weight];
        let alone = whats == [None; 6]
            && self.clock_jump_us.is_none()
            && self.exit_ms.is_none()
            && self.cpus.is_empty()
            && !self.leaves_guest;
        ensure_key!(alone, "cgroup", "comes with cpu-max, or alone: it has none from then on");
        self.cpu_max.as_ref().map_or(Ok(()), check_quota)?;
        Ok((self.at()?, Fault::Quota(cgroup, self.cpu_max)))
    }

    fn fault(&self, cpus: u32, vms: u64, tasks: u64) -> Result<(Ns, Fault)> {
        let at = self.at()?;
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
            ensure_key!(f.cpu_max.is_none(), "cpu-max", "needs a vm or a cgroup");
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
                 cpu-max or leaves-guest, cgroup with cpu-max or without, and task with cpus"
            ),
        };
        Ok((at, fault))
    }
}
