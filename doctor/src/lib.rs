// SPDX-License-Identifier: GPL-2.0-only
//! What on a KVM host keeps Baton from running or costs its VMs: a list of [`Finding`]s, each of
//! which looks at a [`Scene`] and shows what it saw. Nothing is changed but by [`fix::apply`].

mod catalogue;
mod cgroups;
mod finding;
pub mod fix;
mod kernel;
mod kvm;
mod machine;
mod memory;
pub mod report;
mod rivals;
mod scene;
mod text;
mod vcpus;
mod vmms;

pub use catalogue::{blockers, examine, find, findings};
pub use finding::{Finding, Found, Level};
pub use scene::{Cookie, Scene, SeenVcpu, SeenVm, Vmm};
