// SPDX-License-Identifier: GPL-2.0-only
//! What a guest's vCPUs send each other.

use rand_core::RngCore;

use super::vcpu::Then;
use super::{EVER, Sim};
use crate::guest::{Act, Interrupt, Spin, TaskState};
use crate::machine::{KvmEvent, NONE, State};

impl Sim {
    /// An IPI to N destinations.
    pub(super) fn send_icr(&mut self, v: u32, destinations: u64) {
        let (c, v) = (&self.costs, &mut self.vcpus[v as usize]);
        self.counts[v.vm as usize].ipis += destinations;
        if self.kvm.avic {
            v.work += c.avic_ns + (destinations - 1) * c.avic_more_ns;
            return;
        }
        // The fast path is for one destination.
        let fast = self.kvm.icr_fast && destinations == 1;
        let one = c.icr_ns.saturating_sub(if fast { c.icr_fast_saves_ns } else { 0 });
        let pv = self.vms[v.vm as usize].features.pv_ipi;
        v.exits(one + (destinations - 1) * if pv { c.icr_more_ns } else { one });
    }

    /// Interrupts others and waits; whether there is anybody to wait for.
    pub(super) fn call(&mut self, v: u32, one: bool) -> bool {
        let at = v as usize;
        let vm = self.vcpus[at].vm as usize;
        let (first, n) = (self.vms[vm].first, self.vms[vm].n);
        let skips = self.vms[vm].features.pv_tlb_flush;
        let busy = |w: &u32| {
            let c = &self.vcpus[*w as usize];
            *w != v && c.task != NONE && !(skips && c.preempted)
        };
        let targets: Vec<u32> = if one {
            if n < 2 {
                return false;
            }
            let random = &mut self.vms[vm].tasks[self.vcpus[at].task as usize].random;
            let step = 1 + (random.next_u64() % u64::from(n - 1)) as u32;
            vec![first + (v - first + step) % n]
        } else {
            (first..first + n).filter(busy).collect()
        };
        if targets.is_empty() {
            return false;
        }
        self.send_icr(v, targets.len() as u64);
        self.vcpus[at].acks = targets.len() as u32;
        self.spin(v, Spin::Call, EVER);
        let sender = (v - first) as usize;
        let mut preempted = None;
        for target in targets {
            let c = &mut self.vcpus[target as usize];
            c.ipi_flag = true;
            c.ipi_from[sender / 64] |= 1 << (sender % 64);
            if c.preempted {
                preempted = preempted.or(Some(target));
            }
            self.shows_ipi(v, target, "call IPI");
            self.deliver(target, Interrupt::Call(v));
        }
        if let Some(target) = preempted.filter(|_| self.vms[vm].features.sched_yield) {
            self.vcpus[at].exits(self.costs.exit_ns);
            self.vcpus[at].then = Then::YieldTo(target);
        }
        true
    }

    /// A task of the guest that waits becomes ready: on an idle vCPU if there is one.
    pub(super) fn wake_task(&mut self, v: u32, task: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let (first, n) = (self.vms[vm].first, self.vms[vm].n);
        self.vms[vm].awake += 1;
        let home = self.vms[vm].tasks[task as usize].vcpu;
        let idle = |w: u32| {
            let c = &self.vcpus[w as usize];
            c.act == Act::Idle && c.runq.is_empty() && c.task == NONE
        };
        let target = (0..n).map(|step| first + (home - first + step) % n).find(|w| idle(*w));
        let target = target.unwrap_or(home);
        let was_idle = idle(target);
        let t = &mut self.vms[vm].tasks[task as usize];
        (t.state, t.vcpu) = (TaskState::Ready, target);
        self.vcpus[target as usize].runq.push_back(task);
        if !was_idle {
            // What it does now lasts no longer than its slice.
            self.touched.extend((target != v).then_some(target));
            return;
        }
        if target == v {
            return;
        }
        if self.vms[vm].features.idle_poll {
            return self.touched.push(target);
        }
        self.send_icr(v, 1);
        self.shows_ipi(v, target, "reschedule IPI");
        self.deliver(target, Interrupt::Reschedule);
    }

    /// The scheduler's probe sees an IPI, and so does the trace.
    pub(super) fn shows_ipi(&mut self, from: u32, to: u32, name: &str) {
        let runs = self.m.task(to).state == State::Running;
        // AVIC delivers it to one that runs without an exit.
        if !(self.kvm.avic && runs) && self.seen() {
            let first = self.vms[self.vcpus[from as usize].vm as usize].first;
            let cpu = self.m.task(from).cpu;
            self.sched.kvm(&mut self.m, cpu, from, KvmEvent::IpiSent { to: to - first });
        }
        let Some(trace) = &mut self.trace else { return };
        match self.m.tasks[to as usize].state {
            State::Running => trace.arrow_now(self.m.now, from, to, name),
            _ => trace.arrow(self.m.now, from, to, name),
        }
    }
}
