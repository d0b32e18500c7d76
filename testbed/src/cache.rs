// SPDX-License-Identifier: GPL-2.0-only
//! What was fetched once: entries that appear by rename, whole or not at all.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use baton_output::note;

use baton_output::interrupt;

/// Unfinished entries; what a killed run left is removed by the next.
const UNFINISHED: &str = ".part-";

/// The cache directory, held by this process alone until dropped.
pub struct Cache {
    dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens `$BATON_CACHE`, else `$XDG_CACHE_HOME/baton`, else `~/.cache/baton`. Waits while
    /// another process has it open.
    ///
    /// Errors: the directory cannot be made or written, or an interrupt came while waiting.
    pub fn open() -> Result<Cache> {
        let dir = match set("BATON_CACHE") {
            Some(dir) => dir,
            None => home("XDG_CACHE_HOME", ".cache")?,
        };
        Cache::open_at(&dir)
    }

    pub(crate) fn open_at(dir: &Path) -> Result<Cache> {
        let not_writable = || {
            format!("cannot write to the cache {} (choose another with BATON_CACHE)", dir.display())
        };
        fs::create_dir_all(dir).with_context(not_writable)?;
        let dir = fs::canonicalize(dir).with_context(not_writable)?;
        let lock = File::create(dir.join("lock")).with_context(not_writable)?;
        let mut told = false;
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::Error(error) => return Err(error).with_context(not_writable),
                TryLockError::WouldBlock if !told => {
                    note("baton: waiting for another baton that is filling the cache");
                    told = true;
                }
                TryLockError::WouldBlock => {}
            }
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        let cache = Cache { dir, _lock: lock };
        for name in cache.names()? {
            if name.starts_with(UNFINISHED) {
                cache.remove(&name)?;
            }
        }
        Ok(cache)
    }

    /// A directory that is not an entry: whoever uses it must cope with half-written contents.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// Gives this cache back and opens the one in its directory `name`, which has a lock of its
    /// own: what takes minutes to make keeps nobody from the other entries.
    pub fn into_nested(self, name: &str) -> Result<Cache> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        drop(self);
        Cache::open_at(&dir)
    }

    /// The entry, if it is there.
    pub fn get(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name)).filter(|path| path.exists())
    }

    /// The names of everything in the cache.
    pub fn names(&self) -> Result<Vec<String>> {
        let read = || -> std::io::Result<Vec<String>> {
            fs::read_dir(&self.dir)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        read().with_context(|| format!("cannot read {}", self.dir.display()))
    }

    /// The directory `name`, made by `make` in an empty directory if it is not there yet.
    pub fn get_or_make(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(path) = self.get(name) {
            return Ok(path);
        }
        let part = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempdir_in(&self.dir)
            .with_context(|| format!("cannot write to the cache {}", self.dir.display()))?;
        make(part.path())?;
        let path = self.dir.join(name);
        fs::rename(part.path(), &path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let _ = part.keep(); // it is not there any more: nothing to remove
        Ok(path)
    }

    /// Replaces a small file as a whole.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        let write = || -> std::io::Result<()> {
            let part = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.dir)?;
            fs::write(part.path(), text)?;
            part.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The contents of a small file, without the white space around it.
    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok().map(|text| text.trim().to_string())
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.dir.join(name);
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))
    }

    /// A file on the cache's disk that is removed when dropped, or by the next that opens the
    /// cache.
    pub fn temporary_file(&self) -> Result<tempfile::NamedTempFile> {
        tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(&self.dir)
            .with_context(|| format!("cannot write to the cache {}", self.dir.display()))
    }

    /// An error unless this many MiB are free on the cache's disk.
    pub fn require_free(&self, mib: u64) -> Result<()> {
        let stat = nix::sys::statvfs::statvfs(&self.dir)
            .with_context(|| format!("cannot see the free space of {}", self.dir.display()))?;
        let free = (stat.blocks_available() as u64 * stat.fragment_size() as u64) >> 20;
        if free < mib {
            bail!(
                "{free} MiB are free at {}, {mib} are needed: free some, or name another disk \
                 with BATON_CACHE",
                self.dir.display()
            );
        }
        Ok(())
    }
}

/// `$variable/baton`, else `~/otherwise/baton`.
pub fn home(variable: &str, otherwise: &str) -> Result<PathBuf> {
    if let Some(dir) = set(variable) {
        return Ok(dir.join("baton"));
    }
    match set("HOME") {
        Some(home) => Ok(home.join(otherwise).join("baton")),
        None => bail!("neither HOME nor {variable} is set: set one"),
    }
}

fn set(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_appear_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open_at(dir.path()).unwrap();
        let failed = cache.get_or_make("entry", |part| {
            fs::write(part.join("half"), "")?;
            bail!("no")
        });
        assert!(failed.is_err());
        assert_eq!(cache.names().unwrap(), ["lock"]);
        let made = cache.get_or_make("entry", |part| Ok(fs::write(part.join("file"), "x")?));
        assert_eq!(fs::read(made.unwrap().join("file")).unwrap(), b"x");
        cache.get_or_make("entry", |_| bail!("made twice")).unwrap();
    }

    #[test]
    fn leftovers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(".part-abc/deep")).unwrap();
        let cache = Cache::open_at(dir.path()).unwrap();
        assert_eq!(cache.names().unwrap(), ["lock"]);
    }

    #[test]
    fn a_nested_cache_keeps_nobody_from_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let first = Cache::open_at(dir.path()).unwrap().into_nested("first").unwrap();
        let second = Cache::open_at(dir.path()).unwrap().into_nested("second").unwrap();
        first.get_or_make("entry", |_| Ok(())).unwrap();
        assert!(second.get("entry").is_none());
        assert!(Cache::open_at(dir.path()).unwrap().get("first/entry").is_some());
    }

    #[test]
    fn small_files() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open_at(dir.path()).unwrap();
        assert_eq!(cache.read("x"), None);
        cache.write("x", "a\n").unwrap();
        cache.write("x", "b\n").unwrap();
        assert_eq!(cache.read("x").as_deref(), Some("b"));
        cache.require_free(0).unwrap();
        assert!(cache.require_free(u64::MAX).unwrap_err().to_string().contains("BATON_CACHE"));
    }
}
