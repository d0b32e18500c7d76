// SPDX-License-Identifier: GPL-2.0-only
//! The guest's side of a vCPU: its kernel, its tasks, its locks.

use super::vcpu::{GUEST_SLICE_NS, Then};
use super::{EVER, Sim};
use crate::guest::{Act, Interrupt, LockKind, Op, Spin, TaskState};
use crate::machine::{NONE, Ns};
use crate::random::around;

impl Sim {
    /// How long this vCPU does what it does now, at full speed, if nothing happens; `None`: for
    /// ever.
    pub(super) fn plan(&mut self, v: u32) -> Option<Ns> {
        let at = v as usize;
        loop {
            let c = &mut self.vcpus[at];
            if !c.in_guest() {
                return Some(c.work);
            }
            if c.exited {
                c.enters();
                if let Some(slots) = &self.vms[c.vm as usize].slots {
                    let (how, random) = (self.kvm.memslots, &mut self.random);
                    c.work += slots.look_up(how, &self.costs, random, &mut c.gfn, &mut c.slot_hint);
                    continue;
                }
            }
            if !c.irqs.is_empty() && !matches!(c.act, Act::Irq(_)) {
                self.take_interrupt(v);
                continue;
            }
            match c.act {
                Act::Next => self.next_op(v),
                Act::Compute { .. } if c.left == 0 => c.act = Act::Next,
                Act::Compute { .. } if c.slice_ends() => self.rotate(v),
                Act::Compute { .. } => {
                    let shared = !c.runq.is_empty() && c.locks_held == 0;
                    return Some(if shared { c.left.min(c.slice_left) } else { c.left });
                }
                Act::Irq(irq) if c.left == 0 => self.interrupt_ends(v, irq),
                Act::Irq(_) => return Some(c.left),
                Act::Spin(spin) => {
                    let over = self.spin_is_over(v, spin);
                    if let Spin::Mutex(mutex) = spin
                        && !over
                        && !self.goes_on_spinning(v, mutex)
                    {
                        continue;
                    }
                    if over {
                        let c = &mut self.vcpus[at];
                        if let Spin::Lock(_) = spin {
                            c.locks_held += 1;
                        }
                        c.spin_count /= 2;
                        (c.act, c.left) = (Act::Compute { kernel: true }, self.costs.transfer_ns);
                        continue;
                    }
                    let c = &self.vcpus[at];
                    let in_mutex = matches!(spin, Spin::Mutex(_)) && !c.runq.is_empty();
                    let until = if in_mutex { c.slice_left } else { EVER };
                    let until = until.min(c.ple_left).min(c.pv_left);
                    return (until != EVER).then_some(until);
                }
                Act::Idle => {
                    if !c.runq.is_empty() || self.steal(v) {
                        self.vcpus[at].act = Act::Next;
                    } else if self.vms[self.vcpus[at].vm as usize].features.idle_poll {
                        return None;
                    } else {
                        let c = &mut self.vcpus[at];
                        c.exits(self.costs.exit_ns + self.costs.halt_ns);
                        c.then = Then::Halt;
                    }
                }
            }
        }
    }

    /// Its PAUSEs have made it exit, or it has spun long enough for a PV lock.
    pub(super) fn spin_ends(&mut self, v: u32, spin: Spin) {
        let pv_spin = self.pv_spin();
        let c = &mut self.vcpus[v as usize];
        if let Spin::Lock(lock) = spin
            && c.pv_left == 0
        {
            c.exits(self.costs.exit_ns + self.costs.halt_ns);
            c.then = Then::Halt;
            c.pv_left = pv_spin;
            self.next_waits_early(v, lock);
        } else if c.ple_left == 0 {
            c.exits(self.costs.exit_ns + self.costs.spin_exit_ns);
            c.then = Then::OnSpin;
            // kvm_vcpu_set_in_spin_loop(): until it enters the guest again
            c.in_spin_loop = true;
        }
        self.begin(v);
    }

