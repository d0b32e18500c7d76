// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's fair scheduler, in two ages: CFS with its buddies (Linux 2.6.24 to 6.5) and EEVDF
//! (6.6 on), both with an optional debooster. Cgroups are entities on each pCPU, as with
//! CONFIG_FAIR_GROUP_SCHED, with `cpu.max`. Load is balanced within scheduling domains: last-level
//! caches, nodes, the host. Kernel functions are named where their rules are.

mod balance;
mod bandwidth;
mod hierarchy;
mod shares;
mod timeline;

use crate::machine::{Group, Heeds, Machine, NONE, Ns, Quota, Scheduler, State};
use crate::scx::counters::FAIR_COUNTERS;
use bandwidth::Bandwidth;
use shares::Shares;
pub use timeline::Kind;
use timeline::{BASE_SLICE_NS, Entities, Entity, NR_LATENCY, Timeline, WEIGHT};

/// Scheduling domains, as [`Machine::distance`] has them: a core, a last-level cache, a node, all.
const DOMAINS: [usize; 4] = [0, 1, 2, 3];
const LLC: usize = 1;
const NODE: usize = 2;

/// One pCPU.
#[derive(Clone, Debug)]
struct Runqueue {
    /// Tasks that wait, at whatever level.
    waiting: Vec<u32>,
    /// The task that runs.
    curr: u32,
    ticks: u64,
    /// Where it is to go, or [`NONE`].
    push_to: u32,
}

struct Cgroup {
    parent: Option<usize>,
    shares: Shares,
    bandwidth: Option<Bandwidth>,
}

#[derive(Clone, Copy)]
struct Place {
    vm: u32,
    cgroup: Option<usize>,
    /// The runqueue where it waits, or [`NONE`].
    queued_on: u32,
    /// The one where it sleeps and is still queued (DELAY_DEQUEUE), or [`NONE`].
    delayed_on: u32,
}

const NOWHERE: Place = Place { vm: NONE, cgroup: None, queued_on: NONE, delayed_on: NONE };

pub struct Fair {
    kind: Kind,
    debooster: bool,
    cpus: usize,
    entities: Entities,
    /// The root of each pCPU, then each cgroup on each pCPU.
    timelines: Vec<Timeline>,
    cgroups: Vec<Cgroup>,
    tasks: Vec<Place>,
    rqs: Vec<Runqueue>,
    factor: u64,
    /// What EEVDF lets an entity of average weight be owed, or owe.
    most_lag: Ns,
    /// Tasks that wait on all runqueues.
    waiting: usize,
    /// Whether any cgroup has had a `cpu.max`.
    quotas: bool,
    /// pCPUs of each pCPU's domains, as [`DOMAINS`] has them.
    domains: Vec<[u64; 4]>,
    /// When each cgroup's period ends, and its place.
    timers: Vec<(Ns, u64)>,
    obeyed: u64,
    asked: u64,
}

impl Fair {
    pub fn new(kind: Kind, debooster: bool, m: &Machine, groups: &[Group]) -> Self {
        let cpus = m.cpus.len();
        let all = 0..cpus as u32;
        let within = |cpu: u32, domain: usize| {
            all.clone().filter(|other| m.distance(cpu, *other) <= domain).count() as u64
        };
        let domains = all.clone().map(|cpu| DOMAINS.map(|domain| within(cpu, domain))).collect();
        let scaled = |weight: u32| i64::from(weight) * WEIGHT / 100;
        let cgroups: Vec<Cgroup> = groups
            .iter()
            .map(|group| Cgroup {
                parent: group.parent,
                shares: Shares::new(scaled(group.weight), cpus),
                bandwidth: group.quota.map(Bandwidth::new),
            })
            .collect();
        let entity = |group: &Group| Entity { weight: scaled(group.weight), ..Entity::default() };
        let on_cpus = groups.iter().flat_map(|group| std::iter::repeat_n(entity(group), cpus));
        let factor = 1 + u64::from((cpus.min(8) as u32).ilog2());
        Fair {
            kind,
            debooster,
            cpus,
            entities: Entities { tasks: Vec::new(), cgroups: on_cpus.collect() },
            timelines: vec![Timeline::new(); (groups.len() + 1) * cpus],
            cgroups,
            tasks: Vec::new(),
            rqs: vec![Runqueue { waiting: Vec::new(), curr: NONE, ticks: 0, push_to: NONE }; cpus],
            factor,
            most_lag: m.tick_ns.max(2 * BASE_SLICE_NS * factor),
            waiting: 0,
            quotas: groups.iter().any(|group| group.quota.is_some()),
            domains,
            timers: Vec::new(),
            obeyed: 0,
            asked: 0,
        }
    }

