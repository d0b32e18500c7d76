// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Guest memory slots of a virtual machine monitor.
//!
//! A VMM that serves a vCPU's exit, or emulates a device, must find the memory behind a guest
//! frame number (GFN). It does so millions of times a second, while slots hardly ever change.
//! This crate keeps slots sorted by frame and makes the look-up short:
//!
//! - [`Reader::find`] looks first where the caller found its last frame, and else searches without
//!   branches. It never waits and stores nothing that another reader reads.
//! - [`MemSlots`] updates with the semantics of `KVM_SET_USER_MEMORY_REGION`, one change or several
//!   at once. Readers see all of an update or nothing, and an update does not wait for readers.
//! - [`Snapshot`] is the map itself, immutable, for those who have their own way to share it.
//!
//! KVM looks slots up likewise: last-used slot, then a search by frame (`search_memslots()` of
//! Linux 5.16 and before, `gfn_to_memslot()` since), but its last-used slot was shared by all vCPUs
//! once, a cache line that they all wrote.
//!
//! No `std`, but for the feature `vm-memory`: `GuestRegions`, which takes the place of that crate's
//! `GuestRegionCollection`, and `backend-mmap`, as that crate's, with which a `GuestRegions` is
//! made of ranges.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

#[cfg(feature = "vm-memory")]
mod regions;
mod search;
mod shared;
mod slot;
mod snapshot;
mod sync;

#[cfg(feature = "vm-memory")]
pub use regions::GuestRegions;
pub use search::Hint;
pub use shared::{MemSlots, Reader};
pub use slot::{Change, Error, Flags, MAX_ADDRESS_SPACES, MAX_GFNS, MAX_PAGES, MAX_SLOTS, Slot};
pub use snapshot::Snapshot;
