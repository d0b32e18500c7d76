// SPDX-License-Identifier: GPL-2.0-only
//! pCPUs and their threads: who runs, since when, and how far it got.

use super::kvm_side::bucket;
use super::{EVER, HostThread, Segment, Sim, Then};
use crate::guest::Act;
use crate::kvm::HaltPoll;
use crate::locks::Lock;
use crate::machine::{KvmEvent, NONE, Ns, State};
use crate::queue::Event;
use crate::random::around;

impl Sim {
    /// What it takes an idle pCPU to run again.
    pub(super) fn idle_exit(&self, cpu: u32) -> Ns {
        let idle = self.m.now - self.idle_since[cpu as usize];
        let states = self.costs.idle_exits.iter();
        states.filter(|(from, _)| idle >= *from).map(|(_, exit)| *exit).max().unwrap_or(0)
    }

    pub(super) fn tick(&mut self, cpu: u32) {
        let curr = self.m.cpus[cpu as usize].curr;
        self.ticking[cpu as usize] = curr != NONE;
        if curr == NONE {
            return;
        }
        self.events += 1;
        self.here = cpu;
        self.queue.push(self.m.now + self.m.tick_ns, Event::Tick(cpu));
        if self.is_vcpu(curr) && self.vcpus[curr as usize].in_guest() {
            // The host's interrupt takes it out and in again.
            let at = curr as usize;
            let v = &self.vcpus[at];
            let spins = self.segments[at].on && matches!(v.act, Act::Spin(_)) && v.ple_left != EVER;
            if spins {
                self.stop(curr);
            }
            self.vcpus[at].enters();
            if spins {
                self.begin(curr);
            }
        }
        self.sched.tick(&mut self.m, cpu);
        self.waits_for_locks(cpu);
    }

    /// What the scheduler has just done on `cpu` has waited for locks.
    pub(super) fn waits_for_locks(&mut self, cpu: u32) {
        self.lock_waits[cpu as usize] += self.m.locks.waited();
    }

    pub(super) fn wake(&mut self, task: u32) {
        let t = &mut self.m.tasks[task as usize];
        debug_assert_eq!(t.state, State::Blocked);
        t.state = State::Runnable;
        t.since = self.m.now;
        if self.is_vcpu(task) {
            self.is_ready(task, true);
        }
        if self.m.task(task).new {
            self.sched.fork(&mut self.m, task);
        }
        self.sched.wake(&mut self.m, task, self.here);
        self.m.tasks[task as usize].new = false;
        self.m.lock(Lock::Runqueue(self.m.task(task).cpu), self.here);
        self.waits_for_locks(self.here);
        // single_task_running() ends the polling, too.
        let cpu = self.m.task(task).cpu;
        let curr = self.m.cpus[cpu as usize].curr;
        let polls = curr != NONE && self.is_vcpu(curr) && self.vcpus[curr as usize].polling;
        if polls && self.sched.nr_running(&self.m, cpu) > 1 {
            self.m.resched(cpu);
        }
    }

    fn is_ready(&mut self, v: u32, ready: bool) {
        let vm = &mut self.vms[self.vcpus[v as usize].vm as usize];
        if ready {
            vm.ready.insert(v - vm.first);
        } else {
            vm.ready.remove(v - vm.first);
        }
    }

    pub(super) fn poll_limit(&self) -> Ns {
        match self.kvm.halt_poll {
            HaltPoll::Off => 0,
            HaltPoll::Fixed(ns) | HaltPoll::Adaptive(ns) | HaltPoll::Clairvoyant(ns) => ns,
            HaltPoll::Governed(_) => self.governed_ns,
        }
    }

    /// The pCPU chooses whom to run.
    pub(super) fn schedule(&mut self, cpu: u32) {
        let at = cpu as usize;
        self.m.cpus[at].resched = false;
        let prev = self.m.cpus[at].curr;
        let (mut runnable, mut in_guest) = (false, false);
        if prev != NONE {
            self.stop(prev);
            if self.is_vcpu(prev) {
                let v = &mut self.vcpus[prev as usize];
                in_guest = v.in_guest();
                v.exits(0);
                // need_resched() ends the polling, and the thread goes to sleep.
                if self.vcpus[prev as usize].polling {
                    self.poll_missed(prev);
                    self.m.tasks[prev as usize].state = State::Blocked;
                }
            }
            runnable = self.m.task(prev).state == State::Running;
        }
        let must_leave = runnable && !self.m.may_run(prev, cpu);
        let was = (prev != NONE).then_some((prev, runnable && !must_leave));
        self.m.lock(Lock::Runqueue(cpu), cpu);
        let next = self.sched.pick(&mut self.m, cpu, was).unwrap_or(NONE);
        self.waits_for_locks(cpu);
        if next != NONE {
            // What it asked for itself meanwhile is done.
            self.m.cpus[at].resched = false;
        }
        if next == prev && runnable {
            if in_guest {
                self.vcpus[next as usize].exits(self.costs.resched_ns);
            }
            if next != NONE {
                self.m.cpus[at].curr = next;
                self.begin(next);
            }
            return;
        }
        self.m.cpus[at].curr = next;
        if next == NONE {
            self.idle_since[at] = self.m.now;
        }
        if prev != NONE {
            self.sched_out(cpu, prev, runnable);
        }
        if next != NONE {
            self.sched_in(cpu, next, prev == NONE);
        }
        self.sibling_changed(cpu, (prev == NONE) != (next == NONE));
        if must_leave {
            // migrate to where it may run: out of this queue, into another
            self.m.tasks[prev as usize].state = State::Blocked;
            if self.is_vcpu(prev) {
                self.vcpus[prev as usize].halted_at = 0;
            }
            self.wake(prev);
        }
    }

