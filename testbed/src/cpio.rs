// SPDX-License-Identifier: GPL-2.0-only
//! Writes the "newc" cpio archives that the kernel takes as initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

const DIR: u32 = 0o040000;
const FILE: u32 = 0o100000;
const LINK: u32 = 0o120000;
const CHAR: u32 = 0o020000;

/// An archive under way. Names are relative to the root, without a leading slash; parent
/// directories are made as needed. All is owned by root and dated 1970.
pub struct Archive<W: Write> {
    out: W,
    inode: u32,
    dirs: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub fn new(out: W) -> Self {
        Archive { out, inode: 0, dirs: BTreeSet::new() }
    }

    pub fn dir(&mut self, name: &str) -> io::Result<()> {
        let name = name.trim_matches('/');
        if name.is_empty() || self.dirs.contains(name) {
            return Ok(());
        }
        self.parents(name)?;
        self.dirs.insert(name.to_string());
        self.entry(name, DIR | 0o755, 0, (0, 0))
    }

    /// A file with these contents.
    pub fn bytes(&mut self, name: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.copy(name, mode, contents, contents.len() as u64)
    }

    /// A copy of a file of this machine (links are followed).
    pub fn file(&mut self, name: &str, mode: u32, from: &Path) -> io::Result<()> {
        let file = File::open(from)?;
        let size = file.metadata()?.len();
        self.copy(name, mode, file, size)
    }

    pub fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.parents(name)?;
        self.entry(name, LINK | 0o777, target.len() as u32, (0, 0))?;
        self.out.write_all(target.as_bytes())?;
        self.pad(target.len() as u64)
    }

    /// A character device.
    pub fn char_device(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.parents(name)?;
        self.entry(name, CHAR | 0o600, 0, (major, minor))
    }

    /// Ends the archive. Another may follow it in the same file.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = u32::MAX; // entry() counts on to 0, the trailer's number
        self.entry("TRAILER!!!", 0, 0, (0, 0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, name: &str) -> io::Result<()> {
        match name.rsplit_once('/') {
            Some((parent, _)) => self.dir(parent),
            None => Ok(()),
        }
    }

    fn copy(&mut self, name: &str, mode: u32, from: impl Read, size: u64) -> io::Result<()> {
        let field = u32::try_from(size)
            .map_err(|_| io::Error::other(format!("{name}: a file of 4 GiB or more")))?;
        self.parents(name)?;
        self.entry(name, FILE | mode, field, (0, 0))?;
        if io::copy(&mut from.take(size), &mut self.out)? != size {
            return Err(io::Error::other(format!("{name}: became shorter while it was read")));
        }
        self.pad(size)
    }

    fn entry(&mut self, name: &str, mode: u32, size: u32, device: (u32, u32)) -> io::Result<()> {
        self.inode = self.inode.wrapping_add(1);
        let links = if mode & 0o170000 == DIR { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            0, // uid
            0, // gid
            links,
            0, // mtime
            size,
            0, // device that holds the file
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0, // checksum, not used by this format
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad((header.len() + name.len() + 1) as u64)
    }

    fn pad(&mut self, written: u64) -> io::Result<()> {
        self.out.write_all(&[0; 3][..(written.wrapping_neg() % 4) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second, independent reading of the format: (name, mode, contents).
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&bytes[..6], b"070701");
            let (mode, size, length) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + length - 1].to_vec()).unwrap();
            let start = (110 + length).next_multiple_of(4);
            entries.push((name, mode, bytes[start..start + size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
        entries
    }

    #[test]
    fn two_archives_in_a_row() {
        let mut first = Archive::new(Vec::new());
        first.bytes("bin/tool", 0o755, b"hello").unwrap();
        first.link("bin/other", "tool").unwrap();
        let mut second = Archive::new(first.finish().unwrap());
        second.char_device("dev/console", 5, 1).unwrap();
        let entries = read(&second.finish().unwrap());
        let names: Vec<&str> = entries.iter().map(|entry| entry.0.as_str()).collect();
        let trailer = "TRAILER!!!";
        let expected = ["bin", "bin/tool", "bin/other", trailer, "dev", "dev/console", trailer];
        assert_eq!(names, expected);
        assert_eq!((entries[1].1, &entries[1].2[..]), (0o100755, &b"hello"[..]));
        assert_eq!((entries[2].1, &entries[2].2[..]), (0o120777, &b"tool"[..]));
        assert_eq!(entries[5].1, 0o020600);
    }
}
