// SPDX-License-Identifier: GPL-2.0-only
//! P. Bonzini, "kvm: add halt_poll_ns module parameter", 2015 (Linux 4.0, commit
//! f7819512996361).

use anyhow::Result;

use super::{Row, Runs, row};
use crate::outcome::Outcome;

const PAPER: &str = "Bonzini 2015";

/// `costs.…`: what a machine without a hypervisor does not pay.
const BARE_METAL: [(&str, &str); 8] = [
    ("costs.io_path_ns", "0"),
    ("costs.exit_ns", "0"),
    ("costs.halt_ns", "0"),
    ("costs.switch_ns", "0"),
    ("costs.icr_ns", "0"),
    ("costs.timer_ns", "300"),
    ("costs.interrupt_ns", "0"),
    ("costs.wake_ns", "0"),
];

const POLLS: (&str, &str) = ("kvm.halt-poll", "{ fixed = 500000 }");

pub fn claims(jobs: usize) -> Result<Vec<Row>> {
    let writes = Runs {
        text: "machine = \"xeon-2014\"\nscheduler = \"cfs\"\nseconds = 2.0\n\
               [[vm]]\nvcpus = 4\nworkload = \"o-dsync\""
            .into(),
        seeds: 3,
        jobs,
    };
    let bare = writes.rate(&BARE_METAL)?;
    let [off, polling, guest] = [
        writes.rate(&[])?,
        writes.rate(&[POLLS])?,
        writes.rate(&[("vm.0.guest.idle-poll", "true")])?,
    ];
    let device = "the time in QEMU is an estimate";
    let mut rows = vec![
        row(
            PAPER,
            "table",
            "O_DSYNC writes without polling, of bare metal",
            0.4,
            off / bare,
            device,
        ),
        row(
            PAPER,
            "table",
            "O_DSYNC writes with polling, of bare metal",
            0.625,
            polling / bare,
            device,
        ),
        row(PAPER, "table", "O_DSYNC writes with polling, of idle=poll", 0.99, polling / guest, ""),
    ];
    let idle = Runs {
        text: "machine = \"xeon-2014\"\nscheduler = \"cfs\"\nseconds = 20.0\n\
               [[vm]]\nvcpus = 4\nworkload = \"idle\""
            .into(),
        seeds: 3,
        jobs,
    };
    let used = |changes: &[(&str, &str)]| idle.figure(changes, |o| o.vms[0].used / 4.0);
    rows.push(row(
        PAPER,
        "idle",
        "CPU of an idle vCPU, because of polling",
        0.02,
        used(&[POLLS])? - used(&[])?,
        "the paper's own figures do not fit each other: 10 halts a second of four vCPUs, 500 µs each, \
         are 0.125 % of a vCPU, not 1.5 to 2.5 %",
    )
    .share());
    rows.extend(timer(jobs)?);
    Ok(rows)
}

fn timer(jobs: usize) -> Result<Vec<Row>> {
    let timer = Runs {
        text: "machine = \"xeon-2014\"\nscheduler = \"cfs\"\nseconds = 2.0\n[[vm]]\nvcpus = 1\n\
               [[vm.task]]\nprogram = [\"sleep 80us\", \"compute 2us ±10%\", \"done\"]\n\
               [[vm]]\nvcpus = 4\nworkload = \"compute\""
            .into(),
        seeds: 3,
        jobs,
    };
    let mean = |o: &Outcome| o.vms[0].lateness.as_ref().map_or(f64::NAN, |late| late.mean);
    let spread = |o: &Outcome| o.vms[0].lateness.as_ref().map_or(f64::NAN, |late| late.stdev);
    // The middle of the paper's ranges: 20,000 to 120,000 cycles, and 8,000 to 10,000.
    let late = row(
        PAPER,
        "timer",
        "TSC-deadline timer: how much less late with polling",
        1.0 - 9.0 / 70.0,
        1.0 - timer.figure(&[POLLS], mean)? / timer.figure(&[], mean)?,
        "the middle of the paper's ranges",
    );
    let varies = row(
        PAPER,
        "variance",
        "TSC-deadline timer: how much less its lateness varies",
        None,
        1.0 - timer.figure(&[POLLS], spread)? / timer.figure(&[], spread)?,
        "no figure in the paper",
    )
    .goes(1.0);
    Ok(vec![late, varies])
}
