// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's fair scheduler, in two ages: CFS with its buddies (Linux 2.6.24 to 6.5) and EEVDF
//! (6.6 on), both with an optional debooster. Cgroups are entities on each pCPU, as with
//! CONFIG_FAIR_GROUP_SCHED, with `cpu.max`. Load is balanced within scheduling domains: last-level
//! caches, nodes, the host. Kernel functions are named where their rules are.

mod bandwidth;
mod shares;
mod timeline;

use crate::locks::Lock;
use crate::machine::{Group, Heeds, Machine, NONE, Ns, Quota, Scheduler, State};
use crate::scx::counters::FAIR_COUNTERS;
use bandwidth::Bandwidth;
use shares::Shares;
pub use timeline::Kind;
use timeline::{Entities, Entity, SCHED_LATENCY_NS, Timeline, WEIGHT, as_cgroup, cgroup_entity};

/// Scaled by 1 + log2 of the CPUs, as those of a timeline.
const MIN_GRANULARITY_NS: Ns = 750_000;
const NR_LATENCY: usize = 8;
/// `load_balance()` of a busy pCPU within its last-level cache, roughly: every so many ticks. In a
/// larger domain as much less often as it has more pCPUs (`get_sd_balance_interval()`).
const BALANCE_TICKS: u64 = 8;
/// Scheduling domains, as [`Machine::distance`] has them: a last-level cache, a node, all.
const DOMAINS: [usize; 3] = [1, 2, 3];

