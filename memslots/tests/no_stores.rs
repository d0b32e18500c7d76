// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A look-up stores to no shared memory: everything that was allocated for the slots is made
//! read-only, and look-ups go on.
#![cfg(all(target_os = "linux", not(miri)))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memslots::{Flags, MemSlots, Slot, Snapshot};

/// What is allocated while `open` lies in `memory`, never to be freed; all else is the system's.
struct Arena {
    open: AtomicBool,
    used: AtomicUsize,
}

const PAGE: usize = 4096;
const SIZE: usize = 256 * PAGE;

#[repr(align(4096))]
struct Memory(#[expect(dead_code, reason = "used through its address")] [u8; SIZE]);
static mut MEMORY: Memory = Memory([0; SIZE]);

fn memory() -> *mut u8 {
    &raw mut MEMORY as *mut u8
}

// SAFETY: pieces of the arena do not overlap, since `used` only rises; the system's allocator
// serves the rest, and gets back only what is its own.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.open.load(Ordering::Relaxed) {
            // SAFETY: as the caller promised.
            return unsafe { System.alloc(layout) };
        }
        let room = layout.size() + layout.align();
        let at = memory() as usize + self.used.fetch_add(room, Ordering::Relaxed);
        if at + room > memory() as usize + SIZE {
            return ptr::null_mut();
        }
        memory().map_addr(|_| at.next_multiple_of(layout.align()))
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !(memory() as usize..memory() as usize + SIZE).contains(&(at as usize)) {
            // SAFETY: not ours, so it is the system's.
            unsafe { System.dealloc(at, layout) }
        }
    }
}

#[global_allocator]
static ARENA: Arena = Arena { open: AtomicBool::new(false), used: AtomicUsize::new(0) };

fn protect(protection: i32) {
    // SAFETY: whole pages of our own static, which nobody writes while they are read-only.
    let failed = unsafe { libc::mprotect(memory().cast(), SIZE, protection) };
    assert_eq!(failed, 0);
}

// One test in this file: what another thread allocates must not land in the arena.
#[test]
fn a_look_up_stores_nothing_shared() {
    let slot =
        |id| Slot { id, flags: Flags::NONE, base_gfn: u64::from(id) * 3, npages: 2, backing: () };
    ARENA.open.store(true, Ordering::Relaxed);
    let list: Vec<_> = (0..1000).map(slot).collect();
    let mut slots = MemSlots::from(Snapshot::try_from(list).expect("no overlaps"));
    let mut reader = slots.reader();
    ARENA.open.store(false, Ordering::Relaxed);
    assert!(ARENA.used.load(Ordering::Relaxed) > 1000 * size_of::<Slot<()>>());

    protect(libc::PROT_READ);
    let mut found = 0;
    for gfn in (0..3000).chain([5, 5, 6, 0, 2999]) {
        let slot = reader.find(gfn);
        assert_eq!(slot.map(|slot| u64::from(slot.id)), (gfn % 3 != 2).then_some(gfn / 3));
        found += usize::from(slot.is_some());
    }
    let caught = store_is_caught();
    protect(libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(found, 2000 + 2);
    assert!(caught, "a store to the arena was possible: this test shows nothing");
}

/// In a process of its own.
fn store_is_caught() -> bool {
    // SAFETY: the child only stores and leaves, and calls nothing that another thread's lock could
    // hold up.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            memory().write_volatile(1);
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
    }
}
