// SPDX-License-Identifier: GPL-2.0-only
//! The simulation: vCPUs and other threads run on pCPUs, event after event.
//!
//! A vCPU on a pCPU either works for the host (`work`: an exit, a switch; `then` says what comes
//! after it) or is in its guest (`act`, for `left` more). Each such stretch is a segment that ends
//! with an event, or is cut short. What one vCPU does to another is noted in `touched` and carried
//! out when the event's own work is done, so that nothing is entered twice.

mod faults;
mod guest_side;
mod invariants;
mod kvm_side;
mod pcpu;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use baton_haltpoll::{Governor, Halts};
use baton_output::interrupt;
use hdrhistogram::Histogram;
use memslots::Hint;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::guest::{Act, Interrupt, Vm};
use crate::kvm::{HaltPoll, Kvm};
use crate::machine::{Costs, CpuSet, Heeds, Machine, NONE, Ns, Quota, Scheduler, State, Task};
use crate::queue::{Event, Queue};
use crate::trace::Trace;

/// Forever.
const EVER: Ns = Ns::MAX;

/// A task that waits for so long while nobody runs has been forgotten: ten ticks at 100 Hz.
const FORGOTTEN_NS: Ns = 100_000_000;

/// Events at one moment that are no accident: a hundred for each of 65,536 vCPUs.
const STANDING_EVENTS: u64 = 10_000_000;

/// What a vCPU's thread does next in the host, once its work there is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Enter,
    Halt,
    PollEnds,
    OnSpin,
    YieldTo(u32),
    Die,
}

#[derive(Clone, Debug)]
struct Vcpu {
    vm: u32,
    work: Ns,
    then: Then,
    act: Act,
    left: Ns,
    stack: Vec<(Act, Ns)>,
    /// It has left the guest, or is about to: what its next entry undoes is still to be undone.
    exited: bool,
    irqs: VecDeque<Interrupt>,
    /// The guest's task that it runs, or [`NONE`], and those that wait for it.
    task: u32,
    runq: VecDeque<u32>,
    locks_held: u32,
    /// Acknowledgements that it waits for.
    acks: u32,
    /// KVM's state.
    window: Ns,
    ple_left: Ns,
    pv_left: Ns,
    in_spin_loop: bool,
    dy_eligible: bool,
    spin_count: u32,
    spin_skips: u32,
    preempted: bool,
    in_kernel: bool,
    ipi_flag: bool,
    ipi_from: Vec<u64>,
    polling: bool,
    poll_ns: Ns,
    halted_at: Ns,
    /// Since when it is in kvm_vcpu_halt(), as far as the scheduler's probes know; 0: it is not.
    in_halt: Ns,
    /// When its timers and requests end.
    wakes: Vec<Ns>,
    /// Of the memory slots: the frame that KVM looked for last, and where it was.
    gfn: u64,
    slot_hint: Hint,
}

impl Vcpu {
    fn in_guest(&self) -> bool {
        self.work == 0 && self.then == Then::Enter
    }

    /// It leaves the guest, for so long.
    fn exits(&mut self, work: Ns) {
        self.exited = true;
        self.work += work;
    }

    /// What `vcpu_enter_guest()` and the end of `kvm_vcpu_on_spin()` reset.
    fn enters(&mut self) {
        self.exited = false;
        (self.in_spin_loop, self.dy_eligible) = (false, false);
        self.ipi_flag = false;
    }
}

/// A thread of the host that is no vCPU: runs, and sleeps.
#[derive(Clone, Debug)]
pub struct HostThread {
    pub run: Ns,
    /// 0: never.
    pub sleep: Ns,
    /// By what share of that each run, and each sleep, is longer or shorter at most.
    pub spread: f64,
    left: Ns,
    work: Ns,
    pub done: u64,
}

impl HostThread {
    pub fn new(run: Ns, sleep: Ns, spread: f64) -> Self {
        HostThread { run, sleep, spread, left: run, work: 0, done: 0 }
    }
}

/// The stretch that a task is in the middle of.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    start: Ns,
    on: bool,
    slow: bool,
}

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
    /// The `cpu.max` of a VM's cgroup.
    Quota(u32, Option<Quota>),
    /// A VM's threads go on without entering the guest.
    LeavesGuest(u32),
    ClockJumps(i64),
}

/// Counters of one VM, since the warm-up.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub ple_exits: u64,
    pub yields: u64,
    pub ipis: u64,
    pub halts: u64,
    pub polls_hit: u64,
    pub polls_missed: u64,
    pub poll_ns: Ns,
    pub spin_ns: Ns,
    /// Starts of its vCPUs on another pCPU than before, by [`Machine::distance`].
    pub moves: [u64; 4],
    /// CPU time of its vCPUs, waiting time, and work, at the end of the warm-up.
    pub ran: Ns,
    pub waited: Ns,
    pub done: u64,
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
    /// Check all invariants every so many events; 0: only at the end.
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
    random: Xoshiro256PlusPlus,
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
    /// At the end nobody ran.
    all_idle: bool,
}

