// SPDX-License-Identifier: GPL-2.0-only
//! KVM's side of a vCPU: exits, HLT, PAUSE loops, interrupts.

use baton_haltpoll::BUCKETS;
use rand_core::RngCore;

use super::{Sim, Then};
use crate::guest::{Act, Interrupt};
use crate::kvm::{GROW_START, HaltPoll, OnSpin, next_poll};
use crate::locks::Lock;
use crate::machine::{KvmEvent, Ns, State};
use crate::queue::Event;
use crate::random::unit;

/// A vCPU that spins and is skipped as candidate by the counter: at most so often.
const COUNTER_MAX: u32 = 5;

/// The governor decides so often.
pub(super) const GOVERN_NS: Ns = 1_000_000_000;

/// Of its histograms: powers of two, of ns.
pub(super) fn bucket(ns: Ns) -> usize {
    ((ns | 1).ilog2() as usize).min(BUCKETS - 1)
}

impl Sim {
    pub(super) fn host_work_ends(&mut self, cpu: u32, v: u32) {
        let then = std::mem::replace(&mut self.vcpus[v as usize].then, Then::Enter);
        match then {
            Then::Enter => {}
            Then::Halt => return self.halt(cpu, v),
            Then::PollEnds => {
                self.poll_missed(v);
                self.m.tasks[v as usize].state = State::Blocked;
                return self.schedule(cpu);
            }
            Then::OnSpin => {
                if self.on_spin(cpu, v) {
                    return self.schedule(cpu);
                }
            }
            Then::YieldTo(target) => {
                let t = self.m.task(target);
                if t.state == State::Runnable && self.sched.yield_to(&mut self.m, cpu, v, target) {
                    self.counts[self.vcpus[v as usize].vm as usize].yields += 1;
                    return self.schedule(cpu);
                }
            }
            Then::Die => return self.die(cpu, v),
        }
        self.begin(v);
    }

    /// `kvm_vcpu_halt()`.
    fn halt(&mut self, cpu: u32, v: u32) {
        let at = v as usize;
        let vm = self.vcpus[at].vm as usize;
        let waits_for_lock = matches!(self.vcpus[at].act, Act::Spin(_));
        let satisfied = match self.vcpus[at].act {
            Act::Spin(spin) => self.spin_is_over(v, spin),
            _ => !self.vcpus[at].runq.is_empty(),
        };
        if !self.vcpus[at].irqs.is_empty() || (waits_for_lock && satisfied) {
            return self.begin(v);
        }
        self.counts[vm].halts += 1;
        if let Some(trace) = &mut self.trace {
            trace.instant(self.m.now, v, "HLT");
        }
        let limit = match self.kvm.halt_poll {
            HaltPoll::Off => 0,
            HaltPoll::Fixed(ns) => ns,
            HaltPoll::Adaptive(_) => self.vcpus[at].poll_ns,
            HaltPoll::Governed(_) => self.vcpus[at].poll_ns.min(self.governed_ns),
            HaltPoll::Clairvoyant(ns) => {
                let wakes = self.vcpus[at].wakes.iter().min();
                let soon = wakes.map(|wake| wake.saturating_sub(self.m.now));
                // One longer: the event comes first.
                soon.filter(|soon| *soon <= ns).map_or(0, |soon| soon + 1)
            }
        };
        if self.seen() {
            self.sched.kvm(&mut self.m, cpu, v, KvmEvent::Halts { poll_ns: limit });
            self.vcpus[at].in_halt = self.m.now.max(1);
        }
        self.vcpus[at].halted_at = self.m.now.max(1);
        let may_poll = !self.m.cpus[cpu as usize].resched
            && limit > 0
            && self.sched.nr_running(&self.m, cpu) == 1;
        if may_poll {
            let v = &mut self.vcpus[at];
            (v.polling, v.work, v.then) = (true, limit, Then::PollEnds);
            return self.begin(at as u32);
        }
        self.m.tasks[at].state = State::Blocked;
        self.schedule(cpu);
    }

    /// The scheduler's probe sees that kvm_vcpu_halt() ends.
    pub(super) fn leaves_halt(&mut self, v: u32) {
        let since = std::mem::take(&mut self.vcpus[v as usize].in_halt);
        if since == 0 {
            return;
        }
        self.halts.lengths[bucket(self.m.now - since)] += 1;
        if self.seen() {
            let cpu = self.m.task(v).cpu;
            self.sched.kvm(&mut self.m, cpu, v, KvmEvent::Halted);
        }
    }

