// SPDX-License-Identifier: GPL-2.0-only
//! W. Li, "KVM Latency Performance Tuning", KVM Forum 2020.

use anyhow::Result;

use super::{Row, Runs, row};

const PAPER: &str = "Li 2020";

/// Of costs that were put in.
const COST: &str = "the cost of the stages was put in";

pub fn claims(jobs: usize) -> Result<Vec<Row>> {
    Ok([fast_paths(jobs)?, avic(jobs)?, boosts(jobs)?].concat())
}

fn fast_paths(jobs: usize) -> Result<Vec<Row>> {
    let ipi = Runs {
        text:
            "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 0.5\n[[vm]]\nvcpus = 2\n\
               [[vm.task]]\nprogram = [\"compute 1us\", \"call-one\", \"done\"]\n\
               [[vm.task]]\nprogram = [\"compute 1ms\"]"
                .into(),
        seeds: 1,
        jobs,
    };
    let time =
        |fast: &str| Ok::<f64, anyhow::Error>(1.0 / ipi.rate(&[("kvm.icr-fast", fast)])? - 1e-6);
    let saved = 1.0 - time("true")? / time("false")?;
    let mut rows = vec![
        row(PAPER, "IPI", "IPI benchmark: time saved by the fast path", 0.30, saved, COST).input(),
        row(PAPER, "IPI", "kvm-unit-test IPI: time saved by the fast path", 0.223, saved, COST)
            .input(),
    ];
    let timer = Runs {
        text: "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 2.0\n\
               [[vm]]\nvcpus = 2\nworkload = \"timer\"\nguest = { idle-poll = true }"
            .into(),
        seeds: 1,
        jobs,
    };
    let late = |fast: &str| {
        timer.figure(&[("kvm.timer-fast", fast)], |o| {
            o.vms[0].lateness.as_ref().map_or(f64::NAN, |late| late.mean)
        })
    };
    let saved = 1.0 - late("true")? / late("false")?;
    rows.push(
        row(
            PAPER,
            "timer",
            "cyclictest (its guest never halts): lateness saved",
            0.165,
            saved,
            COST,
        )
        .input(),
    );
    Ok(rows)
}

fn avic(jobs: usize) -> Result<Vec<Row>> {
    let rome = |program: &str, others: u32| Runs {
        text: format!(
            "machine = \"rome-192\"\nscheduler = \"cfs\"\nseconds = 0.2\n[[vm]]\nvcpus = 180\n\
             [[vm.task]]\nprogram = [{program}]\n\
             [[vm.task]]\ncount = {others}\nprogram = [\"compute 1ms\"]"
        ),
        seeds: 1,
        jobs,
    };
    let calls = rome("\"compute 1us\", \"call\", \"done\"", 179);
    let time = |runs: &Runs, avic: &str| -> Result<f64> {
        Ok(1.0 / runs.rate(&[("kvm.avic", avic)])? - 1e-6)
    };
    let longer = time(&calls, "true")? / time(&calls, "false")? - 1.0;
    let claim = "AVIC: longer time of a multicast IPI to 179";
    let calls = row(PAPER, "AVIC", claim, 0.552, longer, COST).input();
    let hackbench = Runs {
        text: "machine = \"rome-192\"\nscheduler = \"cfs\"\nseconds = 0.3\n\
               [[vm]]\nvcpus = 180\nworkload = \"hackbench\""
            .into(),
        seeds: 2,
        jobs,
    };
    let hackbench = row(
        PAPER,
        "hackbench",
        "AVIC: gain of hackbench on 180 vCPUs",
        0.03,
        hackbench.rate(&[("kvm.avic", "true")])? / hackbench.rate(&[("kvm.avic", "false")])? - 1.0,
        "the unicast cost is an estimate; how often it is paid comes out",
    );
    Ok(vec![calls, hackbench])
}

fn boosts(jobs: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let none = [("vm.0.guest.lock", "pv-queued")];
    let boosts = [
        ("vm.0.guest.lock", "pv-queued"),
        ("kvm.on-spin", "pending-interrupt"),
        ("vm.0.guest.sched-yield", "true"),
        ("vm.0.guest.kick-yields", "true"),
    ];
    for (vms, theirs) in [(1, Some(0.034)), (2, None), (3, Some(0.483))] {
        let others = match vms {
            1 => String::new(),
            _ => format!("[[vm]]\ncount = {}\nvcpus = 96\nworkload = \"compute\"", vms - 1),
        };
        let runs = Runs {
            text: format!(
                "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 0.6\n\
                 [kvm]\non-spin = \"kernel\"\n[[vm]]\nvcpus = 96\nworkload = \"ebizzy\"\n{others}"
            ),
            seeds: 2,
            jobs,
        };
        let rate = |changes| runs.figure(changes, |o| o.vms[0].rate);
        let gain = rate(&boosts)? / rate(&none)? - 1.0;
        let claim = format!("ebizzy, {vms} VMs of 96 vCPUs: gain of the boosts");
        let note = match vms {
            1 => "nobody is preempted here: boosts find nobody",
            2 => "the paper's figure is lost in the captions",
            _ => "",
        };
        let row = row(PAPER, "boosts", &claim, theirs, gain, note);
        rows.push(if theirs.is_none() { row.goes(1.0) } else { row });
    }
    Ok(rows)
}
