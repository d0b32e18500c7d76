// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Any sequence of updates and look-ups does what it does to a plain list.
#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use memslots::{Flags, Hint, MemSlots, Slot, Snapshot};

#[path = "../../tests/naive/mod.rs"]
mod naive;
use naive::{Model, Step};

/// Small numbers mostly, so that slots meet.
fn number(u: &mut Unstructured) -> arbitrary::Result<u64> {
    match u.arbitrary::<u8>()? {
        small @ 0..250 => Ok(u64::from(small % 64)),
        250 => Ok((1 << 52) - u64::from(u.arbitrary::<u8>()?)),
        251 => Ok((1 << 40) - u64::from(u.arbitrary::<u8>()?)),
        252 => Ok((1 << 31) - u64::from(u.arbitrary::<u8>()?)),
        _ => u.arbitrary(),
    }
}

fn step(u: &mut Unstructured) -> arbitrary::Result<Step> {
    let id = number(u)? as u32;
    if u.ratio(1, 4)? {
        return Ok(Step::Delete(id));
    }
    let flags = Flags::from_bits(u32::from(u8::arbitrary(u)? % 8)).expect("three flags");
    let (base_gfn, npages) = (number(u)?, number(u)?);
    Ok(Step::Set(Slot { id, flags, base_gfn, npages, backing: u8::arbitrary(u)? % 2 }))
}

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let (mut model, mut slots) = (Model::default(), MemSlots::new());
    let (mut reader, mut hint) = (slots.reader(), Hint::default());
    // Without bytes left, every number is 0, for ever.
    while !u.is_empty()
        && let Ok(step) = step(&mut u)
    {
        let expected = model.apply(&step).map(|_| ());
        let got = match &step {
            Step::Set(slot) => slots.set(slot.clone()),
            Step::Delete(id) => slots.delete(*id),
        };
        assert_eq!(got, expected, "{step:?}");
        let snapshot = slots.snapshot();
        for slot in &model.0 {
            assert_eq!(snapshot.get(slot.id), Some(slot));
            for gfn in [slot.base_gfn.wrapping_sub(1), slot.base_gfn, slot.end_gfn()] {
                assert_eq!(snapshot.find(gfn), model.find(gfn));
                assert_eq!(reader.find(gfn), model.find(gfn));
                assert_eq!(snapshot.find_near(gfn, &mut hint), model.find(gfn));
            }
        }
        let at_once = Snapshot::try_from(model.0.clone()).expect("they lay beside each other");
        assert!(at_once.iter().eq(snapshot.iter()));
    }
});
