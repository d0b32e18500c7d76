// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::sync::Arc;
use core::ptr::NonNull;

use crate::slot::{Error, Slot};
use crate::snapshot::Snapshot;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell, spin};

/// The slots of a VM: one owner updates, any number of [`Reader`]s look frames up meanwhile.
///
/// ```
/// use memslots::{Flags, MemSlots, Slot};
///
/// let mut slots = MemSlots::new();
/// let mut reader = slots.reader(); // One for each vCPU thread.
///
/// slots.set(Slot { id: 0, flags: Flags::NONE, base_gfn: 0, npages: 0x100, backing: 0x7000_0000u64 })?;
/// assert_eq!(reader.find(0x42).map(|slot| slot.backing), Some(0x7000_0000));
///
/// slots.delete(0)?;
/// assert!(reader.find(0x42).is_none());
/// # Ok::<(), memslots::Error>(())
/// ```
pub struct MemSlots<T> {
    shared: Arc<Shared<T>>,
}

/// Two places for snapshots. `current` counts publications; its lowest bit says which place
/// readers may enter. The other one is the owner's to write.
struct Shared<T> {
    current: AtomicUsize,
    /// Readers that are copying a reference out of each place, or about to find out that they
    /// must not.
    visitors: [AtomicUsize; 2],
    places: [UnsafeCell<Arc<Snapshot<T>>>; 2],
}

// SAFETY: a place is written by the one owner of `MemSlots` only while `visitors` says that
// nobody reads it, see `publish` and `latest`; what is read are references to snapshots, which
// threads may share if they may share `T`.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}
// SAFETY: as above; nothing is bound to a thread.
unsafe impl<T: Send + Sync> Send for Shared<T> {}

impl<T> From<Snapshot<T>> for MemSlots<T> {
    fn from(first: Snapshot<T>) -> Self {
        let first = Arc::new(first);
        let shared = Shared {
            current: AtomicUsize::new(0),
            visitors: [AtomicUsize::new(0), AtomicUsize::new(0)],
            places: [UnsafeCell::new(first.clone()), UnsafeCell::new(first)],
        };
        MemSlots { shared: Arc::new(shared) }
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

    /// A reader that sees every update as soon as the call that made it has returned.
    pub fn reader(&self) -> Reader<T> {
        let (publication, snapshot) = self.shared.latest();
        Reader { shared: self.shared.clone(), publication, snapshot, near: None }
    }

    /// All slots as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot<T>> {
        self.shared.latest().1
    }

    fn publish(&mut self, next: Snapshot<T>) {
        let shared = &*self.shared;
        let next = Arc::new(next);
        let before = shared.current.load(Ordering::Relaxed);
        let publication = before.wrapping_add(1);
        // SAFETY: only we write, and nobody reads the place that is not current: whoever was in
        // it when it ceased to be has been waited for, below, in the last publication.
        unsafe { shared.replace(publication, next.clone()) };
        shared.current.store(publication, Ordering::SeqCst);
        // Whoever entered the other place in time is copying a reference, a few instructions.
        while shared.visitors[before & 1].load(Ordering::SeqCst) != 0 {
            spin();
        }
        // SAFETY: nobody reads this place: a reader counts itself in `visitors` first and looks
        // at `current` then. As all of these accesses are sequentially consistent, one that we
        // did not see counted sees our publication, and stays out. The old snapshot must not
        // stay here: it keeps memory mapped that the VMM has just taken away.
        unsafe { shared.replace(before, next) };
    }
}

impl<T: Clone + PartialEq> MemSlots<T> {
    /// Creates a slot, moves it or changes its flags: see [`Snapshot::with`].
    ///
    /// Errors: see [`Error`]; nothing has changed then.
    pub fn set(&mut self, slot: Slot<T>) -> Result<(), Error> {
        let now = self.snapshot();
        let next = now.with(slot)?;
        if next.generation() != now.generation() {
            self.publish(next);
        }
        Ok(())
    }

    /// Deletes a slot: see [`Snapshot::without`].
    ///
    /// Errors: [`Error::NoSuchId`].
    pub fn delete(&mut self, id: u32) -> Result<(), Error> {
        let next = self.snapshot().without(id)?;
        self.publish(next);
        Ok(())
    }
}

impl<T> Shared<T> {
    /// Puts a snapshot into the place of this publication.
    ///
    /// # Safety
    ///
    /// Nobody reads or writes that place.
    unsafe fn replace(&self, publication: usize, next: Arc<Snapshot<T>>) {
        // SAFETY: the caller's promise.
        let old = self.places[publication & 1]
            .with_mut(|at| unsafe { core::mem::replace(&mut *at, next) });
        drop(old);
    }

    /// The newest snapshot and the publication that brought it. Tries again only if another
    /// publication came in between.
    fn latest(&self) -> (usize, Arc<Snapshot<T>>) {
        loop {
            let publication = self.current.load(Ordering::SeqCst);
            let place = publication & 1;
            self.visitors[place].fetch_add(1, Ordering::SeqCst);
            let found = (self.current.load(Ordering::SeqCst) == publication).then(|| {
                // SAFETY: we are counted and the place was the current one after that, so that
                // `publish` does not write it before we are gone.
                self.places[place].with(|at| unsafe { (*at).clone() })
            });
            self.visitors[place].fetch_sub(1, Ordering::SeqCst);
            if let Some(snapshot) = found {
                return (publication, snapshot);
            }
        }
    }
}

/// One thread's view of the slots: a snapshot, renewed when there is a newer one, and the place
/// of the last slot found. A look-up stores nothing that another thread reads.
pub struct Reader<T> {
    shared: Arc<Shared<T>>,
    publication: usize,
    snapshot: Arc<Snapshot<T>>,
    /// The last slot found, in this snapshot.
    near: Option<NonNull<Slot<T>>>,
}

// SAFETY: `near` is a reference into `snapshot`, which goes along with it.
unsafe impl<T: Send + Sync> Send for Reader<T> {}
// SAFETY: as above; shared, a reader changes nothing.
unsafe impl<T: Send + Sync> Sync for Reader<T> {}

impl<T> Reader<T> {
    /// The slot of a frame, in the newest snapshot. Never waits.
    #[inline]
    pub fn find(&mut self, gfn: u64) -> Option<&Slot<T>> {
        if self.shared.current.load(Ordering::Acquire) != self.publication {
            self.renew();
        }
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

    /// All slots, in the newest snapshot, for look-ups that belong together.
    pub fn snapshot(&mut self) -> &Arc<Snapshot<T>> {
        if self.shared.current.load(Ordering::Acquire) != self.publication {
            self.renew();
        }
        &self.snapshot
    }

    #[cold]
    fn renew(&mut self) {
        (self.publication, self.snapshot) = self.shared.latest();
        self.near = None;
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Reader {
            shared: self.shared.clone(),
            publication: self.publication,
            snapshot: self.snapshot.clone(),
            near: self.near,
        }
    }
}
