// SPDX-License-Identifier: GPL-2.0-only
//! K. Ishiguro, "Mitigating Excessive Pause-Loop Exiting in VM-Agnostic KVM", with the answers
//! to it, kernel mailing list, 2021.

use anyhow::Result;

use super::{Row, Runs, row};

const PAPER: &str = "Ishiguro 2021";

pub fn claims(jobs: usize) -> Result<Vec<Row>> {
    let small = Runs {
        text: "machine = \"xeon-8\"\nscheduler = \"cfs\"\nseconds = 2.0\n[kvm]\non-spin = \"kernel\"\n\
               [[vm]]\ncount = 4\nvcpus = 8\nworkload = \"ebizzy\""
            .into(),
        seeds: 3,
        jobs,
    };
    // "Up to": the workload where it is most.
    let mut best = (f64::MIN, "");
    for workload in ["ebizzy", "kernbench", "hackbench", "pbzip2"] {
        let exits = |scheduler: &str, policy: &str| {
            let changes =
                [("vm.0.workload", workload), ("scheduler", scheduler), ("kvm.on-spin", policy)];
            small.figure(&changes, |o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())
        };
        let fewer = 1.0 - exits("cfs-debooster", "ipi-pairs64")? / exits("cfs", "kernel")?;
        if fewer > best.0 {
            best = (fewer, workload);
        }
    }
    let mut rows = vec![row(
        PAPER,
        "PLE",
        "PAUSE-loop exits, four VMs of 8 vCPUs: how many fewer, at most, with both patches",
        0.876,
        best.0,
        &format!("most with {}", best.1),
    )];
    let large = Runs {
        text: "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 1.5\nwarmup = 0.5\n\
               [kvm]\non-spin = \"kernel\"\n\
               [[vm]]\ncount = 2\nvcpus = 96\nworkload = \"pbzip2\""
            .into(),
        seeds: 2,
        jobs,
    };
    let rate = |policy: &str| large.rate(&[("kvm.on-spin", policy)]);
    let vanilla = rate("kernel")?;
    let saved = |rate: f64| 1.0 - vanilla / rate;
    let [pending, pairs64, flag, pairs] =
        [rate("pending-interrupt")?, rate("ipi-pairs64")?, rate("ipi-flag")?, rate("ipi-pairs")?];
    let claim = |what: &str| format!("pbzip2 on 96 vCPUs: time saved by {what}");
    let two = "two VMs, as the paper does not say how many";
    rows.push(row(PAPER, "table", &claim("the pending interrupt"), 0.103, saved(pending), two));
    rows.push(row(PAPER, "table", &claim("IPI pairs of 64 vCPUs"), 0.066, saved(pairs64), two));
    rows.push(row(PAPER, "table", &claim("a flag"), 0.038, saved(flag), two));
    let exits = |policy: &str| {
        large
            .figure(&[("kvm.on-spin", policy)], |o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())
    };
    rows.push(
        row(
            PAPER,
            "limit",
            "what the limit of 64 vCPUs does: more PAUSE-loop exits than without",
            None,
            exits("ipi-pairs64")? / exits("ipi-pairs")? - 1.0,
            &format!("throughput {:+.1} %", (pairs64 / pairs - 1.0) * 100.0),
        )
        .goes(1.0),
    );
    let ebizzy = |policy: &str| small.rate(&[("kvm.on-spin", policy)]);
    rows.push(
        row(
            PAPER,
            "stale",
            "ebizzy, four VMs of 8 vCPUs: what a stale flag does, against pairs that are cleared",
            None,
            ebizzy("ipi-flag")? / ebizzy("ipi-pairs")? - 1.0,
            "vCPUs that have answered already are boosted",
        )
        .goes(-1.0),
    );
    Ok(rows)
}
