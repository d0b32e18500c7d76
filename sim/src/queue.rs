// SPDX-License-Identifier: GPL-2.0-only
//! What will happen, in order of time; of what happens at once, in the order in which it was asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::machine::Ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// What a pCPU's task does comes to its end; of this generation.
    Segment(u32, u32),
    Tick(u32),
    /// A pCPU chooses anew; an interrupt has told it to.
    Resched(u32),
    /// A guest's timer, or a request's completion, on a vCPU: for this task of the guest.
    Guest(u32, u32),
    /// A thread of the host has slept enough.
    Host(u32),
    /// A scheduler's own timer.
    Timer(u64),
    /// A fault of the scenario, by its number.
    Fault(u32),
    /// Everything before this is not measured.
    Warm,
}

#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    asked: u64,
}

impl Queue {
    pub fn push(&mut self, at: Ns, event: Event) {
        self.asked += 1;
        self.heap.push(Reverse((at, self.asked, event)));
    }

    pub fn pop(&mut self) -> Option<(Ns, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
