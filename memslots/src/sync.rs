// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What threads meet at: the real thing, or loom's, which tries every order of events.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, Ordering};

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicPtr, Ordering};
