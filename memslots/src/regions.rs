// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
#[cfg(feature = "backend-mmap")]
use core::borrow::Borrow;
use core::{iter, slice};

#[cfg(feature = "backend-mmap")]
use vm_memory::bitmap::NewBitmap;
#[cfg(feature = "backend-mmap")]
use vm_memory::mmap::FromRangesError;
use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionCollectionError,
    GuestUsize,
};
#[cfg(feature = "backend-mmap")]
use vm_memory::{FileOffset, GuestRegionMmap};

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
    /// Errors: no regions, wrong order, overlap. vm-memory lets a single region be empty or wrap,
    /// and its `last_addr()` panics or lies then; here a region of length 0 is no memory
    /// (`NoMemoryRegion`), and one that goes beyond the last address overlaps the first ones
    /// (`MemoryRegionOverlap`).
    pub fn from_regions(regions: Vec<R>) -> Result<Self, GuestRegionCollectionError> {
        Self::from_arc_regions(regions.into_iter().map(Arc::new).collect())
    }

    /// As [`from_regions`](Self::from_regions), of regions that others hold as well.
    ///
    /// Errors: as there.
    pub fn from_arc_regions(regions: Vec<Arc<R>>) -> Result<Self, GuestRegionCollectionError> {
        if regions.is_empty() {
            return Err(GuestRegionCollectionError::NoMemoryRegion);
        }
        regions.iter().try_for_each(|region| possible(&**region))?;
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
    /// Errors: overlap; a region that is empty or wraps, as [`from_regions`](Self::from_regions).
    pub fn insert_region(&self, region: Arc<R>) -> Result<Self, GuestRegionCollectionError> {
        possible(&*region)?;
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

/// Whether its addresses are some, and all between 0 and 2^64 - 1.
fn possible<R: GuestMemoryRegion>(region: &R) -> Result<(), GuestRegionCollectionError> {
    match region.len().checked_sub(1) {
        None => Err(GuestRegionCollectionError::NoMemoryRegion),
        Some(last) if region.start_addr().checked_add(last).is_none() => {
            Err(GuestRegionCollectionError::MemoryRegionOverlap)
        }
        Some(_) => Ok(()),
    }
}

#[cfg(feature = "backend-mmap")]
impl<B: NewBitmap> GuestRegions<GuestRegionMmap<B>> {
    /// Maps anonymous memory for each range of first address and length in bytes, as
    /// [`vm_memory::GuestMemoryMmap::from_ranges`].
    ///
    /// ```
    /// use memslots::GuestRegions;
    /// use vm_memory::{Bytes, GuestAddress, GuestRegionMmap};
    ///
    /// type GuestMemoryMmap = GuestRegions<GuestRegionMmap>;
    /// let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)])?;
    /// memory.write_obj(7u8, GuestAddress(0xfff))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Errors: a range cannot be mapped (one of length 0 cannot) or goes beyond the last address;
    /// as [`from_regions`](Self::from_regions).
    pub fn from_ranges(ranges: &[(GuestAddress, usize)]) -> Result<Self, FromRangesError> {
        Self::from_ranges_with_files(ranges.iter().map(|(start, len)| (*start, *len, None)))
    }

    /// The same, of a file's memory where one is given, from its offset on and shared, as
    /// [`vm_memory::GuestMemoryMmap::from_ranges_with_files`].
    ///
    /// Errors: as [`from_ranges`](Self::from_ranges).
    pub fn from_ranges_with_files<A, T>(ranges: T) -> Result<Self, FromRangesError>
    where
        A: Borrow<(GuestAddress, usize, Option<FileOffset>)>,
        T: IntoIterator<Item = A>,
    {
        let map = |range: A| {
            let (start, len, file) = range.borrow();
            GuestRegionMmap::from_range(*start, *len, file.clone())
        };
        let regions = ranges.into_iter().map(map).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::from_regions(regions)?)
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
