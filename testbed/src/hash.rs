// SPDX-License-Identifier: GPL-2.0-only
//! SHA-256, in hexadecimal: tells whether two runs had the same inputs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// As many digits as a person compares.
const SHORT: usize = 16;

/// Of several texts; where one ends counts.
pub fn texts<S: AsRef<str>>(texts: &[S]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.as_ref().len() as u64).to_le_bytes());
        hash.update(text.as_ref());
    }
    hex(hash)
}

/// Of bytes in memory.
pub fn bytes(bytes: &[u8]) -> String {
    hex(Sha256::new().chain_update(bytes))
}

/// Of a file's contents.
pub fn file(path: &Path) -> Result<String> {
    let open = || File::open(path).and_then(|file| of_open(&file));
    open().with_context(|| format!("cannot read {}", path.display()))
}

/// Of an open file's contents, wherever its position is.
pub fn of_open(file: &File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match file.read_at(&mut bytes, at)? {
            0 => return Ok(hex(hash)),
            length => {
                hash.update(&bytes[..length]);
                at += length as u64;
            }
        }
    }
}

/// The first digits.
pub fn short(hash: &str) -> &str {
    hash.get(..SHORT).unwrap_or(hash)
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        let path = Path::new("/dev/null");
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(file(path).unwrap(), empty);
        assert_eq!(short(empty), "e3b0c44298fc1c14");
        assert_ne!(texts(&["ab", "c"]), texts(&["a", "bc"]));
    }
}