    fn e(&self, task: u32) -> &Entity {
        self.entities.get(task)
    }
}

impl Scheduler for Fair {
    fn add(&mut self, m: &mut Machine, task: u32) {
        let at = task as usize;
        let t = m.task(task);
        let cgroup = t.group.map(|cgroup| cgroup as usize);
        if self.tasks.len() <= at {
            self.tasks.resize(at + 1, NOWHERE);
            self.entities.tasks.resize(at + 1, Entity::default());
        }
        self.tasks[at] = Place { vm: t.vm, cgroup, ..NOWHERE };
        self.entities.tasks[at] = Entity {
            weight: i64::from(t.weight) * WEIGHT / 100,
            vruntime: self.timelines[self.timeline(cgroup, t.cpu)].min_vruntime,
            ..Entity::default()
        };
    }

    /// `task_fork_fair()`.
    fn fork(&mut self, m: &mut Machine, task: u32) {
        self.add(m, task);
        self.entities.tasks[task as usize].new = true;
    }

    fn remove(&mut self, m: &mut Machine, task: u32) {
        let Place { queued_on, delayed_on, .. } = self.tasks[task as usize];
        if queued_on != NONE {
            self.dequeue(m.now, queued_on, task, false);
        } else if delayed_on != NONE {
            self.finishes(m.now, delayed_on, task);
        }
    }

    fn wake(&mut self, m: &mut Machine, task: u32, _waker: u32) {
        let mut cpu = self.tasks[task as usize].delayed_on;
        if cpu != NONE && !m.may_run(task, cpu) {
            self.finishes(m.now, cpu, task);
            cpu = NONE;
        }
        // ttwu_runnable(): who is still queued stays there.
        if cpu == NONE {
            cpu = self.select(m, task);
        }
        m.tasks[task as usize].cpu = cpu;
        self.tasks[task as usize].delayed_on = NONE;
        let resched = self.update_curr(m.now, cpu);
        self.enqueue(m.now, cpu, task, true);
        let curr = self.rqs[cpu as usize].curr;
        if curr == NONE || resched {
            return m.resched(cpu);
        }
        // check_preempt_wakeup()
        let (running, woken, at) = self.matching(curr, task, cpu);
        let idle = |task: u32| m.task(task).idle;
        let preempt = match self.kind {
            _ if idle(task) => false,
            _ if idle(curr) && running == curr => true,
            Kind::Cfs => {
                let vruntime = self.e(running).vruntime;
                Timeline::preempts(vruntime, self.e(woken), self.factor) == 1
            }
            Kind::Eevdf => {
                let may = |entity| self.may(m, entity, cpu);
                self.timelines[at].pick_eevdf(&self.entities, may) == Some(woken)
            }
        };
        if preempt {
            if self.kind == Kind::Cfs && self.timelines[at].queue.len() >= NR_LATENCY {
                self.timelines[at].last = running;
            }
            m.resched(cpu);
        }
    }

    fn pick(&mut self, m: &mut Machine, cpu: u32, prev: Option<(u32, bool)>) -> Option<u32> {
        self.update_curr(m.now, cpu);
        let to = std::mem::replace(&mut self.rqs[cpu as usize].push_to, NONE);
        if let Some((task, runnable)) = prev {
            if runnable {
                self.push(m, cpu, task, to);
            } else {
                let sleeps = m.task(task).state != State::Runnable;
                self.dequeue(m.now, cpu, task, sleeps);
                self.rqs[cpu as usize].curr = NONE;
            }
        }
        if self.load(cpu) == 0 {
            self.pull_when_idle(m, cpu);
        }
        let pick = self.pick_task(m, cpu);
        let picked = pick.unwrap_or(NONE);
        for (entity, at) in pick.map(|task| self.path(task, cpu)).unwrap_or_default() {
            self.obeyed += u64::from(self.timelines[at].next == entity && entity == picked);
        }
        self.switch(m.now, cpu, prev.map_or(NONE, |(task, _)| task), picked);
        pick
    }

    fn started(&mut self, _m: &mut Machine, _cpu: u32, _task: u32) {}

