// SPDX-License-Identifier: GPL-2.0-only
//! Saved machines, in the cache: each under a hash of all that it was made from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::hash;
use crate::host::{Host, HostError};
use crate::wire::Hello;

const PREFIX: &str = "exact-host-";

/// One has as many MiB on disk as the host has used memory: a quarter of a GiB at least.
const KEPT: usize = 6;
const NEEDED_MIB: u64 = 2048;

/// Rises when what is saved changes its form.
const EDITION: u32 = 2;

/// Within an entry of the cache, which is a cache of its own.
const MACHINE: &str = "machine";

/// The file in a saved machine that is ours.
const NOTE: &str = "baton.json";

/// What a run on an exact host depends on, as SHA-256 hashes: two runs with equal inputs give the
/// same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// In words.
    pub machine: String,
    /// All of the emulator's configuration, and the kernel's command line.
    pub configuration: String,
    /// Its source and every change of it.
    pub emulator: String,
    pub kernel: String,
    /// The host's initramfs, with the programs in it.
    pub image: String,
    pub programs: BTreeMap<String, String>,
    /// What was done on the host before it was saved.
    pub prepared: Vec<String>,
}

/// What is written beside a saved machine.
#[derive(Serialize, Deserialize)]
struct Note {
    hello: Hello,
    /// Of the host, in microseconds since it was switched on.
    time_us: u64,
    inputs: Inputs,
}

/// A saved machine. As long as this lives, nobody removes it to make room.
pub struct Saved {
    pub dir: PathBuf,
    pub inputs: Inputs,
    pub hello: Hello,
    pub time: Duration,
    /// Its note, with a shared lock.
    _in_use: fs::File,
}

impl Inputs {
    /// What is another one there: in words, and programs by name.
    pub fn differ_from(&self, other: &Inputs) -> Vec<String> {
        let parts = [
            ("machine", self.machine != other.machine),
            ("configuration", self.configuration != other.configuration),
            ("emulator", self.emulator != other.emulator),
            ("kernel", self.kernel != other.kernel),
            ("image", self.image != other.image),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs);
        let programs = self.programs.iter().filter(|(name, hash)| {
            other.programs.get(*name) != Some(hash) // one that is not there, too
        });
        parts
            .map(|(part, _)| part.to_string())
            .chain(programs.map(|(name, _)| name.clone()))
            .collect()
    }

    /// The cache's name for the machine that is made from these.
    pub fn name(&self) -> String {
        let Inputs { configuration, emulator, kernel, image, prepared, .. } = self;
        let edition = EDITION.to_string();
        let mut all = vec![edition.as_str(), configuration, emulator, kernel, image];
        all.extend(prepared.iter().map(String::as_str));
        let all = hash::texts(&all);
        format!("{PREFIX}{}", hash::short(&all))
    }
}

/// The machine that was made from these inputs, if the cache has it.
pub fn find(cache: &Cache, inputs: &Inputs) -> Result<Option<Saved>> {
    cache.get(&format!("{}/{MACHINE}", inputs.name())).map(open).transpose()
}

/// The machine that is made from these inputs, by `make` in an empty directory unless somebody else
/// has just made it. `make` returns the host that it saved. Others may use the cache meanwhile.
pub fn get_or_make(
    cache: Cache,
    inputs: &Inputs,
    make: impl FnOnce(&Path) -> Result<Host, HostError>,
) -> Result<Saved, HostError> {
    make_room(&cache)?;
    let place = cache.into_nested(&inputs.name())?;
    let dir = place.get_or_make(MACHINE, |dir| {
        place.require_free(NEEDED_MIB)?;
        let host = make(dir)?;
        let note = Note {
            hello: host.hello().clone(),
            time_us: host.now().as_micros() as u64,
            inputs: inputs.clone(),
        };
        let text = serde_json::to_string_pretty(&note)?;
        fs::write(dir.join(NOTE), text).context("cannot write to the cache")
    })?;
    Ok(open(dir)?)
}

