// SPDX-License-Identifier: GPL-2.0-only
//! The simulation: vCPUs and other threads run on pCPUs, event after event.
//!
//! A vCPU on a pCPU either works for the host (`work`: an exit, a switch; `then` says what comes
//! after it) or is in its guest (`act`, for `left` more). Each such stretch is a segment that ends
//! with an event, or is cut short. What one vCPU does to another is noted in `touched` and carried
//! out when the event's own work is done, so that nothing is entered twice.

mod faults;
mod guest_ipis;
mod guest_locks;
mod guest_mutexes;
mod guest_side;
mod invariants;
mod kvm_side;
mod measure;
mod pcpu;
mod thread;
mod vcpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use baton_haltpoll::{Governor, Halts};
use baton_output::interrupt;
use hdrhistogram::Histogram;
use rand_core::{RngCore, SeedableRng};

pub use self::faults::Fault;
pub use self::measure::Counts;
pub use self::thread::HostThread;
use self::vcpu::{Then, Vcpu};
use crate::guest::{Interrupt, Vm};
use crate::kvm::{HaltPoll, Kvm};
use crate::machine::{Costs, Machine, NONE, Ns, Scheduler, State};
use crate::queue::{Event, Queue};
use crate::random::Random;
use crate::trace::Trace;

/// Forever.
const EVER: Ns = Ns::MAX;

/// Events at one moment that are no accident: a hundred for each of 65,536 vCPUs.
const STANDING_EVENTS: u64 = 10_000_000;

/// The stretch that a task is in the middle of.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    start: Ns,
    on: bool,
    slow: bool,
}

/// Everything that a simulation begins with.
pub struct Setup {
    pub machine: Machine,
    pub costs: Costs,
    pub kvm: Kvm,
    pub vms: Vec<Vm>,
    pub threads: Vec<HostThread>,
    pub faults: Vec<(Ns, Fault)>,
    pub seed: u64,
    pub warmup: Ns,
    pub end: Ns,
    /// Check all invariants after each N events; 0: only at the end.
    pub check_every: u64,
    /// The longest time that a task may wait for a pCPU.
    pub starvation_ns: Ns,
}

pub struct Sim {
    pub m: Machine,
    pub vms: Vec<Vm>,
    pub counts: Vec<Counts>,
    /// How late timers of guests' tasks came, for each VM.
    pub lateness: Vec<Histogram<u64>>,
    pub threads: Vec<HostThread>,
    /// Starts of the host's threads on another pCPU than before, by [`Machine::distance`].
    pub thread_moves: [u64; 4],
    pub events: u64,
    /// Everything that happens, if somebody wants to see it.
    pub trace: Option<Trace>,
    /// Counts events, for somebody who watches whether it goes on.
    pub beat: Option<Arc<AtomicU64>>,
    sched: Box<dyn Scheduler>,
    queue: Queue,
    /// Of the host and of KVM.
    random: Random,
    vcpus: Vec<Vcpu>,
    segments: Vec<Segment>,
    ticking: Vec<bool>,
    /// What each pCPU has waited for other locks, and is still to wait.
    lock_waits: Vec<Ns>,
    /// Since when pCPUs are idle.
    idle_since: Vec<Ns>,
    costs: Costs,
    kvm: Kvm,
    /// Its limit, and what it has seen since it decided last.
    governor: Option<Governor>,
    governed_ns: Ns,
    halts: Halts,
    faults: Vec<(Ns, Fault)>,
    warmup: Ns,
    end: Ns,
    check_every: u64,
    starvation_ns: Ns,
    /// The pCPU where what happens now happens.
    here: u32,
    touched: Vec<u32>,
    failure: Option<String>,
    /// The scheduler's counters at the end of the warm-up.
    counted_before: Vec<(&'static str, u64)>,
    /// At the end nobody ran.
    all_idle: bool,
}

impl Sim {
    /// vCPUs are tasks 0, 1, …, all of the first VM first; threads of the host follow.
    pub fn new(setup: Setup, sched: Box<dyn Scheduler>) -> Self {
        let Setup { machine: m, costs, kvm, vms, threads, faults, seed, .. } = setup;
        let of = |(number, vm): (u32, &Vm)| vec![Vcpu::new(number, vm, &kvm); vm.n as usize];
        let vcpus: Vec<Vcpu> = (0..).zip(&vms).flat_map(of).collect();
        let (cpus, tasks) = (m.cpus.len(), m.tasks.len());
        let histogram =
            || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("fixed bounds");
        let mut sim = Sim {
            segments: vec![Segment::default(); m.tasks.len()],
            counts: vec![Counts::default(); vms.len()],
            lateness: vms.iter().map(|_| histogram()).collect(),
            m,
            vms,
            threads,
            thread_moves: [0; 4],
            events: 0,
            trace: None,
            beat: None,
            sched,
            queue: Queue::new(tasks),
            random: Random::seed_from_u64(seed),
            vcpus,
            ticking: vec![false; cpus],
            lock_waits: vec![0; cpus],
            idle_since: vec![0; cpus],
            costs,
            governor: match kvm.halt_poll {
                HaltPoll::Governed(budget) => Some(Governor::new(budget, cpus, 0)),
                _ => None,
            },
            governed_ns: 0,
            halts: Halts::default(),
            kvm,
            faults,
            warmup: setup.warmup,
            end: setup.end,
            check_every: setup.check_every,
            starvation_ns: setup.starvation_ns,
            here: 0,
            touched: Vec::new(),
            failure: None,
            counted_before: Vec::new(),
            all_idle: false,
        };
        sim.begin_all();
        sim
    }

