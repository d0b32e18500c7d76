// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's fair scheduler, in two ages: CFS with its buddies (Linux 2.6.24 to 6.5) and EEVDF
//! (6.6 on), both with an optional debooster. Kernel functions are named where their rules are.
//! Flat: no cgroups.

use crate::machine::{Machine, NONE, Ns, Scheduler, State};
use crate::scx::counters::FAIR_COUNTERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cfs,
    Eevdf,
}

/// Constants of `kernel/sched/fair.c`, before they are scaled by 1 + log2 of the CPUs (at most 8:
/// `get_update_sysctl_factor()`).
const SCHED_LATENCY_NS: Ns = 6_000_000;
const MIN_GRANULARITY_NS: Ns = 750_000;
const WAKEUP_GRANULARITY_NS: Ns = 1_000_000;
const NR_LATENCY: usize = 8;
const BASE_SLICE_NS: Ns = 700_000;
/// `load_balance()` of a busy pCPU, roughly: every so many ticks.
const BALANCE_TICKS: u64 = 8;
const WEIGHT: i64 = 100;

#[derive(Clone, Debug, Default)]
struct Entity {
    vruntime: i64,
    deadline: i64,
    /// EEVDF: what it was owed when it left.
    lag: i64,
    weight: i64,
    vm: u32,
    /// Start of the stretch of CPU time not accounted yet, and of this turn.
    at: Ns,
    turn: Ns,
    queued_on: u32,
}

#[derive(Clone, Debug)]
struct Runqueue {
    /// Those that wait; not the one that runs.
    queue: Vec<u32>,
    curr: u32,
    min_vruntime: i64,
    next: u32,
    last: u32,
    skip: u32,
    ticks: u64,
}

pub struct Fair {
    kind: Kind,
    debooster: bool,
    entities: Vec<Entity>,
    rqs: Vec<Runqueue>,
    factor: u64,
    obeyed: u64,
    asked: u64,
}

impl Fair {
    pub fn new(kind: Kind, debooster: bool, cpus: usize) -> Self {
        let rq = Runqueue {
            queue: Vec::new(),
            curr: NONE,
            min_vruntime: 0,
            next: NONE,
            last: NONE,
            skip: NONE,
            ticks: 0,
        };
        Fair {
            kind,
            debooster,
            entities: Vec::new(),
            rqs: vec![rq; cpus],
            factor: 1 + u64::from((cpus.min(8) as u32).ilog2()),
            obeyed: 0,
            asked: 0,
        }
    }

    fn e(&self, task: u32) -> &Entity {
        &self.entities[task as usize]
    }

    fn slice(&self, se: &Entity) -> i64 {
        (BASE_SLICE_NS * self.factor) as i64 * WEIGHT / se.weight
    }

    /// `update_curr()`; whether EEVDF's deadline has passed.
    fn update_curr(&mut self, now: Ns, cpu: u32) -> bool {
        let curr = self.rqs[cpu as usize].curr;
        if curr == NONE {
            return false;
        }
        let slice = self.slice(self.e(curr));
        let se = &mut self.entities[curr as usize];
        let ran = now - se.at;
        se.at = now;
        se.vruntime += ran as i64 * WEIGHT / se.weight;
        let passed = self.kind == Kind::Eevdf && se.vruntime >= se.deadline;
        if passed {
            se.deadline = se.vruntime + slice;
        }
        self.update_min(cpu);
        passed
    }

    fn update_min(&mut self, cpu: u32) {
        let rq = &self.rqs[cpu as usize];
        let all = rq.queue.iter().chain((rq.curr != NONE).then_some(&rq.curr));
        if let Some(least) = all.map(|task| self.e(*task).vruntime).min() {
            let rq = &mut self.rqs[cpu as usize];
            rq.min_vruntime = rq.min_vruntime.max(least);
        }
    }