    fn take_interrupt(&mut self, v: u32) {
        let c = &mut self.vcpus[v as usize];
        let Some(irq) = c.irqs.pop_front() else { return };
        let mut handler = self.costs.handler_ns;
        // The fast path also injects a timer's interrupt sooner.
        if matches!(irq, Interrupt::Task(_)) && !self.kvm.timer_fast {
            handler += self.costs.timer_fast_saves_ns;
        }
        match c.act {
            Act::Idle => c.act = Act::Next,
            Act::Next => {}
            act => c.stack.push((act, c.left)),
        }
        (c.act, c.left) = (Act::Irq(irq), handler);
        // Taken: whoever sent it is no longer owed anything.
        if c.irqs.is_empty() {
            c.ipi_from.fill(0);
        }
    }

    fn interrupt_ends(&mut self, v: u32, irq: Interrupt) {
        let at = v as usize;
        let c = &mut self.vcpus[at];
        (c.act, c.left) = c.stack.pop().unwrap_or((Act::Next, 0));
        match irq {
            Interrupt::Call(sender) => {
                let s = &mut self.vcpus[sender as usize];
                s.acks = s.acks.saturating_sub(1);
                if s.acks == 0 {
                    self.touched.push(sender);
                }
            }
            Interrupt::Reschedule => {}
            Interrupt::Task(task) => self.task_wakes(v, task),
        }
    }

    /// A timer or request has woken a task: it goes before what its vCPU does, if that can wait.
    fn task_wakes(&mut self, v: u32, task: u32) {
        let at = v as usize;
        let vm = self.vcpus[at].vm as usize;
        self.vms[vm].awake += 1;
        let t = &mut self.vms[vm].tasks[task as usize];
        (t.state, t.vcpu) = (TaskState::Ready, v);
        self.vcpus[at].runq.push_front(task);
        let c = &self.vcpus[at];
        let can_wait = matches!(c.act, Act::Compute { .. }) && c.locks_held == 0;
        if c.task != NONE && can_wait && c.stack.is_empty() {
            self.rotate(v);
        }
    }

    /// The next task of this vCPU goes on instead of the one that computes.
    pub(super) fn rotate(&mut self, v: u32) {
        let c = &mut self.vcpus[v as usize];
        let vm = c.vm as usize;
        if c.runq.is_empty() || c.task == NONE || c.locks_held > 0 {
            return;
        }
        let task = &mut self.vms[vm].tasks[c.task as usize];
        task.saved = Some((c.act, c.left));
        task.state = TaskState::Ready;
        let stops = c.task;
        c.runq.push_back(c.task);
        (c.task, c.act, c.left) = (NONE, Act::Next, 0);
        c.work += self.costs.guest_switch_ns;
        self.holder_stops(vm, stops);
    }

    /// A guest's idle vCPU looks for a task that waits for another vCPU.
    fn steal(&mut self, v: u32) -> bool {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        if vm.awake <= u64::from(vm.n) / 2 && vm.tasks.len() <= vm.n as usize {
            return false;
        }
        let (first, n) = (vm.first, vm.n);
        let busiest = (first..first + n)
            .filter(|other| self.vcpus[*other as usize].task != NONE)
            .max_by_key(|other| (self.vcpus[*other as usize].runq.len(), u32::MAX - other));
        let Some(task) = busiest.and_then(|other| self.vcpus[other as usize].runq.pop_back())
        else {
            return false;
        };
        self.vcpus[v as usize].runq.push_back(task);
        true
    }