    /// A halt is over: `kvm_vcpu_halt()` learns from its length.
    pub(super) fn adapts_polling(&mut self, v: u32) {
        let (limit, now) = (self.poll_limit(), self.m.now);
        let start = match self.kvm.halt_poll {
            HaltPoll::Adaptive(_) => GROW_START,
            HaltPoll::Governed(_) => limit,
            _ => return,
        };
        let v = &mut self.vcpus[v as usize];
        if v.halted_at > 0 {
            v.poll_ns = next_poll(v.poll_ns.min(limit), limit, start, now - v.halted_at);
        }
    }

    /// The governor of scx_baton's user space, once a second.
    pub(super) fn govern(&mut self) {
        let mut halts = std::mem::take(&mut self.halts);
        halts.polled_ns.get_or_insert(0);
        if let Some(decision) = self.governor.as_mut().and_then(|g| g.decide(&halts, 1.0)) {
            self.governed_ns = decision.limit_ns;
        }
        self.queue.push(self.m.now + GOVERN_NS, Event::Govern);
    }

    /// Whether the scheduler's probe sees the event that happens now.
    pub(super) fn seen(&mut self) -> bool {
        let missed = self.kvm.missed_events;
        missed == 0.0 || unit(&mut self.random) >= missed
    }

    pub(super) fn poll_missed(&mut self, v: u32) {
        let v = &mut self.vcpus[v as usize];
        (v.polling, v.work, v.then) = (false, 0, Then::Enter);
        self.counts[v.vm as usize].polls_missed += 1;
    }

    /// An interrupt for a vCPU.
    pub(super) fn deliver(&mut self, v: u32, irq: Interrupt) {
        self.vcpus[v as usize].irqs.push_back(irq);
        match self.m.task(v).state {
            State::Running => self.touched.push(v),
            State::Blocked => self.wake(v),
            State::Runnable | State::Gone => {}
        }
    }

    /// Something has changed for a vCPU that runs: an interrupt, or what it spins for.
    pub(super) fn touch(&mut self, v: u32) {
        if self.m.task(v).state != State::Running || !self.segments[v as usize].on {
            return;
        }
        let at = v as usize;
        if self.vcpus[at].polling {
            self.stop(v);
            self.adapts_polling(v);
            let v = &mut self.vcpus[at];
            self.counts[v.vm as usize].polls_hit += 1;
            (v.polling, v.work, v.then, v.halted_at) = (false, 0, Then::Enter, 0);
            self.leaves_halt(at as u32);
            return self.begin(at as u32);
        }
        // It sees to it at its next entry.
        if !self.vcpus[at].in_guest() {
            return;
        }
        self.stop(v);
        let v = &mut self.vcpus[at];
        if !v.irqs.is_empty() && !matches!(v.act, Act::Irq(_)) {
            if self.kvm.posted {
                v.work += self.costs.interrupt_ns;
            } else {
                v.exits(self.costs.interrupt_ns);
            }
        }
        self.begin(at as u32);
    }

    /// `kvm_vcpu_on_spin()`: whether the spinner gives way.
    fn on_spin(&mut self, cpu: u32, me: u32) -> bool {
        let at = me as usize;
        self.counts[self.vcpus[at].vm as usize].ple_exits += 1;
        if let Some(trace) = &mut self.trace {
            trace.instant(self.m.now, me, "PAUSE-loop exit");
        }
        if self.seen() {
            self.sched.kvm(&mut self.m, cpu, me, KvmEvent::Spins);
        }
        let yields = self.seek_target(cpu, me);
        self.sched.kvm(&mut self.m, cpu, me, KvmEvent::Spun);
        yields
    }

