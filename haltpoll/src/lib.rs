// SPDX-License-Identifier: GPL-2.0-only
//! How long KVM should poll at HLT before the vCPU's thread sleeps ([`Governor`]), and the module's
//! parameters that say so ([`Parameters`]). The theory is in docs/halt-polling.md.

mod governor;
mod parameters;

pub use governor::{BUCKETS, Decision, Governor, Halts};
pub use parameters::{Parameters, STATE, restore_left};