    pub(super) fn spin_is_over(&mut self, v: u32, spin: Spin) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        match spin {
            Spin::Call => self.vcpus[v as usize].acks == 0,
            Spin::Barrier { round, .. } => self.vms[vm].round != round,
            Spin::Lock(lock) => {
                let kind = self.vms[vm].features.lock;
                let lock = self.vms[vm].lock(lock);
                if lock.holder == NONE && kind == LockKind::TestAndSet {
                    lock.holder = v;
                    lock.queue.retain(|waiter| *waiter != v);
                }
                lock.holder == v
            }
            Spin::Mutex(mutex) => self.tries(v, mutex),
        }
    }

    /// The tasks of this vCPU go on until one does something that takes time.
    fn next_op(&mut self, v: u32) {
        let at = v as usize;
        let vm = self.vcpus[at].vm as usize;
        let mut steps = 0;
        loop {
            steps += 1;
            if steps > 100_000 {
                self.failure = Some("a guest's program takes no time".into());
                self.vcpus[at].act = Act::Idle;
                return;
            }
            if !self.vcpus[at].in_guest() {
                return;
            }
            if self.vcpus[at].task != NONE && self.vcpus[at].slice_ends() {
                self.rotate(v);
                continue;
            }
            let Some(task) = self.current_task(v) else { return };
            let t = &mut self.vms[vm].tasks[task as usize];
            let op = t.program[t.pc];
            t.pc = (t.pc + 1) % t.program.len();
            if self.takes_time(v, task, op) {
                return;
            }
        }
    }

    /// The task of this vCPU, else the next one of those that wait for it; `None`: it is idle, or
    /// goes on with what the task was doing.
    fn current_task(&mut self, v: u32) -> Option<u32> {
        let c = &mut self.vcpus[v as usize];
        if c.task != NONE {
            return Some(c.task);
        }
        let Some(task) = c.runq.pop_front() else {
            c.act = Act::Idle;
            return None;
        };
        (c.task, c.slice_left) = (task, GUEST_SLICE_NS);
        let vm = c.vm as usize;
        let t = &mut self.vms[vm].tasks[task as usize];
        (t.state, t.vcpu) = (TaskState::Running, v);
        if t.deadline > 0 {
            let late = self.m.now.saturating_sub(t.deadline);
            t.deadline = 0;
            self.lateness[vm].saturating_record(late.max(1));
        }
        if let Some((act, left)) = t.saved.take() {
            match act {
                Act::Spin(spin) => self.spin(v, spin, EVER),
                act => (c.act, c.left) = (act, left),
            }
            return None;
        }
        Some(task)
    }

    /// A task does the next thing of its program. Whether the vCPU is busy with it now.
    fn takes_time(&mut self, v: u32, task: u32, op: Op) -> bool {
        let at = v as usize;
        let vm = self.vcpus[at].vm as usize;
        match op {
            Op::Compute { mean, spread, kernel } => {
                let left = around(&mut self.vms[vm].tasks[task as usize].random, mean, spread);
                (self.vcpus[at].act, self.vcpus[at].left) = (Act::Compute { kernel }, left);
                return true;
            }
            Op::Lock(lock) => return self.lock(v, lock),
            Op::Unlock(lock) => self.unlock(v, lock),
            Op::Mutex(number) => return self.acquire(v, task, number),
            Op::Release(number) => self.release(v, number),
            Op::Call | Op::CallOne => return self.call(v, op == Op::CallOne),
            Op::Barrier { pause } => return self.arrive(v, pause),
            Op::Post(semaphore) => {
                let s = self.vms[vm].semaphore(semaphore);
                match s.waiters.pop_front() {
                    Some(task) => self.wake_task(v, task),
                    None => s.count += 1,
                }
            }
            Op::Wait(semaphore) => {
                let s = self.vms[vm].semaphore(semaphore);
                if s.count > 0 {
                    s.count -= 1;
                    return false;
                }
                s.waiters.push_back(task);
                self.block(v, task);
                return self.is_deadlocked(vm);
            }
            Op::Sleep { mean, spread } => {
                let random = &mut self.vms[vm].tasks[task as usize].random;
                let sleep = around(random, mean, spread).max(1);
                let fast = if self.kvm.timer_fast { self.costs.timer_fast_saves_ns } else { 0 };
                self.vcpus[at].exits(self.costs.timer_ns.saturating_sub(fast));
                self.vms[vm].tasks[task as usize].deadline = self.m.now + sleep;
                self.block_until(v, task, self.m.now + sleep);
            }
            Op::Io { mean } => {
                self.vcpus[at].exits(self.costs.exit_ns);
                let there = self.costs.exit_ns + self.costs.io_path_ns + mean;
                self.block_until(v, task, self.m.now + there);
            }
            Op::Done => self.vms[vm].done += 1,
        }
        false
    }
}
