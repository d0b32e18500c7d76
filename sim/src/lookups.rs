// SPDX-License-Identifier: GPL-2.0-only
//! What a look-up of a memory slot takes, measured here and now: seed 004's search before and after, and
//! the memslots crate. Each look-up waits for the one before it.

use std::hint::black_box;
use std::time::Instant;

use memslots::{Flags, Hint, Slot, Snapshot};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const LOOKUPS: usize = 200_000;
const ROUNDS: usize = 7;

/// Nanoseconds a look-up.
#[derive(Clone, Copy)]
struct Times {
    slots: usize,
    random: bool,
    linear: f64,
    linear_last: f64,
    ours: f64,
}

pub struct Measured {
    times: Vec<Times>,
    /// The crate's, 117 slots, the last-used one.
    pub hit_ns: f64,
}

impl Measured {
    /// Time saved by the last-used slot over a plain walk, and by the crate over both.
    pub fn of(&self, slots: usize, random: bool) -> (f64, f64) {
        let found = self.times.iter().find(|t| t.slots == slots && t.random == random);
        found.map_or((f64::NAN, f64::NAN), |t| {
            (1.0 - t.linear_last / t.linear, 1.0 - t.ours / t.linear_last)
        })
    }
}

/// The three are measured in turn, so that a machine whose speed drifts favours none.
pub fn measure() -> Measured {
    let times: Vec<Times> =
        [(13, false), (117, false), (13, true), (117, true)].map(|(n, r)| time(n, r)).to_vec();
    let hit = times.iter().find(|t| t.slots == 117 && !t.random).map_or(f64::NAN, |t| t.ours);
    Measured { times, hit_ns: hit }
}

fn time(slots: usize, random: bool) -> Times {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(4);
    let mut base_gfn = 0x100;
    let layout: Vec<Slot<u64>> = (0..slots as u32)
        .map(|id| {
            let npages = 1 + dice.next_u64() % 64;
            let slot = Slot { id, flags: Flags::NONE, base_gfn, npages, backing: base_gfn };
            base_gfn += npages + dice.next_u64() % 16;
            slot
        })
        .collect();
    // In seed 004's boot nine in ten look-ups go to the slot of the last one.
    let mut current = &layout[slots / 2];
    let gfns: Vec<u64> = (0..4096)
        .map(|_| {
            if random || dice.next_u64().is_multiple_of(10) {
                current = &layout[dice.next_u64() as usize % slots];
            }
            current.base_gfn + dice.next_u64() % current.npages
        })
        .collect();
    let mut by_size = layout.clone();
    by_size.sort_by_key(|slot| std::cmp::Reverse(slot.npages));
    let snapshot = Snapshot::try_from(layout).expect("slots that do not overlap");
    let (mut last, mut hint) = (0, Hint::default());
    let walk = |gfn: u64| by_size.iter().position(|slot| slot.contains(gfn)).unwrap_or(0);
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        samples[0].push(loop_over(&gfns, |gfn| by_size[walk(gfn)].base_gfn));
        samples[1].push(loop_over(&gfns, |gfn| {
            if !by_size[last].contains(gfn) {
                last = walk(gfn);
            }
            by_size[last].base_gfn
        }));
        samples[2].push(loop_over(&gfns, |gfn| {
            snapshot.find_near(gfn, &mut hint).map_or(0, |slot| slot.base_gfn)
        }));
    }
    let [linear, linear_last, ours] = samples.map(|mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    Times { slots, random, linear, linear_last, ours }
}

fn loop_over(gfns: &[u64], mut find: impl FnMut(u64) -> u64) -> f64 {
    let start = Instant::now();
    let mut found = 0;
    for i in 0..LOOKUPS {
        // Depends on the last one's result, though never on its value.
        let gfn = gfns[i % gfns.len()] + black_box(found & (1 << 63));
        found = find(gfn);
    }
    black_box(found);
    start.elapsed().as_nanos() as f64 / LOOKUPS as f64
}
