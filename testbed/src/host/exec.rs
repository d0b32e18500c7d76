// SPDX-License-Identifier: GPL-2.0-only
//! Commands for a host.

use std::time::Duration;

/// Which of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// A command for the host.
#[derive(Clone, Debug)]
pub struct Exec {
    /// Program (searched in the host's `PATH`) and arguments.
    pub argv: Vec<String>,
    /// Added to the host's environment.
    pub env: Vec<(String, String)>,
    pub stdin: Vec<u8>,
    /// The longest that it may run.
    pub deadline: Duration,
    /// The longest that it may print nothing.
    pub silence: Duration,
    /// Makes the command's run on an exact host another than that of another seed.
    pub seed: Option<u64>,
}

impl Exec {
    /// A command without input that may run, and be silent, for this long.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>, deadline: Duration) -> Exec {
        Exec {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            stdin: Vec::new(),
            deadline,
            silence: deadline,
            seed: None,
        }
    }
}
