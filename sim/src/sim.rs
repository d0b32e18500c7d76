// SPDX-License-Identifier: GPL-2.0-only
//! The simulation: vCPUs and other threads run on pCPUs, event after event.
//!
//! A vCPU on a pCPU either works for the host (`work`: an exit, a switch; `then` says what comes
//! after it) or is in its guest (`act`, for `left` more). Each such stretch is a segment that ends
//! with an event, or is cut short. What one vCPU does to another is noted in `touched` and carried
//! out when the event's own work is done, so that nothing is entered twice.

use std::collections::VecDeque;

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::guest::{Act, Interrupt, LockKind, Op, Spin, TaskState, Vm};
use crate::kvm::{HaltPoll, Kvm, OnSpin, next_poll};
use crate::machine::{Costs, CpuSet, Machine, NONE, Ns, Scheduler, State, Task};
use crate::queue::{Event, Queue};
use crate::trace::Trace;

/// Forever.
const EVER: Ns = Ns::MAX;

/// A task of a guest runs so long before another one of its vCPU: a tick at HZ=250.
const GUEST_SLICE_NS: Ns = 4_000_000;

/// Spins of a waiter for a PV lock before it halts: SPIN_THRESHOLD, 2^15 times around, about this.
const PV_SPIN_NS: Ns = 100_000;

/// A vCPU that spins and is skipped as candidate by the counter: at most so often.
const COUNTER_MAX: u32 = 5;

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
    ready: bool,
    in_kernel: bool,
    ipi_flag: bool,
    ipi_from: Vec<u64>,
    polling: bool,
    poll_ns: Ns,
    halted_at: Ns,
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
    left: Ns,
    work: Ns,
    pub done: u64,
}

impl HostThread {
    pub fn new(run: Ns, sleep: Ns) -> Self {
        HostThread { run, sleep, left: run, work: 0, done: 0 }
    }
}

/// The stretch that a task is in the middle of.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    start: Ns,
    generation: u32,
    on: bool,
    slow: bool,
}

