// SPDX-License-Identifier: GPL-2.0-only
//! Guests' mutexes, as `kernel/locking/mutex.c` has them: who comes spins while the holder runs,
//! else sleeps; who is woken tries, and gets the mutex for certain the second time.

use super::{EVER, Sim};
use crate::guest::{Act, Spin, TaskState};
use crate::machine::NONE;

impl Sim {
    /// `mutex_lock()`. Whether it spins for it, or nobody can go on any more.
    pub(super) fn acquire(&mut self, v: u32, task: u32, number: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let m = self.vms[vm].mutex(number);
        if m.holder == NONE {
            m.holder = task;
            return false;
        }
        if self.holder_runs(vm, number) {
            self.vms[vm].mutex(number).spinners.push_back(v);
            self.spin(v, Spin::Mutex(number), EVER);
            return true;
        }
        self.vms[vm].mutex(number).waiters.push_back(task);
        self.waits_for(v, number);
        self.is_deadlocked(vm)
    }

    /// `__mutex_unlock_slowpath()`: the first waiter is woken to try, or has it.
    pub(super) fn release(&mut self, v: u32, number: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let m = self.vms[vm].mutex(number);
        let first = m.waiters.front().copied().unwrap_or(NONE);
        m.holder = NONE;
        if m.handoff {
            (m.holder, m.handoff) = (first, false);
            m.waiters.pop_front();
        }
        let spinner = m.spinners.front().copied();
        if let Some(t) = self.vms[vm].tasks.get(first as usize) {
            match t.state {
                TaskState::Running => self.touched.push(t.vcpu),
                TaskState::Blocked => self.wake_task(v, first),
                TaskState::Ready => {}
            }
        }
        // Looks before the waiter, if both spin.
        self.touched.extend(spinner);
    }

    /// `__mutex_trylock()` of a vCPU's task that waits for it. Whether it has it now.
    pub(super) fn tries(&mut self, v: u32, number: u32) -> bool {
        let c = &self.vcpus[v as usize];
        let (vm, task) = (c.vm as usize, c.task);
        let m = self.vms[vm].mutex(number);
        let in_line = m.spinners.iter().position(|spinner| *spinner == v);
        if m.holder == NONE && in_line.is_none_or(|place| place == 0) {
            m.holder = task;
            if let Some(place) = m.waiters.iter().position(|waiter| *waiter == task) {
                m.waiters.remove(place);
            }
        }
        if m.holder == task && in_line.is_some() {
            self.leaves_line(v, number);
        }
        self.vms[vm].mutex(number).holder == task
    }

    /// A vCPU's task that waits for it, and did not get it, goes on spinning. Else it sleeps, if
    /// it is not free now.
    pub(super) fn goes_on_spinning(&mut self, v: u32, number: u32) -> bool {
        let c = &self.vcpus[v as usize];
        let (vm, task, must_stop) = (c.vm as usize, c.task, c.slice_ends());
        let runs = self.holder_runs(vm, number);
        let m = self.vms[vm].mutex(number);
        let spins = match m.spinners.iter().position(|spinner| *spinner == v) {
            Some(0) => runs,
            // osq_lock(): vcpu_is_preempted()
            Some(place) => !self.vcpus[m.spinners[place - 1] as usize].preempted,
            None => {
                let first = m.waiters.front() == Some(&task);
                m.handoff |= first;
                first && runs
            }
        };
        if spins && !must_stop {
            return true;
        }
        self.leaves_line(v, number);
        let m = self.vms[vm].mutex(number);
        if !m.waiters.contains(&task) {
            m.waiters.push_back(task);
        }
        if m.holder != NONE {
            self.waits_for(v, number);
            self.is_deadlocked(vm);
        }
        false
    }

    /// It spins no more: the next one in line looks.
    fn leaves_line(&mut self, v: u32, number: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let m = self.vms[vm].mutex(number);
        if let Some(place) = m.spinners.iter().position(|spinner| *spinner == v) {
            m.spinners.remove(place);
            let next = m.spinners.get(place).copied();
            self.touched.extend(next);
        }
    }

    /// A vCPU's task sleeps for it, and will try again as soon as it is woken.
    fn waits_for(&mut self, v: u32, number: u32) {
        let c = &mut self.vcpus[v as usize];
        let (vm, task) = (c.vm as usize, c.task);
        c.act = Act::Next;
        self.vms[vm].tasks[task as usize].saved = Some((Act::Spin(Spin::Mutex(number)), EVER));
        self.block(v, task);
    }

    /// `mutex_spin_on_owner()`: a holder that sleeps, or whose vCPU is preempted, is not waited
    /// for.
    fn holder_runs(&self, vm: usize, number: u32) -> bool {
        let vm = &self.vms[vm];
        let Some(holder) = vm.tasks.get(vm.mutexes[number as usize].holder as usize) else {
            return true;
        };
        holder.state == TaskState::Running && !self.vcpus[holder.vcpu as usize].preempted
    }

    /// A task no longer runs on its vCPU, or its vCPU on no pCPU: who spins for its mutex, or
    /// behind it in line, looks again.
    pub(super) fn holder_stops(&mut self, vm: usize, task: u32) {
        let Some(t) = self.vms[vm].tasks.get(task as usize) else { return };
        for m in &self.vms[vm].mutexes {
            if m.holder == task {
                self.touched.extend(m.spinners.front());
                let first = m.waiters.front().map(|first| &self.vms[vm].tasks[*first as usize]);
                let spins = first.filter(|first| first.state == TaskState::Running);
                self.touched.extend(spins.map(|first| first.vcpu));
            }
            if let Some(place) = m.spinners.iter().position(|spinner| *spinner == t.vcpu) {
                self.touched.extend(m.spinners.get(place + 1));
            }
        }
    }
}