/// One pCPU.
#[derive(Clone, Debug)]
struct Runqueue {
    /// Tasks that wait, at whatever level.
    waiting: Vec<u32>,
    /// The task that runs.
    curr: u32,
    ticks: u64,
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
}

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
    /// Tasks that wait on all runqueues.
    waiting: usize,
    /// Whether any cgroup has had a `cpu.max`.
    quotas: bool,
    /// pCPUs of each pCPU's domains, as [`DOMAINS`] has them.
    domains: Vec<[u64; 3]>,
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
        Fair {
            kind,
            debooster,
            cpus,
            entities: Entities { tasks: Vec::new(), cgroups: on_cpus.collect() },
            timelines: vec![Timeline::new(); (groups.len() + 1) * cpus],
            cgroups,
            tasks: Vec::new(),
            rqs: vec![Runqueue { waiting: Vec::new(), curr: NONE, ticks: 0 }; cpus],
            factor: 1 + u64::from((cpus.min(8) as u32).ilog2()),
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

    /// The timeline of a cgroup, or of the root, on a pCPU.
    fn timeline(&self, cgroup: Option<usize>, cpu: u32) -> usize {
        cgroup.map_or(0, |cgroup| cgroup + 1) * self.cpus + cpu as usize
    }

    /// `for_each_sched_entity()`: a task and the cgroups above it on a pCPU, each with its timeline.
    fn path(&self, task: u32, cpu: u32) -> Vec<(u32, usize)> {
        let mut above = self.tasks[task as usize].cgroup;
        let mut path = vec![(task, self.timeline(above, cpu))];
        while let Some(cgroup) = above {
            above = self.cgroups[cgroup].parent;
            let place = cgroup * self.cpus + cpu as usize;
            path.push((cgroup_entity(place), self.timeline(above, cpu)));
        }
        path
    }

    /// `update_cfs_group()`: what runs and waits of a cgroup here has changed.
    fn reweight(&mut self, entity: u32, timeline: usize, now: Ns) {
        let Some(place) = as_cgroup(entity) else { return };
        let (cgroup, cpu) = (place / self.cpus, place % self.cpus);
        let inside = &self.timelines[(cgroup + 1) * self.cpus + cpu];
        let load = inside.all().map(|entity| self.entities.get(entity).weight).sum();
        let weight = self.cgroups[cgroup].shares.update(cpu, load, now);
        if weight == self.entities.get(entity).weight {
            return;
        }
        let there = &self.timelines[timeline];
        if there.all().any(|other| other == entity) {
            there.reweight(&mut self.entities, self.kind, entity, weight);
        } else {
            self.entities.get_mut(entity).weight = weight;
        }
    }

    /// `update_curr()` on all levels; whether a deadline has passed for which somebody waits.
    fn update_curr(&mut self, now: Ns, cpu: u32) -> bool {
        let curr = self.rqs[cpu as usize].curr;
        if curr == NONE {
            return false;
        }
        let mut resched = false;
        let ran = now - self.e(curr).at;
        for (entity, at) in self.path(curr, cpu) {
            if let Some(place) = as_cgroup(entity) {
                resched |= self.charge(place / self.cpus, ran, now);
            }
            let se = self.entities.get_mut(entity);
            let passed = se.account(self.kind, self.factor, now);
            let timeline = &mut self.timelines[at];
            timeline.update_min(&self.entities);
            resched |= passed && !timeline.queue.is_empty();
        }
        resched
    }

    /// What ran is charged to a cgroup above it, if that has a `cpu.max`; whether it must stop.
    fn charge(&mut self, cgroup: usize, ran: Ns, now: Ns) -> bool {
        let Some(bandwidth) = &mut self.cgroups[cgroup].bandwidth else { return false };
        let timer = bandwidth.charge(ran, now);
        self.timers.extend(timer.map(|at| (at, cgroup as u64)));
        bandwidth.is_throttled()
    }

    /// Is any of the cgroups above it throttled (`throttled_hierarchy()`)?
    fn is_throttled(&self, task: u32) -> bool {
        let mut above = self.tasks[task as usize].cgroup;
        while let Some(cgroup) = above.filter(|_| self.quotas) {
            let cgroup = &self.cgroups[cgroup];
            if cgroup.bandwidth.as_ref().is_some_and(Bandwidth::is_throttled) {
                return true;
            }
            above = cgroup.parent;
        }
        false
    }

    /// `enqueue_task_fair()`: cgroups that have nobody here yet come with it.
    fn enqueue(&mut self, now: Ns, cpu: u32, task: u32, wakeup: bool) {
        self.waits(task, cpu);
        let mut comes = true;
        for (entity, at) in self.path(task, cpu) {
            if comes {
                let here = &self.timelines[at];
                let first = here.is_empty();
                here.place(&mut self.entities, self.kind, self.factor, entity, wakeup);
                self.timelines[at].queue.push(entity);
                self.reweight(entity, at, now);
                comes = first;
            } else {
                self.reweight(entity, at, now);
            }
        }
    }

    fn waits(&mut self, task: u32, cpu: u32) {
        self.rqs[cpu as usize].waiting.push(task);
        self.tasks[task as usize].queued_on = cpu;
        self.waiting += 1;
    }

    fn waits_no_more(&mut self, task: u32, cpu: u32) {
        let waiting = &mut self.rqs[cpu as usize].waiting;
        let before = waiting.len();
        waiting.retain(|other| *other != task);
        self.waiting -= before - waiting.len();
        self.tasks[task as usize].queued_on = NONE;
    }

    /// `dequeue_task_fair()`, of one that waits or runs: cgroups that have nobody left leave too.
    fn dequeue(&mut self, now: Ns, cpu: u32, task: u32) {
        self.waits_no_more(task, cpu);
        let mut leaves = true;
        for (entity, at) in self.path(task, cpu) {
            self.reweight(entity, at, now);
            if leaves {
                self.timelines[at].leave(&mut self.entities, entity);
                leaves = self.timelines[at].is_empty();
            }
        }
    }

    /// May an entity run there: itself, or anybody in the cgroup?
    fn may(&self, m: &Machine, entity: u32, cpu: u32) -> bool {
        match as_cgroup(entity) {
            None => m.may_run(entity, cpu),
            Some(place) if self.cgroup_is_throttled(place / self.cpus) => false,
            Some(place) => {
                let inside = &self.timelines[self.cpus + place];
                inside.all().any(|entity| self.may(m, entity, cpu))
            }
        }
    }

    fn cgroup_is_throttled(&self, cgroup: usize) -> bool {
        self.cgroups[cgroup].bandwidth.as_ref().is_some_and(Bandwidth::is_throttled)
    }

    /// Of a timeline.
    fn pick_entity(&self, m: &Machine, cpu: u32, at: usize) -> Option<u32> {
        let timeline = &self.timelines[at];
        let may = |entity| self.may(m, entity, cpu);
        match self.kind {
            Kind::Cfs => timeline.pick_cfs(&self.entities, self.factor, may),
            Kind::Eevdf => timeline.pick_eevdf(&self.entities, self.factor, m.now, may),
        }
    }

    /// `pick_task_fair()`: from the root down.
    fn pick_task(&self, m: &Machine, cpu: u32) -> Option<u32> {
        let mut at = cpu as usize;
        loop {
            let entity = self.pick_entity(m, cpu, at)?;
            match as_cgroup(entity) {
                None => return Some(entity),
                Some(place) => at = self.cpus + place,
            }
        }
    }

    /// `put_prev_task_fair()` and `set_next_task_fair()`, only below where the two part: `prev` has run
    /// until now, and what is left of its path still runs there.
    fn switch(&mut self, now: Ns, cpu: u32, prev: u32, to: u32) {
        if prev == to {
            return;
        }
        let old = if prev == NONE { Vec::new() } else { self.path(prev, cpu) };
        let new = if to == NONE { Vec::new() } else { self.path(to, cpu) };
        for &(entity, at) in old.iter().filter(|level| !new.contains(level)) {
            let timeline = &mut self.timelines[at];
            if timeline.curr != entity {
                continue;
            }
            timeline.curr = NONE;
            timeline.queue.push(entity);
            if entity == prev {
                self.waits(prev, cpu);
            }
        }
        for &(entity, at) in &new {
            let timeline = &mut self.timelines[at];
            if timeline.curr == entity {
                continue;
            }
            timeline.queue.retain(|other| *other != entity);
            timeline.curr = entity;
            let se = self.entities.get_mut(entity);
            (se.at, se.turn) = (now, now);
        }
        if to != NONE {
            self.waits_no_more(to, cpu);
        }
        self.rqs[cpu as usize].curr = to;
    }

    /// `find_matching_se()`: the entities of two tasks where they compete, and the timeline.
    fn matching(&self, a: u32, b: u32, cpu: u32) -> (u32, u32, usize) {
        let (a, b) = (self.path(a, cpu), self.path(b, cpu));
        let mut found = (a[0].0, b[0].0, a[a.len() - 1].1);
        for (a, b) in a.iter().rev().zip(b.iter().rev()) {
            found = (a.0, b.0, a.1);
            if a.0 != b.0 {
                break;
            }
        }
        found
    }

    /// `select_idle_sibling()`: where it ran, if idle, else an idle core that shares its cache, an
    /// idle pCPU that does, else where it ran. Others pull it from there when they look for work.
    fn select(&self, m: &Machine, task: u32) -> u32 {
        let prev = m.task(task).cpu;
        let idle = |cpu: u32| self.is_idle(cpu) && m.may_run(task, cpu);
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
            .or_else(|| m.may_run(task, prev).then_some(prev))
            .or_else(|| from_prev().find(|cpu| m.may_run(task, *cpu)))
            .unwrap_or(prev)
    }

    fn is_idle(&self, cpu: u32) -> bool {
        self.rqs[cpu as usize].curr == NONE && self.load(cpu) == 0
    }

    /// Tasks that run or could.
    fn load(&self, cpu: u32) -> usize {
        let rq = &self.rqs[cpu as usize];
        let waiting = match self.quotas {
            true => rq.waiting.iter().filter(|task| !self.is_throttled(**task)).count(),
            false => rq.waiting.len(),
        };
        waiting + usize::from(rq.curr != NONE)
    }

    /// `load_balance()`: moves one waiting task from the fullest runqueue of a domain, if that has
    /// two more than this one.
    fn pull(&mut self, m: &mut Machine, cpu: u32, domain: usize) -> bool {
        let n = m.cpus.len() as u32;
        let own = self.load(cpu);
        let mut best: Option<(usize, u32, u32)> = None;
        for other in (1..n).map(|step| (cpu + step) % n) {
            if self.rqs[other as usize].waiting.is_empty() || m.distance(cpu, other) > domain {
                continue;
            }
            let there = self.load(other);
            if there < own + 2 {
                continue;
            }
            let waiting = &self.rqs[other as usize].waiting;
            let may = |task: &&u32| m.may_run(**task, cpu) && !self.is_throttled(**task);
            if let Some(task) = waiting.iter().find(may)
                && best.is_none_or(|(load, ..)| there > load)
            {
                best = Some((there, other, *task));
            }
        }
        let Some((_, from, task)) = best else { return false };
        m.lock(Lock::Runqueue(from), cpu);
        self.update_curr(m.now, from);
        if self.kind == Kind::Cfs {
            // As place_entity() reads it: behind, where `lag` is more than 0.
            let at = self.timeline(self.tasks[task as usize].cgroup, from);
            let ahead = self.e(task).vruntime - self.timelines[at].min_vruntime;
            self.dequeue(m.now, from, task);
            self.entities.get_mut(task).lag = -ahead;
        } else {
            self.dequeue(m.now, from, task);
        }
        m.tasks[task as usize].cpu = cpu;
        self.enqueue(m.now, cpu, task, false);
        true
    }

    /// `sched_balance_newidle()`: from near first.
    fn pull_when_idle(&mut self, m: &mut Machine, cpu: u32) {
        if self.waiting > 0 && m.cpus[cpu as usize].online {
            let _ = DOMAINS.into_iter().any(|domain| self.pull(m, cpu, domain));
        }
    }

    /// A tick of a pCPU: does it balance within its domains, and which idle pCPU is to (`
    /// nohz_balancer_kick()`)?
    fn balance(&mut self, m: &mut Machine, cpu: u32) {
        let ticks = self.rqs[cpu as usize].ticks;
        let sizes = self.domains[cpu as usize];
        for (place, domain) in DOMAINS.into_iter().enumerate() {
            let interval = BALANCE_TICKS * (sizes[place] / sizes[0]).max(1);
            let larger = place == 0 || sizes[place] > sizes[place - 1];
            if larger && ticks % interval == u64::from(cpu) % interval && self.waiting > 0 {
                self.pull(m, cpu, domain);
            }
        }
        if sizes[0] == m.cpus.len() as u64 || self.load(cpu) < 2 {
            return;
        }
        let n = m.cpus.len() as u32;
        let idle = |cpu: &u32| self.is_idle(*cpu) && m.cpus[*cpu as usize].online;
        if let Some(idle) = (1..n).map(|step| (cpu + step) % n).find(idle) {
            m.resched(idle);
        }
    }

    /// It waits elsewhere from now on.
    fn move_away(&mut self, m: &mut Machine, task: u32) {
        let from = self.tasks[task as usize].queued_on;
        self.update_curr(m.now, from);
        self.dequeue(m.now, from, task);
        let to = self.select(m, task);
        m.tasks[task as usize].cpu = to;
        self.update_curr(m.now, to);
        self.enqueue(m.now, to, task, false);
        m.resched(to);
    }
}

