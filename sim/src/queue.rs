// SPDX-License-Identifier: GPL-2.0-only
//! What will happen, in order of time; of what happens at once, in the order in which it was asked
//! for.

use std::cmp::Ordering;

use dary_heap::QuaternaryHeap;

use crate::machine::Ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// What a task does comes to its end.
    Segment(u32),
    Tick(u32),
    /// A pCPU chooses again; an interrupt has told it to.
    Resched(u32),
    /// A guest's timer, or a request's completion, on a vCPU: for this task of the guest.
    Guest(u32, u32),
    /// A thread of the host has slept enough.
    Host(u32),
    /// A scheduler's own timer.
    Timer(u64),
    /// A fault of the scenario, by its number.
    Fault(u32),
    /// scx_baton's governor of halt polling decides.
    Govern,
    /// Everything before this is not measured.
    Warm,
}

/// The time in the upper half, then the order in which it was asked for: never the same twice.
type Key = u128;

const NEVER: Key = Key::MAX;

fn time(key: Key) -> Ns {
    (key >> 64) as Ns
}

struct Entry(Key, Event);

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

/// Children of one node: their keys are a cache line.
const FAN: usize = 4;

/// The end of each task's segment, which changes more often than it comes: a tree of minima, in
/// which a key is changed in place. In a heap most of what is popped would be out of date.
struct Ends {
    /// The leaves first, the root alone in the last.
    levels: Vec<Vec<[Key; FAN]>>,
}

impl Ends {
    fn new(tasks: usize) -> Self {
        let mut levels = Vec::new();
        let mut nodes = tasks.div_ceil(FAN).max(1);
        loop {
            levels.push(vec![[NEVER; FAN]; nodes]);
            if nodes == 1 {
                return Ends { levels };
            }
            nodes = nodes.div_ceil(FAN);
        }
    }

    fn least(node: &[Key; FAN]) -> Key {
        node[0].min(node[1]).min(node[2].min(node[3]))
    }

    fn set(&mut self, task: u32, key: Key) {
        let (mut at, mut key) = (task as usize, key);
        for level in &mut self.levels {
            let node = &mut level[at / FAN];
            let before = Self::least(node);
            node[at % FAN] = key;
            key = Self::least(node);
            if key == before {
                return;
            }
            at /= FAN;
        }
    }

    fn first(&self) -> Key {
        self.levels.last().map_or(NEVER, |root| Self::least(&root[0]))
    }

    /// Whose key this is: there is one of each.
    fn whose(&self, key: Key) -> u32 {
        self.levels.iter().rev().fold(0, |at, level| {
            at * FAN + level[at].iter().position(|other| *other == key).unwrap_or(0)
        }) as u32
    }
}

pub struct Queue {
    heap: QuaternaryHeap<Entry>,
    ends: Ends,
    /// Whose end was popped last, if its key is still there: the same task's next end most often
    /// takes its place at once.
    popped: Option<u32>,
    asked: u64,
}

impl Queue {
    pub fn new(tasks: usize) -> Self {
        Queue { heap: QuaternaryHeap::new(), ends: Ends::new(tasks), popped: None, asked: 0 }
    }

    fn key(&mut self, at: Ns) -> Key {
        self.asked += 1;
        Key::from(at) << 64 | Key::from(self.asked)
    }

    pub fn push(&mut self, at: Ns, event: Event) {
        let key = self.key(at);
        match event {
            Event::Segment(task) => {
                self.popped = self.popped.filter(|popped| *popped != task);
                self.ends.set(task, key);
            }
            event => self.heap.push(Entry(key, event)),
        }
    }

    /// The end of the task's segment, if it was to come, does not.
    pub fn forget_segment(&mut self, task: u32) {
        if self.popped != Some(task) {
            self.ends.set(task, NEVER);
        }
    }

    pub fn pop(&mut self) -> Option<(Ns, Event)> {
        if let Some(task) = self.popped.take() {
            self.ends.set(task, NEVER);
        }
        let end = self.ends.first();
        if self.heap.peek().is_some_and(|first| first.0 < end) {
            return self.heap.pop().map(|Entry(key, event)| (time(key), event));
        }
        if end == NEVER {
            return None;
        }
        let task = self.ends.whose(end);
        self.popped = Some(task);
        Some((time(end), Event::Segment(task)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Segment(u32, Ns),
        Forget(u32),
        Other(u32, Ns),
        Pop,
    }

    fn step(tasks: u32) -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..tasks, 0u64..50).prop_map(|(task, at)| Step::Segment(task, at)),
            1 => (0..tasks).prop_map(Step::Forget),
            1 => (0..tasks, 0u64..50).prop_map(|(task, at)| Step::Other(task, at)),
            2 => Just(Step::Pop),
        ]
    }

    proptest! {
        /// Against a list that is searched.
        #[test]
        fn comes_in_order(
            (tasks, steps) in (1u32..300)
                .prop_flat_map(|tasks| (Just(tasks), prop::collection::vec(step(tasks), 0..400)))
        ) {
            let mut queue = Queue::new(tasks as usize);
            let mut list: Vec<(Ns, usize, Event)> = Vec::new();
            for (order, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Segment(task, at) => {
                        queue.push(at, Event::Segment(task));
                        list.retain(|(_, _, event)| *event != Event::Segment(task));
                        list.push((at, order, Event::Segment(task)));
                    }
                    Step::Forget(task) => {
                        queue.forget_segment(task);
                        list.retain(|(_, _, event)| *event != Event::Segment(task));
                    }
                    Step::Other(task, at) => {
                        queue.push(at, Event::Host(task));
                        list.push((at, order, Event::Host(task)));
                    }
                    Step::Pop => {
                        let first = list.iter().enumerate().min_by_key(|(_, (at, order, _))| (*at, *order));
                        let first = first.map(|(place, _)| place).map(|place| list.remove(place));
                        prop_assert_eq!(queue.pop(), first.map(|(at, _, event)| (at, event)));
                    }
                }
            }
        }
    }
}
