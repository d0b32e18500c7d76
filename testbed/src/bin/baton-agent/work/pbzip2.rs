// SPDX-License-Identifier: GPL-2.0-only
//! An ordinary parallel job: mostly computing, a little locking between its threads.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use baton_testbed::plan::Measured;

/// Where the text lies; the root file system is in memory, so nothing waits for a disk.
const TEXT: &str = "/tmp/baton-text";

/// Smallest block that pbzip2 makes (-b1 -1), bytes.
const BLOCK: usize = 100_000;

/// Several for each of two to four vCPUs, so that all work nearly to the end. Twelve take 0.3 s in
/// an emulated guest that has the host for itself.
const BLOCKS: usize = 12;

pub fn run(time: Duration) -> Result<Measured> {
    if fs::metadata(TEXT).map(|file| file.len() as usize).ok() != Some(BLOCK * BLOCKS) {
        write_text(Path::new(TEXT))?;
    }
    // Without -p, pbzip2 starts one thread for each CPU that it finds.
    let command = ["pbzip2", "-k", "-c", "-1", "-b1", TEXT].map(String::from);
    super::repeat::run(time, &command, "files/s")
}

fn write_text(path: &Path) -> Result<()> {
    fs::write(path, text(BLOCK * BLOCKS)).with_context(|| format!("cannot write {path:?}"))
}

/// `len` bytes of lines of random words from a fixed vocabulary: always the same, and compressible
/// to about a third, as prose is.
fn text(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let words: Vec<Vec<u8>> =
        (0..512).map(|_| (0..2 + random(8)).map(|_| b'a' + random(26) as u8).collect()).collect();
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        out.extend(&words[random(512) as usize]);
        out.push(if random(12) == 0 { b'\n' } else { b' ' });
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_always_the_same() {
        assert_eq!(text(5000), text(5000));
        assert_eq!(text(5000).len(), 5000);
        assert!(text(100).is_ascii());
    }
}
