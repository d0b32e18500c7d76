// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `GuestRegions` does what `GuestRegionCollection` does, errors included.

use std::sync::Arc;

use memslots::{GuestRegions, Hint};
use proptest::prelude::*;
use vm_memory::bitmap::BS;
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestMemoryRegionBytes,
    GuestRegionCollection, GuestUsize,
};

/// A region without memory: what matters here is where it is.
#[derive(Debug, PartialEq)]
struct Range(u64, u64);

impl GuestMemoryRegion for Range {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.1
    }

    fn start_addr(&self) -> GuestAddress {
        GuestAddress(self.0)
    }

    fn bitmap(&self) -> BS<'_, ()> {}
}

impl GuestMemoryRegionBytes for Range {}

fn range() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![9 => (0u64..60, 1u64..9), 1 => (u64::MAX - 20..u64::MAX - 10, 1u64..9)]
}

proptest! {
    #[test]
    fn behaves_as_vm_memorys_own(
        mut ranges in prop::collection::vec(range(), 0..8),
        sorted in prop::bool::weighted(0.9),
        steps in prop::collection::vec((any::<bool>(), range()), 0..20),
    ) {
        if sorted {
            ranges.sort();
        }
        let regions: Vec<_> = ranges.iter().map(|(at, len)| Arc::new(Range(*at, *len))).collect();
        let theirs = GuestRegionCollection::from_arc_regions(regions.clone());
        let ours = GuestRegions::from_arc_regions(regions);
        let (mut theirs, mut ours) = match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => (theirs, ours),
            (Err(theirs), Err(ours)) => {
                prop_assert_eq!(theirs.to_string(), ours.to_string());
                (GuestRegionCollection::new(), GuestRegions::new())
            }
            (theirs, ours) => return Err(TestCaseError::fail(format!("{theirs:?} {ours:?}"))),
        };
        let mut hint = Hint::default();
        for (insert, (at, len)) in steps {
            let (next_theirs, next_ours) = if insert {
                let region = Arc::new(Range(at, len));
                (theirs.insert_region(region.clone()), ours.insert_region(region))
            } else {
                let first = theirs.iter().next().map_or((at, len), |region| (region.0, region.1));
                let (at, len) = if at % 2 == 0 { first } else { (at, len) };
                let theirs = theirs.remove_region(GuestAddress(at), len);
                let ours = ours.remove_region(GuestAddress(at), len);
                if let (Ok((_, theirs)), Ok((_, ours))) = (&theirs, &ours) {
                    prop_assert!(Arc::ptr_eq(theirs, ours));
                }
                (theirs.map(|both| both.0), ours.map(|both| both.0))
            };
            match (next_theirs, next_ours) {
                (Ok(next_theirs), Ok(next_ours)) => (theirs, ours) = (next_theirs, next_ours),
                (Err(theirs), Err(ours)) => prop_assert_eq!(theirs.to_string(), ours.to_string()),
                (theirs, ours) => return Err(TestCaseError::fail(format!("{theirs:?} {ours:?}"))),
            }
            prop_assert_eq!(ours.num_regions(), theirs.num_regions());
            prop_assert_eq!(ours.last_addr(), theirs.last_addr());
            prop_assert!(ours.iter().eq(theirs.iter()));
            for addr in (0..80).chain(u64::MAX - 25..=u64::MAX).map(GuestAddress) {
                prop_assert_eq!(ours.find_region(addr), theirs.find_region(addr), "{:?}", addr);
                prop_assert_eq!(ours.find_region_near(addr, &mut hint), theirs.find_region(addr));
            }
        }
    }
}
