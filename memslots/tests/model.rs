// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Against a model that is as plain as can be: a list that is looked through from end to end.

mod naive;

use memslots::{Change, Flags, Hint, MAX_GFNS, MAX_PAGES, MAX_SLOTS, MemSlots, Slot, Snapshot};
use naive::{Model, Step};
use proptest::prelude::*;

/// Mostly slots that come near each other, sometimes ones that cannot be.
fn slot() -> impl Strategy<Value = Slot<u8>> {
    let space = prop_oneof![20 => Just(0u32), 2 => 1u32..3];
    let number = prop_oneof![20 => 0u32..8, 1 => MAX_SLOTS - 1..65_536];
    let id = (space, number).prop_map(|(space, number)| space << 16 | number);
    let ends = [MAX_GFNS, 1 << 52];
    let end = (0usize..2, 0u64..10).prop_map(move |(end, before)| ends[end] - before);
    let base = prop_oneof![20 => 0u64..60, 2 => end, 1 => any::<u64>()];
    let npages = prop_oneof![20 => 1u64..9, 1 => MAX_PAGES - 1..MAX_PAGES + 2, 1 => any::<u64>()];
    (id, base, npages, 0u32..8, 0u8..2).prop_map(|(id, base_gfn, npages, flags, backing)| {
        let flags = Flags::from_bits(flags).expect("three flags");
        Slot { id, flags, base_gfn, npages, backing }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![4 => slot().prop_map(Step::Set), 1 => (0u32..9).prop_map(Step::Delete)]
}

proptest! {
    #[test]
    fn behaves_as_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let (mut model, mut slots) = (Model::default(), MemSlots::new());
        let mut reader = slots.reader();
        let mut hint = Hint::default();
        let mut generation = 0;
        for step in &steps {
            let expected = model.apply(step);
            let got = match step {
                Step::Set(slot) => slots.set(slot.clone()),
                Step::Delete(id) => slots.delete(*id),
            };
            generation += u64::from(expected == Ok(true));
            prop_assert_eq!(got, expected.map(|_| ()), "{:?}", step);
            let snapshot = slots.snapshot();
            prop_assert_eq!(snapshot.generation(), generation);
            prop_assert_eq!(snapshot.len(), model.0.len());
            prop_assert!(snapshot.iter().is_sorted_by_key(|s| s.base_gfn));
            for id in 0..9 {
                prop_assert_eq!(snapshot.get(id), model.0.iter().find(|s| s.id == id));
            }
            let ends = model.0.iter().flat_map(|s| [s.base_gfn, s.end_gfn()]);
            for gfn in ends.flat_map(|g| [g.wrapping_sub(1), g, g + 1]).chain([0, u64::MAX]) {
                prop_assert_eq!(snapshot.find(gfn), model.find(gfn));
                prop_assert_eq!(reader.find(gfn), model.find(gfn));
                // The same hint for every snapshot: stale most of the time.
                prop_assert_eq!(snapshot.find_near(gfn, &mut hint), model.find(gfn));
            }
        }
    }
}

proptest! {
    /// Several changes are made as one by one, or none of them is.
    #[test]
    fn changes_at_once_are_those_changes(
        before in prop::collection::vec(step(), 0..10),
        steps in prop::collection::vec(step(), 0..6),
    ) {
        let change = |step: &Step| match step {
            Step::Set(slot) => Change::Set(slot.clone()),
            Step::Delete(id) => Change::Delete(*id),
        };
        let (mut slots, mut one_by_one) = (MemSlots::new(), MemSlots::new());
        for step in &before {
            let _ = slots.apply([change(step)]);
            let _ = one_by_one.apply([change(step)]);
        }
        let first = slots.snapshot();
        let results: Vec<_> = steps.iter().map(|step| one_by_one.apply([change(step)])).collect();
        let refused = results.iter().find(|result| result.is_err());
        let got = slots.apply(steps.iter().map(change));
        prop_assert_eq!(&got, refused.unwrap_or(&Ok(())));
        let expected = if got.is_ok() { one_by_one.snapshot() } else { first };
        prop_assert!(slots.snapshot().iter().eq(expected.iter()));
        prop_assert_eq!(slots.snapshot().generation(), expected.generation());
    }
}

proptest! {
    /// All at once gives what one by one gives, in whatever order.
    #[test]
    fn a_list_is_its_slots(slots in prop::collection::vec(slot(), 0..8)) {
        let one_by_one = || {
            let mut ids = std::collections::HashSet::new();
            slots.iter().try_fold(Snapshot::new(), |map, slot| {
                ids.insert(slot.id).then_some(())?;
                map.with(slot.clone()).ok()
            })
        };
        let at_once = Snapshot::try_from(slots.clone());
        match (one_by_one(), &at_once) {
            (Some(one_by_one), Ok(at_once)) => {
                prop_assert!(one_by_one.iter().eq(at_once.iter()));
                for slot in &slots {
                    prop_assert_eq!(at_once.get(slot.id), Some(slot));
                }
            }
            (None, Err(_)) => (),
            (one_by_one, at_once) => {
                return Err(TestCaseError::fail(format!("{one_by_one:?} {at_once:?}")));
            }
        }
    }
}

/// Every layout of up to five slots on ten frames, every frame, with every possible last-used
/// slot before it: the binary search is not trusted, but tried.
#[test]
#[cfg_attr(miri, ignore = "a million look-ups")]
fn every_small_layout() {
    const FRAMES: u64 = 10;
    let mut layouts = 0;
    let mut open = vec![(0u64, Vec::<(u64, u64)>::new())];
    while let Some((from, layout)) = open.pop() {
        layouts += 1;
        check(&layout, FRAMES);
        if layout.len() == 5 {
            continue;
        }
        for base in from..FRAMES {
            for end in base + 1..=FRAMES {
                let mut longer = layout.clone();
                longer.push((base, end - base));
                open.push((end, longer));
            }
        }
    }
    // Choosing k disjoint intervals of ten frames: the sum over k = 0 … 5 of C(10 + k, 2k).
    assert_eq!(layouts, 1 + 55 + 495 + 1716 + 3003 + 3003);
}

fn check(layout: &[(u64, u64)], frames: u64) {
    let mut snapshot = Snapshot::new();
    // Against the order of frames, so that creation sorts.
    for (id, &(base_gfn, npages)) in layout.iter().enumerate().rev() {
        let slot = Slot { id: id as u32, flags: Flags::NONE, base_gfn, npages, backing: () };
        snapshot = snapshot.with(slot).expect("no overlap");
    }
    for before in 0..=frames {
        for gfn in 0..=frames {
            let mut hint = Hint::default();
            let _ = snapshot.find_near(before, &mut hint);
            let naive = layout.iter().position(|(base, n)| (*base..base + n).contains(&gfn));
            let found = |s: Option<&Slot<()>>| s.map(|s| s.id as usize);
            assert_eq!(found(snapshot.find_near(gfn, &mut hint)), naive, "{layout:?} {gfn}");
            assert_eq!(found(snapshot.find(gfn)), naive, "{layout:?} {gfn}");
        }
    }
}

/// What a deleted slot was backed by is let go at once, unless a reader still looks at it.
#[test]
fn nothing_deleted_is_kept() {
    let backing = std::sync::Arc::new(());
    let mut slots = MemSlots::new();
    let slot = Slot { id: 3, flags: Flags::NONE, base_gfn: 1, npages: 1, backing: backing.clone() };
    slots.set(slot).expect("the first slot");
    slots.delete(3).expect("the slot of before");
    assert_eq!(std::sync::Arc::strong_count(&backing), 1);
}
