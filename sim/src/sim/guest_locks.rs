// SPDX-License-Identifier: GPL-2.0-only
//! Guests' locks: who spins, who sleeps, who gets them.

use super::vcpu::Then;
use super::{EVER, Sim};
use crate::guest::{Act, LockKind, Spin, TaskState};
use crate::machine::{NONE, Ns, State};
use crate::queue::Event;

/// Spins of a waiter for a PV lock before it halts: SPIN_THRESHOLD, 2^15 times around, about this.
pub const PV_SPIN_NS: Ns = 100_000;

impl Sim {
    /// `mutex_spin_on_owner()`: a holder that sleeps, or whose vCPU is preempted, is not waited
    /// for.
    pub(super) fn holder_runs(&self, v: u32, mutex: u32) -> bool {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        let Some(holder) = vm.tasks.get(vm.mutexes[mutex as usize].holder as usize) else {
            return true;
        };
        holder.state == TaskState::Running && !self.vcpus[holder.vcpu as usize].preempted
    }

    /// The vCPU that spins for this mutex spins no more.
    pub(super) fn sleeps_for(&mut self, v: u32, mutex: u32) {
        let c = &mut self.vcpus[v as usize];
        let (vm, task) = (c.vm as usize, c.task);
        c.act = Act::Next;
        let m = self.vms[vm].mutex(mutex);
        m.spinner = NONE;
        m.sleepers.push_back(task);
        self.block(v, task);
    }

    /// `mutex_lock()`. Whether it spins for it, or nobody can go on any more.
    pub(super) fn acquire(&mut self, v: u32, task: u32, number: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let m = self.vms[vm].mutex(number);
        if m.holder == NONE {
            m.holder = task;
            return false;
        }
        if m.spinner == NONE && self.holder_runs(v, number) {
            self.vms[vm].mutex(number).spinner = v;
            self.spin(v, Spin::Mutex(number), EVER);
            return true;
        }
        self.vms[vm].mutex(number).sleepers.push_back(task);
        self.block(v, task);
        self.is_deadlocked(vm)
    }

    /// `__mutex_unlock_slowpath()`: to one that spins now; else the first that sleeps is woken and
    /// gets it (the hand-off that ends stealing).
    pub(super) fn release(&mut self, v: u32, number: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let spinner = self.vms[vm].mutex(number).spinner;
        let spins = spinner != NONE && self.m.task(spinner).state == State::Running;
        let spinner_task = self.vcpus.get(spinner as usize).map_or(NONE, |c| c.task);
        let m = self.vms[vm].mutex(number);
        m.holder = NONE;
        if spins {
            (m.holder, m.spinner) = (spinner_task, NONE);
            self.touched.push(spinner);
        } else if let Some(task) = m.sleepers.pop_front() {
            m.holder = task;
            self.wake_task(v, task);
        }
    }

    /// A task no longer runs on its vCPU, or its vCPU on no pCPU: who spins for its mutex looks
    /// again.
    pub(super) fn holder_stops(&mut self, vm: usize, task: u32) {
        for mutex in &self.vms[vm].mutexes {
            if mutex.holder == task && mutex.spinner != NONE {
                self.touched.push(mutex.spinner);
            }
        }
    }

    pub(super) fn block(&mut self, v: u32, task: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        self.holder_stops(vm, task);
        self.vms[vm].tasks[task as usize].state = TaskState::Blocked;
        self.vms[vm].awake -= 1;
        let c = &mut self.vcpus[v as usize];
        c.task = NONE;
        c.work += self.costs.guest_switch_ns;
    }

    pub(super) fn block_until(&mut self, v: u32, task: u32, at: Ns) {
        self.block(v, task);
        self.vms[self.vcpus[v as usize].vm as usize].pending += 1;
        self.vcpus[v as usize].wakes.push(at);
        self.queue.push(at, Event::Guest(v, task));
    }

    /// Nobody can go on, and nothing will come: the failure says who waits for what.
    pub(super) fn is_deadlocked(&mut self, vm: usize) -> bool {
        let dead = self.vms[vm].awake == 0 && self.vms[vm].pending == 0;
        if dead {
            self.failure = Some(self.deadlock(vm));
        }
        dead
    }

