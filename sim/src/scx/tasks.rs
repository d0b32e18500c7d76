// SPDX-License-Identifier: GPL-2.0-only
//! Tasks that come, change and go, and pCPUs that do.

use super::ffi::*;
use super::state::{At, Entry, In};
use super::*;
use crate::machine::{Machine, NONE, State};

impl Scx {
    pub fn comes(&mut self, m: &mut Machine, task: u32, fork: bool) {
        let t = m.task(task);
        let mask = Box::new(CpuMask::of(&t.allowed));
        if t.vm != NONE {
            let first = &mut self.first[t.vm as usize];
            *first = task.min(*first);
        }
        let group = t.group.map_or(0, |group| group as usize + 1);
        let name = if t.vm == NONE { format!("host-{task}") } else { format!("CPU {task}/KVM") };
        let mut comm = [0; 16];
        for (to, letter) in comm[..15].iter_mut().zip(name.bytes()) {
            *to = letter as std::ffi::c_char;
        }
        let storage = self.state.storage_again(task);
        let mut p = Box::new(TaskStruct {
            pid: task as i32 + 1,
            tgid: task as i32 + 1,
            flags: if t.kernel { PF_KTHREAD as u32 } else { 0 },
            nr_cpus_allowed: t.allowed.len() as i32,
            scx: Entity {
                slice: SCX_SLICE_DFL,
                dsq_vtime: 0,
                weight: t.weight,
                flags: 0,
                disallow: false,
                ddsp_dsq_id: 0,
            },
            cpus_ptr: &raw const *mask,
            cpu: t.cpu as i32,
            static_prio: 120,
            cgroup: &raw mut *self.state.cgroups[group],
            storage,
            comm,
        });
        let mut args = InitTaskArgs { fork, cgroup: p.cgroup };
        let raw = &raw mut *p;
        let at = task as usize;
        if self.state.entries.len() <= at {
            self.state.entries.resize_with(at + 1, || None);
        }
        let entry = Entry {
            p,
            mask,
            at: At::Nowhere,
            custody: false,
            vtime: 0,
            seq: 0,
            ordered: false,
            queued: 0,
            counted: NONE,
            direct: None,
            runs_since: 0,
        };
        self.state.entries[at] = Some(entry);
        if let Some(error) = call!(self, m, In::Unlocked, 0, init_task(raw, &raw mut args))
            && error != 0
        {
            self.state.fail(format!("init_task() failed: {error}"));
        }
        call!(self, m, In::Locked, 0, enable(raw));
    }

    pub fn goes(&mut self, m: &mut Machine, task: u32) {
        let p = self.p(task);
        self.state.take(task);
        call!(self, m, In::Locked, 0, disable(p));
        let mut args = ExitTaskArgs { cancelled: false };
        call!(self, m, In::Unlocked, 0, exit_task(p, &raw mut args));
        // Its memory stays: the scheduler may have kept its pid, not the task.
        self.state.entry(task).at = At::Nowhere;
        self.state.entry(task).p.pid = 0;
    }

    pub fn may_run_elsewhere(&mut self, m: &mut Machine, task: u32) {
        if m.task(task).new {
            return;
        }
        let allowed = m.task(task).allowed.clone();
        let entry = self.state.entry(task);
        *entry.mask = CpuMask::of(&allowed);
        entry.p.nr_cpus_allowed = allowed.len() as i32;
        let (p, mask) = (&raw mut *entry.p, &raw const *entry.mask);
        // do_set_cpus_allowed() takes a task out of its queue and puts it back.
        let waits = m.task(task).state == State::Runnable;
        if waits {
            self.state.take(task);
            if std::mem::take(&mut self.state.entry(task).custody) {
                call!(self, m, In::Locked, 0, dequeue(p, SCX_DEQ_SCHED_CHANGE));
            }
        }
        call!(self, m, In::Locked, 0, set_cpumask(p, mask));
        let cpu = m.task(task).cpu;
        if waits {
            if !m.may_run(task, cpu)
                && let Some(cpu) = self.state.fallback(m, task)
            {
                m.tasks[task as usize].cpu = cpu;
                self.state.entry(task).p.cpu = cpu as i32;
            }
            self.enqueue(m, task, 0, m.task(task).cpu);
            // One that exits is on a local queue now: local_dsq_post_enq().
            let cpu = m.task(task).cpu;
            if m.cpus[cpu as usize].curr == NONE && self.state.first_local(m, cpu).is_some() {
                m.resched(cpu);
            }
        } else if m.task(task).state == State::Running && !m.may_run(task, cpu) {
            m.resched(cpu);
        }
    }

    pub fn hotplug(&mut self, m: &mut Machine, cpu: u32, online: bool) {
        self.shim.online = CpuMask::of(&m.online);
        // SAFETY: as in `call!`.
        let handles =
            unsafe { (*self.ops).cpu_online.is_some() || (*self.ops).cpu_offline.is_some() };
        if !handles {
            let why = "CPU hotplug ends a scheduler without cpu_online() and cpu_offline()";
            return self.state.fail(why.into());
        }
        if online {
            call!(self, m, In::Unlocked, cpu, cpu_online(cpu as i32));
            return m.resched(cpu);
        }
        self.state.idle.remove(cpu);
        call!(self, m, In::Unlocked, cpu, cpu_offline(cpu as i32));
        // Who waits on its runqueue is pushed away (`balance_push()`), and whoever can run nowhere
        // else may run anywhere (`select_fallback_rq()`); the engine has seen to that.
        for task in self.state.local[cpu as usize].clone() {
            self.state.take(task);
            self.state.entry(task).p.scx.flags &= !SCX_TASK_QUEUED;
            self.wakes(m, task, cpu);
        }
    }
}