    fn begin_all(&mut self) {
        let of_guests = self.vms.iter_mut().flat_map(|vm| &mut vm.tasks).map(|t| &mut t.random);
        for random in of_guests.chain(self.threads.iter_mut().map(|t| &mut t.random)) {
            *random = Random::seed_from_u64(self.random.next_u64());
        }
        for vm in 0..self.vms.len() {
            let first = self.vms[vm].first;
            for task in 0..self.vms[vm].tasks.len() {
                let at = first + self.vms[vm].tasks[task].vcpu;
                self.vms[vm].tasks[task].vcpu = at;
                self.vcpus[at as usize].runq.push_back(task as u32);
            }
            self.vms[vm].awake = self.vms[vm].tasks.len() as u64;
        }
        for (number, (at, _)) in self.faults.iter().enumerate() {
            self.queue.push(*at, Event::Fault(number as u32));
        }
        self.queue.push(self.warmup, Event::Warm);
        if self.governor.is_some() {
            self.queue.push(kvm_side::GOVERN_NS, Event::Govern);
        }
        for task in 0..self.m.tasks.len() as u32 {
            self.sched.add(&mut self.m, task);
        }
        for (at, timer) in self.sched.timers() {
            self.queue.push(at, Event::Timer(timer));
        }
        // The threads of a host do not begin all at once: within the first millisecond.
        for task in 0..self.m.tasks.len() as u32 {
            let at = self.random.next_u64() % 1_000_000;
            self.queue.push(at, Event::Host(task));
        }
    }

    /// Errors: the scheduler broke a rule, an invariant does not hold, a workload is stuck, or
    /// SIGINT or SIGTERM has come ([`baton_output::interrupt`]).
    pub fn run(&mut self) -> Result<()> {
        let mut since_time_passed = 0u64;
        while let Some((at, event)) = self.queue.pop() {
            if at >= self.end {
                break;
            }
            interrupt::check()?;
            debug_assert!(at >= self.m.now);
            since_time_passed = if at > self.m.now { 0 } else { since_time_passed + 1 };
            if since_time_passed > STANDING_EVENTS {
                bail!("at {} ms: time stands still, one event brings on the next", at as f64 / 1e6);
            }
            if let Some(beat) = &self.beat {
                beat.fetch_add(1, Relaxed);
            }
            self.m.now = at;
            // What a timer or a fault has waited for locks is nobody's.
            self.m.locks.waited();
            self.handle(event);
            self.settle();
            if self.failure.is_some() || self.sched.wants_attention() {
                for (at, timer) in self.sched.timers() {
                    self.queue.push(at, Event::Timer(timer));
                }
            }
            let failed = self.failure.is_some() || self.sched.wants_attention();
            if failed && let Some(why) = self.failure.take().or_else(|| self.sched.failure()) {
                bail!("at {} ms: {why}", at as f64 / 1e6);
            }
            if self.check_every > 0 && self.events.is_multiple_of(self.check_every) {
                self.check()?;
            }
        }
        self.m.now = self.end;
        self.all_idle = self.m.cpus.iter().all(|cpu| cpu.curr == NONE);
        for cpu in 0..self.m.cpus.len() {
            let curr = self.m.cpus[cpu].curr;
            if curr != NONE {
                self.stop(curr);
            }
        }
        self.check()
    }

    fn is_vcpu(&self, task: u32) -> bool {
        (task as usize) < self.vcpus.len()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Segment(task) => {
                self.events += 1;
                self.here = self.m.task(task).cpu;
                self.segment_ends(task);
            }
            Event::Tick(cpu) => self.tick(cpu),
            Event::Resched(cpu) => {
                if self.m.cpus[cpu as usize].resched {
                    self.events += 1;
                    self.here = cpu;
                    self.schedule(cpu);
                }
            }
            Event::Guest(vcpu, task) => {
                self.events += 1;
                let vm = self.vcpus[vcpu as usize].vm as usize;
                self.vms[vm].pending -= 1;
                let now = self.m.now;
                let wakes = &mut self.vcpus[vcpu as usize].wakes;
                if let Some(place) = wakes.iter().position(|wake| *wake == now) {
                    wakes.swap_remove(place);
                }
                if !self.vms[vm].ended {
                    self.here = self.m.task(vcpu).cpu;
                    self.deliver(vcpu, Interrupt::Task(task));
                }
            }
            Event::Host(task) => {
                if self.m.task(task).state == State::Blocked {
                    self.events += 1;
                    self.here = self.m.task(task).cpu;
                    self.wake(task);
                }
            }
            Event::Timer(timer) => {
                self.events += 1;
                self.sched.timer(&mut self.m, timer);
            }
            Event::Fault(number) => self.fault(number),
            Event::Govern => self.govern(),
            Event::Warm => self.warm(),
        }
    }

    /// What the event has brought about elsewhere.
    fn settle(&mut self) {
        loop {
            if let Some(vcpu) = self.touched.pop() {
                self.touch(vcpu);
            } else if let Some(cpu) = self.m.to_resched.pop() {
                if !self.m.cpus[cpu as usize].resched {
                    continue;
                }
                if cpu == self.here && self.m.cpus[cpu as usize].curr != NONE {
                    self.events += 1;
                    self.schedule(cpu);
                } else {
                    let idle = self.m.cpus[cpu as usize].curr == NONE;
                    let exit = if idle { self.idle_exit(cpu) } else { 0 };
                    let at = self.m.now + self.costs.wake_ns + exit;
                    self.queue.push(at, Event::Resched(cpu));
                }
            } else {
                return;
            }
        }
    }
}
