// SPDX-License-Identifier: GPL-2.0-only
//! Counts PAUSE-loop exits: how often KVM saw a vCPU spin and looked for one to run instead. KVM
//! has no counter of its own for this; a kprobe has, and costs every scheduler the same.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

const TRACING: &str = "/sys/kernel/tracing";
const EVENT: &str = "baton_spins";

/// Counts from now on, for as long as the host is up.
pub fn count() -> Result<()> {
    let dir = format!("{TRACING}/events/baton/{EVENT}");
    if !Path::new(&dir).exists() {
        // Only the probe's own counter is wanted, not a record of each hit.
        fs::write(format!("{TRACING}/tracing_on"), "0").context("no tracefs")?;
        File::options()
            .append(true)
            .open(format!("{TRACING}/kprobe_events"))
            .and_then(|mut file| {
                file.write_all(format!("p:baton/{EVENT} kvm_vcpu_on_spin\n").as_bytes())
            })
            .context("cannot probe kvm_vcpu_on_spin")?;
    }
    fs::write(format!("{dir}/enable"), "1").context("cannot enable the probe")
}

/// Spins since [`count`]; `None` if they are not counted.
pub fn total() -> Option<u64> {
    parse(&fs::read_to_string(format!("{TRACING}/kprobe_profile")).ok()?)
}

/// Lines are `EVENT HITS MISSES`; a miss is a hit that came while another probe was handled.
fn parse(profile: &str) -> Option<u64> {
    let mut words = profile
        .lines()
        .map(str::split_whitespace)
        .find(|words| words.clone().next() == Some(EVENT))?
        .skip(1);
    let hits: u64 = words.next()?.parse().ok()?;
    let misses: u64 = words.next()?.parse().ok()?;
    Some(hits + misses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_profile() {
        let profile = "  other    9    9\n  baton_spins          1200               3\n";
        assert_eq!(parse(profile), Some(1203));
        assert_eq!(parse(""), None);
        assert_eq!(parse("baton_spins x y"), None);
    }
}