    /// `avg_vruntime()`: where an entity would stand that has got exactly its share.
    fn average(&self, cpu: u32) -> i64 {
        let rq = &self.rqs[cpu as usize];
        let all = rq.queue.iter().chain((rq.curr != NONE).then_some(&rq.curr));
        let (mut sum, mut weights) = (0i128, 0i128);
        for task in all {
            let se = self.e(*task);
            sum += i128::from(se.vruntime - rq.min_vruntime) * i128::from(se.weight);
            weights += i128::from(se.weight);
        }
        if weights == 0 {
            rq.min_vruntime
        } else {
            rq.min_vruntime + (sum.div_euclid(weights)) as i64
        }
    }

    /// `wakeup_preempt_entity()`: may `se` go before `curr`? Greater than 0: it should.
    fn preempts(&self, curr: i64, se: &Entity) -> i32 {
        let behind = curr - se.vruntime;
        if behind <= 0 {
            return -1;
        }
        let granularity = (WAKEUP_GRANULARITY_NS * self.factor) as i64 * WEIGHT / se.weight;
        i32::from(behind > granularity)
    }

    /// `pick_next_entity()` of CFS.
    fn pick_cfs(&self, m: &Machine, cpu: u32, curr: Option<u32>) -> Option<u32> {
        let rq = &self.rqs[cpu as usize];
        let mut order: Vec<u32> = rq.queue.iter().copied().chain(curr).collect();
        order.retain(|task| m.may_run(*task, cpu));
        order.sort_by_key(|task| (self.e(*task).vruntime, *task));
        let left = *order.first()?;
        let mut pick = left;
        if rq.skip == pick
            && let Some(second) = order.get(1)
            && self.preempts(self.e(*second).vruntime, self.e(left)) < 1
        {
            pick = *second;
        }
        for buddy in [rq.last, rq.next] {
            if buddy != NONE
                && order.contains(&buddy)
                && self.preempts(self.e(buddy).vruntime, self.e(left)) < 1
            {
                pick = buddy;
            }
        }
        Some(pick)
    }

    /// `pick_eevdf()`: of those that are owed time, the one with the earliest deadline.
    fn pick_eevdf(&self, m: &Machine, cpu: u32, curr: Option<u32>, now: Ns) -> Option<u32> {
        let rq = &self.rqs[cpu as usize];
        let average = self.average(cpu);
        let eligible = |task: &u32| self.e(*task).vruntime <= average;
        // PICK_BUDDY
        if rq.next != NONE && rq.queue.contains(&rq.next) && eligible(&rq.next) {
            return Some(rq.next);
        }
        // RUN_TO_PARITY: a base slice is protected.
        if let Some(curr) = curr
            && m.may_run(curr, cpu)
            && eligible(&curr)
            && now - self.e(curr).turn < BASE_SLICE_NS * self.factor
            && rq.skip != curr
        {
            return Some(curr);
        }
        let all = || rq.queue.iter().copied().chain(curr).filter(|task| m.may_run(*task, cpu));
        let deadline = |task: &u32| (self.e(*task).deadline, *task);
        all().filter(eligible).min_by_key(deadline).or_else(|| {
            // Affinity has kept the eligible ones off.
            all().min_by_key(|task| (self.e(*task).vruntime, *task))
        })
    }

    fn enqueue(&mut self, cpu: u32, task: u32) {
        self.rqs[cpu as usize].queue.push(task);
        self.entities[task as usize].queued_on = cpu;
    }

    fn dequeue(&mut self, task: u32) {
        let cpu = self.e(task).queued_on;
        if cpu == NONE {
            return;
        }
        let average = self.average(cpu);
        let rq = &mut self.rqs[cpu as usize];
        rq.queue.retain(|other| *other != task);
        for buddy in [&mut rq.next, &mut rq.last, &mut rq.skip] {
            if *buddy == task {
                *buddy = NONE;
            }
        }
        let se = &mut self.entities[task as usize];
        se.queued_on = NONE;
        se.lag = average - se.vruntime;
    }

