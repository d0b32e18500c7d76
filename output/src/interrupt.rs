// SPDX-License-Identifier: GPL-2.0-only
//! SIGINT and SIGTERM ask for an end; whoever waits looks here and cleans up.

use std::fmt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static ASKED: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();

extern "C" fn note(_signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// The exit status of whoever ends because of it, as a shell has it: 128 + SIGINT.
pub const STATUS: i32 = 130;

/// The user asked for an end.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on SIGINT and SIGTERM no longer end the process; [`check`] reports them.
pub fn install() {
    INSTALL.call_once(|| {
        let action = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
            // It can fail only for signals that cannot be caught.
            let _ = unsafe { sigaction(signal, &action) };
        }
    });
}

/// An error once SIGINT or SIGTERM has arrived.
pub fn check() -> Result<(), Interrupted> {
    if ASKED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}
