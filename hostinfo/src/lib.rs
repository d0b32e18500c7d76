// SPDX-License-Identifier: GPL-2.0-only
//! What a KVM host runs: its VMs ([`Vm`]), what people call them ([`name`]), and files of /proc,
//! /sys and /run as they stand there ([`Host`]), or in a test's own tree.

mod host;
mod name;
mod vms;

pub use host::{Host, Unreadable};
pub use name::{arguments, name, option, parts};
pub use vms::{Vcpu, Vm, vms, vms_of};