    fn sched_out(&mut self, cpu: u32, task: u32, runnable: bool) {
        let now = self.m.now;
        if let Some(trace) = &mut self.trace {
            trace.stops(now, cpu, task);
        }
        let t = &mut self.m.tasks[task as usize];
        if runnable {
            t.state = State::Runnable;
        }
        t.since = now;
        if self.is_vcpu(task) {
            let v = &mut self.vcpus[task as usize];
            // kvm_sched_out()
            v.preempted = runnable;
            v.in_kernel = v.act.kernel();
            if runnable {
                let (vm, guest_task) = (v.vm as usize, v.task);
                self.is_ready(task, true);
                self.holder_stops(vm, guest_task);
            }
        }
    }

    fn sched_in(&mut self, cpu: u32, task: u32, was_idle: bool) {
        let now = self.m.now;
        let t = &mut self.m.tasks[task as usize];
        let waited = now - t.since;
        t.waited += waited;
        t.longest_wait = t.longest_wait.max(waited);
        t.state = State::Running;
        t.cpu = cpu;
        t.since = now;
        let before = std::mem::replace(&mut t.ran_on, cpu);
        let moves = self.moves(task, before, cpu);
        if let Some(trace) = &mut self.trace {
            trace.runs(now, cpu, task);
        }
        self.sched.started(&mut self.m, cpu, task);
        if self.is_vcpu(task) && self.vcpus[task as usize].then == Then::Die {
            self.sched.exits(task);
        }
        if self.is_vcpu(task) {
            let window = self.kvm.ple_window_ns;
            let v = &mut self.vcpus[task as usize];
            v.preempted = false;
            v.window = window;
            v.exits(self.costs.switch_ns + moves);
            self.clear_vmcs(task, before, cpu);
            self.is_ready(task, false);
            self.sched.kvm(&mut self.m, cpu, task, KvmEvent::VcpuLoaded);
            self.adapts_polling(task);
            self.vcpus[task as usize].halted_at = 0;
            if self.vcpus[task as usize].in_halt > 0 {
                self.halts.wakeups[bucket(waited)] += 1;
            }
            self.leaves_halt(task);
        } else {
            self.threads[task as usize - self.vcpus.len()].work += self.costs.switch_ns + moves;
        }
        if was_idle && !self.ticking[cpu as usize] {
            self.ticking[cpu as usize] = true;
            let apart = self.m.tick_ns * u64::from(cpu) / self.m.cpus.len() as u64;
            let phase = if self.m.staggered_ticks { apart } else { 0 };
            let next = (now - phase.min(now)) / self.m.tick_ns * self.m.tick_ns + phase;
            let next = if next <= now { next + self.m.tick_ns } else { next };
            self.queue.push(next, Event::Tick(cpu));
        }
        self.begin(task);
    }

    /// What it costs a task that ran on one pCPU to start on another.
    fn moves(&mut self, task: u32, before: u32, cpu: u32) -> Ns {
        if before == NONE || before == cpu {
            return 0;
        }
        let distance = self.m.distance(before, cpu);
        if self.is_vcpu(task) {
            let vm = self.vcpus[task as usize].vm;
            self.counts[vm as usize].moves[distance] += 1;
        } else {
            self.thread_moves[distance] += 1;
        }
        let t = &mut self.m.tasks[task as usize];
        let ran = t.ran - std::mem::replace(&mut t.moved_at, t.ran);
        self.costs.move_ns[distance].min(ran)
    }

    /// A vCPU that ran on one pCPU is loaded on another.
    fn clear_vmcs(&mut self, v: u32, before: u32, cpu: u32) {
        if before == NONE || before == cpu || self.costs.migrate_ns == 0 {
            return;
        }
        self.vcpus[v as usize].exits(self.costs.migrate_ns);
        let there = self.m.cpus[before as usize].curr;
        if there != NONE
            && self.is_vcpu(there)
            && self.segments[there as usize].on
            && self.vcpus[there as usize].in_guest()
        {
            self.stop(there);
            self.vcpus[there as usize].exits(self.costs.exit_ns);
            self.begin(there);
        }
    }