/// Reads what is in the cache, and marks it as used.
///
/// Errors: it cannot be read, or was written by another version.
fn open(dir: PathBuf) -> Result<Saved> {
    let file = dir.join(NOTE);
    let read = || -> Result<Note> { Ok(serde_json::from_str(&fs::read_to_string(&file)?)?) };
    let Note { hello, time_us, inputs } = read().with_context(|| {
        format!("the saved host {} is damaged: remove that directory", dir.display())
    })?;
    let lock = || -> std::io::Result<fs::File> {
        let file = fs::File::open(&file)?;
        file.lock_shared()?;
        Ok(file)
    };
    let in_use = lock().with_context(|| format!("cannot lock {}", file.display()))?;
    let _ = in_use.set_modified(SystemTime::now()); // it is only forgotten sooner otherwise
    Ok(Saved { dir, inputs, hello, time: Duration::from_micros(time_us), _in_use: in_use })
}

/// Whether somebody restores it.
fn is_in_use(cache: &Cache, name: &str) -> bool {
    let file = cache.get(&format!("{name}/{MACHINE}/{NOTE}"));
    let file = file.and_then(|file| fs::File::open(file).ok());
    file.is_some_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// Removes all but the newest and those in use; one more is about to be made.
fn make_room(cache: &Cache) -> Result<()> {
    let changed = |path: String| cache.get(&path)?.metadata().ok()?.modified().ok();
    let mut all: Vec<(SystemTime, String)> = cache
        .names()?
        .into_iter()
        .filter(|name| name.starts_with(PREFIX))
        .map(|name| {
            // One that is being made has only its lock.
            let used = changed(format!("{name}/{MACHINE}/{NOTE}"));
            let used = used.or_else(|| changed(format!("{name}/lock")));
            (used.unwrap_or(SystemTime::UNIX_EPOCH), name)
        })
        .collect();
    all.sort();
    for (_, name) in all.iter().rev().skip(KEPT - 1) {
        if !is_in_use(cache, name) {
            cache.remove(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            machine: "a machine".into(),
            configuration: "a".into(),
            emulator: "b".into(),
            kernel: "c".into(),
            image: "d".into(),
            programs: BTreeMap::new(),
            prepared: Vec::new(),
        }
    }

    #[test]
    fn other_inputs_are_another_machine() {
        let name = inputs().name();
        assert_eq!(name, inputs().name());
        for change in [
            |inputs: &mut Inputs| inputs.configuration.push('x'),
            |inputs: &mut Inputs| inputs.emulator.push('x'),
            |inputs: &mut Inputs| inputs.kernel.push('x'),
            |inputs: &mut Inputs| inputs.image.push('x'),
            |inputs: &mut Inputs| inputs.prepared.push("x".into()),
        ] {
            let mut other = inputs();
            change(&mut other);
            assert_ne!(name, other.name(), "{other:?}");
        }
    }

    #[test]
    fn the_machines_used_last_and_those_in_use_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let name = |number: u64| format!("{PREFIX}{number}");
        for number in 0..8 {
            let place = Cache::open_at(dir.path()).unwrap().into_nested(&name(number)).unwrap();
            place.get_or_make(MACHINE, |dir| Ok(fs::write(dir.join(NOTE), "")?)).unwrap();
            let file = fs::File::open(place.get(MACHINE).unwrap().join(NOTE)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number)).unwrap();
        }
        let cache = Cache::open_at(dir.path()).unwrap();
        let note = cache.get(&name(1)).unwrap().join(MACHINE).join(NOTE);
        let in_use = fs::File::open(note).unwrap();
        in_use.lock_shared().unwrap();
        let kept = || {
            make_room(&cache).unwrap();
            (0..8).filter(|n| cache.get(&name(*n)).is_some()).collect::<Vec<u64>>()
        };
        assert_eq!(kept(), [1, 3, 4, 5, 6, 7]);
        drop(in_use);
        assert_eq!(kept(), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_damaged_machine_names_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NOTE), "{}").unwrap();
        let error = open(dir.path().to_path_buf()).err().unwrap().to_string();
        assert!(error.contains("remove that directory"), "{error}");
    }
}
