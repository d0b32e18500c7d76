// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What threads meet at: the real thing, or loom's, which tries every order of events.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
    thread::yield_now as spin,
};

#[cfg(not(loom))]
pub use core::{
    hint::spin_loop as spin,
    sync::atomic::{AtomicUsize, Ordering},
};

/// `core`'s, with loom's interface.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
