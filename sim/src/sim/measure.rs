// SPDX-License-Identifier: GPL-2.0-only
//! What is counted.

use super::Sim;
use crate::counters::WALK;
use crate::machine::{Heeds, NONE, Ns, State, Task};

/// A task that waits for so long while nobody runs has been forgotten: ten ticks at 100 Hz.
const FORGOTTEN_NS: Ns = 100_000_000;

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

impl Sim {
    /// From here on all is counted.
    pub(super) fn warm(&mut self) {
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
        let host = &self.m.tasks[self.vcpus.len()..];
        for (thread, task) in self.threads.iter_mut().zip(host) {
            (thread.done, thread.ran) = (0, task.ran);
        }
        for task in &mut self.m.tasks {
            task.longest_wait = 0;
        }
        self.counted_before = self.sched.counters();
    }

    /// After [`run`](Self::run): runnable tasks that wait although all pCPUs are idle. A scheduler
    /// may keep tasks in queues of its own, so that none of them is lost by itself.
    pub fn forgotten(&self) -> usize {
        let waits = |t: &&Task| t.state == State::Runnable && self.m.now - t.since > FORGOTTEN_NS;
        if self.all_idle { self.m.tasks.iter().filter(waits).count() } else { 0 }
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

    /// CPU time of a thread of the host since the warm-up.
    pub fn used_by_thread(&self, thread: usize) -> Ns {
        self.m.tasks[self.vcpus.len() + thread].ran - self.threads[thread].ran
    }

    /// The CPU time of the vCPU that has had most since the start, less that of the one that has
    /// had least.
    pub fn skew(&self, vm: usize) -> Ns {
        let (first, n) = (self.vms[vm].first as usize, self.vms[vm].n as usize);
        let ran = || self.m.tasks[first..first + n].iter().map(|t| t.ran);
        ran().max().unwrap_or(0) - ran().min().unwrap_or(0)
    }

    /// The longest that a thread has waited for a pCPU since the warm-up; one that still does
    /// counts.
    pub fn longest_wait(&self) -> Ns {
        let waits = |t: &Task| match t.state {
            State::Runnable => t.longest_wait.max(self.m.now - t.since),
            _ => t.longest_wait,
        };
        self.m.tasks.iter().map(waits).max().unwrap_or(0)
    }

    /// Since the warm-up; of a walk, the longest since the start.
    pub fn scheduler_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.sched.counters();
        for ((name, count), (_, before)) in counters.iter_mut().zip(&self.counted_before) {
            if *name != WALK.0 {
                // What a VM was counted for goes with it.
                *count = count.saturating_sub(*before);
            }
        }
        counters
    }

    /// Whether the scheduler gives CPU time by `cpu.weight`, and whether it enforces `cpu.max`.
    pub fn heeds(&self) -> Heeds {
        self.sched.heeds()
    }
}