impl Scheduler for Fair {
    fn add(&mut self, m: &mut Machine, task: u32) {
        let at = task as usize;
        let t = m.task(task);
        let cgroup = t.group.map(|cgroup| cgroup as usize);
        if self.tasks.len() <= at {
            self.tasks.resize(at + 1, Place { vm: NONE, cgroup: None, queued_on: NONE });
            self.entities.tasks.resize(at + 1, Entity::default());
        }
        self.tasks[at] = Place { vm: t.vm, cgroup, queued_on: NONE };
        self.entities.tasks[at] = Entity {
            weight: i64::from(t.weight) * WEIGHT / 100,
            vruntime: self.timelines[self.timeline(cgroup, t.cpu)].min_vruntime,
            ..Entity::default()
        };
    }

    fn remove(&mut self, m: &mut Machine, task: u32) {
        let cpu = self.tasks[task as usize].queued_on;
        if cpu != NONE {
            self.dequeue(m.now, cpu, task);
        }
    }

    fn wake(&mut self, m: &mut Machine, task: u32, _waker: u32) {
        let cpu = self.select(m, task);
        m.tasks[task as usize].cpu = cpu;
        self.update_curr(m.now, cpu);
        self.enqueue(m.now, cpu, task, true);
        let curr = self.rqs[cpu as usize].curr;
        if curr == NONE {
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
            Kind::Eevdf => self.pick_entity(m, cpu, at) == Some(woken),
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
        if let Some((task, false)) = prev {
            self.dequeue(m.now, cpu, task);
            self.rqs[cpu as usize].curr = NONE;
        }
        if self.load(cpu) == 0 {
            self.pull_when_idle(m, cpu);
        }
        let pick = self.pick_task(m, cpu);
        let picked = pick.unwrap_or(NONE);
        for (entity, at) in pick.map(|task| self.path(task, cpu)).unwrap_or_default() {
            self.obeyed += u64::from(self.timelines[at].next == entity && entity == picked);
            self.timelines[at].clear_buddies(entity);
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
            // check_preempt_tick()
            Kind::Cfs => path.iter().any(|(entity, at)| {
                let timeline = &self.timelines[*at];
                if timeline.queue.is_empty() {
                    return false;
                }
                let running = timeline.queue.len() as u64 + 1;
                let period = if running > NR_LATENCY as u64 {
                    running * MIN_GRANULARITY_NS * self.factor
                } else {
                    SCHED_LATENCY_NS * self.factor
                };
                let weights: i64 = timeline.all().map(|entity| self.e(entity).weight).sum();
                let se = self.e(*entity);
                let ideal = period as i64 * se.weight / weights;
                let ran = (m.now - se.turn) as i64;
                let least = timeline.queue.iter().map(|entity| self.e(*entity).vruntime).min();
                ran > ideal
                    || (ran >= (MIN_GRANULARITY_NS * self.factor) as i64
                        && least.is_some_and(|least| se.vruntime - least > ideal))
            }),
        };
        if resched {
            for (_, at) in path {
                let timeline = &mut self.timelines[at];
                (timeline.next, timeline.last) = (NONE, NONE);
            }
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
        for (entity, at) in self.path(to, there) {
            self.timelines[at].next = entity;
        }
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
                let (_, at) = path[0];
                let timeline = &mut self.timelines[at];
                timeline.skip = task;
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
