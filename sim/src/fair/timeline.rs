// SPDX-License-Identifier: GPL-2.0-only
//! One `cfs_rq`: entities that share a pCPU on one level of the tree of cgroups, and which of them
//! is next. An entity is a task, or a cgroup on this pCPU.

use crate::machine::{NONE, Ns};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cfs,
    Eevdf,
}

/// Constants of `kernel/sched/fair.c`, before they are scaled by 1 + log2 of the CPUs (at most 8:
/// `get_update_sysctl_factor()`).
pub const SCHED_LATENCY_NS: Ns = 6_000_000;
/// Scaled likewise.
const MIN_GRANULARITY_NS: Ns = 750_000;
pub const NR_LATENCY: usize = 8;
const WAKEUP_GRANULARITY_NS: Ns = 1_000_000;
pub const BASE_SLICE_NS: Ns = 700_000;

/// What an entity of `cpu.weight` 100 weighs: as in the kernel, with room below for the part of a
/// cgroup that is on one pCPU (`scale_load()`).
pub const WEIGHT: i64 = 100 << 10;

#[derive(Clone, Debug, Default)]
pub struct Entity {
    pub vruntime: i64,
    pub deadline: i64,
    /// EEVDF: what it was owed when it left.
    pub lag: i64,
    /// EEVDF: until when it wants its slice, after where it is placed next (PLACE_REL_DEADLINE).
    pub relative: Option<i64>,
    /// EEVDF: its deadline as it was put on the pCPU. While it has that one, nobody preempts it
    /// (RUN_TO_PARITY).
    pub protected: i64,
    /// EEVDF: it sleeps, but was ahead: it stays in the queue until it is picked (DELAY_DEQUEUE).
    pub delayed: bool,
    pub weight: i64,
    /// It has been made, and has not been placed yet.
    pub new: bool,
    /// Start of the stretch of CPU time not accounted yet, and of this turn.
    pub at: Ns,
    pub turn: Ns,
}

impl Entity {
    fn slice(&self, factor: u64) -> i64 {
        (BASE_SLICE_NS * factor) as i64 * WEIGHT / self.weight
    }

    /// `update_curr()`; whether EEVDF's deadline has passed.
    pub fn account(&mut self, kind: Kind, factor: u64, now: Ns) -> bool {
        let ran = now - self.at;
        self.at = now;
        self.vruntime += ran as i64 * WEIGHT / self.weight;
        let passed = kind == Kind::Eevdf && self.vruntime >= self.deadline;
        if passed {
            self.deadline = self.vruntime + self.slice(factor);
        }
        passed
    }

    /// `yield_task_fair()`: what is left of the request is forfeited.
    pub fn forfeit(&mut self, factor: u64) {
        self.vruntime = self.deadline;
        self.deadline += self.slice(factor);
    }
}

/// All entities: tasks by their number, then cgroups on pCPUs.
pub struct Entities {
    pub tasks: Vec<Entity>,
    pub cgroups: Vec<Entity>,
}

/// The bit that tells cgroups on pCPUs from tasks.
const CGROUP: u32 = 1 << 31;

pub fn cgroup_entity(place: usize) -> u32 {
    CGROUP | place as u32
}

/// The place among cgroups on pCPUs; `None`: a task.
pub fn as_cgroup(entity: u32) -> Option<usize> {
    (entity & CGROUP != 0).then_some((entity & !CGROUP) as usize)
}

impl Entities {
    pub fn get(&self, entity: u32) -> &Entity {
        match as_cgroup(entity) {
            Some(place) => &self.cgroups[place],
            None => &self.tasks[entity as usize],
        }
    }

    pub fn get_mut(&mut self, entity: u32) -> &mut Entity {
        match as_cgroup(entity) {
            Some(place) => &mut self.cgroups[place],
            None => &mut self.tasks[entity as usize],
        }
    }
}

#[derive(Clone, Debug)]
pub struct Timeline {
    /// Those that wait; not the one that runs.
    pub queue: Vec<u32>,
    pub curr: u32,
    pub min_vruntime: i64,
    pub next: u32,
    pub last: u32,
    pub skip: u32,
}

