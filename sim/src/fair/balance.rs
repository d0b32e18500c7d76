// SPDX-License-Identifier: GPL-2.0-only
//! Which pCPU a task goes to: as it wakes, and to balance load within scheduling domains.

use super::timeline::Kind;
use super::{DOMAINS, Fair, LLC, NODE};
use crate::locks::Lock;
use crate::machine::{Machine, NONE, Ns};

/// A pCPU balances its load within a domain each so long for each of the domain's pCPUs
/// (`get_sd_balance_interval()`), a busy one 16 times less often (`sd->busy_factor`).
const BALANCE_NS: Ns = 1_000_000;
const BUSY_FACTOR: u64 = 16;

impl Fair {
    /// `select_idle_sibling()`: where it ran, if idle, else an idle core that shares its cache, an
    /// idle pCPU that does, else where it ran. Others pull it from there when they look for work.
    pub fn select(&self, m: &Machine, task: u32) -> u32 {
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

    pub fn is_idle(&self, cpu: u32) -> bool {
        self.rqs[cpu as usize].curr == NONE && self.load(cpu) == 0
    }

    /// Tasks that run or could.
    pub fn load(&self, cpu: u32) -> usize {
        let rq = &self.rqs[cpu as usize];
        let waiting = match self.quotas {
            true => rq.waiting.iter().filter(|task| !self.is_throttled(**task)).count(),
            false => rq.waiting.len(),
        };
        waiting + usize::from(rq.curr != NONE)
    }

    /// `task_h_load()`: the part of a pCPU's load that is a task's.
    fn load_of(&self, task: u32, cpu: u32) -> f64 {
        let weight = |entity: u32| self.entities.get(entity).weight as f64;
        let mut load = 1.0;
        for (entity, at) in self.path(task, cpu) {
            let top = at < self.cpus;
            let all: f64 = self.timelines[at].all().map(weight).sum();
            load *= if top { weight(entity) } else { weight(entity) / all };
        }
        load
    }

    /// What runs and waits on a pCPU weighs so much.
    fn weight_on(&self, cpu: u32) -> f64 {
        self.timelines[cpu as usize].all().map(|e| self.entities.get(e).weight as f64).sum()
    }

    /// `load_balance()`: moves one waiting task from the fullest runqueue of a domain. Measured on
    /// the exact host: a pCPU that runs one task takes what levels the loads, others what levels
    /// the number of tasks (docs/sim.md).
    pub fn pull(&mut self, m: &mut Machine, cpu: u32, domain: usize) -> bool {
        let n = m.cpus.len() as u32;
        let own = self.load(cpu);
        let weighs = if own == 1 { self.weight_on(cpu) } else { 0.0 };
        let mut best: Option<(f64, u32, u32)> = None;
        for other in (1..n).map(|step| (cpu + step) % n) {
            if self.rqs[other as usize].waiting.is_empty() || m.distance(cpu, other) > domain {
                continue;
            }
            let there = self.load(other);
            if there < 2 || (own != 1 && there < own + 2) {
                continue;
            }
            let load = if own == 1 { self.weight_on(other) } else { there as f64 };
            if best.is_some_and(|(most, ..)| load <= most) {
                continue;
            }
            let levels = |task: u32| self.load_of(task, other) * 2.0 <= load - weighs + 1.0;
            let may = |task: &&u32| {
                m.may_run(**task, cpu) && !self.is_throttled(**task) && (own != 1 || levels(**task))
            };
            if let Some(task) = self.rqs[other as usize].waiting.iter().find(may) {
                best = Some((load, other, *task));
            }
        }
        let Some((_, from, task)) = best else { return false };
        m.lock(Lock::Runqueue(from), cpu);
        if self.update_curr(m.now, from) {
            m.resched(from);
        }
        if self.kind == Kind::Cfs {
            // As place_entity() reads it: behind, where `lag` is more than 0.
            let at = self.timeline(self.tasks[task as usize].cgroup, from);
            let ahead = self.e(task).vruntime - self.timelines[at].min_vruntime;
            self.dequeue(m.now, from, task, false);
            self.entities.get_mut(task).lag = -ahead;
        } else {
            self.dequeue(m.now, from, task, false);
        }
        m.tasks[task as usize].cpu = cpu;
        self.enqueue(m.now, cpu, task, false);
        true
    }

    /// `sched_balance_newidle()`: from near first.
    pub fn pull_when_idle(&mut self, m: &mut Machine, cpu: u32) {
        if self.waiting > 0 && m.cpus[cpu as usize].online {
            let _ = DOMAINS.into_iter().any(|domain| self.pull(m, cpu, domain));
        }
    }

    /// A tick of a pCPU: does it balance within its domains, and which idle pCPU is to
    /// (`nohz_balancer_kick()`)?
    pub fn balance(&mut self, m: &mut Machine, cpu: u32) {
        let sizes = self.domains[cpu as usize];
        for (place, domain) in DOMAINS.into_iter().enumerate() {
            let larger = sizes[place] > if place == 0 { 1 } else { sizes[place - 1] };
            if larger && self.waiting > 0 && self.is_time(m, cpu, BUSY_FACTOR * sizes[place]) {
                self.pull(m, cpu, domain);
            }
        }
        if self.load(cpu) < 2 {
            // imbalanced_active_balance(): after more tries in vain than cache_nice_tries + 2.
            for domain in [LLC, NODE] {
                if self.is_time(m, cpu, 4 * sizes[domain]) {
                    self.spread_core(m, cpu, domain);
                }
            }
            return;
        }
        let n = m.cpus.len() as u32;
        let idle = |cpu: &u32| self.is_idle(*cpu) && m.cpus[*cpu as usize].online;
        if let Some(idle) = (1..n).map(|step| (cpu + step) % n).find(idle) {
            m.resched(idle);
        }
    }

    /// At one of a pCPU's busy ticks in so many milliseconds, each pCPU at another one.
    fn is_time(&self, m: &Machine, cpu: u32, times: u64) -> bool {
        let interval = (times * BALANCE_NS / m.tick_ns).max(1);
        self.rqs[cpu as usize].ticks % interval == u64::from(cpu) % interval
    }

    /// `active_load_balance_cpu_stop()`: where both hyper-threads of a core run and another core of
    /// the domain is idle (`group_smt_balance`; between caches `prefer_sibling`), one of the two
    /// goes there.
    fn spread_core(&mut self, m: &mut Machine, cpu: u32, domain: usize) {
        let runs = |cpu: u32| cpu != NONE && self.rqs[cpu as usize].curr != NONE;
        let sibling = m.cpus[cpu as usize].sibling;
        let goes = |cpu: u32| self.rqs[cpu as usize].push_to != NONE;
        if !runs(cpu) || !runs(sibling) || goes(cpu) || goes(sibling) {
            return;
        }
        let curr = self.rqs[cpu as usize].curr;
        let free = |to: u32| {
            let other = m.cpus[to as usize].sibling;
            let idle = self.is_idle(to) && (other == NONE || self.is_idle(other));
            m.distance(cpu, to) == domain && idle
        };
        let taken = |to: u32| self.rqs.iter().any(|rq| rq.push_to == to);
        let n = m.cpus.len() as u32;
        let to = (0..n).find(|to| free(*to) && m.may_run(curr, *to) && !taken(*to));
        if let Some(to) = to {
            self.rqs[cpu as usize].push_to = to;
            m.resched(cpu);
        }
    }

    /// The task that runs there goes to another pCPU, if that is idle still.
    pub fn push(&mut self, m: &mut Machine, cpu: u32, task: u32, to: u32) {
        if to == NONE || !self.is_idle(to) || !m.may_run(task, to) {
            return;
        }
        self.dequeue(m.now, cpu, task, false);
        self.rqs[cpu as usize].curr = NONE;
        m.tasks[task as usize].cpu = to;
        self.enqueue(m.now, to, task, false);
        m.resched(to);
    }

    /// It waits elsewhere from now on.
    pub fn move_away(&mut self, m: &mut Machine, task: u32) {
        let from = self.tasks[task as usize].queued_on;
        self.update_curr(m.now, from);
        self.dequeue(m.now, from, task, false);
        let to = self.select(m, task);
        m.tasks[task as usize].cpu = to;
        self.update_curr(m.now, to);
        self.enqueue(m.now, to, task, false);
        m.resched(to);
    }
}
