// SPDX-License-Identifier: GPL-2.0-only
//! What a simulation's outcome depends on, as one number: a sweep that goes on must not mix
//! outcomes of different scenarios, schedulers or versions.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use baton_sim::keys::Change;
use baton_sim::scenario::Text;
use baton_sim::scenario::is_source;

/// FNV-1a, 64 bits (RFC 9923): the same on every machine, unlike `std`'s.
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        // The length keeps "a", "bc" and "ab", "c" apart.
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The numbers of points of one text.
pub struct Inputs {
    base: Fnv,
    files: HashMap<PathBuf, Vec<u8>>,
}

impl Inputs {
    pub fn new(text: &Text) -> Inputs {
        let mut base = Fnv(0xcbf2_9ce4_8422_2325);
        base.add(env!("CARGO_PKG_VERSION").as_bytes());
        // Built-in schedulers, machines and the simulator itself.
        base.add(&fs::read("/proc/self/exe").unwrap_or_default());
        base.add(text.text.as_bytes());
        Inputs { base, files: HashMap::new() }
    }

    /// Of a point: its changes, and the files that its scenario names.
    pub fn of(&mut self, changes: &[Change], machine: &Path, scheduler: &Path) -> String {
        let mut all = self.base;
        for (key, value) in changes {
            all.add(key.as_bytes());
            all.add(value.as_bytes());
        }
        let source = is_source(&scheduler.to_string_lossy());
        for file in [Some(machine), source.then_some(scheduler)].into_iter().flatten() {
            let read = || fs::read(file).unwrap_or_default();
            all.add(self.files.entry(file.into()).or_insert_with(read));
        }
        format!("{:016x}", all.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_that_of_text_changes_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, scheduler) = (dir.path().join("m.toml"), dir.path().join("s.bpf.c"));
        fs::write(&machine, "machine").unwrap();
        fs::write(&scheduler, "scheduler").unwrap();
        let text = |text: &str| Text { text: text.into(), ..Text::default() };
        let change = |value: &str| vec![("key".to_string(), value.to_string())];
        let of = |words: &str, value: &str| {
            Inputs::new(&text(words)).of(&change(value), &machine, &scheduler)
        };
        let first = of("a", "1");
        assert_eq!(first, of("a", "1"));
        assert_ne!(first, of("b", "1"));
        assert_ne!(first, of("a", "2"));
        fs::write(&scheduler, "another").unwrap();
        assert_ne!(first, of("a", "1"));
    }
}
