// SPDX-License-Identifier: GPL-2.0-only
//! SIGINT, SIGTERM and SIGHUP ask for an end; whoever waits looks here and cleans up.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
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

/// Those that end a program: SIGHUP only if it is not ignored, as it is under nohup.
pub fn signals() -> Vec<libc::c_int> {
    let mut hangup = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this reads the old one, for which there is room.
    let is_read = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), hangup.as_mut_ptr()) } == 0;
    // SAFETY: zeroes are an action, too.
    let is_ignored = is_read && unsafe { hangup.assume_init() }.sa_sigaction == libc::SIG_IGN;
    let mut signals = vec![libc::SIGINT, libc::SIGTERM];
    signals.extend((!is_ignored).then_some(libc::SIGHUP));
    signals
}

/// From now on SIGINT, SIGTERM and SIGHUP no longer end the process; [`asked`] and [`check`] report
/// them. System calls that wait end with EINTR. SIGHUP stays ignored if it is (nohup).
pub fn install() {
    INSTALL.call_once(|| {
        let action = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
        for signal in signals().into_iter().filter_map(|signal| Signal::try_from(signal).ok()) {
            // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
            // It can fail only for signals that cannot be caught.
            let _ = unsafe { sigaction(signal, &action) };
        }
    });
}

/// Whether one of them has arrived.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error once one of them has arrived.
pub fn check() -> Result<(), Interrupted> {
    if asked() { Err(Interrupted) } else { Ok(()) }
}
