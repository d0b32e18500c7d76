// SPDX-License-Identifier: GPL-2.0-only
//! A file server's load, played back: directories, inodes and pages of a file system in memory.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use baton_testbed::plan::{DBENCH_LOAD, Measured};
use baton_testbed::scheduler::last_line;

const DIR: &str = "/tmp/baton-dbench";

pub fn run(time: Duration) -> Result<Measured> {
    fs::create_dir_all(DIR).with_context(|| format!("cannot make {DIR}"))?;
    let clients = available_parallelism().context("cannot tell how many CPUs there are")?;
    let seconds = whole_seconds(time);
    let output = Command::new("dbench")
        .args(["-t", &seconds.to_string(), "-D", DIR, "-c", DBENCH_LOAD, &clients.to_string()])
        .output()
        .context("cannot start dbench")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("dbench failed ({}): {}", output.status, last_line(&output.stdout));
    }
    let rate = throughput(&said).context("dbench does not tell its throughput")?;
    let seconds = seconds as f64;
    Ok(Measured { rate, ..Measured::new((rate * seconds) as u64, seconds, "MB/s") })
}

/// dbench counts whole seconds, and tells the rate as it was a second before its end: of a run of
/// one second it tells 0.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().max(2)
}

/// Of the line `Throughput 1349.75 MB/sec  2 clients  2 procs  max_latency=14.300 ms`.
fn throughput(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Throughput "))?;
    line.split_whitespace()
        .next()?
        .parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_long_enough_for_dbench_to_tell_a_rate() {
        assert_eq!(whole_seconds(Duration::from_millis(400)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(1)), 2);
        assert_eq!(whole_seconds(Duration::from_millis(3900)), 3);
    }

    #[test]
    fn throughput_is_found() {
        let said = " Flush 1\n\nThroughput 13.75 MB/sec  2 clients  2 procs  max_latency=1 ms\n";
        assert_eq!(throughput(said), Some(13.75));
        assert_eq!(throughput("Child failed with status 1"), None);
        assert_eq!(throughput("Throughput nan MB/sec"), None);
    }
}
