// SPDX-License-Identifier: GPL-2.0-only
//! Files of results: earlier ones stay until there are new ones.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Where a file's new content grows.
fn part_of(file: &Path) -> PathBuf {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// Whether [`replace`] will work, as far as that can be known; the file stays as it is.
pub fn writable(file: &Path) -> Result<()> {
    let part = part_of(file);
    let probe = || {
        ensure!(!file.is_dir(), "it is a directory");
        fs::write(&part, "")?;
        Ok(fs::remove_file(&part)?)
    };
    probe().with_context(|| format!("cannot write {}", file.display()))
}

/// Writes a file as a whole: who reads it meanwhile sees the old one or the new one.
pub fn replace(file: &Path, text: &str) -> Result<()> {
    let write = || {
        let part = part_of(file);
        fs::write(&part, text).and_then(|()| fs::rename(&part, file)).inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_results_stay_until_there_are_new_ones() {
        let dir = std::env::temp_dir().join(format!("baton-files-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let file = dir.join("result.json");
        replace(&file, "old").unwrap();
        writable(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert!(writable(&dir).is_err() && writable(&dir.join("no/such")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
