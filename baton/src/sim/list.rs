// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim list`: what comes with the simulator.

use baton_sim::scenario::{MACHINES, SCENARIOS};
use baton_sim::workload;

pub fn list() -> String {
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
    let schedulers = [
        ("cfs", "the kernel's, with its buddies (Linux 2.6.24 to 6.5)"),
        ("eevdf", "the kernel's (6.6 on)"),
        ("cfs-debooster, eevdf-debooster", "the same; the spinner is held back (seed 001)"),
        ("scx_baton", "Baton's own BPF source"),
        ("scx_fifo, scx_vtime", "small examples (sim/examples)"),
        ("FILE.bpf.c", "any sched_ext scheduler in BPF C; it is compiled with clang"),
    ];
    section(
        "Schedulers:",
        schedulers.map(|(name, what)| (name.to_string(), what.to_string())).to_vec(),
    );
    out
}
