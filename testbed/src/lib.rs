// SPDX-License-Identifier: GPL-2.0-only
//! An emulated Linux/KVM host, booted in seconds, and the experiments that run on it.

pub mod ab;
mod apt;
mod boot;
pub mod cache;
pub mod command;
mod console;
mod cpio;
mod elf;
mod emulator;
pub mod exact;
pub mod experiment;
pub mod hash;
pub mod host;
mod image;
pub mod kernel;
pub mod kernel_log;
pub mod kvm;
mod log;
pub mod pace;
pub mod plan;
mod qemu;
pub mod scheduler;
mod terminal;
pub mod userland;
pub mod wire;

pub use boot::boot;
