// SPDX-License-Identifier: GPL-2.0-only
//! Console logs of hosts that went wrong, kept for whoever looks into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::cache;

/// How many logs are kept; the oldest go first.
const KEPT: usize = 20;

/// Keeps a log under `$XDG_STATE_HOME/baton/logs`, else `~/.local/state/baton/logs`.
pub fn keep(text: &[u8]) -> Result<PathBuf> {
    keep_in(&cache::home("XDG_STATE_HOME", ".local/state")?.join("logs"), text)
}

fn keep_in(dir: &Path, text: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Names sort by age: 13 digits of milliseconds last until the year 2286.
    let path = dir.join(format!("host-{:013}-{}.log", now.as_millis(), std::process::id()));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let mut logs: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    for old in logs.iter().rev().skip(KEPT) {
        let _ = fs::remove_file(old); // another process may have been quicker
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..30 {
            fs::write(dir.path().join(format!("host-{n:013}-1.log")), "old").unwrap();
        }
        let path = keep_in(dir.path(), b"new").unwrap();
        assert_eq!(fs::read(path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT);
        assert!(!dir.path().join("host-0000000000000-1.log").exists());
    }
}
