// SPDX-License-Identifier: GPL-2.0-only
//! `baton trial`: proof on a host in use. The kernel's scheduler and scx_baton schedule in turns;
//! the same counters tell what each gave.
//!
//! A [`plan`] is fixed first; a [`run`] of it fills a [`bundle`], unless one of the [`limits`] ends
//! it; the [`verdict`] is computed from the bundle alone.

pub mod bundle;
mod claim;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod hosts;
mod keys;
mod limits;
mod options;
pub mod plan;
mod probe;
mod progress;
pub mod report;
mod run;
mod sampler;
mod sealed;
#[cfg(test)]
mod tests;
pub mod verdict;
mod words;

pub use options::{Options, Synthetic, trial, verify};
