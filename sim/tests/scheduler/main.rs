// SPDX-License-Identifier: GPL-2.0-only
//! Schedulers in the simulator: what scx_baton once did wrong, and what the rules are.

mod bound;
mod caches;
mod cpusets;
mod eevdf;
mod gangs;
mod host;
mod processes;
mod rules;
mod shares;
mod simulator;
mod sleepers;
mod yields;

use std::sync::OnceLock;

use baton_sim::outcome::{Outcome, simulate};
use baton_sim::scenario::{MACHINES, Scenario};

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse(text, &[]).expect("a scenario");
    simulate(&scenario).expect("no invariant is broken").0
}

fn error(text: &str) -> String {
    let result = Scenario::parse(text, &[]).and_then(|scenario| simulate(&scenario).map(drop));
    format!("{:#}", result.expect_err("it is wrong"))
}

const HEAD: &str = "machine = \"xeon-8\"\nscheduler = \"scx_baton\"\nseconds = 1.0\n";

/// The same on a host whose kernel does nothing by itself: its threads preempt vCPUs, and that
/// hides what a scheduler forgets.
fn quiet() -> &'static str {
    static QUIET: OnceLock<(tempfile::NamedTempFile, String)> = OnceLock::new();
    let (_, head) = QUIET.get_or_init(|| {
        let file = without_noise("xeon-8");
        let head = HEAD.replace("xeon-8", &file.path().display().to_string());
        (file, head)
    });
    head
}

/// Four such cores of two hyper-threads.
fn quiet_cores(rest: &str) -> (tempfile::NamedTempFile, String) {
    let file = without_noise("cascade-lake-96");
    let machine = file.path().display();
    let head = format!("machine = \"{machine}\"\npcpus = 8\nscheduler = \"scx_baton\"\n{rest}\n");
    (file, head)
}

fn without_noise(machine: &str) -> tempfile::NamedTempFile {
    let (_, machine) = MACHINES.iter().find(|(name, _)| *name == machine).expect("known");
    let without: Vec<&str> = machine.lines().filter(|line| !line.starts_with("noise")).collect();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, without.join("\n")).expect("written");
    file
}

/// Work and p99 of lateness, ns, of the first VM under EEVDF and under scx_baton.
fn beside(rest: &str) -> [(f64, u64); 2] {
    ["eevdf", "scx_baton"].map(|scheduler| {
        let head = HEAD.replace("scx_baton", scheduler);
        let out = run(&format!("{head}warmup = 0.9\n{rest}"));
        (out.vms[0].rate, out.vms[0].lateness.as_ref().map_or(0, |late| late.p99))
    })
}

/// One of the schedulers in sim/tests, which say themselves what they found.
fn says(scheduler: &str, rest: &str) -> String {
    let file = format!("{}/tests/{scheduler}.bpf.c", env!("CARGO_MANIFEST_DIR"));
    error(&format!("scheduler = \"{file}\"\nseconds = 3.0\n{rest}"))
}
