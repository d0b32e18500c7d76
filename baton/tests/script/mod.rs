// SPDX-License-Identifier: GPL-2.0-only
//! Scripts of the emulated host's shell, and what they find.

// Each test file uses a part of it.
#![allow(dead_code)]

use baton_testbed::host::{Exec, Host};
use std::collections::HashMap;
use std::time::Duration;

/// What every script may call.
pub const GUESTS: &str = include_str!("guests.sh");

/// What a script ends with when emulation lost a guest; see guests.sh.
pub const LOST: i32 = 75;

/// What the scheduler and the kernel said, for the report of a failure.
pub fn logs(host: &mut Host) -> String {
    let mut text = String::new();
    let cmd = Exec::new(
        ["sh", "-c", "tail -n 20 /run/baton.err /run/baton.out; dmesg | tail -n 20"],
        Duration::from_secs(30),
    );
    // A host that is gone has nothing to add.
    let _ = host.exec(&cmd, &mut |_, bytes| text.push_str(&String::from_utf8_lossy(bytes)));
    text
}

/// What a script printed. Lines `key=value` are its findings.
pub struct Findings {
    pub out: String,
}

impl Findings {
    pub fn text(&self, key: &str) -> &str {
        let found = self.out.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {key}= in:\n{}", self.out)).trim()
    }

    pub fn number(&self, key: &str) -> f64 {
        let text = self.text(key);
        text.parse().unwrap_or_else(|_| panic!("{key}={text} is no number:\n{}", self.out))
    }

    /// A line of `scx_baton --monitor`, as names and numbers.
    pub fn stats(&self, key: &str) -> HashMap<String, f64> {
        let words: Vec<&str> = self.text(key).split_whitespace().collect();
        let mut stats = HashMap::new();
        let mut name = Vec::new();
        for word in words {
            match word.parse::<f64>() {
                Ok(value) => {
                    stats.insert(name.join(" "), value);
                    name.clear();
                }
                Err(_) if word == "|" || word.ends_with(':') || word.starts_with('[') => {
                    name.clear()
                }
                Err(_) => name.push(word),
            }
        }
        stats
    }
}
