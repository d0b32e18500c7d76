// SPDX-License-Identifier: GPL-2.0-only
//! A sweep on a Ray cluster of this machine alone. `make test-ray` installs Ray and runs it.

use std::path::Path;
use std::process::{Command, Output};

fn sweep(directory: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .current_dir(directory)
        .args(["sim", "sweep", "two-barriers", "--set", "seconds=0.2"])
        .args(["--set", "scheduler=scx_baton", "--vary", "vm.0.vcpus=2,6"])
        .args(["--vary", "starvation-s=30,0.000001,20"])
        .args(more)
        .output()
        .expect("baton runs")
}

/// The same bytes as on this machine's cores, and a point that fails keeps the others.
#[test]
fn a_sweep_on_a_cluster_gives_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = sweep(directory.path(), &["--json", "here.json"]);
    let there = sweep(directory.path(), &["--json", "there.json", "--ray", "local"]);
    let errors = String::from_utf8_lossy(&there.stderr);
    assert!(errors.contains("1 of 6 simulations failed"), "{errors}");
    assert_eq!(here.stdout, there.stdout, "{errors}");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("written");
    assert_eq!(read("here.json"), read("there.json"));
}

#[test]
fn no_cluster_is_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = sweep(directory.path(), &["--ray", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("no Ray cluster at 127.0.0.1:1: "), "{errors}");
}