    /// `place_entity()`: where a task begins on a runqueue.
    fn place(&mut self, cpu: u32, task: u32, wakeup: bool) {
        let slice = self.slice(self.e(task));
        let average = self.average(cpu);
        let min = self.rqs[cpu as usize].min_vruntime;
        let se = &mut self.entities[task as usize];
        match self.kind {
            Kind::Cfs => {
                // GENTLE_FAIR_SLEEPERS: half of the latency is credited.
                let credit = if wakeup { SCHED_LATENCY_NS * self.factor / 2 } else { 0 } as i64;
                let from = if wakeup { se.vruntime } else { min - se.lag };
                se.vruntime = from.max(min - credit);
            }
            Kind::Eevdf => {
                se.vruntime = average - se.lag.clamp(-2 * slice, 2 * slice);
                se.deadline = se.vruntime + slice;
            }
        }
    }

    /// `select_task_rq_fair()`: where it ran, if idle, else an idle one that shares its cache, else
    /// any idle one, else where it ran.
    fn select(&self, m: &Machine, task: u32) -> u32 {
        let prev = m.task(task).cpu;
        let idle = |cpu: u32| {
            let rq = &self.rqs[cpu as usize];
            rq.curr == NONE && rq.queue.is_empty() && m.may_run(task, cpu)
        };
        if idle(prev) {
            return prev;
        }
        let n = m.cpus.len() as u32;
        let from_prev = || (1..n).map(|step| (prev + step) % n);
        let near = |cpu: &u32| m.cpus[*cpu as usize].llc == m.cpus[prev as usize].llc;
        let core_idle = |cpu: &u32| {
            let sibling = m.cpus[*cpu as usize].sibling;
            sibling == NONE || idle(sibling)
        };
        from_prev()
            .find(|cpu| near(cpu) && idle(*cpu) && core_idle(cpu))
            .or_else(|| from_prev().find(|cpu| near(cpu) && idle(*cpu)))
            .or_else(|| from_prev().find(|cpu| idle(*cpu)))
            .or_else(|| m.may_run(task, prev).then_some(prev))
            .or_else(|| from_prev().find(|cpu| m.may_run(task, *cpu)))
            .unwrap_or(prev)
    }

    /// Moves one waiting task from the fullest runqueue, if that has so many more.
    fn pull(&mut self, m: &mut Machine, cpu: u32, imbalance: usize) -> bool {
        let load = |fair: &Fair, cpu: u32| {
            let rq = &fair.rqs[cpu as usize];
            rq.queue.len() + usize::from(rq.curr != NONE)
        };
        let n = m.cpus.len() as u32;
        let own = load(self, cpu);
        let near = |other: u32| m.cpus[other as usize].llc == m.cpus[cpu as usize].llc;
        let mut best: Option<(usize, bool, u32, u32)> = None;
        for other in (1..n).map(|step| (cpu + step) % n) {
            let there = load(self, other);
            if there < own + imbalance || there < 2 {
                continue;
            }
            let movable = self.rqs[other as usize].queue.iter().find(|task| m.may_run(**task, cpu));
            if let Some(task) = movable
                && best.is_none_or(|(load, close, ..)| (there, near(other)) > (load, close))
            {
                best = Some((there, near(other), other, *task));
            }
        }
        let Some((_, _, from, task)) = best else { return false };
        self.update_curr(m.now, from);
        let relative = self.e(task).vruntime - self.rqs[from as usize].min_vruntime;
        self.dequeue(task);
        if self.kind == Kind::Cfs {
            let min = self.rqs[cpu as usize].min_vruntime;
            self.entities[task as usize].vruntime = min + relative;
        } else {
            self.place(cpu, task, false);
        }
        m.tasks[task as usize].cpu = cpu;
        self.enqueue(cpu, task);
        true
    }
}

impl Scheduler for Fair {
    fn add(&mut self, m: &mut Machine, task: u32) {
        let at = task as usize;
        if self.entities.len() <= at {
            self.entities.resize(at + 1, Entity::default());
        }
        let cpu = m.task(task).cpu;
        self.entities[at] = Entity {
            weight: m.task(task).weight.into(),
            vm: m.task(task).vm,
            queued_on: NONE,
            vruntime: self.rqs[cpu as usize].min_vruntime,
            ..Entity::default()
        };
    }

    fn remove(&mut self, _m: &mut Machine, task: u32) {
        self.dequeue(task);
    }

