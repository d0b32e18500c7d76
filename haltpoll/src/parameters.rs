// SPDX-License-Identifier: GPL-2.0-only
//! The `kvm` module's parameters for polling at HLT: host-wide, and not ours. What was there is
//! kept in a file before anything is changed, so that also whoever comes after a crash can put it
//! back.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use baton_output::note;

/// Where the values that were found are kept while others are in force; gone after a reboot, as the
/// others are.
pub const STATE: &str = "/run/scx_baton.halt-poll.json";

const MODULE: &str = "/sys/module/kvm/parameters";

/// Beside the limit itself: the first length that KVM polls for, so that it polls up to the limit
/// at once where HLTs are short, and not at all where they are not.
const LIMIT: &str = "halt_poll_ns";
const GROW_START: &str = "halt_poll_ns_grow_start";

/// What was found, until it is restored: when this is dropped.
#[derive(Debug)]
pub struct Parameters {
    module: PathBuf,
    state: PathBuf,
    found: BTreeMap<String, u64>,
}

impl Parameters {
    /// Of the loaded `kvm`.
    ///
    /// Errors: it has none, or they cannot be written (root may).
    pub fn of_kvm() -> Result<Self> {
        Self::at(Path::new(MODULE), Path::new(STATE))
    }

    /// For tests: in other folders. What a run before left changed is put back first.
    pub fn at(module: &Path, state: &Path) -> Result<Self> {
        restore(module, state)?;
        let mut found = BTreeMap::new();
        for name in [LIMIT, GROW_START] {
            found.insert(name.to_string(), read(&module.join(name))?);
        }
        Ok(Parameters { module: module.into(), state: state.into(), found })
    }

    /// `halt_poll_ns` as it was found.
    pub fn found_ns(&self) -> u64 {
        self.found.get(LIMIT).copied().unwrap_or(0)
    }

    /// Polls for up to `ns` from now on; 0: not at all.
    ///
    /// Errors: a file cannot be written; then what was found is in force.
    pub fn set(&self, ns: u64) -> Result<()> {
        if !self.state.exists() {
            let text = serde_json::to_string(&self.found)?;
            // Whole or not at all: half of it would keep every later start from polling.
            let new = self.state.with_extension("new");
            let kept = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.state));
            if kept.is_err() {
                let _ = fs::remove_file(&new);
            }
            kept.with_context(|| format!("cannot write {}", self.state.display()))?;
        }
        let grow = if ns == 0 { self.found.get(GROW_START).copied().unwrap_or(10_000) } else { ns };
        let set = write(&self.module.join(GROW_START), grow)
            .and_then(|()| write(&self.module.join(LIMIT), ns));
        if set.is_err() {
            let _ = restore(&self.module, &self.state);
        }
        set
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        if let Err(error) = restore(&self.module, &self.state) {
            note(&format!("{error:#}"));
        }
    }
}

/// Puts back what a run that was killed left changed; `None` if there is nothing to put back.
///
/// Errors: the file says nothing sensible, or a parameter cannot be written.
pub fn restore_left() -> Result<Option<u64>> {
    restore(Path::new(MODULE), Path::new(STATE))
}

fn restore(module: &Path, state: &Path) -> Result<Option<u64>> {
    let text = match fs::read_to_string(state) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(anyhow!(error).context(format!("cannot read {}", state.display())));
        }
    };
    let found: BTreeMap<String, u64> = serde_json::from_str(&text).with_context(|| {
        format!(
            "{} does not say what the parameters were: set {}/{LIMIT} yourself, and remove the file",
            state.display(),
            module.display()
        )
    })?;
    if let Some(name) = found.keys().find(|name| ![LIMIT, GROW_START].contains(&name.as_str())) {
        bail!("{} names {name}, which is none of ours: remove the file", state.display());
    }
    // Without the module there is nothing that could be wrong.
    if module.exists() {
        for (name, value) in &found {
            write(&module.join(name), *value)?;
        }
    }
    fs::remove_file(state).with_context(|| format!("cannot remove {}", state.display()))?;
    Ok(found.get(LIMIT).copied())
}

fn read(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read {}; is KVM loaded?", file.display()))?;
    text.trim().parse().with_context(|| format!("{} holds no number", file.display()))
}

fn write(file: &Path, value: u64) -> Result<()> {
    fs::write(file, format!("{value}\n"))
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like the module's, and a place for the state.
    fn module() -> Result<(tempfile::TempDir, PathBuf)> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join(LIMIT), "200000\n")?;
        fs::write(directory.path().join(GROW_START), "10000\n")?;
        let state = directory.path().join("state.json");
        Ok((directory, state))
    }

    #[test]
    fn restored_at_the_end() -> Result<()> {
        let (module, state) = module()?;
        let limit = || read(&module.path().join(LIMIT));
        let parameters = Parameters::at(module.path(), &state)?;
        parameters.set(50_000)?;
        parameters.set(0)?;
        parameters.set(16_384)?;
        assert_eq!((limit()?, parameters.found_ns()), (16_384, 200_000));
        assert_eq!(read(&module.path().join(GROW_START))?, 16_384);
        drop(parameters);
        assert_eq!((limit()?, read(&module.path().join(GROW_START))?), (200_000, 10_000));
        assert!(!state.exists());
        Ok(())
    }

    #[test]
    fn restored_by_the_next_one_after_a_crash() -> Result<()> {
        let (module, state) = module()?;
        let killed = Parameters::at(module.path(), &state)?;
        killed.set(16_384)?;
        std::mem::forget(killed);
        let next = Parameters::at(module.path(), &state)?;
        assert_eq!(next.found_ns(), 200_000);
        assert!(!state.exists());
        Ok(())
    }

    #[test]
    fn a_new_module_has_its_own_values() -> Result<()> {
        let (module, state) = module()?;
        let parameters = Parameters::at(module.path(), &state)?;
        parameters.set(16_384)?;
        fs::remove_dir_all(module.path())?;
        drop(parameters);
        assert!(!state.exists() && !module.path().exists());
        Ok(())
    }

    #[test]
    fn a_state_that_cannot_be_kept_leaves_nothing() -> Result<()> {
        let (module, state) = module()?;
        let parameters = Parameters::at(module.path(), &state)?;
        fs::create_dir_all(state.with_extension("new"))?;
        parameters.set(16_384).expect_err("its place is taken");
        assert!(!state.exists());
        assert_eq!(read(&module.path().join(LIMIT))?, 200_000);
        Ok(())
    }

    #[test]
    fn a_broken_state_is_told() -> Result<()> {
        let (module, state) = module()?;
        for text in ["", "{", "{\"halt_poll_ns\": \"x\"}", "{\"../passwd\": 1}"] {
            fs::write(&state, text)?;
            let error = Parameters::at(module.path(), &state).err().context("it is wrong")?;
            assert!(format!("{error:#}").contains("remove the file"), "{error:#}");
        }
        Ok(())
    }
}
