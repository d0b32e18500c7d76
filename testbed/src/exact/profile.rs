// SPDX-License-Identifier: GPL-2.0-only
//! Where an exact host executes its instructions: the emulator's counts, by symbol.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

/// As in `testbed/bochs/port.cc`: slots of a place and a count, both 64 bits.
const SLOTS: u64 = 1 << 20;
const SLOT: usize = 16;

/// Places that are no addresses: what guests execute, user mode, and the kernel once the table is
/// half full.
const GUEST: u64 = 1;
const USER: u64 = 2;
const OTHER: u64 = 3;

/// A function that is longer than this is none: the address is behind the last one of a module.
const LONGEST: u64 = 1 << 20;

/// What the emulator counts, while it counts.
pub struct Profile(File);

/// Instructions of one symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// As /proc/kallsyms has it, a module's or BPF program's name behind it; "(guest)", "(user)",
    /// "(others)" for what had no room.
    pub symbol: String,
    pub instructions: u64,
}

impl Profile {
    /// An empty one.
    pub fn new() -> Result<Profile> {
        let file = tempfile::tempfile().context("cannot make a temporary file")?;
        file.set_len(SLOTS * SLOT as u64).context("cannot make a temporary file")?;
        Ok(Profile(file))
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// The counts so far, by address.
    ///
    /// Errors: the file cannot be read.
    pub fn places(&self) -> Result<HashMap<u64, u64>> {
        let mut bytes = vec![0; SLOTS as usize * SLOT];
        self.0.read_exact_at(&mut bytes, 0).context("cannot read the counted instructions")?;
        let word = |slot: &[u8], at: usize| {
            slot[at..at + 8].try_into().map(u64::from_ne_bytes).unwrap_or_default()
        };
        let slots = bytes.chunks_exact(SLOT).map(|slot| (word(slot, 0), word(slot, 8)));
        Ok(slots.filter(|(place, _)| *place != 0).collect())
    }
}

/// By symbol, most first. `kallsyms` is the host's /proc/kallsyms, as root reads it.
pub fn by_symbol(places: &HashMap<u64, u64>, kallsyms: &str) -> Vec<Counted> {
    let mut symbols: Vec<(u64, String)> = kallsyms.lines().filter_map(symbol).collect();
    symbols.sort_by_key(|(address, _)| *address); // stable: of several names the first
    symbols.dedup_by_key(|(address, _)| *address);
    let name = |place: u64| match place {
        GUEST => "(guest)".to_string(),
        USER => "(user)".to_string(),
        OTHER => "(others)".to_string(),
        _ => {
            let after = symbols.partition_point(|(address, _)| *address <= place);
            match after.checked_sub(1).map(|at| &symbols[at]) {
                Some((address, name)) if place - address < LONGEST => name.clone(),
                _ => format!("{place:#x}"),
            }
        }
    };
    let mut sums: HashMap<String, u64> = HashMap::new();
    for (place, count) in places {
        *sums.entry(name(*place)).or_default() += count;
    }
    let mut all: Vec<Counted> =
        sums.into_iter().map(|(symbol, instructions)| Counted { symbol, instructions }).collect();
    all.sort_by(|a, b| b.instructions.cmp(&a.instructions).then(a.symbol.cmp(&b.symbol)));
    all
}

/// A line of four words: address, type, name and module, such as `[kvm]`; code only.
fn symbol(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    if !matches!(words.next()?, "t" | "T" | "w" | "W") {
        return None;
    }
    let mut name = words.next()?.to_string();
    if let Some(module) = words.next() {
        name = format!("{name} {module}");
    }
    Some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_summed_by_symbol() {
        let profile = Profile::new().unwrap();
        let kernel = 0xffff_ffff_8100_0000;
        for (slot, (place, count)) in
            [(GUEST, 7), (USER, 2), (kernel + 16, 3), (kernel + 17, 4), (kernel + (2 << 20), 1)]
                .into_iter()
                .enumerate()
        {
            let bytes: Vec<u8> =
                [place, count].iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
            profile.file().write_all_at(&bytes, (slot * 31 * SLOT) as u64).unwrap();
        }
        let kallsyms = "ffffffff81000000 T _text\nffffffff81000010 t first\t[kvm]\n\
                        ffffffff81000010 t again\nffffffff81000011 d data\ngarbage\n";
        let all = by_symbol(&profile.places().unwrap(), kallsyms);
        let all: Vec<(&str, u64)> =
            all.iter().map(|one| (one.symbol.as_str(), one.instructions)).collect();
        let expected =
            [("(guest)", 7), ("first [kvm]", 7), ("(user)", 2), ("0xffffffff81200000", 1)];
        assert_eq!(all, expected);
    }
}
