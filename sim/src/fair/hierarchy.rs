// SPDX-License-Identifier: GPL-2.0-only
//! Entities on all levels: a task and the cgroups above it on a pCPU (CONFIG_FAIR_GROUP_SCHED).

use super::Fair;
use super::bandwidth::Bandwidth;
use super::timeline::{Kind, as_cgroup, cgroup_entity};
use crate::machine::{Machine, NONE, Ns};

impl Fair {
    /// The timeline of a cgroup, or of the root, on a pCPU.
    pub fn timeline(&self, cgroup: Option<usize>, cpu: u32) -> usize {
        cgroup.map_or(0, |cgroup| cgroup + 1) * self.cpus + cpu as usize
    }

    /// `for_each_sched_entity()`: a task and the cgroups above it on a pCPU, each with its
    /// timeline.
    pub fn path(&self, task: u32, cpu: u32) -> Vec<(u32, usize)> {
        let cgroup = self.tasks[task as usize].cgroup;
        let mut path = vec![(task, self.timeline(cgroup, cpu))];
        path.extend(cgroup.into_iter().flat_map(|cgroup| self.path_of_cgroup(cgroup, cpu)));
        path
    }

    fn path_of_cgroup(&self, cgroup: usize, cpu: u32) -> Vec<(u32, usize)> {
        let (mut above, mut path) = (Some(cgroup), Vec::new());
        while let Some(cgroup) = above {
            above = self.cgroups[cgroup].parent;
            let place = cgroup * self.cpus + cpu as usize;
            path.push((cgroup_entity(place), self.timeline(above, cpu)));
        }
        path
    }

