// SPDX-License-Identifier: GPL-2.0-only
//! The guest's side of a vCPU: its kernel, its tasks, its locks.

use rand_core::RngCore;

use super::{EVER, Sim, Then};
use crate::guest::{Act, Interrupt, LockKind, Op, Spin, TaskState};
use crate::machine::{KvmEvent, NONE, Ns, State};
use crate::queue::Event;

/// A task of a guest runs so long before another one of its vCPU: a tick at HZ=250.
const GUEST_SLICE_NS: Ns = 4_000_000;

/// Spins of a waiter for a PV lock before it halts: SPIN_THRESHOLD, 2^15 times around, about this.
const PV_SPIN_NS: Ns = 100_000;

impl Sim {
    /// How long this vCPU does what it does now, at full speed, if nothing happens; `None`: for ever.
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
                Act::Compute { .. } => {
                    let shared = !c.runq.is_empty() && c.locks_held == 0;
                    return Some(if shared { c.left.min(GUEST_SLICE_NS) } else { c.left });
                }
                Act::Irq(irq) if c.left == 0 => self.interrupt_ends(v, irq),
                Act::Irq(_) => return Some(c.left),
                Act::Spin(spin) => {
                    if let Spin::Mutex(mutex) = spin
                        && !self.spin_is_over(v, spin)
                        && !self.holder_runs(v, mutex)
                    {
                        self.sleeps_for(v, mutex);
                        continue;
                    }
                    if self.spin_is_over(v, spin) {
                        let c = &mut self.vcpus[at];
                        if let Spin::Lock(_) = spin {
                            c.locks_held += 1;
                        }
                        c.spin_count /= 2;
                        (c.act, c.left) = (Act::Compute { kernel: true }, self.costs.transfer_ns);
                        continue;
                    }
                    let c = &self.vcpus[at];
                    let until = c.ple_left.min(c.pv_left);
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
        let c = &mut self.vcpus[v as usize];
        if c.pv_left == 0 && matches!(spin, Spin::Lock(_)) {
            c.exits(self.costs.exit_ns + self.costs.halt_ns);
            c.then = Then::Halt;
            c.pv_left = PV_SPIN_NS;
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
            Spin::Mutex(mutex) => {
                let task = self.vcpus[v as usize].task;
                let mutex = self.vms[vm].mutex(mutex);
                if mutex.holder == NONE {
                    (mutex.holder, mutex.spinner) = (task, NONE);
                }
                mutex.holder == task
            }
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
            let mut task = self.vcpus[at].task;
            if task == NONE {
                let Some(next) = self.vcpus[at].runq.pop_front() else {
                    self.vcpus[at].act = Act::Idle;
                    return;
                };
                task = next;
                self.vcpus[at].task = task;
                let t = &mut self.vms[vm].tasks[task as usize];
                (t.state, t.vcpu) = (TaskState::Running, v);
                if t.deadline > 0 {
                    let late = self.m.now.saturating_sub(t.deadline);
                    t.deadline = 0;
                    self.lateness[vm].saturating_record(late.max(1));
                }
                if let Some((act, left)) = t.saved.take() {
                    (self.vcpus[at].act, self.vcpus[at].left) = (act, left);
                    return;
                }
            }
            let t = &mut self.vms[vm].tasks[task as usize];
            let op = t.program[t.pc];
            t.pc = (t.pc + 1) % t.program.len();
            match op {
                Op::Compute { mean, spread, kernel } => {
                    let left = self.sample(mean, spread);
                    (self.vcpus[at].act, self.vcpus[at].left) = (Act::Compute { kernel }, left);
                    return;
                }
                Op::Lock(lock) => {
                    let l = self.vms[vm].lock(lock);
                    if l.holder == NONE {
                        l.holder = v;
                        self.vcpus[at].locks_held += 1;
                        continue;
                    }
                    l.queue.push_back(v);
                    let pv = self.vms[vm].features.lock == LockKind::PvQueued;
                    self.spin(v, Spin::Lock(lock), if pv { PV_SPIN_NS } else { EVER });
                    return;
                }
                Op::Unlock(lock) => self.unlock(v, lock),
                Op::Mutex(number) => {
                    let m = self.vms[vm].mutex(number);
                    if m.holder == NONE {
                        m.holder = task;
                        continue;
                    }
                    if m.spinner == NONE && self.holder_runs(v, number) {
                        self.vms[vm].mutex(number).spinner = v;
                        self.spin(v, Spin::Mutex(number), EVER);
                        return;
                    }
                    self.vms[vm].mutex(number).sleepers.push_back(task);
                    self.block(v, task);
                    if self.is_deadlocked(vm) {
                        return;
                    }
                }
                Op::Release(number) => self.release(v, number),
                Op::Call | Op::CallOne => {
                    if self.call(v, op == Op::CallOne) {
                        return;
                    }
                }
                Op::Barrier { pause } => {
                    let tasks = self.vms[vm].tasks.len() as u32;
                    let state = &mut self.vms[vm];
                    state.arrived += 1;
                    if state.arrived < tasks {
                        let round = state.round;
                        self.spin(v, Spin::Barrier { round, pause }, EVER);
                        return;
                    }
                    (state.arrived, state.round) = (0, state.round + 1);
                    let (first, n) = (state.first, state.n);
                    let waits = |v: &u32| {
                        matches!(self.vcpus[*v as usize].act, Act::Spin(Spin::Barrier { .. }))
                    };
                    let waiting: Vec<u32> = (first..first + n).filter(waits).collect();
                    self.touched.extend(waiting);
                }
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
                        continue;
                    }
                    s.waiters.push_back(task);
                    self.block(v, task);
                    if self.is_deadlocked(vm) {
                        return;
                    }
                }
                Op::Sleep { mean, spread } => {
                    let sleep = self.sample(mean, spread).max(1);
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
        }
    }

