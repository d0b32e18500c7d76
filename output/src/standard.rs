// SPDX-License-Identifier: GPL-2.0-only
//! Standard output and standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};
use clap::Parser;

/// To standard output. A reader that has gone (EPIPE) misses nothing that it wants, so that is no
/// error.
///
/// Errors: standard output cannot be written, for example because its disk is full.
pub fn say(text: &str) -> Result<()> {
    is_read(text).map(drop)
}

/// The same, for who goes on without end: whether anybody reads.
///
/// Errors: as [`say`].
pub fn is_read(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("cannot write standard output"),
    }
}

/// A line to standard error. If that cannot be written, there is nobody to tell (`eprintln!` would
/// panic).
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The options of this process. Otherwise its exit status, when all is said: of wrong options, or
/// of
/// --help and --version, which [`Parser::parse`] takes for printed whatever happens.
pub fn options<T: Parser>() -> Result<T, u8> {
    T::try_parse().map_err(|told| match told.print() {
        Err(error) if !told.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            note(&format!("cannot write standard output: {error}"));
            1
        }
        _ => told.exit_code() as u8,
    })
}
