// SPDX-License-Identifier: GPL-2.0-only
//! What a look-up of a memory slot takes, measured here and now: Mammedov 2014's search before and
//! after, and the memslots crate. Each look-up waits for the one before it.

use std::hint::black_box;
use std::time::Instant;

use memslots::{Flags, Hint, Slot, Snapshot};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const LOOKUPS: usize = 200_000;
const ROUNDS: usize = 21;

/// More than the caches nearest to a core hold, bytes.
const EVICTS: usize = 16 << 20;
const COLD_ROUNDS: usize = 101;

/// Nanoseconds a look-up.
pub struct Times {
    /// A walk over slots sorted by size, without and with the slot that was found last.
    pub linear: f64,
    pub linear_last: f64,
    /// Mammedov's binary search over slots sorted by frame, after the one found last.
    pub binary_last: f64,
    /// The memslots crate.
    pub ours: f64,
}

/// A look-up that finds nothing in the caches: Mammedov's greatest figures.
pub struct Cold {
    pub linear: f64,
    pub ours: f64,
}

/// As large as `struct kvm_memory_slot` of Linux 3.18: 80 bytes with the rest of the slot.
type Backing = [u64; 7];

/// Slots in the order of their frames, as KVM sorts them: by size before Mammedov's patches, by
/// frame after it.
fn layout(slots: usize, dice: &mut Xoshiro256PlusPlus) -> Vec<Slot<Backing>> {
    let mut base_gfn = 0x100;
    (0..slots as u32)
        .map(|id| {
            let npages = 1 + dice.next_u64() % 64;
            let slot = Slot { id, flags: Flags::NONE, base_gfn, npages, backing: [base_gfn; 7] };
            base_gfn += npages + dice.next_u64() % 16;
            slot
        })
        .collect()
}

/// The slot that a walk reaches last, looked up with cold caches: medians of many times.
pub fn cold(slots: usize) -> Cold {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(4);
    let layout = layout(slots, &mut dice);
    let mut by_size = layout.clone();
    by_size.sort_by_key(|slot| std::cmp::Reverse(slot.npages));
    let snapshot = Snapshot::try_from(layout).expect("slots that do not overlap");
    let gfn = by_size.last().map_or(0, |slot| slot.base_gfn);
    let mut evicts = vec![0u8; EVICTS];
    let mut once = |find: &dyn Fn(u64) -> u64| {
        for byte in evicts.iter_mut().step_by(64) {
            *byte = byte.wrapping_add(1);
        }
        black_box(&evicts);
        let start = Instant::now();
        black_box(find(black_box(gfn)));
        start.elapsed().as_nanos() as f64
    };
    let mut samples = [const { Vec::new() }; 2];
    for _ in 0..COLD_ROUNDS {
        let walk = |gfn| by_size.iter().position(|slot| slot.contains(gfn)).unwrap_or(0) as u64;
        samples[0].push(once(&walk));
        samples[1].push(once(&|gfn| snapshot.find(gfn).map_or(0, |slot| slot.base_gfn)));
    }
    let [linear, ours] = samples.map(middle);
    Cold { linear, ours }
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// All are measured in turn, so that a machine whose speed drifts favours none. `random`: any slot
/// each time; else as during a boot, "2-3 memslots are used extensively, mostly the same".
pub fn time(slots: usize, random: bool) -> Times {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(4);
    let layout = layout(slots, &mut dice);
    let mut by_size = layout.clone();
    by_size.sort_by_key(|slot| std::cmp::Reverse(slot.npages));
    let mut by_frame = layout.clone();
    by_frame.sort_by_key(|slot| std::cmp::Reverse(slot.base_gfn));
    // Memory, in few and large slots.
    let used = if random { slots } else { 3 };
    let mut current = &by_size[0];
    let gfns: Vec<u64> = (0..4096)
        .map(|_| {
            if random || dice.next_u64().is_multiple_of(10) {
                current = &by_size[dice.next_u64() as usize % used];
            }
            current.base_gfn + dice.next_u64() % current.npages
        })
        .collect();
    let snapshot = Snapshot::try_from(layout).expect("slots that do not overlap");
    let (mut last, mut last_frame, mut hint) = (0, 0, Hint::default());
    let walk = |gfn: u64| by_size.iter().position(|slot| slot.contains(gfn)).unwrap_or(0);
    let mut samples = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        samples[0].push(loop_over(&gfns, |gfn| by_size[walk(gfn)].base_gfn));
        samples[1].push(loop_over(&gfns, |gfn| {
            if !by_size[last].contains(gfn) {
                last = walk(gfn);
            }
            by_size[last].base_gfn
        }));
        // search_memslots() as the patches leave it.
        samples[2].push(loop_over(&gfns, |gfn| {
            if !by_frame[last_frame].contains(gfn) {
                let (mut start, mut end) = (0, by_frame.len());
                while start < end {
                    let middle = start + (end - start) / 2;
                    if gfn >= by_frame[middle].base_gfn {
                        end = middle;
                    } else {
                        start = middle + 1;
                    }
                }
                last_frame = start.min(by_frame.len() - 1);
            }
            by_frame[last_frame].base_gfn
        }));
        samples[3].push(loop_over(&gfns, |gfn| {
            snapshot.find_near(gfn, &mut hint).map_or(0, |slot| slot.base_gfn)
        }));
    }
    // What disturbs a loop only makes it longer.
    let least = |all: Vec<f64>| all.into_iter().fold(f64::INFINITY, f64::min);
    let [linear, linear_last, binary_last, ours] = samples.map(least);
    Times { linear, linear_last, binary_last, ours }
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

const _: () = assert!(size_of::<Slot<Backing>>() == 80);
