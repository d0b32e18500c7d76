// SPDX-License-Identifier: GPL-2.0-only
//! One vCPU: what it does, and what KVM knows of it.

use std::collections::VecDeque;

use memslots::Hint;

use super::EVER;
use crate::guest::{Act, Interrupt, Vm};
use crate::kvm::Kvm;
use crate::machine::{NONE, Ns};

/// A task of a guest runs so long before another one of its vCPU: a tick at HZ=250.
pub const GUEST_SLICE_NS: Ns = 4_000_000;

/// What a vCPU's thread does next in the host, once its work there is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Enter,
    Halt,
    PollEnds,
    OnSpin,
    YieldTo(u32),
    Die,
}

#[derive(Clone, Debug)]
pub struct Vcpu {
    pub vm: u32,
    pub work: Ns,
    pub then: Then,
    pub act: Act,
    pub left: Ns,
    pub stack: Vec<(Act, Ns)>,
    /// It has left the guest, or is about to: what its next entry undoes is still to be undone.
    pub exited: bool,
    pub irqs: VecDeque<Interrupt>,
    /// The guest's task that it runs, or [`NONE`], and those that wait for it.
    pub task: u32,
    pub runq: VecDeque<u32>,
    /// What is left of its task's slice: CPU time in the guest.
    pub slice_left: Ns,
    pub locks_held: u32,
    /// Acknowledgements that it waits for.
    pub acks: u32,
    /// KVM's state.
    pub window: Ns,
    pub ple_left: Ns,
    pub pv_left: Ns,
    pub in_spin_loop: bool,
    pub dy_eligible: bool,
    pub spin_count: u32,
    pub spin_skips: u32,
    pub preempted: bool,
    pub in_kernel: bool,
    pub ipi_flag: bool,
    pub ipi_from: Vec<u64>,
    pub polling: bool,
    pub poll_ns: Ns,
    pub halted_at: Ns,
    /// Since when it is in kvm_vcpu_halt(), as far as the scheduler's probes know; 0: it is not.
    pub in_halt: Ns,
    /// When its timers and requests end.
    pub wakes: Vec<Ns>,
    /// Of the memory slots: the frame that KVM looked for last, and where it was.
    pub gfn: u64,
    pub slot_hint: Hint,
}

impl Vcpu {
    /// One that has not run yet, of the VM with this number, which is `vm`.
    pub fn new(number: u32, vm: &Vm, kvm: &Kvm) -> Self {
        Vcpu {
            vm: number,
            work: 0,
            then: Then::Enter,
            act: Act::Next,
            left: 0,
            stack: Vec::new(),
            exited: true,
            irqs: VecDeque::new(),
            task: NONE,
            runq: VecDeque::new(),
            slice_left: GUEST_SLICE_NS,
            locks_held: 0,
            acks: 0,
            window: kvm.ple_window_ns,
            ple_left: kvm.ple_window_ns,
            pv_left: EVER,
            in_spin_loop: false,
            dy_eligible: false,
            spin_count: 0,
            spin_skips: 0,
            preempted: false,
            in_kernel: true,
            ipi_flag: false,
            ipi_from: vec![0; (vm.n as usize).div_ceil(64)],
            polling: false,
            poll_ns: 0,
            halted_at: 0,
            in_halt: 0,
            wakes: Vec::new(),
            gfn: 0,
            slot_hint: Hint::default(),
        }
    }

    pub fn in_guest(&self) -> bool {
        self.work == 0 && self.then == Then::Enter
    }

    /// Another task of this vCPU is to go on (`need_resched()` in the guest), and this one can be
    /// stopped.
    pub fn slice_ends(&self) -> bool {
        self.slice_left == 0 && !self.runq.is_empty() && self.locks_held == 0
    }

    /// It has been in the guest for so long.
    pub fn uses_slice(&mut self, ns: Ns) {
        self.slice_left = self.slice_left.saturating_sub(ns);
        if self.slice_left == 0 && self.runq.is_empty() {
            self.slice_left = GUEST_SLICE_NS;
        }
    }

    /// What it does lasts as long beside a busy hyper-thread: KVM's polling, and a loop of PAUSEs,
    /// whose window is one of the TSC.
    pub fn waits_by_clock(&self) -> bool {
        self.polling || (self.in_guest() && matches!(self.act, Act::Spin(_)))
    }

    /// It leaves the guest, for so long.
    pub fn exits(&mut self, work: Ns) {
        self.exited = true;
        self.work += work;
    }

    /// What `vcpu_enter_guest()` and the end of `kvm_vcpu_on_spin()` reset. The first PAUSE after
    /// it begins a new loop (Intel SDM, "PAUSE-loop exiting"), with the window of now.
    pub fn enters(&mut self) {
        self.exited = false;
        if self.ple_left != EVER {
            self.ple_left = self.window;
        }
        (self.in_spin_loop, self.dy_eligible) = (false, false);
        self.ipi_flag = false;
    }
}