    /// The other hyper-thread gets faster, or slower.
    fn sibling_changed(&mut self, cpu: u32, changed: bool) {
        let sibling = self.m.cpus[cpu as usize].sibling;
        if !changed || sibling == NONE {
            return;
        }
        let curr = self.m.cpus[sibling as usize].curr;
        if curr != NONE && self.segments[curr as usize].on {
            self.stop(curr);
            self.begin(curr);
        }
    }

    /// What it has done until now, no more.
    pub(super) fn stop(&mut self, task: u32) {
        let segment = &mut self.segments[task as usize];
        if !segment.on {
            return;
        }
        segment.on = false;
        let (passed, slow) = (self.m.now - segment.start, segment.slow);
        self.queue.forget_segment(task);
        self.m.tasks[task as usize].ran += passed;
        let mut done = if slow { (passed as f64 * self.costs.smt_share) as Ns } else { passed };
        if !self.is_vcpu(task) {
            let at = task as usize - self.vcpus.len();
            let thread = &mut self.threads[at];
            let work = done.min(thread.work);
            thread.work -= work;
            thread.left = thread.left.saturating_sub(done - work);
            return;
        }
        let v = &mut self.vcpus[task as usize];
        let work = done.min(v.work);
        v.work -= work;
        if v.polling {
            self.counts[v.vm as usize].poll_ns += work;
            *self.halts.polled_ns.get_or_insert(0) += work;
        }
        done -= work;
        if v.left != EVER {
            v.left = v.left.saturating_sub(done);
        }
        v.uses_slice(done);
        if let Act::Spin(_) = v.act {
            if v.ple_left != EVER {
                v.ple_left = v.ple_left.saturating_sub(done);
            }
            if v.pv_left != EVER {
                v.pv_left = v.pv_left.saturating_sub(done);
            }
            let whole = if slow { (done as f64 / self.costs.smt_share) as Ns } else { done };
            self.counts[v.vm as usize].spin_ns += whole;
        }
    }

    pub(super) fn begin(&mut self, task: u32) {
        let cpu = self.m.task(task).cpu as usize;
        let waits = std::mem::take(&mut self.lock_waits[cpu]);
        if waits > 0 && self.is_vcpu(task) {
            self.vcpus[task as usize].exits(waits);
        } else if waits > 0 {
            self.threads[task as usize - self.vcpus.len()].work += waits;
        }
        let length = if self.is_vcpu(task) {
            self.plan(task)
        } else {
            let thread = &self.threads[task as usize - self.vcpus.len()];
            Some(thread.work + thread.left)
        };
        let sibling = self.m.cpus[cpu].sibling;
        let shares = sibling != NONE && self.m.cpus[sibling as usize].curr != NONE;
        let slow = shares && !(self.is_vcpu(task) && self.vcpus[task as usize].waits_by_clock());
        self.segments[task as usize] = Segment { start: self.m.now, on: true, slow };
        if let Some(length) = length {
            let length =
                if slow { (length as f64 / self.costs.smt_share).ceil() as Ns } else { length };
            self.queue.push(self.m.now + length, Event::Segment(task));
        }
    }

    pub(super) fn segment_ends(&mut self, task: u32) {
        self.stop(task);
        let cpu = self.m.task(task).cpu;
        if !self.is_vcpu(task) {
            let at = task as usize - self.vcpus.len();
            let thread = &mut self.threads[at];
            if thread.left == 0 && thread.work == 0 {
                thread.done += 1;
                let HostThread { run, sleep, spread, ends, .. } = *thread;
                (thread.left, thread.work) = (around(&mut thread.random, run, spread).max(1), 0);
                if sleep > 0 || ends {
                    let sleep = around(&mut thread.random, sleep, spread).max(1);
                    self.m.tasks[task as usize].state = State::Blocked;
                    self.queue.push(self.m.now + sleep, Event::Host(task));
                    if ends {
                        self.sched.exits(task);
                    }
                    self.schedule(cpu);
                    if ends {
                        self.sched.remove(&mut self.m, task);
                        self.m.tasks[task as usize].new = true;
                    }
                    return;
                }
            }
            return self.begin(task);
        }
        let v = &self.vcpus[task as usize];
        if v.work > 0 {
            // Rounding of a slow hyper-thread.
            return self.begin(task);
        }
        if v.then != Then::Enter {
            return self.host_work_ends(cpu, task);
        }
        if let Act::Spin(spin) = v.act
            && !self.spin_is_over(task, spin)
        {
            return self.spin_ends(task, spin);
        }
        self.begin(task);
    }
}
