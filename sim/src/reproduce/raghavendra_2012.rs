// SPDX-License-Identifier: GPL-2.0-only
//! R. K T, "kvm: Improving directed yield in PLE handler", kernel mailing list, 2012 (Linux 3.6).

use anyhow::Result;

use super::{Row, Runs, row};

const PAPER: &str = "Raghavendra 2012";

/// Guests of 32 vCPUs on 32 cores, Linux 3.5: one (1x), and two (2x).
pub fn claims(jobs: usize) -> Result<Vec<Row>> {
    let runs = Runs {
        text: "machine = \"xeon-x7560\"\nscheduler = \"cfs\"\nseconds = 2.0\nwarmup = 0.5\n\
               [[vm]]\ncount = 1\nvcpus = 32\nworkload = \"ebizzy\"\nguest = { tlb-lock = true }"
            .into(),
        seeds: 4,
        jobs,
    };
    let mut rows = Vec::new();
    for (workload, guests, theirs, note) in [
        (
            "kernbench",
            "1",
            0.2827,
            "our kernbench hardly spins while nobody is preempted: its guests' locks \
             are shorter than a PAUSE-loop's window",
        ),
        ("kernbench", "2", 0.0705, ""),
        ("sysbench-oltp", "1", -0.0004, "no change there, none here"),
        ("sysbench-oltp", "2", 0.0084, "no change there, none here"),
        (
            "ebizzy",
            "1",
            1.0515,
            "spinners that scan each other's runqueues queue up for their locks",
        ),
        ("ebizzy", "2", 0.2611, ""),
    ] {
        let rate = |policy: &str| {
            runs.rate(&[
                ("vm.0.workload", workload),
                ("vm.0.count", guests),
                ("kvm.on-spin", policy),
            ])
        };
        let gain = rate("eligible")? / rate("last-boosted")? - 1.0;
        let claim = format!("{workload} {guests}x: gain of not yielding to spinners");
        rows.push(row(PAPER, "table", &claim, theirs, gain, note));
    }
    Ok(rows)
}
