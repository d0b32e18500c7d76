// SPDX-License-Identifier: GPL-2.0-only
//! Signals that ask for an end. One test: they are the whole process's.

use baton_output::interrupt;
use nix::sys::signal::{SigHandler, Signal, raise, signal};

#[test]
fn a_closed_terminal_asks_for_an_end() {
    // SAFETY: the default, no handler of ours. It is ignored if the tests run under nohup.
    unsafe { signal(Signal::SIGHUP, SigHandler::SigDfl) }.expect("a signal");
    interrupt::install();
    assert!(!interrupt::asked());
    raise(Signal::SIGHUP).expect("a signal to this process");
    assert!(interrupt::asked() && interrupt::check().is_err());
    // SAFETY: no handler of ours: the default.
    let installed = unsafe { signal(Signal::SIGHUP, SigHandler::SigDfl) }.expect("a signal");
    assert!(matches!(installed, SigHandler::Handler(_)));
}
