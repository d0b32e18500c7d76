// SPDX-License-Identifier: GPL-2.0-only
//! Measures a KVM host: a micro-VMM with bare-metal payloads, so that it takes seconds and no guest
//! operating system. Data flows one way: a test (`measurements`) is run in VMs (`vm`, `vcpu`), its
//! samples become figures (`figures`), and those a report (`report`).

pub mod against;
mod cgroups;
mod counters;
pub mod draw;
mod host;
#[expect(dead_code, reason = "the guest uses the rest")]
mod layout;
mod measurements;
mod path;
pub mod plot;
mod polling;
mod record;
pub mod report;
mod run;
mod steady;
mod vcpu;
mod vm;

pub mod figures;

pub use measurements::{Test, all, find};
pub use record::Options;
pub use run::Bench;
pub use steady::Steady;