    fn seek_target(&mut self, cpu: u32, me: u32) -> bool {
        let at = me as usize;
        let vm = self.vcpus[at].vm as usize;
        let kvm = &self.kvm;
        let policy = kvm.on_spin;
        {
            let v = &mut self.vcpus[at];
            let grown = v.window.saturating_mul(kvm.ple_grow);
            v.window = grown.min(kvm.ple_window_max_ns).max(kvm.ple_window_ns);
            v.ple_left = v.window;
            v.spin_count = (v.spin_count + 1).min(COUNTER_MAX);
        }
        let (first, n) = (self.vms[vm].first, self.vms[vm].n);
        let start = match policy {
            OnSpin::Nobody => {
                self.sched.give_way(&mut self.m, cpu, me);
                return true;
            }
            OnSpin::Random => (self.random.next_u64() % u64::from(n)) as u32,
            _ => (self.vms[vm].last_boosted + 1) % n,
        };
        let user_mode_spin = !self.vcpus[at].act.kernel();
        let mut tries = 3;
        let mut step = 0;
        while step < n {
            let passed_over = self.not_ready(vm, (start + step) % n, policy).min(n - step);
            self.vcpus[at].work += u64::from(passed_over) * self.costs.spin_scan_ns;
            step += passed_over;
            if step == n {
                break;
            }
            let index = (start + step) % n;
            let candidate = first + index;
            step += 1;
            self.vcpus[at].work += self.costs.spin_scan_ns;
            if candidate == me || !self.is_candidate(me, candidate, policy, user_mode_spin) {
                continue;
            }
            let runnable = self.m.task(candidate).state == State::Runnable;
            let costs = &self.costs;
            let holds = if runnable { costs.yield_ns } else { costs.yield_fails_ns };
            // `yield_to()` takes the runqueue lock of its target, which others may want as well.
            let comes = self.m.now + self.vcpus[at].work;
            let there = Lock::Runqueue(self.m.task(candidate).cpu);
            self.vcpus[at].work += self.m.locks.hold(there, cpu, comes, holds) - comes;
            if runnable && self.sched.yield_to(&mut self.m, cpu, me, candidate) {
                self.counts[vm].yields += 1;
                self.vms[vm].last_boosted = index;
                if let Some(trace) = &mut self.trace {
                    trace.arrow(self.m.now, me, candidate, "yields");
                }
                return true;
            }
            // -ESRCH, since Linux 3.9: nobody else waits on either runqueue.
            let there = self.m.task(candidate).cpu;
            let alone = |cpu: u32| self.sched.nr_running(&self.m, cpu) <= 1;
            if policy.wants_kernel() && alone(cpu) && alone(there) {
                tries -= 1;
            }
            if tries == 0 {
                break;
            }
        }
        false
    }

    /// How many vCPUs, from this one on, KVM passes over because they do not wait for a pCPU.
    fn not_ready(&self, vm: usize, from: u32, policy: OnSpin) -> u32 {
        let vm = &self.vms[vm];
        match policy.wants_kernel() {
            true => vm.ready.first(from).map_or(vm.n, |next| (next + vm.n - from) % vm.n),
            false => 0,
        }
    }

    fn is_candidate(&mut self, me: u32, other: u32, policy: OnSpin, user_spin: bool) -> bool {
        let sender = (me - self.vms[self.vcpus[me as usize].vm as usize].first) as usize;
        let blocked = self.m.task(other).state == State::Blocked;
        let running = self.m.task(other).state == State::Running;
        let v = &mut self.vcpus[other as usize];
        let in_guest = running && v.in_guest();
        if blocked || in_guest {
            return false;
        }
        if policy.wants_kernel() && v.preempted && !user_spin && !v.in_kernel {
            let from_me = v.ipi_from[sender / 64] >> (sender % 64) & 1 == 1;
            let interrupted = match policy {
                // kvm_arch_dy_has_pending_interrupt() asks APICv and AVIC alone.
                OnSpin::PendingInterrupt => {
                    (self.kvm.posted || self.kvm.avic) && !v.irqs.is_empty()
                }
                OnSpin::IpiFlag => v.ipi_flag,
                OnSpin::IpiPairs => from_me,
                OnSpin::IpiPairs64 => from_me && sender < 64,
                _ => false,
            };
            if !interrupted {
                return false;
            }
        }
        // kvm_vcpu_eligible_for_directed_yield()
        match policy {
            OnSpin::EligibleCounter if v.in_spin_loop => {
                v.spin_skips += 1;
                let skip = v.spin_skips <= v.spin_count;
                if !skip {
                    (v.spin_skips, v.spin_count) = (0, v.spin_count / 2);
                }
                !skip
            }
            _ if policy.knows_eligible() && v.in_spin_loop => {
                let eligible = v.dy_eligible;
                v.dy_eligible = !eligible;
                eligible
            }
            _ => true,
        }
    }
}
