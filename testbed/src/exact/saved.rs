// SPDX-License-Identifier: GPL-2.0-only
//! Saved machines, in the cache: each under a hash of all that it was made from.

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
const EDITION: u32 = 1;

/// The file in a saved machine that is ours.
const NOTE: &str = "baton.json";

/// What a run on an exact host depends on, as SHA-256 hashes: two runs with equal inputs give the
/// same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    pub emulator: String,
    pub machine: String,
    pub kernel: String,
    pub image: String,
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

/// A saved machine.
pub struct Saved {
    pub dir: PathBuf,
    pub inputs: Inputs,
    pub hello: Hello,
    pub time: Duration,
}

impl Inputs {
    /// The cache's name for the machine that is made from these.
    pub fn name(&self) -> String {
        let Inputs { emulator, machine, kernel, image, prepared } = self;
        let edition = EDITION.to_string();
        let mut all = vec![edition.as_str(), emulator, machine, kernel, image];
        all.extend(prepared.iter().map(String::as_str));
        let all = hash::texts(&all);
        format!("{PREFIX}{}", hash::short(&all))
    }
}

/// The machine that is made from these inputs, by `make` in an empty directory if it is not in the
/// cache yet. `make` returns the host that it saved.
pub fn get_or_make(
    cache: &Cache,
    inputs: &Inputs,
    make: impl FnOnce(&Path) -> Result<Host, HostError>,
) -> Result<Saved, HostError> {
    let name = inputs.name();
    if cache.get(&name).is_none() {
        make_room(cache)?;
    }
    let dir = cache.get_or_make(&name, |dir| {
        cache.require_free(NEEDED_MIB)?;
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
    if let Ok(file) = fs::File::open(&file) {
        let _ = file.set_modified(SystemTime::now()); // it is only forgotten sooner otherwise
    }
    Ok(Saved { dir, inputs, hello, time: Duration::from_micros(time_us) })
}

/// Removes all but the newest; one more is about to be made.
fn make_room(cache: &Cache) -> Result<()> {
    let mut all: Vec<(SystemTime, String)> = cache
        .names()?
        .into_iter()
        .filter(|name| name.starts_with(PREFIX))
        .map(|name| {
            let used = cache.get(&name).and_then(|dir| dir.join(NOTE).metadata().ok());
            (used.and_then(|data| data.modified().ok()).unwrap_or(SystemTime::UNIX_EPOCH), name)
        })
        .collect();
    all.sort();
    for (_, name) in all.iter().rev().skip(KEPT - 1) {
        cache.remove(name)?;
    }
    Ok(())
}
