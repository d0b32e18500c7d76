// SPDX-License-Identifier: GPL-2.0-only
//! Standard output and standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// To standard output. A reader that has gone (EPIPE) misses nothing that it wants, so that is no
/// error.
///
/// Errors: standard output cannot be written, for example because its disk is full.
pub fn say(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write standard output"),
    }
}

/// A line to standard error. If that cannot be written, there is nobody to tell (`eprintln!` would
/// panic).
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
