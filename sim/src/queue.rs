// SPDX-License-Identifier: GPL-2.0-only
//! What will happen, in order of time; of what happens at once, in the order in which it was asked for.

use std::cmp::Ordering;

use dary_heap::QuaternaryHeap;

use crate::machine::Ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The time in the upper half, then the order in which it was asked for: never the same twice.
struct Entry(u128, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.cmp(&self.0)
    }
}

#[derive(Default)]
pub struct Queue {
    heap: QuaternaryHeap<Entry>,
    asked: u64,
}

impl Queue {
    pub fn push(&mut self, at: Ns, event: Event) {
        self.asked += 1;
        self.heap.push(Entry(u128::from(at) << 64 | u128::from(self.asked), event));
    }

    pub fn pop(&mut self) -> Option<(Ns, Event)> {
        self.heap.pop().map(|Entry(key, event)| ((key >> 64) as Ns, event))
    }
}