    fn tick(&mut self, m: &mut Machine, cpu: u32) {
        let passed = self.update_curr(m.now, cpu);
        let rq = &mut self.rqs[cpu as usize];
        let curr = rq.curr;
        rq.ticks += 1;
        if curr != NONE {
            for (entity, at) in self.path(curr, cpu) {
                self.reweight(entity, at, m.now);
            }
        }
        self.balance(m, cpu);
        if curr != NONE && self.is_throttled(curr) {
            return m.resched(cpu);
        }
        if curr == NONE || self.rqs[cpu as usize].waiting.is_empty() {
            return;
        }
        let path = self.path(curr, cpu);
        let resched = match self.kind {
            Kind::Eevdf => passed,
            Kind::Cfs => path.iter().any(|(entity, at)| {
                self.timelines[*at].ran_enough(&self.entities, self.factor, *entity, m.now)
            }),
        };
        if resched {
            self.clear_buddies(&path);
            m.resched(cpu);
        }
    }

    /// `yield_to()` and `yield_to_task_fair()`.
    fn yield_to(&mut self, m: &mut Machine, cpu: u32, from: u32, to: u32) -> bool {
        self.asked += 1;
        let there = self.tasks[to as usize].queued_on;
        if there == NONE || m.task(to).state != State::Runnable {
            return false;
        }
        let path = self.path(to, there);
        self.set_next(&path);
        self.give_way(m, cpu, from);
        // Ishiguro 2021: the spinner's vruntime is raised until the one it waits for can be picked.
        let (spinner, target) = (self.tasks[from as usize], self.tasks[to as usize]);
        if self.debooster && there == cpu && spinner.vm == target.vm {
            let (vruntime, deadline) = (self.e(to).vruntime, self.e(to).deadline);
            let se = self.entities.get_mut(from);
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
        let path = self.path(task, cpu);
        match self.kind {
            // set_skip_buddy()
            Kind::Cfs => path.iter().for_each(|(entity, at)| self.timelines[*at].skip = *entity),
            Kind::Eevdf => {
                let timeline = &self.timelines[path[0].1];
                let alone = self.rqs[cpu as usize].waiting.is_empty();
                if !alone && timeline.is_eligible(&self.entities, task) {
                    self.entities.get_mut(task).forfeit(self.factor);
                }
            }
        }
    }

    fn nr_running(&self, _m: &Machine, cpu: u32) -> usize {
        self.load(cpu)
    }

    fn affinity_changed(&mut self, m: &mut Machine, task: u32) {
        let cpu = m.task(task).cpu;
        if m.may_run(task, cpu) {
            return;
        }
        match m.task(task).state {
            State::Runnable => self.move_away(m, task),
            State::Running => m.resched(cpu),
            State::Blocked | State::Gone => {}
        }
    }

    fn cpu_changed(&mut self, m: &mut Machine, cpu: u32, online: bool) {
        if online {
            return m.resched(cpu);
        }
        for task in self.rqs[cpu as usize].waiting.clone() {
            self.move_away(m, task);
        }
    }

    fn weight_changes(&mut self, _m: &mut Machine, vm: u32, weight: u32) {
        self.cgroups[vm as usize].shares.weight = i64::from(weight) * WEIGHT / 100;
    }

    fn quota_changes(&mut self, m: &mut Machine, vm: u32, quota: Option<Quota>) {
        self.quotas = true;
        self.cgroups[vm as usize].bandwidth = quota.map(Bandwidth::new);
        (0..m.cpus.len() as u32).for_each(|cpu| m.resched(cpu));
    }

    /// `sched_cfs_period_timer()`.
    fn timer(&mut self, m: &mut Machine, cgroup: u64) {
        let Some(bandwidth) = &mut self.cgroups[cgroup as usize].bandwidth else { return };
        if bandwidth.ends() != m.now {
            return;
        }
        let throttled = bandwidth.is_throttled();
        self.timers.extend(bandwidth.refill(m.now).map(|at| (at, cgroup)));
        if throttled && !bandwidth.is_throttled() {
            let inside =
                |cpu: &usize| !self.timelines[(cgroup as usize + 1) * self.cpus + cpu].is_empty();
            (0..self.cpus).filter(inside).for_each(|cpu| m.resched(cpu as u32));
        }
    }

    fn wants_attention(&self) -> bool {
        !self.timers.is_empty()
    }

    fn timers(&mut self) -> Vec<(Ns, u64)> {
        std::mem::take(&mut self.timers)
    }

    fn heeds(&self) -> Heeds {
        Heeds { weights: true, quotas: true }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let names = FAIR_COUNTERS.map(|(name, _)| name);
        names.into_iter().zip([self.asked, self.obeyed]).collect()
    }

    fn lost(&self, m: &Machine) -> Option<u32> {
        (0..).zip(&m.tasks).find_map(|(task, t)| {
            let queued = self.tasks[task as usize].queued_on != NONE;
            (t.state == State::Runnable && !queued).then_some(task)
        })
    }
}