    /// `update_cfs_group()`: what runs and waits of a cgroup here has changed.
    pub fn reweight(&mut self, entity: u32, timeline: usize, now: Ns) {
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
            let se = self.entities.get_mut(entity);
            se.lag = (i128::from(se.lag) * i128::from(se.weight) / i128::from(weight)) as i64;
            se.weight = weight;
        }
    }

    /// `update_curr()` on all levels; whether somebody who waits may go before what runs.
    pub fn update_curr(&mut self, now: Ns, cpu: u32) -> bool {
        let curr = self.rqs[cpu as usize].curr;
        if curr == NONE {
            return false;
        }
        let mut resched = false;
        let ran = now - self.e(curr).at;
        let path = self.path(curr, cpu);
        for (level, &(entity, at)) in path.iter().enumerate() {
            if let Some(place) = as_cgroup(entity) {
                resched |= self.charge(place / self.cpus, ran, now);
            }
            let se = self.entities.get_mut(entity);
            let passed = se.account(self.kind, self.factor, now);
            let timeline = &mut self.timelines[at];
            timeline.update_min(&self.entities);
            let ahead = self.kind == Kind::Eevdf && timeline.is_ahead(&self.entities, entity);
            if (passed || ahead) && !timeline.queue.is_empty() {
                resched = true;
                self.clear_buddies(&path[level..]);
            }
        }
        resched
    }

    /// `clear_buddies()`: of an entity and of those above it, up to where it is none.
    pub fn clear_buddies(&mut self, path: &[(u32, usize)]) {
        let _ = path.iter().all(|(entity, at)| self.timelines[*at].forget_buddy(*entity));
    }

    /// `set_next_buddy()`.
    pub fn set_next(&mut self, path: &[(u32, usize)]) {
        path.iter().for_each(|(entity, at)| self.timelines[*at].next = *entity);
    }

    /// What ran is charged to a cgroup above it, if that has a `cpu.max`; whether it must stop.
    pub fn charge(&mut self, cgroup: usize, ran: Ns, now: Ns) -> bool {
        let Some(bandwidth) = &mut self.cgroups[cgroup].bandwidth else { return false };
        let timer = bandwidth.charge(ran, now);
        self.timers.extend(timer.map(|at| (at, cgroup as u64)));
        bandwidth.is_throttled()
    }

    /// Is any of the cgroups above it throttled (`throttled_hierarchy()`)?
    pub fn is_throttled(&self, task: u32) -> bool {
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
    pub fn enqueue(&mut self, now: Ns, cpu: u32, task: u32, wakeup: bool) {
        self.waits(task, cpu);
        let mut comes = true;
        for (entity, at) in self.path(task, cpu) {
            if comes && self.entities.get(entity).delayed {
                self.timelines[at].requeue(&mut self.entities, self.factor, entity);
                self.reweight(entity, at, now);
                comes = false;
            } else if comes {
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

    pub fn waits(&mut self, task: u32, cpu: u32) {
        self.rqs[cpu as usize].waiting.push(task);
        self.tasks[task as usize].queued_on = cpu;
        self.waiting += 1;
    }

    pub fn waits_no_more(&mut self, task: u32, cpu: u32) {
        let waiting = &mut self.rqs[cpu as usize].waiting;
        let before = waiting.len();
        waiting.retain(|other| *other != task);
        self.waiting -= before - waiting.len();
        self.tasks[task as usize].queued_on = NONE;
    }

    /// `dequeue_task_fair()`, of one that waits or runs.
    pub fn dequeue(&mut self, now: Ns, cpu: u32, task: u32, sleeps: bool) {
        self.waits_no_more(task, cpu);
        let path = self.path(task, cpu);
        if !self.leaves(&path, now, sleeps) {
            self.tasks[task as usize].delayed_on = cpu;
        }
    }

    /// An entity that sleeps, and was left in its queue since it was ahead, leaves that.
    pub fn finishes(&mut self, now: Ns, cpu: u32, entity: u32) {
        let path = match as_cgroup(entity) {
            None => {
                self.tasks[entity as usize].delayed_on = NONE;
                self.path(entity, cpu)
            }
            Some(place) => self.path_of_cgroup(place / self.cpus, cpu),
        };
        self.leaves(&path, now, true);
    }

    /// `dequeue_entities()`: cgroups that have nobody left leave too. Who `sleeps` and is ahead
    /// stays for now (DELAY_DEQUEUE), unless it has stayed until now. Whether the first one left.
    fn leaves(&mut self, path: &[(u32, usize)], now: Ns, sleeps: bool) -> bool {
        let mut leaves = true;
        let mut gone = false;
        for (level, &(entity, at)) in path.iter().enumerate() {
            self.reweight(entity, at, now);
            if !leaves {
                continue;
            }
            let timeline = &mut self.timelines[at];
            let asleep = sleeps || level > 0;
            let stays = self.kind == Kind::Eevdf && !self.entities.get(entity).delayed;
            if asleep && stays && !timeline.is_eligible(&self.entities, entity) {
                timeline.delay(&mut self.entities, entity);
                leaves = false;
                continue;
            }
            timeline.leave(&mut self.entities, entity, self.most_lag, asleep);
            gone |= level == 0;
            leaves = timeline.is_empty();
            // A sibling is to run in its stead.
            if sleeps && !leaves {
                self.set_next(&path[level + 1..]);
            }
        }
        gone
    }

    /// May an entity run there: itself, or anybody in the cgroup?
    pub fn may(&self, m: &Machine, entity: u32, cpu: u32) -> bool {
        match as_cgroup(entity) {
            _ if self.entities.get(entity).delayed => true,
            None => m.may_run(entity, cpu),
            Some(place) if self.cgroup_is_throttled(place / self.cpus) => false,
            Some(place) => {
                let inside = &self.timelines[self.cpus + place];
                inside.all().any(|entity| self.may(m, entity, cpu))
            }
        }
    }

    pub fn cgroup_is_throttled(&self, cgroup: usize) -> bool {
        self.cgroups[cgroup].bandwidth.as_ref().is_some_and(Bandwidth::is_throttled)
    }

    /// Of a timeline.
    pub fn pick_entity(&self, m: &Machine, cpu: u32, at: usize) -> Option<u32> {
        let timeline = &self.timelines[at];
        let may = |entity| self.may(m, entity, cpu);
        match self.kind {
            Kind::Cfs => timeline.pick_cfs(&self.entities, self.factor, may),
            Kind::Eevdf => timeline.pick_next_eevdf(&self.entities, may),
        }
    }

    /// `pick_task_fair()`: from the root down, and again where it finds one that sleeps.
    pub fn pick_task(&mut self, m: &Machine, cpu: u32) -> Option<u32> {
        let mut at = cpu as usize;
        loop {
            let entity = self.pick_entity(m, cpu, at)?;
            if self.entities.get(entity).delayed {
                self.finishes(m.now, cpu, entity);
                at = cpu as usize;
                continue;
            }
            match as_cgroup(entity) {
                None => return Some(entity),
                Some(place) => at = self.cpus + place,
            }
        }
    }

    /// `put_prev_task_fair()` and `set_next_task_fair()`, only below where the two part: `prev` has
    /// run until now, and what is left of its path still runs there.
    pub fn switch(&mut self, now: Ns, cpu: u32, prev: u32, to: u32) {
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
        for (level, &(entity, at)) in new.iter().enumerate() {
            let timeline = &mut self.timelines[at];
            if timeline.curr == entity {
                continue;
            }
            timeline.queue.retain(|other| *other != entity);
            timeline.curr = entity;
            let se = self.entities.get_mut(entity);
            (se.at, se.turn, se.protected) = (now, now, se.deadline);
            self.clear_buddies(&new[level..]);
        }
        if to != NONE {
            self.waits_no_more(to, cpu);
        }
        self.rqs[cpu as usize].curr = to;
    }

    /// `find_matching_se()`: the entities of two tasks where they compete, and the timeline.
    pub fn matching(&self, a: u32, b: u32, cpu: u32) -> (u32, u32, usize) {
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
}
