// SPDX-License-Identifier: GPL-2.0-only
//! `baton demo`: who gets how much work done on a host with twice as many vCPUs as CPUs.

use baton_output::note;
use baton_testbed::experiment::{Experiment, Scheduler, Workload};
use baton_testbed::kvm::Accel;
use baton_testbed::plan::KERNEL_SCHEDULER;
use clap::Args;

use crate::ab::{Outputs, measure};
use crate::host_args::HostArgs;
use crate::peers::PEERS;

/// What is shown if nothing else is asked for: the README's table.
const EXACT: &str = include_str!("../../testbed/experiments/exact.toml");
/// Then the same on four pCPUs, where the kernel's scheduler loses most.
const FOUR: &str = include_str!("../../testbed/experiments/exact-4.toml");
/// With --quick: where Baton gives most, and what it costs.
const QUICK: [&str; 2] = ["bench-barrier", "bench-call"];

/// Linux guests in real time: the rows of docs/qemu.md, fewer times, which keeps the demo within
/// eight minutes on two cores.
const LINUX: &str = include_str!("../../testbed/experiments/qemu.toml");
const LINUX_REPETITIONS: u32 = 3;
const LINUX_QUICK: [&str; 2] = ["barrier", "shootdown"];

/// Boots an emulated KVM host, runs VMs on it under the kernel's own scheduler and under scx_baton,
/// and shows how much work each got done. The same programs give the same table on every machine.
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Demo {
    /// Two workloads only
    #[arg(long)]
    quick: bool,
    /// Linux guests on the host that QEMU emulates, or with --accel kvm runs, in real time: on a
    /// busy machine the figures are noise
    #[arg(long, conflicts_with = "exact")]
    linux_guests: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Repetitions of everything: a seed each, or interleaved in real time [default: 5; 3 with
    /// --linux-guests]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Length of one run [default: as testbed/experiments/exact.toml has it; 2 with --linux-guests]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// VMs, with as many vCPUs each as the host has CPUs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    vms: u32,
    /// bench-NAME of 'baton bench list'; with --linux-guests barrier, barrier-pause, shootdown,
    /// hackbench, pbzip2, dbench, build [default: those of exact.toml; the first five]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// eevdf (the kernel's own), scx_baton, or any sched_ext scheduler's program [default: these
    /// two, with --peers also scx_bpfland and scx_flash]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    schedulers: Vec<String>,
    #[command(flatten)]
    host: HostArgs,
}

const HELP: &str = "\
Where nothing else is asked for, a second table shows a host of four pCPUs. --json, --svg and \
--against are about the first. --accel kvm runs Linux guests.\n\n\
Needs neither root nor KVM, 4 GB of memory, and the network for the first run; changes nothing on \
this host but a cache ($BATON_CACHE, else $XDG_CACHE_HOME/baton, else ~/.cache/baton). What the \
columns mean: docs/testbed.md; an experiment of your own: baton testbed ab --help.

Exit status: 0; 1 if something failed, after a line that says what; 2 for wrong options; 130 after \
Ctrl-C. What was measured until then is printed and saved.";

/// Returns the exit status.
pub fn main(mut demo: Demo) -> i32 {
    // There is no exact host under KVM.
    let linux_guests = demo.linux_guests || (demo.host.accel == Accel::Kvm && !demo.host.exact);
    let (text, quick) = match linux_guests {
        true => (LINUX, LINUX_QUICK),
        false => (EXACT, QUICK),
    };
    let mut experiment = match Experiment::parse(text) {
        Ok(experiment) => experiment,
        Err(error) => {
            note(&format!("baton: {error:#}"));
            return 1;
        }
    };
    if linux_guests {
        experiment.repetitions = LINUX_REPETITIONS;
    } else if demo.host.qemu.is_some() {
        note("baton: --qemu is for the demo with --linux-guests: add that, or leave --qemu out");
        return 1;
    }
    demo.host.exact = !linux_guests;
    // Who asks for something else wants that alone.
    let whole = !linux_guests
        && !demo.quick
        && demo.workloads.is_empty()
        && demo.host.pcpus.is_none()
        && demo.vms == 2
        && demo.repetitions.is_none()
        && demo.seconds.is_none();
    let options = demo.host.options();
    let mut schedulers = demo.schedulers;
    if schedulers.is_empty() {
        schedulers.push(KERNEL_SCHEDULER.to_string());
        if demo.outputs.peers {
            schedulers.extend(PEERS.map(String::from));
        }
        schedulers.push("scx_baton".to_string());
    }
    experiment.schedulers = schedulers.into_iter().map(Scheduler::Name).collect();
    if !demo.workloads.is_empty() {
        experiment.workloads = demo.workloads.iter().map(|name| Workload::builtin(name)).collect();
    } else if demo.quick {
        experiment.workloads = quick.map(Workload::builtin).into();
    }
    experiment.pcpus = options.pcpus;
    experiment.vms = demo.vms;
    experiment.repetitions = demo.repetitions.unwrap_or(experiment.repetitions);
    experiment.seconds = demo.seconds.unwrap_or(experiment.seconds);
    let status = measure(&experiment, None, options.clone(), &demo.outputs);
    if status != 0 || !whole {
        return status;
    }
    match Experiment::parse(FOUR) {
        Ok(four) => measure(
            &Experiment { schedulers: experiment.schedulers, ..four },
            None,
            options,
            &Outputs::default(),
        ),
        Err(error) => {
            note(&format!("baton: {error:#}"));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_rows_are_among_the_others() {
        assert_eq!(Experiment::parse(FOUR).unwrap().pcpus, 4);
        for (text, quick) in [(EXACT, QUICK), (LINUX, LINUX_QUICK)] {
            let all = Experiment::parse(text).unwrap().workloads;
            assert!(quick.iter().all(|name| all.iter().any(|one| one.name == *name)), "{text}");
        }
    }
}
