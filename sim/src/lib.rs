// SPDX-License-Identifier: GPL-2.0-only
//! A deterministic simulator of KVM hosts. It runs the BPF source of sched_ext schedulers, compiled
//! natively: what is simulated is what ships.

pub mod build;
pub mod explain;
pub mod fair;
pub mod fuzz;
pub mod guest;
pub mod keys;
pub mod kvm;
mod locks;
mod lookups;
pub mod machine;
pub mod neighbours;
pub mod outcome;
pub mod program;
pub mod queue;
mod random;
pub mod reproduce;
pub mod scenario;
mod scx;
pub mod sim;
pub mod slots;
pub mod sweep;
pub mod topology;
pub mod trace;
pub mod workload;

pub use scx::{counters, current_callback};