    /// `mutex_spin_on_owner()`: a holder that sleeps, or whose vCPU is preempted, is not waited for.
    fn holder_runs(&self, v: u32, mutex: u32) -> bool {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        let Some(holder) = vm.tasks.get(vm.mutexes[mutex as usize].holder as usize) else {
            return true;
        };
        holder.state == TaskState::Running && !self.vcpus[holder.vcpu as usize].preempted
    }

    /// The vCPU that spins for this mutex spins no more.
    fn sleeps_for(&mut self, v: u32, mutex: u32) {
        let c = &mut self.vcpus[v as usize];
        let (vm, task) = (c.vm as usize, c.task);
        c.act = Act::Next;
        let m = self.vms[vm].mutex(mutex);
        m.spinner = NONE;
        m.sleepers.push_back(task);
        self.block(v, task);
    }

    /// `__mutex_unlock_slowpath()`: to one that spins now; else the first that sleeps is woken and
    /// gets it (the hand-off that ends stealing).
    fn release(&mut self, v: u32, number: u32) {
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

    /// A task no longer runs on its vCPU, or its vCPU on no pCPU: who spins for its mutex looks again.
    pub(super) fn holder_stops(&mut self, vm: usize, task: u32) {
        for mutex in &self.vms[vm].mutexes {
            if mutex.holder == task && mutex.spinner != NONE {
                self.touched.push(mutex.spinner);
            }
        }
    }

    fn block(&mut self, v: u32, task: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        self.holder_stops(vm, task);
        self.vms[vm].tasks[task as usize].state = TaskState::Blocked;
        self.vms[vm].awake -= 1;
        let c = &mut self.vcpus[v as usize];
        c.task = NONE;
        c.work += self.costs.guest_switch_ns;
    }

    fn block_until(&mut self, v: u32, task: u32, at: Ns) {
        self.block(v, task);
        self.vms[self.vcpus[v as usize].vm as usize].pending += 1;
        self.vcpus[v as usize].wakes.push(at);
        self.queue.push(at, Event::Guest(v, task));
    }

    /// Nobody can go on, and nothing will come: the failure says who waits for what.
    fn is_deadlocked(&mut self, vm: usize) -> bool {
        let dead = self.vms[vm].awake == 0 && self.vms[vm].pending == 0;
        if dead {
            self.failure = Some(self.deadlock(vm));
        }
        dead
    }

    fn deadlock(&self, vm: usize) -> String {
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

    fn spin(&mut self, v: u32, spin: Spin, pv_left: Ns) {
        let c = &mut self.vcpus[v as usize];
        (c.act, c.left) = (Act::Spin(spin), EVER);
        let exits = self.kvm.ple && pauses(spin) && (c.act.kernel() || self.kvm.ple_user);
        (c.ple_left, c.pv_left) = (if exits { c.window } else { EVER }, pv_left);
    }

    fn unlock(&mut self, v: u32, lock: u32) {
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

    /// An IPI to so many destinations.
    fn send_icr(&mut self, v: u32, destinations: u64) {
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
    fn call(&mut self, v: u32, one: bool) -> bool {
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
            let step = 1 + (self.random.next_u64() % u64::from(n - 1)) as u32;
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
    fn wake_task(&mut self, v: u32, task: u32) {
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
        if target == v || !was_idle {
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
    fn shows_ipi(&mut self, from: u32, to: u32, name: &str) {
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

/// Barriers in user mode may do without.
fn pauses(spin: Spin) -> bool {
    match spin {
        Spin::Barrier { pause, .. } => pause,
        Spin::Lock(_) | Spin::Mutex(_) | Spin::Call => true,
    }
}
