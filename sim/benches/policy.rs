// SPDX-License-Identifier: GPL-2.0-only
//! What each callback of scx_baton executes: instructions counted by valgrind in its native build, beside
//! a plain vtime scheduler's. `make bench-policy`.
//!
//! Counted is the scheduler's own object without its look-ups in maps: kfuncs are the simulator's, and not
//! in it.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use baton_sim::outcome::simulate;
use baton_sim::scenario::Scenario;

/// Two VMs on as many pCPUs as one of them has vCPUs: they spin, and owe each other IPIs.
fn scenario(scheduler: &str, vcpus: u32) -> String {
    // About as many events each.
    let seconds = 4.0 / f64::from(vcpus);
    format!(
        "machine = \"rome-192\"\npcpus = {}\nscheduler = \"{scheduler}\"\nwarmup = 0.0\nseconds = {seconds}\n\
         [kvm]\nple = true\nple-user = true\non-spin = \"kernel\"\n[[vm]]\ncount = 2\nvcpus = {vcpus}\n[[vm.task]]\ncount = {}\n\
         program = [\"compute 200us ±50% kernel\", \"call\", \"done\"]\n[[vm.task]]\ncount = {}\n\
         program = [\"sleep 500us ±50%\", \"compute 50us\"]\n",
        vcpus.min(192),
        vcpus / 2,
        vcpus / 2
    )
}

const CALLBACKS: [&str; 10] = [
    "select_cpu",
    "enqueue",
    "dispatch",
    "running",
    "tick",
    "stopping",
    "find_owing",
    "yield",
    "accept_irq",
    "on_spin",
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, scheduler, vcpus] = &args[..]
        && flag == "--simulate"
    {
        let text = scenario(scheduler, vcpus.parse()?);
        return simulate(&Scenario::parse(&text, &[])?).map(drop);
    }
    let directory = tempfile::tempdir()?;
    compile(directory.path(), "scx_baton", &["shim/baton.c"])?;
    compile(
        directory.path(),
        "scx_vtime",
        &["-DSHIM_SCHEDULER=\"../examples/vtime.bpf.c\"", "shim/user.c"],
    )?;
    let columns = [
        ("scx_vtime", 8),
        ("scx_baton", 8),
        ("scx_baton", 64),
        ("scx_baton", 256),
        ("scx_baton", 1024),
    ];
    let mut table: Vec<BTreeMap<String, (u64, u64)>> = Vec::new();
    for (scheduler, vcpus) in columns {
        table.push(count(directory.path(), scheduler, vcpus)?);
    }
    println!("| instructions a call (calls) | vtime, 8 vCPUs a VM | Baton, 8 | 64 | 256 | 1,024 |");
    println!("|---|---:|---:|---:|---:|---:|");
    for callback in CALLBACKS {
        let cells = table.iter().map(|found| {
            let ends = |name: &&String| {
                name.strip_suffix(callback)
                    .is_some_and(|rest| ["baton_", "vtime_", ""].contains(&rest))
            };
            match found.keys().find(ends).and_then(|name| found.get(name)) {
                Some((calls, cost)) if *calls > 0 => format!("{} ({calls})", cost / calls),
                _ => "–".into(),
            }
        });
        println!("| {callback} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}

/// As sim/build.rs does, but with look-ups in maps in functions of their own.
fn compile(directory: &Path, name: &str, what: &[&str]) -> Result<()> {
    let clang = std::env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    let status = Command::new(&clang)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-fwrapv"])
        .args(["-Wno-unused", "-DSHIM_APART", "-Ishim/include", "-I../scx_baton/bpf"])
        .args(what)
        .arg("-o")
        .arg(directory.join(format!("{name}.so")))
        .status()
        .with_context(|| format!("cannot run {clang}"))?;
    ensure!(status.success(), "{clang} does not compile {name}: {status}");
    Ok(())
}

/// Calls and instructions of every function of the scheduler's object, with those it calls in there.
fn count(directory: &Path, scheduler: &str, vcpus: u32) -> Result<BTreeMap<String, (u64, u64)>> {
    let out = directory.join(format!("{scheduler}.{vcpus}"));
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["--simulate", scheduler, &vcpus.to_string()])
        // valgrind knows functions by the files of their objects.
        .env("BATON_SIM_OBJECTS", directory)
        .status()
        .context("cannot run valgrind; install it")?;
    ensure!(status.success(), "the simulation under valgrind failed: {status}");
    let text = std::fs::read_to_string(&out).context("valgrind wrote nothing")?;
    profile(&text, &directory.display().to_string())
}

#[derive(Default)]
struct Function {
    own: u64,
    calls: u64,
    callees: BTreeMap<String, u64>,
}

/// Reads callgrind's format, as far as functions and calls go.
fn profile(text: &str, objects: &str) -> Result<BTreeMap<String, (u64, u64)>> {
    let mut functions: BTreeMap<String, Function> = BTreeMap::new();
    let (mut object, mut function) = (String::new(), String::new());
    let (mut called_object, mut called) = (None, String::new());
    let mut call_follows = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name.into();
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = name.into();
        } else if let Some(name) = line.strip_prefix("cob=") {
            called_object = Some(name.to_string());
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = name.into();
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let calls: u64 = rest.split(' ').next().unwrap_or("").parse()?;
            let target = called_object.take().unwrap_or_else(|| object.clone());
            // The shim's functions are maps.
            if target.starts_with(objects) && !called.starts_with("shim_") {
                functions.entry(called.clone()).or_default().calls += calls;
                if object.starts_with(objects) {
                    let caller = functions.entry(function.clone()).or_default();
                    *caller.callees.entry(called.clone()).or_default() += calls;
                }
            }
            call_follows = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            // What a call costs in all is counted where it is spent.
            if !std::mem::take(&mut call_follows) && object.starts_with(objects) {
                let cost = line.split(' ').nth(1).unwrap_or("0").parse::<u64>()?;
                functions.entry(function.clone()).or_default().own += cost;
            }
        }
    }
    if functions.is_empty() {
        bail!("valgrind saw nothing of the scheduler");
    }
    let names: Vec<String> = functions.keys().cloned().collect();
    Ok(names
        .into_iter()
        .map(|name| {
            let cost = whole(&functions, &name, 0);
            let calls = functions[&name].calls;
            (name, (calls, cost))
        })
        .collect())
}

/// Its own instructions, and its part of those of what it calls.
fn whole(functions: &BTreeMap<String, Function>, name: &str, depth: u32) -> u64 {
    let Some(function) = functions.get(name).filter(|_| depth < 20) else { return 0 };
    let of = |(callee, calls): (&String, &u64)| {
        let all = functions.get(callee).map_or(1, |f| f.calls.max(1));
        (u128::from(whole(functions, callee, depth + 1)) * u128::from(*calls) / u128::from(all))
            as u64
    };
    function.own + function.callees.iter().map(of).sum::<u64>()
}
