// SPDX-License-Identifier: GPL-2.0-only
//! Files of a host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The host whose root directory this is; what could not be read is remembered.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    unreadable: RefCell<BTreeMap<PathBuf, String>>,
}

/// A file that is there and could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// As on the host, from its root on.
    pub path: PathBuf,
    pub why: String,
}

impl Host {
    /// This machine.
    pub fn here() -> Host {
        Host::at("/")
    }

    /// A tree that has the same files.
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into(), unreadable: RefCell::default() }
    }

    /// Where `path`, which begins with `/`, lies.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the white space around it. `None`: it is not there, or cannot be read
    /// ([`unreadable`](Self::unreadable)). Bytes that are no UTF-8 are replaced.
    pub fn read(&self, path: &str) -> Option<String> {
        self.read_start(path, u64::MAX)
    }

    /// The same of its first `most` bytes: of a file whose length a user of the host may choose.
    pub fn read_start(&self, path: &str, most: u64) -> Option<String> {
        let mut bytes = Vec::new();
        let start = File::open(self.path(path)).map(|file| file.take(most));
        match start.and_then(|mut start| start.read_to_end(&mut bytes)) {
            Ok(_) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) => self.note(path, &error),
        }
    }

    /// The names in a directory, sorted; none if it is not there or cannot be read.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = match fs::read_dir(self.path(path)) {
            Ok(entries) => entries,
            Err(error) => return self.note(path, &error).unwrap_or_default(),
        };
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.flatten().map(name).collect();
        names.sort();
        names
    }

    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What was asked for and could not be read, sorted by path.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        let all = self.unreadable.borrow();
        all.iter().map(|(path, why)| Unreadable { path: path.clone(), why: why.clone() }).collect()
    }

    /// Absent is an answer: no such file, no such device behind it, or its process has ended.
    fn note<T>(&self, path: &str, error: &io::Error) -> Option<T> {
        let gone = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        // ENXIO, ENODEV, ESRCH: as files of /proc and /sys say it.
        if !gone && ![Some(6), Some(19), Some(3)].contains(&error.raw_os_error()) {
            let path = Path::new(path).to_path_buf();
            self.unreadable.borrow_mut().insert(path, error.to_string());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_is_absent_from_what_cannot_be_read() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        fs::create_dir_all(root.path().join("proc/sys"))?;
        fs::write(root.path().join("proc/sys/one"), b" 1\xff\n")?;
        let host = Host::at(root.path());
        assert_eq!(host.read("/proc/sys/one").as_deref(), Some("1\u{fffd}"));
        assert_eq!((host.read("/proc/none"), host.list("/none")), (None, vec![]));
        assert_eq!(host.list("/proc/sys"), ["one"]);
        assert_eq!(host.unreadable(), []);
        // A directory is no file.
        assert_eq!(host.read("/proc/sys"), None);
        let unreadable = host.unreadable();
        assert_eq!(unreadable.len(), 1);
        assert_eq!(unreadable[0].path, Path::new("/proc/sys"));
        Ok(())
    }
}
