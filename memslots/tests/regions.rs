// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `GuestRegions` does what `GuestRegionCollection` does, errors included.

use std::sync::Arc;

use memslots::{GuestRegions, Hint};
use proptest::prelude::*;
use vm_memory::bitmap::BS;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestMemoryRegionBytes, GuestRegionCollection, GuestRegionCollectionError, GuestRegionMmap,
    GuestUsize,
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

fn collection(ranges: &[(u64, u64)]) -> Result<GuestRegions<Range>, String> {
    let regions = ranges.iter().map(|(at, len)| Range(*at, *len)).collect();
    GuestRegions::from_regions(regions).map_err(|error| error.to_string())
}

/// vm-memory has them, and panics or answers wrongly when one looks.
#[test]
fn regions_without_addresses_are_refused() {
    let (none, overlap) = (
        GuestRegionCollectionError::NoMemoryRegion.to_string(),
        GuestRegionCollectionError::MemoryRegionOverlap.to_string(),
    );
    assert_eq!(collection(&[(0x1000, 0)]).unwrap_err(), none);
    assert_eq!(collection(&[(0, 1), (0x1000, 0)]).unwrap_err(), none);
    assert_eq!(collection(&[(u64::MAX - 1, 3)]).unwrap_err(), overlap);
    assert_eq!(collection(&[(0, 1), (1, u64::MAX)]).map(|all| all.num_regions()), Ok(2));
    let one = collection(&[(u64::MAX - 1, 2)]).unwrap();
    assert_eq!(one.last_addr(), GuestAddress(u64::MAX));
    assert!(one.find_region(GuestAddress(u64::MAX)).is_some());
    for (at, len, why) in [(8, 0, none), (u64::MAX, 2, overlap)] {
        assert_eq!(one.insert_region(Arc::new(Range(at, len))).unwrap_err().to_string(), why);
    }
}

#[test]
fn ranges_are_mapped_as_vm_memory_maps_them() {
    let file = || {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x4000).unwrap();
        FileOffset::new(file, 0x1000)
    };
    let at = GuestAddress;
    let cases: [&[(GuestAddress, usize)]; 8] = [
        &[],
        &[(at(0), 0x1000), (at(0x2000), 0x1000)],
        &[(at(0), 0x1000), (at(0xfff), 0x1000)],
        &[(at(0x2000), 0x1000), (at(0), 0x1000)],
        &[(at(0), 0)],
        &[(at(0x2000), 0x1000), (at(0), 0)],
        &[(at(u64::MAX - 0xfff), 0x1000)],
        &[(at(0), usize::MAX / 2)],
    ];
    for ranges in cases {
        let ours = GuestRegions::<GuestRegionMmap>::from_ranges(ranges);
        let theirs = GuestMemoryMmap::<()>::from_ranges(ranges);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => assert_eq!(ours.num_regions(), theirs.num_regions()),
            (Err(ours), Err(theirs)) => assert_eq!(ours.to_string(), theirs.to_string()),
            (ours, theirs) => panic!("{ranges:?}: {:?} {:?}", ours.is_ok(), theirs.is_ok()),
        }
    }
    let ranges = [(at(0), 0x1000, Some(file())), (at(0x1000), 0x1000, None)];
    let memory = GuestRegions::<GuestRegionMmap>::from_ranges_with_files(&ranges).unwrap();
    memory.write_obj(0x1234_5678u32, at(0xffe)).unwrap();
    let region = memory.find_region(at(5)).unwrap();
    assert_eq!(region.file_offset().map(FileOffset::start), Some(0x1000));
    let mut end = [0; 2];
    let shared = ranges[0].2.as_ref().unwrap().file();
    std::os::unix::fs::FileExt::read_exact_at(shared, &mut end, 0x1ffe).unwrap();
    assert_eq!(end, [0x78, 0x56], "the file is shared");
}
