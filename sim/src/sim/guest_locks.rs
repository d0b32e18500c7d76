// SPDX-License-Identifier: GPL-2.0-only
//! Guests' spinlocks and barriers: who spins, who gets them. And how a guest's task goes to sleep.

use super::vcpu::Then;
use super::{EVER, Sim};
use crate::guest::{Act, LockKind, Spin, TaskState};
use crate::machine::{NONE, Ns, State};
use crate::queue::Event;

/// PAUSEs of a waiter for a PV lock before it halts: SPIN_THRESHOLD of
/// arch/x86/include/asm/spinlock.h; and between looks at the one before it in line
/// (PV_PREV_CHECK_MASK).
const PV_PAUSES: Ns = 1 << 15;
const PV_LOOK_PAUSES: Ns = 256;

impl Sim {
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
            let tasks: Vec<String> = m.waiters.iter().map(u32::to_string).collect();
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

    /// How long a waiter for a PV lock spins.
    pub(super) fn pv_spin(&self) -> Ns {
        PV_PAUSES * self.costs.pause_ns
    }

    /// `pv_wait_early()`: who is behind one that halts in the line for a PV lock halts as well.
    pub(super) fn next_waits_early(&mut self, v: u32, lock: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let line = &self.vms[vm].lock(lock).queue;
        let place = line.iter().position(|waiter| *waiter == v);
        if let Some(next) = place.and_then(|place| line.get(place + 1)).copied() {
            let c = &mut self.vcpus[next as usize];
            c.pv_left = c.pv_left.min(PV_LOOK_PAUSES * self.costs.pause_ns);
            self.touched.push(next);
        }
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
        let before = l.queue.back().copied();
        l.queue.push_back(v);
        let halts = before.is_some_and(|before| self.m.task(before).state == State::Blocked);
        let pauses = if halts { PV_LOOK_PAUSES } else { PV_PAUSES };
        let pv = self.vms[vm].features.lock == LockKind::PvQueued;
        self.spin(v, Spin::Lock(lock), if pv { pauses * self.costs.pause_ns } else { EVER });
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
