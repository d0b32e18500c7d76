// SPDX-License-Identifier: GPL-2.0-only
//! Public sched_ext schedulers to compare with: where they are found, and how they get there.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use baton_output::note;
use baton_testbed::plan::KERNEL_SCHEDULER;

/// Those that `--peers` compares with: general schedulers that people run on hosts.
pub const PEERS: [&str; 2] = ["scx_bpfland", "scx_flash"];

/// Where programs are looked for: beside this one, so that the scheduler is of the same build, then
/// in PATH.
fn places() -> Vec<PathBuf> {
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = Vec::new();
    for place in beside.into_iter().chain(env::split_paths(&path)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

fn found(program: &str, mut places: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    places.find_map(|dir| Some(dir.join(program)).filter(|file| file.is_file()))
}

fn path(program: &str) -> Result<PathBuf> {
    let path = PathBuf::from(program);
    if !path.is_file() {
        bail!("scheduler {program} does not exist");
    }
    Ok(path)
}

/// Finds a scheduler's program on this host: as a path if it is one, beside this program, in PATH.
///
/// Errors: it is not there; with where it was looked for.
pub fn beside_or_in_path(program: &str) -> Result<PathBuf> {
    if program.contains('/') {
        return path(program);
    }
    let places = places();
    let looked: Vec<String> = places.iter().map(|dir| dir.display().to_string()).collect();
    found(program, places.into_iter()).with_context(|| {
        format!(
            "there is no scheduler {program}: it is neither {KERNEL_SCHEDULER}, the kernel's own, \
             nor a program in {}",
            looked.join(", ")
        )
    })
}

/// As [`beside_or_in_path`], and in the bin of the directory `peers`.
pub fn find(program: &str, peers: &Path) -> Result<PathBuf> {
    if program.contains('/') {
        return path(program);
    }
    found(program, places().into_iter().chain([peers.join("bin")])).with_context(|| {
        format!(
            "scheduler {program} is not on this machine; --peers installs the public ones, or: \
             cargo install --locked {program} --root {} (with BPF_CLANG=clang-19 or so if there \
             is no plain clang)",
            peers.display()
        )
    })
}

/// Builds and installs those of the schedulers that are missing, into the directory `peers`.
pub fn install(programs: &[&str], peers: &Path) -> Result<()> {
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| find(program, peers).is_err()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    note(&format!("building {} (once; a few minutes each)", missing.join(" and ")));
    let build = peers.join("build");
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "--locked", "--root"]).arg(peers).args(&missing);
    // One build folder for all: they share most of their dependencies.
    cargo.env("CARGO_TARGET_DIR", &build).current_dir(peers);
    if let Some(clang) = bpf_clang()? {
        cargo.env("BPF_CLANG", clang);
    }
    let status =
        cargo.status().context("cannot start cargo; install Rust, or leave out --peers")?;
    // Large, and of no use once the programs are there.
    let _ = fs::remove_dir_all(&build);
    if !status.success() {
        bail!("building {} failed ({status}); cargo's messages are above", missing.join(" and "));
    }
    Ok(())
}

/// What to tell the build about the BPF compiler: `None` if the user has told it already.
///
/// Distributions with several install them under their number, and the plain one may be too old:
/// 14 on Debian 12. 17 is the oldest that compiles the sched_ext headers.
fn bpf_clang() -> Result<Option<PathBuf>> {
    if env::var_os("BPF_CLANG").is_some() {
        return Ok(None);
    }
    let newest = (17..40).rev().find_map(|version| in_path(&format!("clang-{version}")));
    match newest.or_else(|| in_path("clang")) {
        Some(clang) => Ok(Some(clang)),
        None => bail!("no clang to build schedulers with; install clang 17 or later"),
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_scheduler_is_named_with_the_remedy() {
        let error = find("scx_no_such", Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("scx_no_such") && error.contains("cargo install"), "{error}");
        assert!(find("./no/such", Path::new("/nonexistent")).is_err());
        assert!(find("sh", Path::new("/nonexistent")).is_ok());
    }
}
