// SPDX-License-Identifier: GPL-2.0-only
//! Which idle pCPU the kernel chooses (`kernel/sched/ext/idle.c`).

use super::ffi::{CpuMask, SCX_PICK_IDLE_CORE};
use super::state::Inner;
use crate::machine::{Machine, NONE};

impl Inner {
    /// A CPU that the task may run on, if the one it is on is none.
    pub fn fallback(&self, m: &Machine, task: u32) -> Option<u32> {
        m.task(task).allowed.first_common(&m.online, 0)
    }

    /// `scx_select_cpu_dfl()`: where it was if idle, else an idle core near, an idle core, an idle
    /// CPU near, an idle CPU, else where it was. Claims it.
    pub fn select(
        &mut self,
        m: &Machine,
        task: u32,
        prev: u32,
        mask: Option<&CpuMask>,
        flags: u64,
    ) -> (u32, bool) {
        let allowed = &m.task(task).allowed;
        let masked =
            |cpu: u32| mask.is_none_or(|mask| mask.bits[cpu as usize / 64] >> (cpu % 64) & 1 == 1);
        let idle = |cpu: u32| self.idle.contains(cpu) && allowed.contains(cpu) && masked(cpu);
        let core = |cpu: u32| self.idle_core(m, cpu);
        let smt = m.cpus[prev as usize].sibling != NONE;
        let llc = m.cpus[prev as usize].llc;
        let near = |cpu: &u32| m.cpus[*cpu as usize].llc == llc;
        let one_llc = m.cpus.iter().all(|cpu| cpu.llc == llc);
        let found = if idle(prev) && (!smt || core(prev)) {
            Some(prev)
        } else {
            let mut found = None;
            if smt {
                found = self.idle.iter().find(|cpu| near(cpu) && idle(*cpu) && core(*cpu));
                if !one_llc {
                    found = found.or_else(|| self.idle.iter().find(|cpu| idle(*cpu) && core(*cpu)));
                }
            }
            let only_cores = smt && flags & u64::from(SCX_PICK_IDLE_CORE) != 0;
            let any = || {
                (idle(prev).then_some(prev))
                    .or_else(|| self.idle.iter().find(|cpu| near(cpu) && idle(*cpu)))
                    .or_else(|| self.idle.iter().find(|cpu| idle(*cpu)))
            };
            found.or_else(|| if only_cores { None } else { any() })
        };
        match found {
            Some(cpu) => {
                self.idle.remove(cpu);
                (cpu, true)
            }
            None => (prev, false),
        }
    }

    /// Whether the pCPU's whole core is idle, if the pCPU is.
    pub fn idle_core(&self, m: &Machine, cpu: u32) -> bool {
        let sibling = m.cpus[cpu as usize].sibling;
        sibling == NONE || self.idle.contains(sibling)
    }

    /// `pick_idle_cpu_in_node()`: one of an idle core if there is any, and claims it.
    pub fn pick(&mut self, mask: *const CpuMask, flags: u64) -> Option<u32> {
        // SAFETY: a task's mask, or one of the scheduler's; as many words as the header says.
        let words = unsafe { &(*mask).bits };
        let m = self.m();
        let allowed = |cpu: &u32| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1;
        let idle = || self.idle.iter().filter(allowed);
        let smt = m.cpus.iter().any(|cpu| cpu.sibling != NONE);
        let core = if smt { idle().find(|cpu| self.idle_core(m, *cpu)) } else { None };
        let any =
            || if smt && flags & u64::from(SCX_PICK_IDLE_CORE) != 0 { None } else { idle().next() };
        let found = core.or_else(any)?;
        self.idle.remove(found);
        Some(found)
    }
}