    pub(super) fn deadlock(&self, vm: usize) -> String {
        let waits = self.vms[vm].semaphores.iter().enumerate().filter_map(|(place, s)| {
            let tasks: Vec<String> = s.waiters.iter().map(u32::to_string).collect();
            (!tasks.is_empty()).then(|| format!("tasks {} for futex {place}", tasks.join(", ")))
        });
        let mutexes = self.vms[vm].mutexes.iter().enumerate().filter_map(|(place, m)| {
            let tasks: Vec<String> = m.sleepers.iter().map(u32::to_string).collect();
            let tasks = (!tasks.is_empty()).then(|| tasks.join(", "))?;
            Some(format!("tasks {tasks} for mutex {place}, which task {} has", m.holder))
        });
        let waits: Vec<String> = waits.chain(mutexes).collect();
        format!("the workload of VM {vm} is deadlocked: {}", waits.join("; "))
    }

    pub(super) fn spin(&mut self, v: u32, spin: Spin, pv_left: Ns) {
        let c = &mut self.vcpus[v as usize];
        (c.act, c.left) = (Act::Spin(spin), EVER);
        let exits = self.kvm.ple && pauses(spin) && (c.act.kernel() || self.kvm.ple_user);
        (c.ple_left, c.pv_left) = (if exits { c.window } else { EVER }, pv_left);
    }

    /// Takes a spinlock. Whether it spins for it.
    pub(super) fn lock(&mut self, v: u32, lock: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let l = self.vms[vm].lock(lock);
        if l.holder == NONE {
            l.holder = v;
            self.vcpus[v as usize].locks_held += 1;
            return false;
        }
        l.queue.push_back(v);
        let pv = self.vms[vm].features.lock == LockKind::PvQueued;
        self.spin(v, Spin::Lock(lock), if pv { PV_SPIN_NS } else { EVER });
        true
    }

    pub(super) fn unlock(&mut self, v: u32, lock: u32) {
        let at = v as usize;
        let vm = self.vcpus[at].vm as usize;
        let features = &self.vms[vm].features;
        let (kind, kick_yields) = (features.lock, features.kick_yields);
        self.vcpus[at].locks_held = self.vcpus[at].locks_held.saturating_sub(1);
        let l = self.vms[vm].lock(lock);
        debug_assert_eq!(l.holder, v);
        l.holder = NONE;
        if kind == LockKind::TestAndSet {
            // The first that spins right now; one that is preempted looks when it runs.
            let runs = |w: &u32| {
                let c = &self.vcpus[*w as usize];
                self.m.task(*w).state == State::Running && c.work == 0 && c.stack.is_empty()
            };
            let place = l.queue.iter().position(runs);
            if let Some(next) = place.and_then(|place| l.queue.remove(place)) {
                l.holder = next;
                self.touched.push(next);
            }
            return;
        }
        let Some(next) = l.queue.pop_front() else { return };
        l.holder = next;
        match self.m.task(next).state {
            State::Running => self.touched.push(next),
            State::Blocked => {
                // KVM_HC_KICK_CPU
                self.vcpus[at].exits(self.costs.exit_ns);
                self.shows_ipi(v, next, "PV kick");
                self.wake(next);
            }
            State::Runnable if kind == LockKind::PvQueued && kick_yields => {
                self.vcpus[at].exits(self.costs.exit_ns);
                self.vcpus[at].then = Then::YieldTo(next);
            }
            State::Runnable | State::Gone => {}
        }
    }

    /// Comes to the barrier. Whether it waits for others; the last one wakes all.
    pub(super) fn arrive(&mut self, v: u32, pause: bool) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let state = &mut self.vms[vm];
        state.arrived += 1;
        if state.arrived < state.tasks.len() as u32 {
            let round = state.round;
            self.spin(v, Spin::Barrier { round, pause }, EVER);
            return true;
        }
        (state.arrived, state.round) = (0, state.round + 1);
        let (first, n) = (state.first, state.n);
        let waits =
            |v: &u32| matches!(self.vcpus[*v as usize].act, Act::Spin(Spin::Barrier { .. }));
        let waiting: Vec<u32> = (first..first + n).filter(waits).collect();
        self.touched.extend(waiting);
        false
    }
}

/// Barriers in user mode may do without.
fn pauses(spin: Spin) -> bool {
    match spin {
        Spin::Barrier { pause, .. } => pause,
        Spin::Lock(_) | Spin::Mutex(_) | Spin::Call => true,
    }
}
