// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::search::{Hint, Search};
use crate::slot::{Change, Error, Flags, Slot};

/// All slots at one moment. It never changes: an update makes another one.
#[derive(Clone, Debug)]
pub struct Snapshot<T> {
    /// Of the first frames of `slots`, apart so that a search touches nothing else.
    search: Search,
    /// By frame.
    slots: Box<[Slot<T>]>,
    /// Ids and places in `slots`, by id.
    ids: Box<[(u32, u32)]>,
    generation: u64,
}

impl<T> Default for Snapshot<T> {
    fn default() -> Self {
        Self::of(Vec::new(), 0)
    }
}

impl<T> Snapshot<T> {
    /// Without slots, generation 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The slot of a frame. O(log n) at worst, O(1) if slots lie evenly; without a branch that
    /// depends on the frame.
    ///
    /// ```
    /// use memslots::{Flags, Slot, Snapshot};
    ///
    /// let slot = Slot { id: 0, flags: Flags::NONE, base_gfn: 0x100, npages: 16, backing: () };
    /// let slots = Snapshot::new().with(slot)?;
    /// assert_eq!(slots.find(0x10f).map(|slot| slot.id), Some(0));
    /// assert!(slots.find(0x110).is_none());
    /// # Ok::<(), memslots::Error>(())
    /// ```
    #[inline]
    pub fn find(&self, gfn: u64) -> Option<&Slot<T>> {
        self.slots.get(self.search.last_at_or_below(gfn)).filter(|slot| slot.contains(gfn))
    }

    /// As [`find`](Self::find), looking first where `hint` says, and noting there where it was.
    #[inline]
    pub fn find_near(&self, gfn: u64, hint: &mut Hint) -> Option<&Slot<T>> {
        match self.slots.get(hint.0) {
            Some(slot) if slot.contains(gfn) => Some(slot),
            _ => {
                let place = self.search.last_at_or_below(gfn);
                let slot = self.slots.get(place).filter(|slot| slot.contains(gfn))?;
                *hint = Hint(place);
                Some(slot)
            }
        }
    }

    /// The slot of this id. O(log n).
    pub fn get(&self, id: u32) -> Option<&Slot<T>> {
        let place = self.ids.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.slots.get(self.ids[place].1 as usize)
    }

    /// All slots, by frame.
    pub fn iter(&self) -> core::slice::Iter<'_, Slot<T>> {
        self.slots.iter()
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Rises with every update that changed anything.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// `slots` by frame.
    fn of(slots: Vec<Slot<T>>, generation: u64) -> Self {
        let mut ids: Vec<(u32, u32)> =
            slots.iter().zip(0..).map(|(slot, place)| (slot.id, place)).collect();
        ids.sort_unstable();
        debug_assert!(slots.windows(2).all(|two| two[0].end_gfn() <= two[1].base_gfn));
        debug_assert!(ids.windows(2).all(|two| two[0].0 < two[1].0));
        Snapshot {
            search: Search::of(slots.iter().map(|slot| slot.base_gfn)),
            slots: slots.into(),
            ids: ids.into(),
            generation,
        }
    }

    fn after(&self, slots: Vec<Slot<T>>) -> Self {
        Self::of(slots, self.generation + 1)
    }
}

/// All slots of a VM at once, in any order, as when it is restored: O(n log n), where n times
/// [`with`](Snapshot::with) is O(n²). The generation is 1.
///
/// Errors: [`Error::NoSuchId`], [`Error::BadFlags`], [`Error::BadRange`], [`Error::SameId`],
/// [`Error::OtherAddressSpace`], [`Error::Overlap`].
impl<T> TryFrom<Vec<Slot<T>>> for Snapshot<T> {
    type Error = Error;

    fn try_from(mut slots: Vec<Slot<T>>) -> Result<Self, Error> {
        slots.iter().try_for_each(Slot::check)?;
        slots.sort_unstable_by_key(|slot| slot.id);
        if let Some(two) = slots.windows(2).find(|two| two[0].id == two[1].id) {
            return Err(Error::SameId { id: two[0].id });
        }
        if let (Some(first), Some(last)) = (slots.first(), slots.last())
            && first.address_space() != last.address_space()
        {
            return Err(Error::OtherAddressSpace { id: last.id });
        }
        slots.sort_unstable_by_key(|slot| slot.base_gfn);
        if let Some(two) = slots.windows(2).find(|two| two[0].end_gfn() > two[1].base_gfn) {
            return Err(Error::Overlap { with: two[0].id });
        }
        slots.last().map_or(Ok(()), Slot::check_end)?;
        Ok(Self::of(slots, 1))
    }
}

impl<T: Clone + PartialEq> Snapshot<T> {
    /// What `KVM_SET_USER_MEMORY_REGION` makes of a region with pages: creates the slot, or, if
    /// there is one of this id, moves it or changes its flags. O(n).
    ///
    /// A region that is there already, exactly like this, changes nothing, not even the
    /// generation.
    ///
    /// Errors: see [`Error`].
    pub fn with(&self, slot: Slot<T>) -> Result<Self, Error> {
        slot.check()?;
        let other_space = |first: &Slot<T>| first.address_space() != slot.address_space();
        if self.slots.first().is_some_and(other_space) {
            return Err(Error::OtherAddressSpace { id: slot.id });
        }
        if let Some(old) = self.get(slot.id) {
            let id = slot.id;
            if (old.flags | slot.flags).contains(Flags::GUEST_MEMFD) {
                return Err(Error::Immutable { id });
            }
            if old.npages != slot.npages {
                return Err(Error::Resized { id });
            }
            if old.backing != slot.backing {
                return Err(Error::Remapped { id });
            }
            if (old.flags ^ slot.flags).contains(Flags::READONLY) {
                return Err(Error::ReadonlyChanged { id });
            }
            if *old == slot {
                return Ok(self.clone());
            }
        }
        let others = || self.slots.iter().filter(|other| other.id != slot.id);
        let overlaps =
            |other: &&Slot<T>| other.base_gfn < slot.end_gfn() && slot.base_gfn < other.end_gfn();
        if let Some(other) = others().find(overlaps) {
            return Err(Error::Overlap { with: other.id });
        }
        slot.check_end()?;
        let mut slots: Vec<Slot<T>> = Vec::with_capacity(self.slots.len() + 1);
        slots.extend(others().cloned());
        let place = slots.partition_point(|other| other.base_gfn < slot.base_gfn);
        slots.insert(place, slot);
        Ok(self.after(slots))
    }

    /// What `KVM_SET_USER_MEMORY_REGION` makes of a region of size 0: deletes the slot. O(n).
    ///
    /// Errors: [`Error::NoSuchId`].
    pub fn without(&self, id: u32) -> Result<Self, Error> {
        self.get(id).ok_or(Error::NoSuchId { id })?;
        Ok(self.after(self.slots.iter().filter(|slot| slot.id != id).cloned().collect()))
    }

    /// After several changes, one after the other. O(n) each.
    ///
    /// Errors: that of the first change that is refused.
    pub fn changed(&self, changes: impl IntoIterator<Item = Change<T>>) -> Result<Self, Error> {
        let mut now: Option<Self> = None;
        for change in changes {
            let before = now.as_ref().unwrap_or(self);
            now = Some(match change {
                Change::Set(slot) => before.with(slot)?,
                Change::Delete(id) => before.without(id)?,
            });
        }
        Ok(now.unwrap_or_else(|| self.clone()))
    }
}
