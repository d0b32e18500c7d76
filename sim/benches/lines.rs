// SPDX-License-Identifier: GPL-2.0-only
//! Cache lines that each callback touches, and how many of them another pCPU has written since:
//! with 3 VMs and with 300 that have as many vCPUs, on 256 pCPUs. `make bench-lines`.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use baton_sim::outcome::simulate;
use baton_sim::scenario::load;

/// Half of the VMs compute, half of them sleep and wake.
fn scenario(vms: u32, scheduler: &Path) -> String {
    let vcpus = 600 / vms;
    let half = vms.div_ceil(2);
    format!(
        "machine = \"rome-256\"\nscheduler = \"{}\"\nseconds = 0.1\nwarmup = 0.1\n\
         [[vm]]\ncount = {half}\nvcpus = {vcpus}\nworkload = \"compute\"\n\
         [[vm]]\ncount = {}\nvcpus = {vcpus}\n[[vm.task]]\ncount = {vcpus}\n\
         program = [\"compute 80us ±20%\", \"io 300us\", \"done\"]\n\
         [[thread]]\ncount = 64\nrun-us = 50\nsleep-us = 500\nspread = 0.2\n",
        scheduler.display(),
        vms - half,
    )
}

/// Calls of a callback, lines that they touched, and those that another pCPU had written.
type Lines = BTreeMap<String, [f64; 3]>;

fn count(vms: u32, policy: &Path) -> Result<Lines> {
    let dir = tempfile::tempdir()?;
    let sim = env!("CARGO_MANIFEST_DIR");
    let (source, clang) = (dir.path().join("baton.bpf.c"), dir.path().join("clang"));
    fs::write(&source, format!("#include \"{sim}/shim/baton.c\"\n"))?;
    let real = std::env::var("BPF_CLANG").unwrap_or("clang".into());
    let script = format!(
        "#!/bin/sh\nexec {real} \"$@\" -fsanitize=thread -I{} {sim}/benches/lines.c\n",
        policy.display()
    );
    fs::write(&clang, script)?;
    fs::set_permissions(&clang, fs::Permissions::from_mode(0o755))?;
    let text = dir.path().join("scenario.toml");
    fs::write(&text, scenario(vms, &source))?;
    let child = Command::new(std::env::current_exe()?)
        .arg("--child")
        .arg(&text)
        .env("BPF_CLANG", &clang)
        .output()?;
    let said = String::from_utf8_lossy(&child.stderr);
    ensure!(child.status.success(), "{said}");
    let mut lines = Lines::new();
    for line in said.lines() {
        let Some((name, numbers)) = line.strip_prefix("lines ").and_then(|l| l.split_once(": "))
        else {
            continue;
        };
        let numbers: Vec<f64> = numbers.split(' ').filter_map(|n| n.parse().ok()).collect();
        let of = <[f64; 3]>::try_from(numbers).ok().context("three numbers")?;
        let sum = lines.entry(name.to_owned()).or_default();
        sum.iter_mut().zip(of).for_each(|(sum, n)| *sum += n);
    }
    Ok(lines)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, child, text, ..] = &args[..]
        && child == "--child"
    {
        simulate(&load(text, &[])?)?;
        return Ok(());
    }
    // Another version's policy, to compare with.
    let at = args.iter().position(|arg| arg == "--policy").and_then(|at| args.get(at + 1));
    let own = format!("{}/../scx_baton/bpf", env!("CARGO_MANIFEST_DIR"));
    let policy = fs::canonicalize(at.unwrap_or(&own)).context("the policy's directory")?;
    let [few, many] = [3, 300].map(|vms| count(vms, &policy));
    let (few, many) = (few?, many?);
    println!(
        "| callback | calls, 3 VMs | lines | another's | calls, 300 VMs | lines | another's |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for (name, of_many) in &many {
        let row = [few.get(name).unwrap_or(&[0.0; 3]), of_many];
        let cells = row.map(|[calls, touched, foreign]| {
            let n = calls.max(1.0);
            format!("{calls:.0} | {:.1} | {:.1}", touched / n, foreign / n)
        });
        println!("| {name} | {} | {} |", cells[0], cells[1]);
    }
    Ok(())
}
