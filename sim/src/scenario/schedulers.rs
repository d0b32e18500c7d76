// SPDX-License-Identifier: GPL-2.0-only
//! Schedulers that come with the simulator, and what each is made of.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::fair::Kind;
use crate::keys::{did_you_mean, wrong};
use crate::scx;

/// What a scheduler is here.
pub enum Made {
    /// A model of the kernel's; with a debooster the spinner is held back (Ishiguro 2021).
    Fair { kind: Kind, debooster: bool },
    /// A BPF source as a native object.
    Native(&'static [u8]),
}

pub struct Known {
    pub name: &'static str,
    /// In a line.
    pub what: &'static str,
    pub made: Made,
}

const fn fair(name: &'static str, what: &'static str, kind: Kind, debooster: bool) -> Known {
    Known { name, what, made: Made::Fair { kind, debooster } }
}

const fn native(name: &'static str, what: &'static str, object: &'static [u8]) -> Known {
    Known { name, what, made: Made::Native(object) }
}

const HELD_BACK: &str = "the same; the spinner is held back (Ishiguro 2021)";

pub const SCHEDULERS: [Known; 7] = [
    fair("cfs", "the kernel's, with its buddies (Linux 2.6.24 to 6.5)", Kind::Cfs, false),
    fair("cfs-debooster", HELD_BACK, Kind::Cfs, true),
    fair("eevdf", "the kernel's (6.6 on)", Kind::Eevdf, false),
    fair("eevdf-debooster", HELD_BACK, Kind::Eevdf, true),
    native("scx_baton", "Baton's own BPF source", scx::BATON),
    native("scx_fifo", "a small example, sim/examples/fifo.bpf.c", scx::FIFO),
    native("scx_vtime", "a small example, sim/examples/vtime.bpf.c", scx::VTIME),
];

/// `None`: it is no name of ours.
pub fn made(name: &str) -> Option<Made> {
    SCHEDULERS.into_iter().find(|known| known.name == name).map(|known| known.made)
}

/// Whether a scheduler is a source of the user's, which is compiled.
pub fn is_source(name: &str) -> bool {
    name.ends_with(".bpf.c")
}

/// Whether a scheduler is the kernel's fair one.
pub fn is_fair(name: &str) -> bool {
    matches!(made(name), Some(Made::Fair { .. }))
}

/// The native object of a scheduler that is not the kernel's; `file` is compiled if it is no name
/// of ours.
///
/// Errors: it does not compile; then with the compiler's words.
pub fn object(name: &str, file: &Path) -> Result<Arc<[u8]>> {
    match made(name) {
        Some(Made::Native(object)) => Ok(object.into()),
        _ => scx::compiled(file),
    }
}

/// Errors: it comes not with the simulator, and is no source that compiles.
pub fn known(name: &str, file: &Path) -> Result<()> {
    if made(name).is_some() {
        return Ok(());
    }
    let names = SCHEDULERS.map(|known| known.name);
    if !is_source(name) {
        let why = format!(
            "there is no scheduler \"{name}\"{}; there are {}, and files that end in .bpf.c",
            did_you_mean(name, &names),
            names.join(", ")
        );
        return Err(wrong("scheduler", why));
    }
    scx::compiled(file).map(drop).map_err(|error| wrong("scheduler", format!("{error:#}")))
}
