// SPDX-License-Identifier: GPL-2.0-only
//! What happens to the host from outside.

use super::Sim;
use super::vcpu::Then;
use crate::machine::{CpuSet, NONE, Ns, Quota, State};

/// What happens to the host from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    Offline(u32),
    Online(u32),
    Affinity(u32, CpuSet),
    /// And how long each of its threads takes for that.
    VmEnds(u32, Ns),
    /// The `cpu.weight` of a VM's cgroup.
    Weight(u32, u32),
    /// The `cpu.max` of a VM's cgroup, or of one of those behind them.
    Quota(u32, Option<Quota>),
    /// A VM's threads go on without entering the guest.
    LeavesGuest(u32),
    ClockJumps(i64),
}

impl Sim {
    pub(super) fn fault(&mut self, number: u32) {
        match self.faults[number as usize].1.clone() {
            Fault::Offline(cpu) => {
                if self.m.online.len() < 2 || !self.m.cpus[cpu as usize].online {
                    return;
                }
                // Whoever may run nowhere else may run anywhere (select_fallback_rq()).
                self.m.online.remove(cpu);
                self.m.cpus[cpu as usize].online = false;
                for task in 0..self.m.tasks.len() as u32 {
                    let allowed = &self.m.task(task).allowed;
                    if allowed.first_common(&self.m.online, 0).is_none() {
                        let all = CpuSet::all(self.m.cpus.len());
                        self.set_affinity(task, all);
                    }
                }
                self.here = cpu;
                self.sched.cpu_changed(&mut self.m, cpu, false);
                if self.m.cpus[cpu as usize].curr != NONE {
                    self.schedule(cpu);
                }
            }
            Fault::Online(cpu) => {
                if !self.m.cpus[cpu as usize].online {
                    self.m.online.insert(cpu);
                    self.m.cpus[cpu as usize].online = true;
                    self.here = cpu;
                    self.sched.cpu_changed(&mut self.m, cpu, true);
                }
            }
            Fault::Affinity(task, allowed) => {
                let usable = allowed.first_common(&self.m.online, 0).is_some();
                if usable && self.m.task(task).state != State::Gone {
                    self.here = self.m.task(task).cpu;
                    self.set_affinity(task, allowed);
                }
            }
            Fault::VmEnds(vm, ns) => self.end_vm(vm, ns),
            Fault::Weight(vm, weight) => self.sched.weight_changes(&mut self.m, vm, weight),
            Fault::Quota(vm, quota) => self.sched.quota_changes(&mut self.m, vm, quota),
            Fault::LeavesGuest(vm) => self.sched.leaves_guest(vm),
            Fault::ClockJumps(ns) => self.sched.clock_jumps(ns),
        }
    }

    fn set_affinity(&mut self, task: u32, allowed: CpuSet) {
        self.m.tasks[task as usize].allowed = allowed;
        if self.m.task(task).state != State::Gone {
            self.sched.affinity_changed(&mut self.m, task);
        }
        if self.m.task(task).state == State::Running && !self.m.may_run(task, self.m.task(task).cpu)
        {
            self.m.resched(self.m.task(task).cpu);
        }
    }

    /// Its threads are killed: each ends as soon as it has run for `ns`.
    fn end_vm(&mut self, vm: u32, ns: Ns) {
        if std::mem::replace(&mut self.vms[vm as usize].ended, true) {
            return;
        }
        let (first, n) = (self.vms[vm as usize].first, self.vms[vm as usize].n);
        for vcpu in first..first + n {
            let state = self.m.task(vcpu).state;
            if state == State::Running {
                self.stop(vcpu);
            }
            let v = &mut self.vcpus[vcpu as usize];
            (v.work, v.then, v.polling) = (self.costs.exit_ns + ns, Then::Die, false);
            match state {
                State::Running => {
                    self.sched.exits(vcpu);
                    self.begin(vcpu);
                }
                State::Blocked => {
                    self.here = self.m.task(vcpu).cpu;
                    self.wake(vcpu);
                }
                State::Runnable | State::Gone => {}
            }
        }
    }

    pub(super) fn die(&mut self, cpu: u32, task: u32) {
        self.m.tasks[task as usize].state = State::Gone;
        self.schedule(cpu);
        self.sched.remove(&mut self.m, task);
        let vm = self.vcpus[task as usize].vm;
        let (first, n) = (self.vms[vm as usize].first, self.vms[vm as usize].n);
        if (first..first + n).all(|vcpu| self.m.task(vcpu).state == State::Gone) {
            self.sched.vm_ends(&mut self.m, vm);
        }
    }
}
