// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};

use crate::slot::{Change, Error, Slot};
use crate::snapshot::Snapshot;
use crate::sync::{AtomicPtr, Ordering};

/// The slots of a VM's address space: one owner updates, any number of [`Reader`]s look frames up
/// meanwhile.
///
/// ```
/// use memslots::{Flags, MemSlots, Slot};
///
/// let mut slots = MemSlots::new();
/// let mut reader = slots.reader(); // One for each vCPU thread.
///
/// let flags = Flags::NONE;
/// slots.set(Slot { id: 0, flags, base_gfn: 0, npages: 0x100, backing: 0x7000_0000u64 })?;
/// assert_eq!(reader.find(0x42).map(|slot| slot.backing), Some(0x7000_0000));
///
/// slots.delete(0)?;
/// assert!(reader.find(0x42).is_none());
/// # Ok::<(), memslots::Error>(())
/// ```
///
/// # Beside the ioctl
///
/// Call `KVM_SET_USER_MEMORY_REGION` first, then [`set`](Self::set) or [`delete`](Self::delete),
/// and unmap last. Then devices never find less memory than the guest has, and when the ioctl fails
/// nothing has to be taken back.
///
/// # Lifetimes
///
/// A reader keeps the snapshot that it last looked at until it looks again, and with it the
/// backings of slots that were deleted since: the thread of an idle vCPU may do so for hours. If
/// `T` owns the mapping (`Arc`), it is unmapped when the last reader lets go. If `T` is an address,
/// unmap only when [`synchronized`](Self::synchronized) says that nobody can use it any more;
/// threads that sleep for long call [`Reader::snapshot`] when they are woken for that.
#[derive(Debug)]
pub struct MemSlots<T> {
    now: Arc<Snapshot<T>>,
    readers: Vec<Arc<Mailbox<T>>>,
    /// Those that somebody may still hold.
    older: Vec<Weak<Snapshot<T>>>,
}

/// What a reader has not seen yet: a snapshot, or null. The owner puts it there, the reader takes
/// it out; neither waits for the other, and no other reader touches it.
#[derive(Debug)]
struct Mailbox<T> {
    /// From [`Arc::into_raw`]; who swaps it out owns it.
    newer: AtomicPtr<Snapshot<T>>,
    owns: PhantomData<Arc<Snapshot<T>>>,
}

impl<T> Mailbox<T> {
    fn put(&self, snapshot: Arc<Snapshot<T>>) {
        self.swap(Arc::into_raw(snapshot).cast_mut());
    }

    fn take(&self) -> Option<Arc<Snapshot<T>>> {
        self.swap(ptr::null_mut())
    }

    fn swap(&self, new: *mut Snapshot<T>) -> Option<Arc<Snapshot<T>>> {
        // Release what the new one points to, acquire what the old one does.
        let old = self.newer.swap(new, Ordering::AcqRel);
        // SAFETY: only `put` stores what is not null, a reference of its own each time, and a swap
        // hands it to one of us alone.
        (!old.is_null()).then(|| unsafe { Arc::from_raw(old.cast_const()) })
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> From<Snapshot<T>> for MemSlots<T> {
    fn from(first: Snapshot<T>) -> Self {
        MemSlots { now: Arc::new(first), readers: Vec::new(), older: Vec::new() }
    }
}

impl<T> Default for MemSlots<T> {
    fn default() -> Self {
        Snapshot::new().into()
    }
}

impl<T> MemSlots<T> {
    /// Without slots.
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader that sees every update when the call that made it has returned, if not before:
    /// until then one reader may see it and another one not yet.
    pub fn reader(&mut self) -> Reader<T> {
        let mailbox =
            Arc::new(Mailbox { newer: AtomicPtr::new(ptr::null_mut()), owns: PhantomData });
        self.readers.push(mailbox.clone());
        Reader { mailbox, snapshot: self.now.clone(), near: None }
    }

    /// All slots as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot<T>> {
        self.now.clone()
    }

    /// Whether nobody holds any snapshot but the newest: neither a reader that has not looked since
    /// the last update, nor whoever keeps one of [`snapshot`](Self::snapshot). Then nobody can find
    /// what was deleted.
    pub fn synchronized(&mut self) -> bool {
        self.older.retain(|older| older.strong_count() > 0);
        self.older.is_empty()
    }

    /// Waits for nobody: O(readers).
    fn publish(&mut self, next: Snapshot<T>) {
        let old = mem::replace(&mut self.now, Arc::new(next));
        // A mailbox that is ours alone was of a reader that is gone.
        self.readers.retain(|mailbox| Arc::strong_count(mailbox) > 1);
        self.readers.iter().for_each(|mailbox| mailbox.put(self.now.clone()));
        self.older.push(Arc::downgrade(&old));
        drop(old);
        self.synchronized();
    }
}

impl<T: Clone + PartialEq> MemSlots<T> {
    /// Creates a slot, moves it or changes its flags: see [`Snapshot::with`].
    ///
    /// Errors: see [`Error`]; nothing has changed then.
    pub fn set(&mut self, slot: Slot<T>) -> Result<(), Error> {
        self.apply([Change::Set(slot)])
    }

    /// Deletes a slot: see [`Snapshot::without`].
    ///
    /// Errors: [`Error::NoSuchId`].
    pub fn delete(&mut self, id: u32) -> Result<(), Error> {
        self.apply([Change::Delete(id)])
    }

