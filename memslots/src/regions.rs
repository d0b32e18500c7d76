// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::{iter, slice};

use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionCollectionError,
    GuestUsize,
};

use crate::search::{Hint, Search};

/// [`vm_memory::GuestRegionCollection`] with this crate's look-up: a VMM changes the type, no more.
/// Regions are in bytes here, as there, and need not be whole pages.
///
/// Where vm-memory's search follows a pointer to every region that it compares with, this one
/// reads neighbouring numbers, and touches one region.
///
/// ```
/// use memslots::GuestRegions;
/// use vm_memory::{Bytes, GuestAddress, GuestRegionMmap};
///
/// let ram = GuestRegionMmap::<()>::from_range(GuestAddress(0x1000), 0x2000, None)?;
/// let memory = GuestRegions::from_regions(vec![ram])?;
/// memory.write_obj(42u32, GuestAddress(0x1ffe))?;
/// assert_eq!(memory.read_obj::<u32>(GuestAddress(0x1ffe))?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GuestRegions<R> {
    /// Of the first addresses of `regions`.
    search: Search,
    /// First addresses and lengths, so that only the region that is found is touched.
    spans: Box<[(u64, u64)]>,
    /// By address.
    regions: Box<[Arc<R>]>,
}

impl<R> Default for GuestRegions<R> {
    fn default() -> Self {
        GuestRegions {
            search: Search::of(iter::empty()),
            spans: Box::new([]),
            regions: Box::new([]),
        }
    }
}

impl<R> Clone for GuestRegions<R> {
    fn clone(&self) -> Self {
        GuestRegions {
            search: self.search.clone(),
            spans: self.spans.clone(),
            regions: self.regions.clone(),
        }
    }
}

impl<R: GuestMemoryRegion> GuestRegions<R> {
    /// Without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of these regions, which must be in the order of their addresses.
    ///
    /// Errors: no regions, wrong order, overlap.
    pub fn from_regions(regions: Vec<R>) -> Result<Self, GuestRegionCollectionError> {
        Self::from_arc_regions(regions.into_iter().map(Arc::new).collect())
    }

    /// As [`from_regions`](Self::from_regions), of regions that others hold as well.
    ///
    /// Errors: no regions, wrong order, overlap.
    pub fn from_arc_regions(regions: Vec<Arc<R>>) -> Result<Self, GuestRegionCollectionError> {
        if regions.is_empty() {
            return Err(GuestRegionCollectionError::NoMemoryRegion);
        }
        for two in regions.windows(2) {
            if two[0].start_addr() > two[1].start_addr() {
                return Err(GuestRegionCollectionError::UnsortedMemoryRegions);
            }
            if two[0].last_addr() >= two[1].start_addr() {
                return Err(GuestRegionCollectionError::MemoryRegionOverlap);
            }
        }
        Ok(Self::of(regions))
    }

    /// With one region more. `self` is left as it is.
    ///
    /// Errors: overlap.
    pub fn insert_region(&self, region: Arc<R>) -> Result<Self, GuestRegionCollectionError> {
        let mut regions = self.regions.to_vec();
        let place = regions.partition_point(|other| other.start_addr() < region.start_addr());
        regions.insert(place, region);
        Self::from_arc_regions(regions)
    }

    /// Without the region of exactly this base address and size in bytes, and that region. `self`
    /// is left as it is.
    ///
    /// Errors: there is no such region.
    pub fn remove_region(
        &self,
        base: GuestAddress,
        size: GuestUsize,
    ) -> Result<(Self, Arc<R>), GuestRegionCollectionError> {
        let place = self
            .regions
            .iter()
            .position(|region| region.start_addr() == base && region.len() == size)
            .ok_or(GuestRegionCollectionError::NoMemoryRegion)?;
        let mut regions = self.regions.to_vec();
        let region = regions.remove(place);
        Ok((Self::of(regions), region))
    }

    /// As [`find_region`](GuestMemoryBackend::find_region), looking first where `hint` says, and
    /// noting there where it was.
    #[inline]
    pub fn find_region_near(&self, addr: GuestAddress, hint: &mut Hint) -> Option<&R> {
        if self.holds(hint.0, addr) {
            return self.regions.get(hint.0).map(|region| &**region);
        }
        let place = self.place(addr)?;
        *hint = Hint(place);
        self.regions.get(place).map(|region| &**region)
    }

    #[inline]
    fn place(&self, addr: GuestAddress) -> Option<usize> {
        let place = match addr.raw_value() {
            // The search knows no such number.
            u64::MAX => self.spans.len().checked_sub(1)?,
            addr => self.search.last_at_or_below(addr),
        };
        self.holds(place, addr).then_some(place)
    }

    /// Whether there is a region at this place and the address is one of it: those below its base
    /// wrap to huge distances.
    #[inline]
    fn holds(&self, place: usize, addr: GuestAddress) -> bool {
        let span = self.spans.get(place);
        span.is_some_and(|(base, len)| addr.raw_value().wrapping_sub(*base) < *len)
    }

    fn of(regions: Vec<Arc<R>>) -> Self {
        let spans: Box<[(u64, u64)]> =
            regions.iter().map(|region| (region.start_addr().raw_value(), region.len())).collect();
        let search = Search::of(spans.iter().map(|(base, _)| *base));
        GuestRegions { search, spans, regions: regions.into() }
    }
}

impl<R: GuestMemoryRegion> GuestMemoryBackend for GuestRegions<R> {
    type R = R;

    fn num_regions(&self) -> usize {
        self.regions.len()
    }

    #[inline]
    fn find_region(&self, addr: GuestAddress) -> Option<&R> {
        self.regions.get(self.place(addr)?).map(|region| &**region)
    }

    fn iter(&self) -> impl Iterator<Item = &R> {
        let regions: slice::Iter<'_, Arc<R>> = self.regions.iter();
        regions.map(|region| &**region)
    }
}
