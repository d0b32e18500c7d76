// SPDX-License-Identifier: GPL-2.0-only
//! The experiments that ship, and what one from outside may not have.

use std::fs;
use std::path::Path;

use baton_testbed::experiment::Experiment;

#[test]
fn experiments_that_ship_are_experiments() {
    let mut read = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments")).unwrap() {
        let path = entry.unwrap().path();
        if let Err(error) = Experiment::parse(&fs::read_to_string(&path).unwrap()) {
            panic!("{}: {error:#}", path.display());
        }
        read += 1;
    }
    assert!(read > 10, "{read} experiments");
}

#[test]
fn a_cpu_flag_that_qemu_would_misread_is_refused() {
    let with = |flags: &str| {
        let rest = "repetitions = 1\nseconds = 1\nschedulers = [\"eevdf\"]\n";
        let workload = "[[workload]]\nname = \"barrier\"\n";
        Experiment::parse(&format!("{rest}vm_cpu = \"{flags}\"\n{workload}"))
    };
    assert!(with("kvm-pv-ipi=off,kvm-steal-time=off").is_ok());
    let error = with("kvm-pv-ipi=off -S").unwrap_err().to_string();
    assert!(error.contains("vm_cpu must be"), "{error}");
}
