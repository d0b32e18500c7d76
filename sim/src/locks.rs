// SPDX-License-Identifier: GPL-2.0-only
//! Locks of runqueues and of dispatch queues: one pCPU at a time has each, the others wait in line.

use rustc_hash::FxHashMap;

/// As in machine.rs, which has locks.
type Ns = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lock {
    /// Of a pCPU (`rq->__lock`).
    Runqueue(u32),
    /// Of a sched_ext scheduler's queue (`dsq->lock`), by its id.
    Queue(u64),
}

/// Who had a lock last, and until when.
#[derive(Clone, Copy, Debug)]
struct Held {
    by: u32,
    until: Ns,
}

/// A scheduler's callback takes no simulated time; what it waits for locks is added up, and is the
/// pCPU's as soon as it runs somebody again.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    /// For how long an operation holds one: where the pCPU had it last, where another one of its
    /// last-level cache had, where any other had.
    hold: [Ns; 3],
    held: FxHashMap<Lock, Held>,
    /// Of what happens now: the time under locks and for them, and of that for them.
    passed: Ns,
    waited: Ns,
    total: Ns,
}

impl Locks {
    pub fn new(hold: [Ns; 3]) -> Self {
        Locks { hold, ..Locks::default() }
    }

    /// pCPU `by` does something under the lock, as soon as those are through that came before.
    /// `near`: whether another one shares its last-level cache.
    pub fn take(&mut self, lock: Lock, by: u32, now: Ns, near: impl Fn(u32) -> bool) {
        if self.hold == [0; 3] {
            return;
        }
        let from = now + self.passed;
        let held = self.held.entry(lock).or_insert(Held { by, until: 0 });
        let distance = if held.by == by { 0 } else { 2 - usize::from(near(held.by)) };
        let waits = held.until.saturating_sub(from);
        let until = from + waits + self.hold[distance];
        *held = Held { by, until };
        self.passed = until - now;
        self.waited += waits;
    }

    /// pCPU `by`, which comes at `from`, holds the lock for so long, and pays for that itself:
    /// until when.
    pub fn hold(&mut self, lock: Lock, by: u32, from: Ns, holds: Ns) -> Ns {
        let until = self.held.get(&lock).map_or(from, |held| held.until.max(from)) + holds;
        self.held.insert(lock, Held { by, until });
        until
    }

    /// What [`take`](Self::take) has waited since it was asked last: something else happens now.
    pub fn waited(&mut self) -> Ns {
        self.passed = 0;
        self.total += self.waited;
        std::mem::take(&mut self.waited)
    }

    /// All that was waited so far, or since the last [`forget_total`](Self::forget_total).
    pub fn total(&self) -> Ns {
        self.total
    }

    pub fn forget_total(&mut self) {
        self.total = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_last_waits_for_all_before() {
        let mut locks = Locks::new([10, 30, 70]);
        let (queue, near) = (Lock::Queue(1), |other: u32| other < 4);
        locks.take(queue, 0, 1000, near);
        // A second step of the same callback follows the first one.
        locks.take(queue, 0, 1000, near);
        assert_eq!(locks.waited(), 0);
        // The lock is free at 1020, and comes from near.
        locks.take(queue, 1, 1005, near);
        assert_eq!(locks.waited(), 15);
        // Free at 1050; from there on this one holds it for 70.
        locks.take(queue, 4, 1049, |_| false);
        assert_eq!(locks.waited(), 1);
        locks.take(queue, 5, 1050, |_| false);
        assert_eq!(locks.waited(), 70);
        // Another lock is free.
        locks.take(Lock::Runqueue(1), 6, 1050, near);
        assert_eq!(locks.waited(), 0);
        assert_eq!(locks.total(), 86);
    }
}
