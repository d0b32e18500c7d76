// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every order in which a reader and the owner can meet:
//! `RUSTFLAGS="--cfg loom" cargo test -p memslots --release --test loom`
#![cfg(loom)]

use loom::thread;
use memslots::{Change, Flags, MemSlots, Slot};

fn slot(id: u32, base_gfn: u64, backing: u64) -> Slot<u64> {
    Slot { id, flags: Flags::NONE, base_gfn, npages: 4, backing }
}

/// Several changes at once: no reader sees one without the other.
#[test]
fn changes_that_belong_together_are_seen_together() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let mut slots = MemSlots::new();
        slots.set(slot(0, 0, 7)).unwrap();
        let mut readers = [slots.reader(), slots.reader()];
        let mut second = slots.reader();
        let looks = thread::spawn(move || {
            for reader in &mut readers {
                let snapshot = reader.snapshot();
                let (old, new) = (snapshot.get(0).is_some(), snapshot.get(1).is_some());
                assert!(old != new, "old {old}, new {new}");
            }
        });
        slots.apply([Change::Delete(0), Change::Set(slot(1, 0, 8))]).unwrap();
        looks.join().unwrap();
        assert!(second.find(0).is_some_and(|slot| slot.id == 1));
    });
}

/// A slot that moves is at one place or the other, never at both or at none.
#[test]
fn readers_see_whole_updates_in_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let mut slots = MemSlots::new();
        slots.set(slot(0, 0, 7)).unwrap();
        let mut reader = slots.reader();
        let looks = thread::spawn(move || {
            let mut seen = 0;
            for _ in 0..2 {
                let snapshot = reader.snapshot();
                let (old, new) = (snapshot.find(1).is_some(), snapshot.find(9).is_some());
                assert!(old != new, "old place {old}, new place {new}");
                assert!(snapshot.generation() >= seen, "time went backwards");
                seen = snapshot.generation();
            }
        });
        slots.set(slot(0, 8, 7)).unwrap();
        slots.set(slot(0, 0, 7)).unwrap();
        looks.join().unwrap();
        // What an update's return has promised to all readers.
        assert!(slots.reader().find(1).is_some());
    });
}

#[test]
fn a_reader_sees_what_was_done_before() {
    loom::model(|| {
        let mut slots = MemSlots::new();
        let mut reader = slots.reader();
        slots.set(slot(0, 0, 1)).unwrap();
        let looks = thread::spawn(move || assert_eq!(reader.find(2).map(|s| s.backing), Some(1)));
        looks.join().unwrap();
    });
}
