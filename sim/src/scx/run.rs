// SPDX-License-Identifier: GPL-2.0-only
//! Who runs where: what `kernel/sched/ext/ext.c` does as a task wakes, and as a pCPU looks for one.

use super::state::{At, In};
use super::*;
use crate::machine::{Machine, NONE};

impl Scx {
    /// `update_curr_scx()`.
    pub fn update_curr(&mut self, m: &Machine, task: u32) {
        let entry = self.state.entry(task);
        let ran = m.now - entry.runs_since;
        entry.runs_since = m.now;
        if entry.p.scx.slice != SCX_SLICE_INF {
            entry.p.scx.slice = entry.p.scx.slice.saturating_sub(ran);
        }
    }

    /// `do_enqueue_task()`.
    pub fn enqueue(&mut self, m: &mut Machine, task: u32, flags: u64, on: u32) {
        if self.state.entry(task).direct.is_none() {
            // SAFETY: as in `call!`.
            let enq_exiting = unsafe { (*self.ops).flags } & u64::from(SCX_OPS_ENQ_EXITING) != 0;
            if self.state.entry(task).p.flags & PF_EXITING as u32 != 0 && !enq_exiting {
                // On a pCPU that has nobody else and goes idle now, rq->curr is still this one.
                self.state.entry(task).p.scx.slice = SCX_SLICE_DFL;
                let own = m.task(task).cpu;
                if !m.may_run(task, own)
                    && let Some(cpu) = self.state.fallback(m, task)
                {
                    // migration_cpu_stop() has moved it.
                    m.tasks[task as usize].cpu = cpu;
                    self.state.entry(task).p.cpu = cpu as i32;
                    m.resched(cpu);
                }
                let own = m.task(task).cpu;
                return self.state.put_local(task, own, false);
            }
            self.state.entry(task).at = At::Scheduler;
            self.state.subject = task;
            let p = self.p(task);
            if call!(self, m, In::Enqueue, on, enqueue(p, flags)).is_none() {
                self.state.entry(task).ordered = false;
                self.state.entry(task).p.scx.slice = SCX_SLICE_DFL;
                self.state.entry(task).direct = Some((SCX_DSQ_GLOBAL, flags));
            }
        }
        match self.state.entry(task).direct.take() {
            Some((dsq, flags)) => {
                self.state.put(m, task, dsq, flags);
                let before = self.enter(m, In::Locked, on, "dequeue");
                self.leave(before);
            }
            None => self.state.entry(task).custody |= self.state.entry(task).at == At::Scheduler,
        }
    }

    /// `balance_one()` and `pick_task_scx()`: who is next. `true`: the one that has just run.
    /// `last` has run until now, whether it goes on being runnable (`prev`) or not.
    fn choose(
        &mut self,
        m: &mut Machine,
        cpu: u32,
        prev: Option<u32>,
        last: Option<u32>,
    ) -> (Option<u32>, bool) {
        let slice = |scx: &mut Scx, task: u32| scx.state.entry(task).p.scx.slice;
        if let Some(prev) = prev
            && slice(self, prev) > 0
        {
            return (Some(prev), true);
        }
        for _ in 0..DISPATCH_LOOPS {
            let state = &mut *self.state;
            if state.first_local(m, cpu).is_some() || state.take_global(m, cpu) {
                break;
            }
            let before = state.dispatched;
            let p = last.map_or(std::ptr::null_mut(), |last| self.p(last));
            self.state.dispatching = cpu;
            self.state.inserted = 0;
            call!(self, m, In::Dispatch, cpu, dispatch(cpu as i32, p));
            if let Some(prev) = prev
                && slice(self, prev) > 0
            {
                return (Some(prev), true);
            }
            let state = &mut *self.state;
            let local = state.first_local(m, cpu).is_some() || state.take_global(m, cpu);
            // Nothing came from it, not even for another pCPU.
            if local || state.dispatched == before {
                break;
            }
        }
        if let Some(next) = self.state.first_local(m, cpu) {
            return (Some(next), false);
        }
        // SAFETY: as in `call!`.
        let enq_last = unsafe { (*self.ops).flags } & u64::from(SCX_OPS_ENQ_LAST) != 0;
        match prev {
            Some(prev) if !enq_last => {
                self.state.entry(prev).p.scx.slice = SCX_SLICE_DFL;
                (Some(prev), true)
            }
            _ => (None, false),
        }
    }