impl Sim {
    /// vCPUs are tasks 0, 1, …, all of the first VM first; threads of the host follow.
    pub fn new(setup: Setup, sched: Box<dyn Scheduler>) -> Self {
        let Setup { machine: m, costs, kvm, vms, threads, faults, seed, .. } = setup;
        let words = |vm: &Vm| (vm.n as usize).div_ceil(64);
        let vcpus: Vec<Vcpu> = (0..)
            .zip(&vms)
            .flat_map(|(index, vm)| {
                let vcpu = Vcpu {
                    vm: index,
                    work: 0,
                    then: Then::Enter,
                    act: Act::Next,
                    left: 0,
                    stack: Vec::new(),
                    exited: true,
                    irqs: VecDeque::new(),
                    task: NONE,
                    runq: VecDeque::new(),
                    locks_held: 0,
                    acks: 0,
                    window: kvm.ple_window_ns,
                    ple_left: kvm.ple_window_ns,
                    pv_left: EVER,
                    in_spin_loop: false,
                    dy_eligible: false,
                    spin_count: 0,
                    spin_skips: 0,
                    preempted: false,
                    in_kernel: true,
                    ipi_flag: false,
                    ipi_from: vec![0; words(vm)],
                    polling: false,
                    poll_ns: 0,
                    halted_at: 0,
                    in_halt: 0,
                    wakes: Vec::new(),
                    gfn: 0,
                    slot_hint: Hint::default(),
                };
                vec![vcpu; vm.n as usize]
            })
            .collect();
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
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
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
            all_idle: false,
        };
        sim.begin_all();
        sim
    }

    fn begin_all(&mut self) {
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

    /// After [`run`](Self::run): runnable tasks that wait although all pCPUs are idle. A scheduler
    /// may keep tasks in queues of its own, so that none of them is lost by itself.
    pub fn forgotten(&self) -> usize {
        let waits = |t: &&Task| t.state == State::Runnable && self.m.now - t.since > FORGOTTEN_NS;
        if self.all_idle { self.m.tasks.iter().filter(waits).count() } else { 0 }
    }

    /// Whether the scheduler gives CPU time by `cpu.weight`, and whether it enforces `cpu.max`.
    pub fn heeds(&self) -> Heeds {
        self.sched.heeds()
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

    fn sample(&mut self, mean: Ns, spread: f64) -> Ns {
        if spread == 0.0 || mean == 0 {
            return mean;
        }
        (mean as f64 * (1.0 + spread * (2.0 * self.unit() - 1.0))) as Ns
    }

    /// At random from 0 up to, but not, 1.
    fn unit(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From here on all is counted.
    fn warm(&mut self) {
        for cpu in 0..self.m.cpus.len() {
            let curr = self.m.cpus[cpu].curr;
            if curr != NONE && self.segments[curr as usize].on {
                self.stop(curr);
                self.begin(curr);
            }
        }
        for vm in 0..self.vms.len() {
            let (ran, waited) = self.used(vm);
            let done = self.vms[vm].done;
            self.counts[vm] = Counts { ran, waited, done, ..Counts::default() };
            self.lateness[vm].reset();
        }
        self.m.locks.forget_total();
        self.thread_moves = [0; 4];
        for thread in &mut self.threads {
            thread.done = 0;
        }
        for task in &mut self.m.tasks {
            task.longest_wait = 0;
        }
    }

    /// CPU time and waiting time of a VM's vCPUs so far.
    pub fn used(&self, vm: usize) -> (Ns, Ns) {
        let (first, n) = (self.vms[vm].first as usize, self.vms[vm].n as usize);
        let tasks = &self.m.tasks[first..first + n];
        let waits = |t: &Task| match t.state {
            State::Runnable => t.waited + (self.m.now - t.since),
            _ => t.waited,
        };
        (tasks.iter().map(|t| t.ran).sum(), tasks.iter().map(waits).sum())
    }

    /// The CPU time of the vCPU that has had most since the start, less that of the one that has had least.
    pub fn skew(&self, vm: usize) -> Ns {
        let (first, n) = (self.vms[vm].first as usize, self.vms[vm].n as usize);
        let ran = || self.m.tasks[first..first + n].iter().map(|t| t.ran);
        ran().max().unwrap_or(0) - ran().min().unwrap_or(0)
    }

    /// The longest that a thread has waited for a pCPU since the warm-up; one that still does counts.
    pub fn longest_wait(&self) -> Ns {
        let waits = |t: &Task| match t.state {
            State::Runnable => t.longest_wait.max(self.m.now - t.since),
            _ => t.longest_wait,
        };
        self.m.tasks.iter().map(waits).max().unwrap_or(0)
    }

    pub fn scheduler_counters(&self) -> Vec<(&'static str, u64)> {
        self.sched.counters()
    }
}