    fn wake(&mut self, m: &mut Machine, task: u32, _waker: u32) {
        let cpu = self.select(m, task);
        m.tasks[task as usize].cpu = cpu;
        self.update_curr(m.now, cpu);
        self.place(cpu, task, true);
        self.enqueue(cpu, task);
        let rq = &self.rqs[cpu as usize];
        let curr = rq.curr;
        if curr == NONE {
            return m.resched(cpu);
        }
        // check_preempt_wakeup()
        let preempt = match self.kind {
            Kind::Cfs => self.preempts(self.e(curr).vruntime, self.e(task)) == 1,
            Kind::Eevdf => self.pick_eevdf(m, cpu, Some(curr), m.now) == Some(task),
        };
        if preempt {
            if self.kind == Kind::Cfs && self.rqs[cpu as usize].queue.len() >= NR_LATENCY {
                self.rqs[cpu as usize].last = curr;
            }
            m.resched(cpu);
        }
    }

    fn pick(&mut self, m: &mut Machine, cpu: u32, prev: Option<(u32, bool)>) -> Option<u32> {
        self.update_curr(m.now, cpu);
        let curr = match prev {
            Some((task, true)) => Some(task),
            Some((task, false)) => {
                let average = self.average(cpu);
                let se = &mut self.entities[task as usize];
                se.lag = average - se.vruntime;
                None
            }
            None => None,
        };
        if curr.is_none() {
            self.rqs[cpu as usize].curr = NONE;
            if self.rqs[cpu as usize].queue.is_empty() && m.cpus[cpu as usize].online {
                self.pull(m, cpu, 2);
            }
        }
        let pick = match self.kind {
            Kind::Cfs => self.pick_cfs(m, cpu, curr),
            Kind::Eevdf => self.pick_eevdf(m, cpu, curr, m.now),
        };
        if pick.is_some() && self.rqs[cpu as usize].next == pick.unwrap_or(NONE) {
            self.obeyed += 1;
        }
        if let Some(prev) = curr.filter(|prev| pick != Some(*prev)) {
            self.enqueue(cpu, prev);
            self.rqs[cpu as usize].curr = NONE;
        }
        let rq = &mut self.rqs[cpu as usize];
        // clear_buddies(): next is for one pick; skip and last likewise if they were chosen.
        rq.next = NONE;
        rq.skip = NONE;
        if rq.last == pick.unwrap_or(NONE) {
            rq.last = NONE;
        }
        if let Some(task) = pick.filter(|task| curr != Some(*task)) {
            let queue = &mut self.rqs[cpu as usize].queue;
            queue.retain(|other| *other != task);
            self.rqs[cpu as usize].curr = task;
            let se = &mut self.entities[task as usize];
            se.queued_on = NONE;
            se.at = m.now;
            se.turn = m.now;
        }
        pick
    }

    fn started(&mut self, _m: &mut Machine, _cpu: u32, _task: u32) {}

    fn tick(&mut self, m: &mut Machine, cpu: u32) {
        let passed = self.update_curr(m.now, cpu);
        let rq = &mut self.rqs[cpu as usize];
        rq.ticks += 1;
        if rq.ticks % BALANCE_TICKS == u64::from(cpu) % BALANCE_TICKS {
            self.pull(m, cpu, 2);
        }
        let rq = &self.rqs[cpu as usize];
        if rq.curr == NONE || rq.queue.is_empty() {
            return;
        }
        let resched = match self.kind {
            Kind::Eevdf => passed,
            // check_preempt_tick()
            Kind::Cfs => {
                let running = rq.queue.len() as u64 + 1;
                let period = if running > NR_LATENCY as u64 {
                    running * MIN_GRANULARITY_NS * self.factor
                } else {
                    SCHED_LATENCY_NS * self.factor
                };
                let weights: i64 = rq.queue.iter().map(|task| self.e(*task).weight).sum();
                let se = self.e(rq.curr);
                let ideal = period as i64 * se.weight / (weights + se.weight);
                let ran = (m.now - se.turn) as i64;
                let least = rq.queue.iter().map(|task| self.e(*task).vruntime).min();
                ran > ideal
                    || (ran >= (MIN_GRANULARITY_NS * self.factor) as i64
                        && least.is_some_and(|least| se.vruntime - least > ideal))
            }
        };
        if resched {
            let rq = &mut self.rqs[cpu as usize];
            (rq.next, rq.last) = (NONE, NONE);
            m.resched(cpu);
        }
    }