    pub fn wakes(&mut self, m: &mut Machine, task: u32, waker: u32) {
        // wake_up_new_task() has ENQUEUE_INITIAL alone.
        let mut flags = if m.task(task).new { 0 } else { SCX_ENQ_WAKEUP };
        let prev = m.task(task).cpu;
        let p = self.p(task);
        self.state.entry(task).direct = None;
        self.state.entry(task).p.cpu = prev as i32;
        self.state.subject = task;
        if self.state.entry(task).p.nr_cpus_allowed > 1 {
            // No ops.select_cpu(): the kernel's own choice.
            let chosen = call!(self, m, In::SelectCpu, waker, select_cpu(p, prev as i32, 0));
            let cpu = match chosen {
                Some(cpu) => cpu,
                None => {
                    let (cpu, idle) = self.state.select(m, task, prev, None, 0);
                    if idle {
                        self.state.entry(task).p.scx.slice = SCX_SLICE_DFL;
                        self.state.entry(task).direct = Some((SCX_DSQ_LOCAL, 0));
                    }
                    cpu as i32
                }
            };
            if cpu < 0 || cpu as usize >= m.cpus.len() {
                return self
                    .state
                    .fail(format!("select_cpu() chose CPU {cpu}, which does not exist"));
            }
            self.move_to(m, task, cpu as u32);
            flags |= SCX_ENQ_CPU_SELECTED;
        } else {
            self.move_to(m, task, prev);
        }
        self.state.entry(task).p.scx.flags |= SCX_TASK_QUEUED;
        call!(self, m, In::Locked, waker, runnable(p, flags));
        let cpu = m.task(task).cpu;
        self.enqueue(m, task, flags, waker);
        // wakeup_preempt(): any task goes before the idle task.
        if m.cpus[cpu as usize].curr == NONE {
            m.resched(cpu);
        }
    }

    pub fn next(&mut self, m: &mut Machine, cpu: u32, prev: Option<(u32, bool)>) -> Option<u32> {
        let runnable = prev.filter(|prev| prev.1).map(|prev| prev.0);
        if let Some((task, runnable)) = prev {
            self.update_curr(m, task);
            if !runnable {
                // dequeue_task_scx()
                let p = self.p(task);
                call!(self, m, In::Locked, cpu, stopping(p, false));
                call!(self, m, In::Locked, cpu, quiescent(p, 0));
                self.state.entry(task).p.scx.flags &= !SCX_TASK_QUEUED;
                self.state.entry(task).at = At::Nowhere;
            }
        }
        let (next, keeps) = match m.cpus[cpu as usize].online {
            true => self.choose(m, cpu, runnable, prev.map(|prev| prev.0)),
            false => (None, false),
        };
        if keeps {
            return next;
        }
        if let Some(prev) = runnable {
            // put_prev_task_scx()
            let p = self.p(prev);
            call!(self, m, In::Locked, cpu, stopping(p, true));
            m.cpus[cpu as usize].curr = NONE;
            if self.state.entry(prev).p.scx.slice > 0 {
                self.state.entry(prev).direct = Some((SCX_DSQ_LOCAL, SCX_ENQ_HEAD));
            }
            let last = next.is_none();
            self.enqueue(m, prev, if last { SCX_ENQ_LAST } else { 0 }, cpu);
        }
        if let Some(next) = next {
            self.state.take(next);
            self.state.entry(next).runs_since = m.now;
            self.set_idle(m, cpu, false);
        } else if m.cpus[cpu as usize].online {
            self.set_idle(m, cpu, true);
        }
        next
    }

    /// A CPU that it may not use is replaced by one that it may (`select_task_rq()`).
    fn move_to(&mut self, m: &mut Machine, task: u32, cpu: u32) {
        let usable = m.may_run(task, cpu);
        let cpu = if usable { cpu } else { self.state.fallback(m, task).unwrap_or(cpu) };
        m.tasks[task as usize].cpu = cpu;
        self.state.entry(task).p.cpu = cpu as i32;
    }

    fn set_idle(&mut self, m: &mut Machine, cpu: u32, idle: bool) {
        let was = self.state.was_idle.contains(cpu);
        if idle {
            self.state.idle.insert(cpu);
            self.state.was_idle.insert(cpu);
        } else {
            self.state.idle.remove(cpu);
            self.state.was_idle.remove(cpu);
        }
        if was != idle {
            call!(self, m, In::Locked, cpu, update_idle(cpu as i32, idle));
        }
    }
}