impl Timeline {
    pub fn new() -> Self {
        Timeline {
            queue: Vec::new(),
            curr: NONE,
            min_vruntime: 0,
            next: NONE,
            last: NONE,
            skip: NONE,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.queue.iter().copied().chain((self.curr != NONE).then_some(self.curr))
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.curr == NONE
    }

    pub fn update_min(&mut self, e: &Entities) {
        if let Some(least) = self.all().map(|entity| e.get(entity).vruntime).min() {
            self.min_vruntime = self.min_vruntime.max(least);
        }
    }

    /// `avg_vruntime()`: where an entity would stand that has got exactly its share.
    pub fn average(&self, e: &Entities) -> i64 {
        let (mut sum, mut weights) = (0i128, 0i128);
        for entity in self.all() {
            let se = e.get(entity);
            sum += i128::from(se.vruntime - self.min_vruntime) * i128::from(se.weight);
            weights += i128::from(se.weight);
        }
        if weights == 0 {
            self.min_vruntime
        } else {
            self.min_vruntime + (sum.div_euclid(weights)) as i64
        }
    }

    pub fn is_eligible(&self, e: &Entities, entity: u32) -> bool {
        e.get(entity).vruntime <= self.average(e)
    }

    /// `place_entity()`: where an entity begins here.
    pub fn place(&self, e: &mut Entities, kind: Kind, factor: u64, entity: u32, wakeup: bool) {
        let (average, min) = (self.average(e), self.min_vruntime);
        let weights: i64 = self.all().map(|other| e.get(other).weight).sum();
        let se = e.get_mut(entity);
        let new = std::mem::take(&mut se.new);
        match kind {
            // START_DEBIT: sched_vslice().
            Kind::Cfs if new => {
                let period = (SCHED_LATENCY_NS * factor) as i64;
                se.vruntime = min + period * WEIGHT / (weights + se.weight);
            }
            Kind::Cfs => {
                // GENTLE_FAIR_SLEEPERS: half of the latency is credited.
                let credit = (SCHED_LATENCY_NS * factor / 2) as i64;
                let slept = se.vruntime.max(min - credit);
                se.vruntime = if wakeup { slept } else { min - se.lag };
            }
            Kind::Eevdf => {
                // It moves the average that its lag is counted from.
                let lag = i128::from(se.lag) * i128::from(weights + se.weight);
                se.vruntime = average - lag.checked_div(weights.into()).unwrap_or(0) as i64;
                // PLACE_DEADLINE_INITIAL
                let slice = if new { se.slice(factor) / 2 } else { se.slice(factor) };
                se.deadline = se.vruntime + se.relative.take().unwrap_or(slice);
            }
        }
    }

    /// It leaves, running or not: `dequeue_entity()`. It keeps at most `most_lag` of what it is
    /// owed or owes (`entity_lag()`), and, if it does not sleep, its deadline.
    pub fn leave(&mut self, e: &mut Entities, entity: u32, most_lag: Ns, sleeps: bool) {
        let average = self.average(e);
        let se = e.get_mut(entity);
        let most = most_lag as i64 * WEIGHT / se.weight;
        se.lag = (average - se.vruntime).clamp(-most, most);
        // DELAY_ZERO
        if std::mem::take(&mut se.delayed) {
            se.lag = se.lag.min(0);
        }
        se.relative = (!sleeps).then_some(se.deadline - se.vruntime);
        self.takes_off(entity);
        self.queue.retain(|other| *other != entity);
        self.forget_buddy(entity);
    }

    /// It sleeps, but is ahead: it stays in the queue, and burns that off.
    pub fn delay(&mut self, e: &mut Entities, entity: u32) {
        e.get_mut(entity).delayed = true;
        if self.takes_off(entity) {
            self.queue.push(entity);
        }
        self.forget_buddy(entity);
    }

    /// `requeue_delayed_entity()`: it wakes, and is owed nothing for its sleep.
    pub fn requeue(&mut self, e: &mut Entities, factor: u64, entity: u32) {
        e.get_mut(entity).delayed = false;
        if e.get(entity).vruntime < self.average(e) {
            self.queue.retain(|other| *other != entity);
            let se = e.get_mut(entity);
            (se.lag, se.relative) = (0, None);
            self.place(e, Kind::Eevdf, factor, entity, true);
            self.queue.push(entity);
        }
    }

    /// Whether it ran.
    fn takes_off(&mut self, entity: u32) -> bool {
        let ran = self.curr == entity;
        if ran {
            self.curr = NONE;
        }
        ran
    }

    /// `reweight_entity()`: it is owed as much time as before.
    pub fn reweight(&self, e: &mut Entities, kind: Kind, entity: u32, weight: i64) {
        let average = self.average(e);
        let se = e.get_mut(entity);
        if kind == Kind::Eevdf {
            let scaled =
                |time: i64| (i128::from(time) * i128::from(se.weight) / i128::from(weight)) as i64;
            let (owed, left) = (scaled(average - se.vruntime), scaled(se.deadline - se.vruntime));
            se.vruntime = average - owed;
            se.deadline = se.vruntime + left;
        }
        se.weight = weight;
    }

    /// Does EEVDF look for somebody else, as what runs has had its slice and is ahead
    /// (`did_preempt_short()`)?
    pub fn is_ahead(&self, e: &Entities, entity: u32) -> bool {
        let se = e.get(entity);
        se.protected != se.deadline && !self.is_eligible(e, entity)
    }

    /// `wakeup_preempt_entity()`: may `se` go before one at `curr`? Greater than 0: it should.
    pub fn preempts(curr: i64, se: &Entity, factor: u64) -> i32 {
        let behind = curr - se.vruntime;
        if behind <= 0 {
            return -1;
        }
        let granularity = (WAKEUP_GRANULARITY_NS * factor) as i64 * WEIGHT / se.weight;
        i32::from(behind > granularity)
    }

    /// `pick_next_entity()` of CFS, of those that may run.
    pub fn pick_cfs(&self, e: &Entities, factor: u64, may: impl Fn(u32) -> bool) -> Option<u32> {
        let mut order: Vec<u32> = self.all().filter(|entity| may(*entity)).collect();
        order.sort_by_key(|entity| (e.get(*entity).vruntime, *entity));
        let left = *order.first()?;
        let goes =
            |entity: u32| Timeline::preempts(e.get(entity).vruntime, e.get(left), factor) < 1;
        let mut pick = left;
        if self.skip == pick
            && let Some(second) = order.get(1)
            && goes(*second)
        {
            pick = *second;
        }
        for buddy in [self.last, self.next] {
            if buddy != NONE && order.contains(&buddy) && goes(buddy) {
                pick = buddy;
            }
        }
        Some(pick)
    }

    /// `pick_next_entity()` of EEVDF: one that was asked for, if it is owed time (PICK_BUDDY).
    pub fn pick_next_eevdf(&self, e: &Entities, may: impl Fn(u32) -> bool) -> Option<u32> {
        let next = Some(self.next).filter(|next| *next != NONE && may(*next));
        next.filter(|next| self.is_eligible(e, *next)).or_else(|| self.pick_eevdf(e, may))
    }

    /// `pick_eevdf()`: of those that may run and are owed time, the one with the earliest deadline.
    pub fn pick_eevdf(&self, e: &Entities, may: impl Fn(u32) -> bool) -> Option<u32> {
        let average = self.average(e);
        let eligible = |entity: &u32| e.get(*entity).vruntime <= average;
        // RUN_TO_PARITY: its slice is protected.
        let protected = |curr: &u32| e.get(*curr).protected == e.get(*curr).deadline;
        let curr = Some(self.curr).filter(|curr| *curr != NONE && may(*curr));
        if let Some(curr) = curr.filter(eligible).filter(protected) {
            return Some(curr);
        }
        let all = || self.all().filter(|entity| may(*entity));
        let deadline = |entity: &u32| (e.get(*entity).deadline, *entity);
        all().filter(eligible).min_by_key(deadline).or_else(|| {
            // Affinity has kept the eligible ones off.
            all().min_by_key(|entity| (e.get(*entity).vruntime, *entity))
        })
    }

    /// Of CFS: whether the one that runs has had its part of a period (`check_preempt_tick()`).
    pub fn ran_enough(&self, e: &Entities, factor: u64, entity: u32, now: Ns) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        let running = self.queue.len() as u64 + 1;
        let period = if running > NR_LATENCY as u64 {
            running * MIN_GRANULARITY_NS * factor
        } else {
            SCHED_LATENCY_NS * factor
        };
        let weights: i64 = self.all().map(|entity| e.get(entity).weight).sum();
        let se = e.get(entity);
        let ideal = period as i64 * se.weight / weights;
        let ran = (now - se.turn) as i64;
        let least = self.queue.iter().map(|entity| e.get(*entity).vruntime).min();
        ran > ideal
            || (ran >= (MIN_GRANULARITY_NS * factor) as i64
                && least.is_some_and(|least| se.vruntime - least > ideal))
    }

    fn buddies(&mut self) -> [&mut u32; 3] {
        [&mut self.next, &mut self.last, &mut self.skip]
    }

    /// `clear_buddies()`: whether it was one.
    pub fn forget_buddy(&mut self, entity: u32) -> bool {
        let mut was = false;
        for buddy in self.buddies().into_iter().filter(|buddy| **buddy == entity) {
            *buddy = NONE;
            was = true;
        }
        was
    }
}
