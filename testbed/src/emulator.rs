// SPDX-License-Identifier: GPL-2.0-only
//! The process that emulates a host. The kernel kills it with us, so nothing is left behind however
//! this process ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::command;
use crate::console::Console;
use crate::pace::Pace;

/// A running emulator. Dropping it kills it.
pub struct Emulator {
    pub child: Child,
    /// The channel to the agent on the host.
    pub control: UnixStream,
    pub console: Console,
    /// What the emulator itself prints.
    pub complaints: File,
    pub time: Time,
    /// What an exit status means that is neither success nor a crash.
    pub meaning: fn(ExitStatus) -> Option<&'static str>,
    /// Whether it means that the emulator has saved the host.
    pub saves: fn(ExitStatus) -> bool,
}

/// The time that deadlines on the host are measured in.
pub enum Time {
    Real(Instant),
    /// The emulator writes the virtual time into this file, in microseconds, as a native `u64`.
    Virtual(File),
}

impl Time {
    pub fn is_virtual(&self) -> bool {
        matches!(self, Time::Virtual(_))
    }

    /// Since some moment before the host was started.
    pub fn now(&self) -> Duration {
        match self {
            Time::Real(start) => start.elapsed(),
            Time::Virtual(file) => {
                let mut bytes = [0; 8];
                let _ = file.read_exact_at(&mut bytes, 0); // ours, and long enough
                Duration::from_micros(u64::from_ne_bytes(bytes))
            }
        }
    }
}

impl Emulator {
    pub fn pace(&self) -> Pace {
        Pace::of(self.child.id())
    }

    /// Why it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) if status.success() => {
                Some("the host was switched off or restarted".to_string())
            }
            Ok(Some(status)) => Some(match (self.meaning)(status) {
                Some(meaning) => meaning.to_string(),
                // Its last words are from before the crash.
                None if status.signal().is_some() => format!("the emulator crashed ({status})"),
                None => last_words(&self.complaints())
                    .map_or_else(|| status.to_string(), str::to_string),
            }),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Whether it ended because it was told to save the host, and did.
    pub fn saved(&mut self) -> bool {
        matches!(self.child.wait(), Ok(status) if (self.saves)(status))
    }

    /// The last that it printed itself.
    pub fn complaints(&self) -> String {
        const TAIL: u64 = 4096;
        let length = self.complaints.metadata().map_or(0, |data| data.len());
        let mut text = vec![0; TAIL as usize];
        let read = self.complaints.read_at(&mut text, length.saturating_sub(TAIL)).unwrap_or(0);
        String::from_utf8_lossy(&text[..read]).into_owned()
    }

    pub fn kill(&mut self) {
        command::kill_group(&mut self.child);
    }
}

/// Bochs puts what it ended for between ornaments and a banner, QEMU at the end.
fn last_words(complaints: &str) -> Option<&str> {
    let panic = complaints.lines().rev().find_map(|line| Some(line.split_once(">>PANIC<< ")?.1));
    panic.or_else(|| command::last_line(complaints))
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_emulator_ended_for_is_its_last_words() {
        let bochs =
            "00p[SIM   ] >>PANIC<< 'n_cores' is out of range\n=====\nBuilt from snapshot\n===\n";
        assert_eq!(last_words(bochs), Some("'n_cores' is out of range"));
        assert_eq!(last_words("a\nqemu: no memory\n"), Some("qemu: no memory"));
    }
}
