// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim list`: what comes with the simulator.

use anyhow::Result;
use baton_sim::counters::{Counter, Counters, FAIR_COUNTERS, WALK};
use baton_sim::program::STEPS;
use baton_sim::scenario::{MACHINES, SCENARIOS, SCHEDULERS};
use baton_sim::workload;

/// Errors: no memory to look into scx_baton.
pub fn list() -> Result<String> {
    let mut out = String::new();
    let mut section = |title: &str, lines: Vec<(String, String)>| {
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        out += &format!("{title}\n");
        for (name, what) in lines {
            out += &format!("  {name:<width$}  {what}\n");
        }
        out.push('\n');
    };
    let about = |text: &str| {
        let first = text.lines().find_map(|line| line.strip_prefix("about = "));
        first.unwrap_or_default().trim_matches('"').to_string()
    };
    section(
        "Scenarios:",
        SCENARIOS.iter().map(|(name, text)| (name.to_string(), about(text))).collect(),
    );
    let comment =
        |text: &str| text.lines().next().unwrap_or_default().trim_start_matches("# ").to_string();
    section(
        "Machines:",
        MACHINES.iter().map(|(name, text)| (name.to_string(), comment(text))).collect(),
    );
    section(
        "Workloads:",
        workload::list().iter().map(|(name, what)| (name.to_string(), what.to_string())).collect(),
    );
    let mut schedulers: Vec<(String, String)> =
        SCHEDULERS.iter().map(|it| (it.name.to_string(), it.what.to_string())).collect();
    let own = "a sched_ext scheduler of yours in BPF C: clang compiles it natively, and nothing of \
               it is verified as the kernel would";
    schedulers.push(("FILE.bpf.c".into(), own.into()));
    section("Schedulers:", schedulers);
    let baton = Counters::of_baton()?;
    let words = |all: &[Counter]| {
        all.iter().map(|(name, what)| (name.to_string(), what.to_string())).collect()
    };
    section("Counters of scx_baton, which 'run' prints below its table:", words(&baton.of_host));
    section("Sums over all VMs, likewise:", words(&baton.of_vms));
    section("A counter of any sched_ext scheduler:", words(&[WALK]));
    section("Counters of cfs and eevdf:", words(&FAIR_COUNTERS));
    let takes = |(name, takes, what): &(&str, &str, &str)| {
        (format!("{name} {takes}").trim_end().to_string(), what.to_string())
    };
    section(
        "Steps of a program ([[vm.task]]); behind the last one it begins again:",
        STEPS.iter().map(takes).collect(),
    );
    out += "'baton sim show NAME' prints a scenario or machine, 'baton sim explain SCENARIO' says \
            what it means.\n";
    Ok(out)
}