/// What happens to the host from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    Offline(u32),
    Online(u32),
    Affinity(u32, CpuSet),
    VmEnds(u32),
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
    pub events: u64,
    /// Everything that happens, if somebody wants to see it.
    pub trace: Option<Trace>,
    sched: Box<dyn Scheduler>,
    queue: Queue,
    random: Xoshiro256PlusPlus,
    vcpus: Vec<Vcpu>,
    segments: Vec<Segment>,
    ticking: Vec<bool>,
    /// The runqueue locks of pCPUs.
    locked_until: Vec<Ns>,
    /// Since when pCPUs are idle.
    idle_since: Vec<Ns>,
    costs: Costs,
    kvm: Kvm,
    faults: Vec<(Ns, Fault)>,
    warmup: Ns,
    end: Ns,
    check_every: u64,
    starvation_ns: Ns,
    /// The pCPU where what happens now happens.
    here: u32,
    touched: Vec<u32>,
    failure: Option<String>,
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
                    ready: false,
                    in_kernel: true,
                    ipi_flag: false,
                    ipi_from: vec![0; words(vm)],
                    polling: false,
                    poll_ns: 0,
                    halted_at: 0,
                };
                vec![vcpu; vm.n as usize]
            })
            .collect();
        let cpus = m.cpus.len();
        let histogram =
            || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("fixed bounds");
        let mut sim = Sim {
            segments: vec![Segment::default(); m.tasks.len()],
            counts: vec![Counts::default(); vms.len()],
            lateness: vms.iter().map(|_| histogram()).collect(),
            m,
            vms,
            threads,
            events: 0,
            trace: None,
            sched,
            queue: Queue::default(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            vcpus,
            ticking: vec![false; cpus],
            locked_until: vec![0; cpus],
            idle_since: vec![0; cpus],
            costs,
            kvm,
            faults,
            warmup: setup.warmup,
            end: setup.end,
            check_every: setup.check_every,
            starvation_ns: setup.starvation_ns,
            here: 0,
            touched: Vec::new(),
            failure: None,
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

    /// Errors: the scheduler broke a rule, an invariant does not hold, or a workload is stuck.
    pub fn run(&mut self) -> Result<()> {
        while let Some((at, event)) = self.queue.pop() {
            if at >= self.end {
                break;
            }
            debug_assert!(at >= self.m.now);
            self.m.now = at;
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
            Event::Segment(task, generation) => {
                let segment = self.segments[task as usize];
                if segment.on && segment.generation == generation {
                    self.events += 1;
                    self.here = self.m.task(task).cpu;
                    self.segment_ends(task);
                }
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
}

/// pCPUs and threads.
impl Sim {
    /// What it takes an idle pCPU to run again.
    fn idle_exit(&self, cpu: u32) -> Ns {
        let idle = self.m.now - self.idle_since[cpu as usize];
        let states = self.costs.idle_exits.iter();
        states.filter(|(from, _)| idle >= *from).map(|(_, exit)| *exit).max().unwrap_or(0)
    }

    fn tick(&mut self, cpu: u32) {
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
            self.vcpus[curr as usize].enters();
        }
        self.sched.tick(&mut self.m, cpu);
    }

    fn wake(&mut self, task: u32) {
        let t = &mut self.m.tasks[task as usize];
        debug_assert_eq!(t.state, State::Blocked);
        t.state = State::Runnable;
        t.since = self.m.now;
        if self.is_vcpu(task) {
            let limit = self.poll_limit();
            let now = self.m.now;
            let v = &mut self.vcpus[task as usize];
            v.ready = true;
            if let (HaltPoll::Adaptive(_), true) = (self.kvm.halt_poll, v.halted_at > 0) {
                v.poll_ns = next_poll(v.poll_ns, limit, now - v.halted_at);
            }
            v.halted_at = 0;
        }
        self.sched.wake(&mut self.m, task, self.here);
    }

    fn poll_limit(&self) -> Ns {
        match self.kvm.halt_poll {
            HaltPoll::Off => 0,
            HaltPoll::Fixed(ns) | HaltPoll::Adaptive(ns) => ns,
        }
    }

    /// The pCPU chooses whom to run.
    fn schedule(&mut self, cpu: u32) {
        let at = cpu as usize;
        self.m.cpus[at].resched = false;
        let prev = self.m.cpus[at].curr;
        let mut runnable = false;
        if prev != NONE {
            self.stop(prev);
            if self.is_vcpu(prev) {
                self.vcpus[prev as usize].exits(0);
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
        let next = self.sched.pick(&mut self.m, cpu, was).unwrap_or(NONE);
        if next != NONE {
            // What it asked for itself meanwhile is done.
            self.m.cpus[at].resched = false;
        }
        if next == prev && runnable {
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
            self.sched_out(prev, runnable);
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

    fn sched_out(&mut self, task: u32, runnable: bool) {
        let now = self.m.now;
        if let Some(trace) = &mut self.trace {
            trace.stops(now, self.m.tasks[task as usize].cpu, task);
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
            v.ready = runnable;
            v.in_kernel = v.act.kernel();
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
        if let Some(trace) = &mut self.trace {
            trace.runs(now, cpu, task);
        }
        self.sched.started(&mut self.m, cpu, task);
        if self.is_vcpu(task) {
            let window = self.kvm.ple_window_ns;
            let v = &mut self.vcpus[task as usize];
            (v.preempted, v.ready) = (false, false);
            v.window = window;
            v.exits(self.costs.switch_ns);
            self.sched.vcpu_loaded(&mut self.m, cpu, task);
        } else {
            self.threads[task as usize - self.vcpus.len()].work += self.costs.switch_ns;
        }
        if was_idle && !self.ticking[cpu as usize] {
            self.ticking[cpu as usize] = true;
            // Ticks of pCPUs do not coincide.
            let phase = self.m.tick_ns * u64::from(cpu) / self.m.cpus.len() as u64;
            let next = (now - phase.min(now)) / self.m.tick_ns * self.m.tick_ns + phase;
            let next = if next <= now { next + self.m.tick_ns } else { next };
            self.queue.push(next, Event::Tick(cpu));
        }
        self.begin(task);
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
    fn stop(&mut self, task: u32) {
        let segment = &mut self.segments[task as usize];
        if !segment.on {
            return;
        }
        segment.on = false;
        segment.generation = segment.generation.wrapping_add(1);
        let passed = self.m.now - segment.start;
        let slow = segment.slow;
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
        }
        done -= work;
        if v.left != EVER {
            v.left = v.left.saturating_sub(done);
        }
        if let Act::Spin(_) = v.act {
            v.ple_left = v.ple_left.saturating_sub(done);
            if v.pv_left != EVER {
                v.pv_left = v.pv_left.saturating_sub(done);
            }
            self.counts[v.vm as usize].spin_ns += done;
        }
    }

    fn begin(&mut self, task: u32) {
        let length = if self.is_vcpu(task) {
            self.plan(task)
        } else {
            let thread = &self.threads[task as usize - self.vcpus.len()];
            Some(thread.work + thread.left)
        };
        let cpu = self.m.task(task).cpu as usize;
        let sibling = self.m.cpus[cpu].sibling;
        let slow = sibling != NONE && self.m.cpus[sibling as usize].curr != NONE;
        let segment = &mut self.segments[task as usize];
        let generation = segment.generation.wrapping_add(1);
        *segment = Segment { start: self.m.now, generation, on: true, slow };
        if let Some(length) = length {
            let length =
                if slow { (length as f64 / self.costs.smt_share).ceil() as Ns } else { length };
            self.queue.push(self.m.now + length, Event::Segment(task, generation));
        }
    }

    fn segment_ends(&mut self, task: u32) {
        self.stop(task);
        let cpu = self.m.task(task).cpu;
        if !self.is_vcpu(task) {
            let at = task as usize - self.vcpus.len();
            let thread = &mut self.threads[at];
            if thread.left == 0 && thread.work == 0 {
                thread.done += 1;
                (thread.left, thread.work) = (thread.run, 0);
                if thread.sleep > 0 {
                    let sleep = thread.sleep;
                    self.m.tasks[task as usize].state = State::Blocked;
                    self.queue.push(self.m.now + sleep, Event::Host(task));
                    return self.schedule(cpu);
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
        let v = &mut self.vcpus[task as usize];
        if let Act::Compute { .. } = v.act
            && v.left > 0
        {
            self.rotate(task);
        }
        self.begin(task);
    }

    fn fault(&mut self, number: u32) {
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
            Fault::VmEnds(vm) => self.end_vm(vm),
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

    /// Its threads are killed: each ends as soon as it runs.
    fn end_vm(&mut self, vm: u32) {
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
            (v.work, v.then, v.polling) = (self.costs.exit_ns, Then::Die, false);
            match state {
                State::Running => self.begin(vcpu),
                State::Blocked => {
                    self.here = self.m.task(vcpu).cpu;
                    self.wake(vcpu);
                }
                State::Runnable | State::Gone => {}
            }
        }
    }

    fn die(&mut self, cpu: u32, task: u32) {
        self.m.tasks[task as usize].state = State::Gone;
        self.schedule(cpu);
        self.sched.remove(&mut self.m, task);
        let vm = self.vcpus[task as usize].vm;
        let (first, n) = (self.vms[vm as usize].first, self.vms[vm as usize].n);
        if (first..first + n).all(|vcpu| self.m.task(vcpu).state == State::Gone) {
            self.sched.vm_ends(&mut self.m, vm);
        }
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

    /// Invariants that hold between any two events.
    fn check(&self) -> Result<()> {
        let at = self.m.now as f64 / 1e6;
        for (cpu, c) in (0..).zip(&self.m.cpus) {
            if c.curr == NONE {
                continue;
            }
            let t = self.m.task(c.curr);
            ensure!(
                t.state == State::Running && t.cpu == cpu,
                "at {at} ms: task {} is on pCPU {cpu} and {:?} on {}",
                c.curr,
                t.state,
                t.cpu
            );
            ensure!(
                c.resched || self.m.may_run(c.curr, cpu),
                "at {at} ms: task {} runs on pCPU {cpu}, where it may not",
                c.curr
            );
        }
        for (task, t) in (0..).zip(&self.m.tasks) {
            let on = self.m.cpus[t.cpu as usize].curr == task;
            ensure!(
                (t.state == State::Running) == on,
                "at {at} ms: task {task} is {:?} but pCPU {} runs another",
                t.state,
                t.cpu
            );
            if t.state == State::Runnable {
                let waited = self.m.now - t.since;
                ensure!(
                    waited <= self.starvation_ns,
                    "at {at} ms: task {task} has waited {} ms for a pCPU",
                    waited as f64 / 1e6
                );
            }
        }
        if let Some(task) = self.sched.lost(&self.m) {
            bail!("at {at} ms: task {task} is runnable and in no queue");
        }
        Ok(())
    }
}

/// vCPUs: KVM's side.
impl Sim {
    fn host_work_ends(&mut self, cpu: u32, v: u32) {
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
        if self.seen() {
            self.sched.vcpu_halts(&mut self.m, cpu, v);
        }
        let limit = match self.kvm.halt_poll {
            HaltPoll::Off => 0,
            HaltPoll::Fixed(ns) => ns,
            HaltPoll::Adaptive(_) => self.vcpus[at].poll_ns,
        };
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

    /// Whether the scheduler's probe sees the event that happens now.
    fn seen(&mut self) -> bool {
        let missed = self.kvm.missed_events;
        missed == 0.0 || self.unit() >= missed
    }

    fn poll_missed(&mut self, v: u32) {
        let v = &mut self.vcpus[v as usize];
        (v.polling, v.work, v.then) = (false, 0, Then::Enter);
        self.counts[v.vm as usize].polls_missed += 1;
    }

    /// An interrupt for a vCPU.
    fn deliver(&mut self, v: u32, irq: Interrupt) {
        self.vcpus[v as usize].irqs.push_back(irq);
        match self.m.task(v).state {
            State::Running => self.touched.push(v),
            State::Blocked => self.wake(v),
            State::Runnable | State::Gone => {}
        }
    }

    /// Something has changed for a vCPU that runs: an interrupt, or what it spins for.
    fn touch(&mut self, v: u32) {
        if self.m.task(v).state != State::Running || !self.segments[v as usize].on {
            return;
        }
        let at = v as usize;
        if self.vcpus[at].polling {
            self.stop(v);
            let (limit, now) = (self.poll_limit(), self.m.now);
            let v = &mut self.vcpus[at];
            self.counts[v.vm as usize].polls_hit += 1;
            if let HaltPoll::Adaptive(_) = self.kvm.halt_poll {
                v.poll_ns = next_poll(v.poll_ns, limit, now - v.halted_at);
            }
            (v.polling, v.work, v.then, v.halted_at) = (false, 0, Then::Enter, 0);
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
        let vm = self.vcpus[at].vm as usize;
        self.counts[vm].ple_exits += 1;
        if let Some(trace) = &mut self.trace {
            trace.instant(self.m.now, me, "PAUSE-loop exit");
        }
        if self.seen() {
            self.sched.vcpu_spins(&mut self.m, cpu, me);
        }
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
        for step in 0..n {
            let index = (start + step) % n;
            let candidate = first + index;
            self.vcpus[at].work += self.costs.spin_scan_ns;
            if candidate == me || !self.is_candidate(me, candidate, policy, user_mode_spin) {
                continue;
            }
            let runnable = self.m.task(candidate).state == State::Runnable;
            let costs = &self.costs;
            let holds = if runnable { costs.yield_ns } else { costs.yield_fails_ns };
            self.vcpus[at].work += self.lock_runqueue(candidate, self.vcpus[at].work, holds);
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

    /// `yield_to()` takes the runqueue lock of its target, which others may want as well: what that
    /// costs one who comes `after` from now and `holds` it for so long.
    fn lock_runqueue(&mut self, target: u32, after: Ns, holds: Ns) -> Ns {
        let now = self.m.now + after;
        let free = &mut self.locked_until[self.m.tasks[target as usize].cpu as usize];
        let until = now.max(*free) + holds;
        *free = until;
        until - now
    }

    fn is_candidate(&mut self, me: u32, other: u32, policy: OnSpin, user_spin: bool) -> bool {
        let sender = (me - self.vms[self.vcpus[me as usize].vm as usize].first) as usize;
        let blocked = self.m.task(other).state == State::Blocked;
        let running = self.m.task(other).state == State::Running;
        let v = &mut self.vcpus[other as usize];
        let in_guest = running && v.in_guest();
        if blocked || if policy.wants_kernel() { !v.ready } else { in_guest } {
            return false;
        }
        if policy.wants_kernel() && v.preempted && !user_spin && !v.in_kernel {
            let from_me = v.ipi_from[sender / 64] >> (sender % 64) & 1 == 1;
            let interrupted = match policy {
                OnSpin::PendingInterrupt => !v.irqs.is_empty(),
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

/// vCPUs: the guest's side.
impl Sim {
    /// How long this vCPU does what it does now, at full speed, if nothing happens; `None`: for ever.
    fn plan(&mut self, v: u32) -> Option<Ns> {
        let at = v as usize;
        loop {
            let c = &mut self.vcpus[at];
            if !c.in_guest() {
                return Some(c.work);
            }
            if c.exited {
                c.enters();
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
                    let exits =
                        self.kvm.ple && pauses(spin) && (c.act.kernel() || self.kvm.ple_user);
                    let until = if exits { c.ple_left } else { EVER }.min(c.pv_left);
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
    fn spin_ends(&mut self, v: u32, spin: Spin) {
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
    fn rotate(&mut self, v: u32) {
        let c = &mut self.vcpus[v as usize];
        let vm = c.vm as usize;
        if c.runq.is_empty() || c.task == NONE || c.locks_held > 0 {
            return;
        }
        let task = &mut self.vms[vm].tasks[c.task as usize];
        task.saved = Some((c.act, c.left));
        task.state = TaskState::Ready;
        c.runq.push_back(c.task);
        (c.task, c.act, c.left) = (NONE, Act::Next, 0);
        c.work += self.costs.guest_switch_ns;
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

    fn spin_is_over(&mut self, v: u32, spin: Spin) -> bool {
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
                    if self.vms[vm].awake == 0 && self.vms[vm].pending == 0 {
                        self.failure = Some(self.deadlock(vm));
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

    fn block(&mut self, v: u32, task: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        self.vms[vm].tasks[task as usize].state = TaskState::Blocked;
        self.vms[vm].awake -= 1;
        let c = &mut self.vcpus[v as usize];
        c.task = NONE;
        c.work += self.costs.guest_switch_ns;
    }

    fn block_until(&mut self, v: u32, task: u32, at: Ns) {
        self.block(v, task);
        self.vms[self.vcpus[v as usize].vm as usize].pending += 1;
        self.queue.push(at, Event::Guest(v, task));
    }

    /// Who waits for what, when nobody can go on.
    fn deadlock(&self, vm: usize) -> String {
        let waits = self.vms[vm].semaphores.iter().enumerate().filter_map(|(place, s)| {
            let tasks: Vec<String> = s.waiters.iter().map(u32::to_string).collect();
            (!tasks.is_empty()).then(|| format!("tasks {} for semaphore {place}", tasks.join(", ")))
        });
        let waits: Vec<String> = waits.collect();
        format!("the workload of VM {vm} is deadlocked: {}", waits.join("; "))
    }

    fn spin(&mut self, v: u32, spin: Spin, pv_left: Ns) {
        let c = &mut self.vcpus[v as usize];
        (c.act, c.left) = (Act::Spin(spin), EVER);
        (c.ple_left, c.pv_left) = (c.window, pv_left);
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
            self.trace_ipi(v, target, "call IPI");
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
        self.trace_ipi(v, target, "reschedule IPI");
        self.deliver(target, Interrupt::Reschedule);
    }

    fn trace_ipi(&mut self, from: u32, to: u32, name: &str) {
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
        Spin::Lock(_) | Spin::Call => true,
    }
}
