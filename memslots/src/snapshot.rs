// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::select_unpredictable;

use crate::slot::{Error, Flags, Slot};

/// Where a caller found its last frame. Each caller keeps its own (KVM: one in each vCPU), so
/// that no reader writes what another reads. One that is out of date costs a search, no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint(usize);

/// All slots at one moment. It never changes: an update makes another one.
#[derive(Clone, Debug)]
pub struct Snapshot<T> {
    /// First frames of `slots`, apart so that a search touches nothing else.
    bases: Box<[u64]>,
    /// By frame.
    slots: Box<[Slot<T>]>,
    /// Ids and places in `slots`, by id.
    ids: Box<[(u32, u32)]>,
    generation: u64,
}

impl<T> Default for Snapshot<T> {
    fn default() -> Self {
        Snapshot { bases: Box::new([]), slots: Box::new([]), ids: Box::new([]), generation: 0 }
    }
}

impl<T> Snapshot<T> {
    /// Without slots, generation 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The slot of a frame. O(log n), without a branch that depends on the frame.
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
        self.slots.get(last_at_or_below(&self.bases, gfn)).filter(|slot| slot.contains(gfn))
    }

    /// As [`find`](Self::find), looking first where `hint` says, and noting there where it was.
    #[inline]
    pub fn find_near(&self, gfn: u64, hint: &mut Hint) -> Option<&Slot<T>> {
        match self.slots.get(hint.0) {
            Some(slot) if slot.contains(gfn) => Some(slot),
            _ => self.find_anew(gfn, hint),
        }
    }

    /// Out of line, so that what is inlined everywhere is a bounds check.
    #[cold]
    fn find_anew(&self, gfn: u64, hint: &mut Hint) -> Option<&Slot<T>> {
        let place = last_at_or_below(&self.bases, gfn);
        let slot = self.slots.get(place).filter(|slot| slot.contains(gfn))?;
        *hint = Hint(place);
        Some(slot)
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

    fn after(&self, slots: Vec<Slot<T>>) -> Self {
        let mut ids: Vec<(u32, u32)> =
            slots.iter().zip(0..).map(|(slot, place)| (slot.id, place)).collect();
        ids.sort_unstable();
        let next = Snapshot {
            bases: slots.iter().map(|slot| slot.base_gfn).collect(),
            slots: slots.into(),
            ids: ids.into(),
            generation: self.generation + 1,
        };
        debug_assert!(next.slots.windows(2).all(|two| two[0].end_gfn() <= two[1].base_gfn));
        next
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
        if let Some(old) = self.get(slot.id) {
            let id = slot.id;
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
}

/// The place of the last of `bases`, which ascend, that is not above `gfn`; 0 if all are, or if
/// there are none.
///
/// The number of rounds depends on the length alone, and each is a conditional move: a branch
/// that goes either way half of the time costs more than the memory it saves.
///
/// Why it is right: the place sought, if it exists, is always one of `n` from `at` on. At first
/// those are all. In a round, if `bases[at + half] <= gfn`, it is not before `at + half`, of which
/// there are `half` dropped and `n - half` left; else it is before, within `half`, and
/// `half <= n - half`.
#[inline]
fn last_at_or_below(bases: &[u64], gfn: u64) -> usize {
    let (mut at, mut n) = (0, bases.len());
    while n > 1 {
        let half = n / 2;
        // SAFETY: at + n <= bases.len() at the head of every round (at first 0 + len; a round
        // turns (at, n) into (at + half, n - half) or (at, n - half)), and half < n.
        let base = unsafe { *bases.get_unchecked(at + half) };
        at = select_unpredictable(base <= gfn, at + half, at);
        n -= half;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_agrees_with_the_obvious() {
        for len in 0..70u64 {
            let bases: Vec<u64> = (0..len).map(|i| 3 + 5 * i).collect();
            for gfn in 0..5 * len + 10 {
                let naive = bases.iter().rposition(|base| *base <= gfn).unwrap_or(0);
                assert_eq!(last_at_or_below(&bases, gfn), naive, "{len} {gfn}");
            }
        }
    }
}
