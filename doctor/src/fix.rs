// SPDX-License-Identifier: GPL-2.0-only
//! Mending by writes to files of the kernel, and taking that back.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use baton_hostinfo::Host;
use serde::{Deserialize, Serialize};

pub use crate::finding::{Fix, Write};

use crate::finding::Finding;
use crate::scene::Scene;
use crate::text::chosen;

/// What was found is kept here before anything is written; gone after a reboot, as what was
/// written is.
pub const STATE: &str = "/run/baton/doctor.json";

/// All that is ever written to; `*` is a number.
const FILES: [&str; 9] = [
    "/proc/sys/kernel/hung_task_panic",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/panic_on_rcu_stall",
    "/proc/sys/kernel/softlockup_panic",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/mm/transparent_hugepage/defrag",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/module/kvm/parameters/halt_poll_ns",
];

#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    /// In the order of the writes, each file once: with what it held before the first.
    found: Vec<Was>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Was {
    path: String,
    value: String,
}

/// Mends it, and says for each file `PATH: OLD -> NEW`; none: it is not there, so nothing was
/// written.
///
/// Errors: it cannot be mended by a write; a file cannot be read or written. Then all is as it was.
pub fn apply(scene: &Scene, finding: &Finding) -> Result<Vec<String>> {
    let Some(fix) = finding.fix else {
        bail!("--fix does not mend {}: {}", finding.id, finding.mend);
    };
    if (finding.look)(scene).is_empty() {
        return Ok(vec![]);
    }
    let writes = (fix.writes)(scene);
    if writes.is_empty() {
        bail!("--fix does not mend {} on this host: {}", finding.id, finding.mend);
    }
    let host = &scene.host;
    let mut before = Vec::new();
    for write in &writes {
        ensure!(is_ours(&write.path) && is_value(&write.value), "{} is not ours", write.path);
        let value = now(host, &write.path)?;
        ensure!(is_value(&value), "{} holds what could not be put back: {value:?}", write.path);
        before.push(Was { path: write.path.clone(), value });
    }
    let mut state = read(host)?.unwrap_or(State { version: 1, found: vec![] });
    let known = state.found.len();
    for was in &before {
        if !state.found.iter().any(|kept| kept.path == was.path) {
            state.found.push(was.clone());
        }
    }
    keep(host, &state)?;
    let mut lines = Vec::new();
    for (i, (write, was)) in writes.iter().zip(&before).enumerate() {
        if let Err(error) = put(host, &write.path, &write.value) {
            let is_back = |was: &Was| {
                let is = now(host, &was.path).is_ok_and(|value| value == was.value);
                is || put(host, &was.path, &was.value).is_ok()
            };
            let lost: Vec<&Was> = before[..=i].iter().rev().filter(|was| !is_back(was)).collect();
            // Of the others the state has nothing to tell, but what it told before.
            let mut fresh = state.found.split_off(known);
            fresh.retain(|was| lost.iter().any(|lost| lost.path == was.path));
            state.found.extend(fresh);
            keep(host, &state)?;
            return Err(error);
        }
        lines.push(format!("{}: {} -> {}", write.path, was.value, write.value));
    }
    Ok(lines)
}

