// SPDX-License-Identifier: GPL-2.0-only
//! What runs in guests: tasks with programs, and what they wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Deserialize;

use crate::machine::{CpuSet, NONE, Ns};
use crate::random::Random;
use crate::slots::Slots;

/// One step of a task of a guest. Times are CPU time at full speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Uniform within the share `spread` on both sides of the mean.
    Compute {
        mean: Ns,
        spread: f64,
        kernel: bool,
    },
    Lock(u32),
    Unlock(u32),
    /// A lock that may be held asleep: who comes spins while the holder runs, else sleeps.
    Mutex(u32),
    Release(u32),
    /// Interrupt all other vCPUs that run a task, and wait for their acknowledgements (TLB
    /// shootdown, call function).
    Call,
    /// Interrupt one other vCPU, and wait.
    CallOne,
    /// Spin in user mode until all tasks of the VM are here; with PAUSE or without.
    Barrier {
        pause: bool,
    },
    Post(u32),
    Wait(u32),
    /// Sleep until a timer.
    Sleep {
        mean: Ns,
        spread: f64,
    },
    /// A request to a device of the host, which takes so long.
    Io {
        mean: Ns,
    },
    /// One unit of work is done.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    TestAndSet,
    /// In order.
    #[default]
    Ticket,
    /// In order (MCS, qspinlock).
    Queued,
    /// In order; waiters halt after a while and are kicked.
    PvQueued,
}

#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// The vCPU that has it, or [`NONE`].
    pub holder: u32,
    /// vCPUs that wait, in the order in which they came.
    pub queue: VecDeque<u32>,
}

/// `kernel/locking/mutex.c`.
#[derive(Clone, Debug)]
pub struct Mutex {
    /// The task that has it, or [`NONE`].
    pub holder: u32,
    /// vCPUs that spin in line (the OSQ): the first for the mutex, each other one for its turn.
    pub spinners: VecDeque<u32>,
    /// Tasks that sleep until they are woken to try. The first one is still here while it tries.
    pub waiters: VecDeque<u32>,
    /// The first waiter has been woken in vain: it gets the mutex next (MUTEX_FLAG_HANDOFF).
    pub handoff: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Semaphore {
    pub count: u64,
    pub waiters: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    Ready,
    Running,
    Blocked,
}

/// A task of a guest.
#[derive(Clone, Debug)]
pub struct GuestTask {
    pub program: Arc<Vec<Op>>,
    pub pc: usize,
    pub state: TaskState,
    /// Where it runs, or ran last.
    pub vcpu: u32,
    /// When its timer should wake it; 0: it sleeps on something else.
    pub deadline: Ns,
    /// What it was doing when another task of its vCPU went before it.
    pub saved: Option<(Act, Ns)>,
    pub random: Random,
}

/// What a vCPU waits for, running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    Lock(u32),
    Mutex(u32),
    Call,
    Barrier { round: u64, pause: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Of a call, by this vCPU.
    Call(u32),
    Reschedule,
    /// A timer or a request of a task.
    Task(u32),
}

/// What a vCPU does in its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Looks for something to do.
    Next,
    Compute {
        kernel: bool,
    },
    Spin(Spin),
    Irq(Interrupt),
    Idle,
}

impl Act {
    /// In the guest's kernel?
    pub fn kernel(self) -> bool {
        match self {
            Act::Compute { kernel } => kernel,
            Act::Spin(Spin::Barrier { .. }) => false,
            Act::Next | Act::Spin(_) | Act::Irq(_) | Act::Idle => true,
        }
    }
}

/// What a VM's kernel can do, beyond hardware.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Features {
    pub lock: LockKind,
    /// One exit sends an IPI to any number of vCPUs.
    pub pv_ipi: bool,
    /// A preempted vCPU flushes its TLB when it runs again; it is not interrupted.
    pub pv_tlb_flush: bool,
    /// A sender of IPIs that finds a target preempted yields to it (KVM_HC_SCHED_YIELD).
    pub sched_yield: bool,
    /// The one that frees a lock yields to the vCPU that it kicks.
    pub kick_yields: bool,
    /// A TLB shootdown holds one of eight spinlocks until all have acknowledged (`tlbstate_lock` of
    /// Linux before 3.6, arch/x86/mm/tlb.c).
    pub tlb_lock: bool,
    /// Idle vCPUs poll in the guest and never halt.
    pub idle_poll: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features {
            lock: LockKind::Ticket,
            pv_ipi: false,
            pv_tlb_flush: false,
            sched_yield: false,
            kick_yields: false,
            tlb_lock: false,
            idle_poll: false,
        }
    }
}

pub struct Vm {
    pub first: u32,
    pub n: u32,
    pub features: Features,
    pub tasks: Vec<GuestTask>,
    /// `None`: what an exit costs has the look-ups in it.
    pub slots: Option<Slots>,
    pub locks: Vec<Lock>,
    pub mutexes: Vec<Mutex>,
    pub semaphores: Vec<Semaphore>,
    /// Of the barrier: who is there, and the round.
    pub arrived: u32,
    pub round: u64,
    /// Units of work.
    pub done: u64,
    /// Timers and requests that will wake a task.
    pub pending: u64,
    /// Tasks that are not blocked.
    pub awake: u64,
    pub ended: bool,
    /// vCPUs that wait for a pCPU: preempted, or woken (`vcpu->ready`).
    pub ready: CpuSet,
    /// `kvm->last_boosted_vcpu`.
    pub last_boosted: u32,
}

impl Vm {
    pub fn lock(&mut self, lock: u32) -> &mut Lock {
        let at = lock as usize;
        if self.locks.len() <= at {
            self.locks.resize(at + 1, Lock { holder: NONE, queue: VecDeque::new() });
        }
        &mut self.locks[at]
    }

    pub fn mutex(&mut self, mutex: u32) -> &mut Mutex {
        let at = mutex as usize;
        if self.mutexes.len() <= at {
            let (spinners, waiters) = (VecDeque::new(), VecDeque::new());
            let free = Mutex { holder: NONE, spinners, waiters, handoff: false };
            self.mutexes.resize(at + 1, free);
        }
        &mut self.mutexes[at]
    }

    pub fn semaphore(&mut self, semaphore: u32) -> &mut Semaphore {
        let at = semaphore as usize;
        if self.semaphores.len() <= at {
            self.semaphores.resize(at + 1, Semaphore::default());
        }
        &mut self.semaphores[at]
    }
}
