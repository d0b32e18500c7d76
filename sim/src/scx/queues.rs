// SPDX-License-Identifier: GPL-2.0-only
//! Dispatch queues: who is put where, and who is taken from there.

use std::cmp::Ordering;

use super::ffi::*;
use super::state::{At, Dsq, Inner};
use crate::locks::Lock;
use crate::machine::{Machine, NONE};

fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

impl Dsq {
    pub fn key_order(&self, a: (u64, u64), b: (u64, u64)) -> Ordering {
        if self.by_vtime && a.0 != b.0 {
            return if before(a.0, b.0) { Ordering::Less } else { Ordering::Greater };
        }
        a.1.cmp(&b.1)
    }
}

impl Inner {
    /// In the order of queueing.
    pub fn queued(&self, task: u32) -> u64 {
        self.entries[task as usize].as_ref().map_or(0, |entry| entry.queued)
    }

    /// It leaves the scheduler's custody: ops.dequeue() hears of it (`task_leave_custody()`).
    pub fn leaves_custody(&mut self, task: u32) {
        if std::mem::take(&mut self.entry(task).custody) {
            self.left.push((task, 0));
        }
    }

    /// `dispatch_enqueue()`.
    pub fn put(&mut self, m: &mut Machine, task: u32, dsq: u64, flags: u64) {
        let own = m.task(task).cpu;
        let local = match dsq {
            SCX_DSQ_LOCAL => Some(own),
            _ if dsq & SCX_DSQ_LOCAL_ON == SCX_DSQ_LOCAL_ON => Some(dsq as u32),
            _ => None,
        };
        self.seq += 1;
        // list_add() to the head for both.
        let head = flags & (SCX_ENQ_HEAD | SCX_ENQ_PREEMPT) != 0;
        let seq = if head { (1 << 33) - self.seq } else { self.seq };
        let Some(cpu) = local else {
            let ordered = self.entry(task).ordered;
            if let Some(queue) = self.queue_mut(dsq).filter(|_| dsq != SCX_DSQ_GLOBAL) {
                if queue.order.is_empty() {
                    queue.by_vtime = ordered;
                } else if queue.by_vtime != ordered {
                    return self
                        .fail(format!("DSQ {dsq:#x} already holds tasks of the other order"));
                }
            }
            m.lock(Lock::Queue(dsq), self.here);
            self.waits_on(task, own);
            if dsq == SCX_DSQ_GLOBAL {
                self.leaves_custody(task);
            } else {
                self.entry(task).custody = true;
            }
            let now = self.seq;
            let entry = self.entry(task);
            entry.seq = seq;
            entry.queued = now;
            entry.at = At::Queue(dsq);
            let key = (entry.vtime, seq);
            let place = {
                let Some(queue) = self.queue(dsq) else {
                    return self.fail(format!("there is no DSQ {dsq:#x}"));
                };
                let key_of = |other: &u32| {
                    let entry = self.entries[*other as usize].as_ref().expect("queued");
                    (entry.vtime, entry.seq)
                };
                queue.order.partition_point(|other| queue.key_order(key_of(other), key).is_lt())
            };
            if let Some(queue) = self.queue_mut(dsq) {
                queue.order.insert(place, task);
            }
            return;
        };
        if cpu as usize >= m.cpus.len() {
            return self.fail(format!(
                "{}() dispatches to CPU {cpu}, which does not exist",
                self.callback
            ));
        }
        // task_can_run_on_remote_rq(): an error if it may not, the global queue if offline.
        if cpu != own && !m.may_run(task, cpu) {
            if m.task(task).allowed.contains(cpu) {
                self.entry(task).ordered = false;
                return self.put(m, task, SCX_DSQ_GLOBAL, flags);
            }
            return self.fail(format!(
                "{}() dispatches a task to CPU {cpu}, which its affinity forbids",
                self.callback
            ));
        }
        m.tasks[task as usize].cpu = cpu;
        self.entry(task).p.cpu = cpu as i32;
        if cpu != self.here {
            m.lock(Lock::Runqueue(cpu), self.here);
        }
        self.put_local(task, cpu, head);
        let running = m.cpus[cpu as usize].curr;
        if running == NONE {
            m.resched(cpu);
        } else if flags & SCX_ENQ_PREEMPT != 0 {
            self.entry(running).p.scx.slice = 0;
            m.resched(cpu);
        }
    }

    /// Into the queue of a pCPU, which does not look there for that reason alone.
    pub fn put_local(&mut self, task: u32, cpu: u32, head: bool) {
        self.waits_on(task, cpu);
        self.leaves_custody(task);
        self.entry(task).at = At::Local(cpu);
        let queue = &mut self.local[cpu as usize];
        if head { queue.insert(0, task) } else { queue.push(task) }
    }

    pub fn queue(&self, dsq: u64) -> Option<&Dsq> {
        if dsq == SCX_DSQ_GLOBAL { Some(&self.global) } else { self.dsqs.get(&dsq) }
    }

    pub fn queue_mut(&mut self, dsq: u64) -> Option<&mut Dsq> {
        if dsq == SCX_DSQ_GLOBAL { Some(&mut self.global) } else { self.dsqs.get_mut(&dsq) }
    }

    /// `rq->nr_running` counts it there.
    pub fn waits_on(&mut self, task: u32, cpu: u32) {
        let before = std::mem::replace(&mut self.entry(task).counted, cpu);
        if before != NONE {
            self.waiting[before as usize] -= 1;
        }
        if cpu != NONE {
            self.waiting[cpu as usize] += 1;
        }
    }

    /// Out of whatever queue it is in.
    pub fn take(&mut self, task: u32) {
        self.waits_on(task, NONE);
        match self.entry(task).at {
            At::Local(cpu) => self.local[cpu as usize].retain(|other| *other != task),
            At::Queue(dsq) => {
                if let Some(queue) = self.queue_mut(dsq)
                    && let Some(place) = queue.order.iter().position(|other| *other == task)
                {
                    queue.order.remove(place);
                }
            }
            At::Nowhere | At::Scheduler => {}
        }
        self.entry(task).at = At::Nowhere;
    }

    pub fn first_local(&self, m: &Machine, cpu: u32) -> Option<u32> {
        let queue = &self.local[cpu as usize];
        queue.iter().copied().find(|task| m.may_run(*task, cpu))
    }

    /// `consume_global_dsq()`.
    pub fn take_global(&mut self, m: &mut Machine, cpu: u32) -> bool {
        self.consume(m, SCX_DSQ_GLOBAL, cpu)
    }

    /// The first of a queue that may run on `cpu`, to its own queue.
    pub fn consume(&mut self, m: &mut Machine, dsq: u64, cpu: u32) -> bool {
        let Some(queue) = self.queue(dsq) else {
            self.fail(format!("there is no DSQ {dsq:#x}"));
            return false;
        };
        // Looked at without it (`consume_dispatch_q()`).
        if queue.order.is_empty() {
            return false;
        }
        let found = queue.order.iter().copied().find(|task| m.may_run(*task, cpu));
        m.lock(Lock::Queue(dsq), self.here);
        let Some(task) = found else {
            return false;
        };
        self.take(task);
        self.put(m, task, SCX_DSQ_LOCAL_ON | u64::from(cpu), 0);
        true
    }
}