/// Puts back what [`apply`] has changed, and says for each file `PATH: NEW -> OLD`. `spared`: what
/// somebody else is in charge of stays in the state.
///
/// Errors: the state is not one of ours, or cannot be written. What cannot be put back stays in the
/// state, and keeps nothing else from being put back: those are the errors beside the lines.
pub fn undo(host: &Host, spared: impl Fn(&str) -> bool) -> Result<(Vec<String>, Vec<Error>)> {
    let Some(mut state) = read(host)? else { return Ok((vec![], vec![])) };
    let (mut lines, mut errors, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for was in state.found.into_iter().rev() {
        if spared(&was.path) {
            kept.insert(0, was);
            continue;
        }
        // A module or a CPU that is gone took its value along.
        if !host.exists(&was.path) {
            continue;
        }
        let value = now(host, &was.path);
        match value.and_then(|value| put(host, &was.path, &was.value).map(|()| value)) {
            Ok(value) => lines.push(format!("{}: {value} -> {}", was.path, was.value)),
            Err(error) => {
                errors.push(error);
                kept.insert(0, was);
            }
        }
    }
    state.found = kept;
    keep(host, &state)?;
    Ok((lines, errors))
}

/// Does [`undo`] have something to do?
pub fn is_applied(host: &Host) -> bool {
    host.exists(STATE)
}

/// What is kept. It is input from outside: only files and values of fixes are taken from it.
fn read(host: &Host) -> Result<Option<State>> {
    let path = host.path(STATE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(anyhow!(error).context(format!("cannot read {STATE}"))),
    };
    let wrong = || format!("{STATE} does not say what there was: remove it");
    let state: State = serde_json::from_str(&text).with_context(wrong)?;
    ensure!(state.version == 1, "{STATE} is of another version of baton: use that one");
    for was in &state.found {
        let is_good = is_ours(&was.path) && is_value(&was.value);
        ensure!(is_good, "{STATE} names what no fix writes ({:?}): remove it", was.path);
    }
    Ok(Some(state))
}

fn keep(host: &Host, state: &State) -> Result<()> {
    let path = host.path(STATE);
    if state.found.is_empty() {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(anyhow!(error).context(format!("cannot remove {STATE}")))
            }
            _ => Ok(()),
        };
    }
    let write = || -> Result<()> {
        fs::create_dir_all(path.parent().context("no directory")?)?;
        // Whole or not at all, also when it is killed.
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_string(state)?)?;
        Ok(fs::rename(new, &path)?)
    };
    write().with_context(|| format!("cannot write {STATE}; --fix needs root"))
}

/// A file's value: of several that could be chosen the one that is.
fn now(host: &Host, path: &str) -> Result<String> {
    let text =
        fs::read_to_string(host.path(path)).with_context(|| format!("cannot read {path}"))?;
    Ok(chosen(&text).to_owned())
}

/// Writes, and looks whether the kernel took it.
fn put(host: &Host, path: &str, value: &str) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(host.path(path))?;
        Ok(file.write_all(format!("{value}\n").as_bytes())?)
    };
    write().with_context(|| format!("cannot write {path}; --fix and --restore need root"))?;
    let is = now(host, path)?;
    ensure!(is == value, "{path} stays {is}: the kernel did not take {value}");
    Ok(())
}

fn is_ours(path: &str) -> bool {
    let is = |pattern: &str| match pattern.split_once('*') {
        Some((before, after)) => {
            let middle = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            middle.is_some_and(|number| {
                (1..=5).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit())
            })
        }
        None => path == pattern,
    };
    FILES.iter().any(|pattern| is(pattern))
}

/// A number or a word.
fn is_value(value: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte);
    (1..=32).contains(&value.len()) && value.bytes().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_fixes_are_ours() {
        assert!(is_ours("/sys/devices/system/cpu/cpu12/cpufreq/scaling_governor"));
        assert!(FILES.iter().all(|path| path.contains('*') || is_ours(path)));
        for other in [
            "",
            "/etc/passwd",
            "/proc/sys/kernel/core_pattern",
            "/sys/kernel/mm/ksm/run/../../../x",
            "/sys/devices/system/cpu/cpu../cpufreq/scaling_governor",
            "/sys/devices/system/cpu/cpu/cpufreq/scaling_governor",
            "/sys/devices/system/cpu/cpu1/../cpufreq/scaling_governor",
        ] {
            assert!(!is_ours(other), "{other}");
        }
        assert!(is_value("schedutil") && is_value("200000") && is_value("defer+madvise"));
        assert!(!is_value("") && !is_value("a b") && !is_value("|x") && !is_value(&"1".repeat(33)));
    }
}