    /// Several changes, one after the other, of which a reader sees all or none: a slot that is
    /// split, or one that is put in another one's place.
    ///
    /// ```
    /// use memslots::{Change, Flags, MemSlots, Slot};
    ///
    /// let flags = Flags::NONE;
    /// let slot = |id, base_gfn, npages| Slot { id, flags, base_gfn, npages, backing: () };
    /// let mut slots = MemSlots::new();
    /// slots.set(slot(0, 0, 8))?;
    /// slots.apply([
    ///     Change::Delete(0),
    ///     Change::Set(slot(0, 0, 3)),
    ///     Change::Set(slot(1, 3, 5)),
    /// ])?;
    /// assert_eq!(slots.snapshot().find(4).map(|slot| slot.id), Some(1));
    /// # Ok::<(), memslots::Error>(())
    /// ```
    ///
    /// Errors: that of the first change that is refused; none has been made then.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change<T>>) -> Result<(), Error> {
        let next = self.now.changed(changes)?;
        if next.generation() != self.now.generation() {
            self.publish(next);
        }
        Ok(())
    }
}

/// One thread's view of the slots: a snapshot, renewed when there is a newer one, and the place of
/// the last slot found. It never waits. A look-up stores nothing; renewing takes the newer snapshot
/// out of a mailbox that no other reader reads.
#[derive(Debug)]
pub struct Reader<T> {
    mailbox: Arc<Mailbox<T>>,
    snapshot: Arc<Snapshot<T>>,
    /// The last slot found, in this snapshot.
    near: Option<NonNull<Slot<T>>>,
}

// SAFETY: `near` is a reference into `snapshot`, which goes along with it.
unsafe impl<T: Send + Sync> Send for Reader<T> {}
// SAFETY: as above; shared, a reader changes nothing.
unsafe impl<T: Send + Sync> Sync for Reader<T> {}

impl<T> Reader<T> {
    /// The slot of a frame, in the newest snapshot.
    #[inline]
    pub fn find(&mut self, gfn: u64) -> Option<&Slot<T>> {
        self.renew();
        if let Some(near) = self.near {
            // SAFETY: a slot in `snapshot`, which never changes and which we keep.
            let slot = unsafe { near.as_ref() };
            if slot.contains(gfn) {
                return Some(slot);
            }
        }
        let slot = self.snapshot.find(gfn)?;
        self.near = Some(NonNull::from(slot));
        Some(slot)
    }

    /// All slots, in the newest snapshot, for look-ups that belong together. Lets go of an older
    /// one.
    pub fn snapshot(&mut self) -> &Arc<Snapshot<T>> {
        self.renew();
        &self.snapshot
    }

    #[inline]
    fn renew(&mut self) {
        // The swap in `take` acquires what the owner has released.
        if !self.mailbox.newer.load(Ordering::Relaxed).is_null() {
            self.take();
        }
    }

    #[cold]
    fn take(&mut self) {
        if let Some(newer) = self.mailbox.take() {
            self.near = None;
            self.snapshot = newer;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slot::Flags;

    fn slot<T>(id: u32, base_gfn: u64, backing: T) -> Slot<T> {
        Slot { id, flags: Flags::NONE, base_gfn, npages: 4, backing }
    }

    #[test]
    fn an_idle_reader_keeps_what_was_deleted_until_it_looks() {
        let backing = Arc::new(());
        let mut slots = MemSlots::new();
        slots.set(slot(0, 0, backing.clone())).unwrap();
        let (mut idle, mut busy) = (slots.reader(), slots.reader());
        assert!(slots.synchronized());
        slots.delete(0).unwrap();
        assert!(busy.find(0).is_none());
        assert!(!slots.synchronized() && Arc::strong_count(&backing) == 2);
        // Updates that it never saw are let go at once.
        slots.set(slot(1, 8, Arc::new(()))).unwrap();
        slots.delete(1).unwrap();
        assert!(idle.find(0).is_none() && busy.find(8).is_none());
        assert!(slots.synchronized() && Arc::strong_count(&backing) == 1);
        let kept = slots.snapshot();
        slots.set(slot(2, 0, backing)).unwrap();
        assert!(idle.find(0).is_some() && busy.find(0).is_some() && !slots.synchronized());
        drop(kept);
        assert!(slots.synchronized());
    }

    #[test]
    fn readers_that_are_gone_are_forgotten() {
        let mut slots = MemSlots::new();
        let readers: Vec<_> = (0..3).map(|_| slots.reader()).collect();
        slots.set(slot(0, 0, ())).unwrap();
        assert_eq!(slots.readers.len(), 3);
        drop(readers);
        let mut last = slots.reader();
        slots.delete(0).unwrap();
        assert!(slots.readers.len() == 1 && !slots.synchronized());
        assert!(last.snapshot().is_empty() && slots.synchronized());
        drop(slots);
        assert!(last.find(0).is_none());
    }

    #[test]
    fn changes_are_made_together_or_not_at_all() {
        let mut slots = MemSlots::new();
        slots.set(slot(0, 0, ())).unwrap();
        let generation = slots.snapshot().generation();
        let refused = slots.apply([
            Change::Delete(0),
            Change::Set(slot(1, 2, ())),
            Change::Set(slot(2, 4, ())),
        ]);
        assert_eq!(refused, Err(Error::Overlap { with: 1 }));
        assert_eq!(slots.snapshot().generation(), generation);
        slots.apply([Change::Delete(0), Change::Set(slot(1, 2, ()))]).unwrap();
        assert_eq!(slots.snapshot().find(3).map(|slot| slot.id), Some(1));
        slots.apply([]).unwrap();
    }
}
