// SPDX-License-Identifier: GPL-2.0-only
//! What holds between any two events.

use anyhow::{Result, bail, ensure};

use super::Sim;
use crate::machine::{NONE, State};

impl Sim {
    /// Invariants that hold between any two events.
    pub(super) fn check(&self) -> Result<()> {
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
            // Also a wait that has ended since the last look.
            let waits = if t.state == State::Runnable { self.m.now - t.since } else { 0 };
            let waited = waits.max(t.longest_wait);
            ensure!(
                waited <= self.starvation_ns,
                "at {at} ms: task {task} has waited {} ms for a pCPU",
                waited as f64 / 1e6
            );
        }
        if let Some(task) = self.sched.lost(&self.m) {
            bail!("at {at} ms: task {task} is runnable and in no queue");
        }
        Ok(())
    }
}
