// SPDX-License-Identifier: GPL-2.0-only
//! Every way in which a host can fail.

use std::fmt;
use std::path::PathBuf;

use baton_output::interrupt::Interrupted;

use super::BOOT_DEADLINE;

/// Every way in which a host can fail. After any of them the host is gone.
#[derive(Debug)]
pub enum HostError {
    /// The host's kernel crashed.
    Oops {
        line: String,
        log: Option<PathBuf>,
    },
    /// A CPU of the host makes no progress.
    RcuStall {
        line: String,
        log: Option<PathBuf>,
    },
    /// The host's watchdog found a CPU or a work queue stuck.
    Lockup {
        line: String,
        log: Option<PathBuf>,
    },
    OutOfMemory {
        line: String,
        log: Option<PathBuf>,
    },
    /// A command did not end, or said nothing, in time.
    Deadline {
        what: String,
        log: Option<PathBuf>,
    },
    EmulatorDied {
        why: String,
        log: Option<PathBuf>,
    },
    BootTimeout {
        log: Option<PathBuf>,
    },
    /// The kernel lacks what every experiment needs.
    NotUsable {
        release: String,
        what: &'static str,
    },
    /// It cannot work on this machine, or with these files.
    Setup(anyhow::Error),
    /// SIGINT or SIGTERM.
    Interrupted,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, log) = match self {
            HostError::Oops { line, log } => (format!("the host kernel crashed: {line}"), log),
            HostError::RcuStall { line, log } => (format!("the host stalled: {line}"), log),
            HostError::Lockup { line, log } => (format!("the host locked up: {line}"), log),
            HostError::OutOfMemory { line, log } => {
                (format!("the host ran out of memory: {line}"), log)
            }
            HostError::Deadline { what, log } => (what.clone(), log),
            HostError::EmulatorDied { why, log } => {
                (format!("the emulated host ended: {why}"), log)
            }
            HostError::BootTimeout { log } => {
                (format!("the host did not boot within {} s", BOOT_DEADLINE.as_secs()), log)
            }
            HostError::NotUsable { release, what } => {
                return write!(
                    f,
                    "kernel {release} has no {what}, or not in its --modules: choose another with \
                     --kernel-series or --kernel ('baton testbed kernels' lists those on offer)"
                );
            }
            HostError::Setup(error) => return write!(f, "{error:#}"),
            HostError::Interrupted => return f.write_str("interrupted"),
        };
        match log {
            Some(log) => write!(f, "{what}; console log: {}", log.display()),
            None => f.write_str(&what),
        }
    }
}

impl std::error::Error for HostError {}

impl From<anyhow::Error> for HostError {
    fn from(error: anyhow::Error) -> Self {
        let error = match error.downcast() {
            Ok(host) => return host,
            Err(other) => other,
        };
        if error.chain().any(|cause| cause.is::<Interrupted>()) {
            HostError::Interrupted
        } else {
            HostError::Setup(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line() {
        let log = Some(PathBuf::from("/l"));
        let error = HostError::Oops { line: "BUG: x".into(), log };
        assert_eq!(error.to_string(), "the host kernel crashed: BUG: x; console log: /l");
        let error = HostError::from(anyhow::Error::from(Interrupted).context("while fetching"));
        assert!(matches!(error, HostError::Interrupted));
    }
}
