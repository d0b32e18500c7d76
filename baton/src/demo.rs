// SPDX-License-Identifier: GPL-2.0-only
//! `baton demo`: who gets how much work done on a host with twice as many vCPUs as CPUs.

use baton_testbed::experiment::{Experiment, Scheduler, Workload};
use baton_testbed::plan::KERNEL_SCHEDULER;
use clap::Args;

use crate::ab::{Outputs, measure};
use crate::peers::PEERS;
use crate::testbed::HostArgs;

/// Two seconds hold hundreds of slices and six completions of the slowest workload, and keep the
/// demo within eight minutes on two cores.
const SECONDS: f64 = 2.0;
const WORKLOADS: [&str; 5] = ["barrier", "barrier-pause", "shootdown", "hackbench", "pbzip2"];
const QUICK_WORKLOADS: [&str; 2] = ["barrier", "shootdown"];

/// Boots an emulated KVM host, runs Linux guests on it under the kernel's own scheduler and under
/// scx_baton, and shows how much work each got done.
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Demo {
    /// Two workloads only
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Interleaved repetitions of everything
    #[arg(long, value_name = "N", default_value_t = 3)]
    repetitions: u32,
    /// Length of one run
    #[arg(long, value_name = "S", default_value_t = SECONDS)]
    seconds: f64,
    /// Guests, with two vCPUs each
    #[arg(long, value_name = "N", default_value_t = 2)]
    vms: u32,
    /// barrier, barrier-pause, shootdown, hackbench, pbzip2, dbench, build [default: the first five,
    /// with --quick barrier and shootdown]
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
Needs neither root nor KVM, 4 GB of memory, and the network for the first run; changes nothing on \
this host but a cache ($BATON_CACHE, else $XDG_CACHE_HOME/baton, else ~/.cache/baton). What the \
columns mean: docs/testbed.md; an experiment of your own: baton testbed ab --help.

Exit status: 0; 1 if something failed, after a line that says what; 130 after Ctrl-C. What was \
measured until then is printed and saved.";

/// Returns the exit status.
pub fn main(demo: Demo) -> i32 {
    let options = demo.host.options();
    let mut schedulers = demo.schedulers;
    if schedulers.is_empty() {
        schedulers.push(KERNEL_SCHEDULER.to_string());
        if demo.outputs.peers {
            schedulers.extend(PEERS.map(String::from));
        }
        schedulers.push("scx_baton".to_string());
    }
    let mut workloads = demo.workloads;
    if workloads.is_empty() {
        let names = if demo.quick { &QUICK_WORKLOADS[..] } else { &WORKLOADS };
        workloads = names.iter().copied().map(String::from).collect();
    }
    let experiment = Experiment {
        pcpus: options.pcpus,
        vms: demo.vms,
        vcpus_per_vm: 2,
        vm_mem_mib: 256,
        vm_cmdline: String::new(),
        weights: Vec::new(),
        repetitions: demo.repetitions,
        seconds: demo.seconds,
        schedulers: schedulers.into_iter().map(Scheduler::Name).collect(),
        workloads: workloads.iter().map(|name| Workload::builtin(name)).collect(),
    };
    measure(&experiment, None, options, &demo.outputs)
}