    /// `yield_to()` and `yield_to_task_fair()`.
    fn yield_to(&mut self, m: &mut Machine, cpu: u32, from: u32, to: u32) -> bool {
        self.asked += 1;
        let there = self.e(to).queued_on;
        if there == NONE || m.task(to).state != State::Runnable {
            return false;
        }
        self.rqs[there as usize].next = to;
        self.update_curr(m.now, cpu);
        match self.kind {
            Kind::Cfs => self.rqs[cpu as usize].skip = from,
            Kind::Eevdf => {
                self.rqs[cpu as usize].skip = from;
                let eligible = self.e(from).vruntime <= self.average(cpu);
                let slice = self.slice(self.e(from));
                let se = &mut self.entities[from as usize];
                // yield_task_fair(): what is left of the request is forfeited.
                if eligible && !self.rqs[cpu as usize].queue.is_empty() {
                    se.vruntime = se.deadline;
                    se.deadline = se.vruntime + slice;
                }
            }
        }
        // Seed 001: the spinner's vruntime is raised until the one it waits for can be picked.
        if self.debooster && there == cpu && self.e(from).vm == self.e(to).vm {
            let (vruntime, deadline) = (self.e(to).vruntime, self.e(to).deadline);
            let se = &mut self.entities[from as usize];
            se.vruntime = se.vruntime.max(vruntime + 1);
            se.deadline = se.deadline.max(deadline + 1);
        }
        if there != cpu {
            m.resched(there);
        }
        true
    }

    /// `yield_task_fair()`.
    fn give_way(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        self.update_curr(m.now, cpu);
        self.rqs[cpu as usize].skip = task;
        let eligible = self.e(task).vruntime <= self.average(cpu);
        let slice = self.slice(self.e(task));
        let alone = self.rqs[cpu as usize].queue.is_empty();
        if self.kind == Kind::Eevdf && eligible && !alone {
            let se = &mut self.entities[task as usize];
            se.vruntime = se.deadline;
            se.deadline = se.vruntime + slice;
        }
    }

    fn nr_running(&self, _m: &Machine, cpu: u32) -> usize {
        let rq = &self.rqs[cpu as usize];
        rq.queue.len() + usize::from(rq.curr != NONE)
    }

    fn affinity_changed(&mut self, m: &mut Machine, task: u32) {
        let cpu = m.task(task).cpu;
        if m.may_run(task, cpu) {
            return;
        }
        match m.task(task).state {
            State::Runnable => {
                self.dequeue(task);
                let to = self.select(m, task);
                m.tasks[task as usize].cpu = to;
                self.place(to, task, false);
                self.enqueue(to, task);
                m.resched(to);
            }
            State::Running => m.resched(cpu),
            State::Blocked | State::Gone => {}
        }
    }

    fn cpu_changed(&mut self, m: &mut Machine, cpu: u32, online: bool) {
        if online {
            return m.resched(cpu);
        }
        for task in std::mem::take(&mut self.rqs[cpu as usize].queue) {
            self.entities[task as usize].queued_on = NONE;
            let to = self.select(m, task);
            m.tasks[task as usize].cpu = to;
            self.place(to, task, false);
            self.enqueue(to, task);
            m.resched(to);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let names = FAIR_COUNTERS.map(|(name, _)| name);
        names.into_iter().zip([self.asked, self.obeyed]).collect()
    }

    fn lost(&self, m: &Machine) -> Option<u32> {
        (0..).zip(&m.tasks).find_map(|(task, t)| {
            let queued = self.e(task).queued_on != NONE;
            (t.state == State::Runnable && !queued).then_some(task)
        })
    }
}
