// SPDX-License-Identifier: GPL-2.0-only
//! The command line.

use crate::NAME;
use crate::bpf_intf::*;
use crate::polling::{self, HaltPoll};
use clap::Parser;
use scx_utils::libbpf_clap_opts::LibbpfOpts;
use std::net::SocketAddr;
use std::time::Duration;

const HELP: &str = "\
Begin with: sudo scx_baton --stats 1 (each second, what it sees and does; --help-stats explains \
the columns). Which kernel it needs: docs/kernels.md; what each policy buys: docs/policy-yields.md.

Needs root, but for --version and --help-stats. While it runs it schedules the whole \
host; with --halt-poll it also sets the module kvm's halt_poll_ns, and puts it back ('baton doctor \
--restore' does if it was killed). Nothing else is changed, and nothing stays.

If the kernel ends it because of an error, as its watchdog does, it starts again, up to 5 times \
within 10 minutes; until then, and after that, the kernel's scheduler is in charge.

Exit status: 0 after Ctrl-C or SIGTERM; 1 if it cannot start or has to leave, after a line that \
says why and what to do; 2 for wrong options; 78 if this host has to be changed first, as 'baton \
doctor' tells.";

/// scx_baton: hands the CPU to the vCPU that the others are waiting for.
///
/// A scheduler for KVM hosts that run more vCPUs than they have CPUs. It finds VMs and
/// their vCPUs by itself, whatever runs them, and nothing has to be configured: VMs share
/// the host by their cgroup's cpu.weight; the vCPUs of a VM run together where they wait for
/// each other spinning, apart where they halt often; a vCPU that spins gives its CPU to the
/// one that it waits for; and the host's own threads stay prompt. When it stops, however it
/// stops, the kernel's own scheduler takes over and the guests run on.
///
/// Decisions are made in BPF (see bpf/policy.h); this program loads it.
#[derive(Debug, Parser)]
#[command(name = NAME, disable_version_flag = true, after_help = HELP)]
pub struct Opts {
    /// Exit debug dump buffer length. 0 indicates default.
    #[clap(long, default_value = "0")]
    pub exit_dump_len: u32,

    /// Enable stats monitoring with the specified interval, in seconds.
    #[clap(long, value_parser = interval, group = "shown")]
    pub stats: Option<Duration>,

    /// Run in stats monitoring mode with the specified interval, in seconds. Scheduler is
    /// not launched.
    #[clap(long, value_parser = interval, group = "shown")]
    pub monitor: Option<Duration>,

    /// With --stats or --monitor: what was counted since the scheduler began, not since the line
    /// before.
    #[clap(long, requires = "shown")]
    pub totals: bool,

    /// With --stats or --monitor: a line for each vCPU, too: where its time went, in percent.
    ///
    /// %RUN it ran; %RDY it waited for a pCPU while no sibling ran; %CSTP it waited for one while a
    /// sibling ran (co-stop); %MLMTD it waited for CPU time by cpu.max; %WAIT the rest: it was
    /// halted, or its thread worked for the VMM. They are 100 together.
    #[clap(long, requires = "shown")]
    pub vcpus: bool,

    /// Answer Prometheus at this address (GET /metrics): docs/metrics.md.
    ///
    /// Whoever reaches it can read the VMs' names. 'baton exporter' tells the same, and goes on
    /// when scx_baton ends.
    #[clap(long, value_name = "IP:PORT", value_parser = address, conflicts_with = "monitor")]
    pub metrics: Option<SocketAddr>,

    /// With --metrics: series for each vCPU, too.
    #[clap(long, requires = "metrics")]
    pub metrics_vcpus: bool,

    /// Whom a vCPU gives its CPU to. What is not named is not done.
    ///
    /// ipi: a sibling that does not run and owes the spinner the answer to an IPI, for 250 µs.
    /// kvm: else the vCPU that KVM proposes; without it a vCPU spins until its slice ends.
    /// sent: before anybody spins, a vCPU that waits for a CPU and is sent an IPI gets a sibling's
    /// for 250 µs; or the sender's, once that spins and KVM proposes nobody. kick: the vCPU that
    /// one which does not spin has handed a lock to, or interrupted, gets the rest of the slice.
    /// For ipi and sent a BPF program runs for each IPI, but only while vCPUs wait for CPUs. What
    /// each buys and costs: docs/policy-yields.md.
    #[clap(
        long,
        value_delimiter = ',',
        default_value = "kick,sent,ipi,kvm",
        value_name = "POLICY,…"
    )]
    pub yield_policy: Vec<YieldPolicy>,

    /// How long KVM polls at HLT before the vCPU's thread sleeps: auto, off, or nanoseconds.
    ///
    /// auto: the limit that costs least for the halts that there are, decided each second. Polling
    /// saves the time of a wake-up, and uses CPU time. What was found is put back at the end;
    /// without this option it is left alone.
    #[clap(long, value_name = "auto|off|NS")]
    pub halt_poll: Option<HaltPoll>,

    /// How much of the host's CPU time --halt-poll auto may spend polling: with more, fewer vCPUs
    /// sleep at HLT, and other tasks have less.
    #[clap(long, value_parser = polling::share, default_value = "1%", value_name = "PERCENT")]
    #[clap(requires = "halt_poll")]
    pub poll_budget: f64,

    /// End S seconds after it has taken over, even if nobody stops it.
    #[clap(long = "for", value_name = "S", value_parser = interval)]
    pub time: Option<Duration>,

    /// Enable verbose output, including libbpf details.
    #[clap(short = 'v', long)]
    pub verbose: bool,

    /// Print scheduler version and exit.
    #[clap(short = 'V', long)]
    pub version: bool,

    /// Show descriptions for statistics.
    #[clap(long)]
    pub help_stats: bool,

    #[clap(flatten, next_help_heading = "Libbpf Options")]
    pub libbpf: LibbpfOpts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum YieldPolicy {
    Kick,
    Sent,
    Ipi,
    Kvm,
}

impl YieldPolicy {
    pub fn reason(self) -> yield_reason {
        match self {
            YieldPolicy::Kick => yield_reason_YIELD_KICK,
            YieldPolicy::Sent => yield_reason_YIELD_SENT,
            YieldPolicy::Ipi => yield_reason_YIELD_IPI,
            YieldPolicy::Kvm => yield_reason_YIELD_KVM,
        }
    }
}

/// As on the command line.
pub fn named(policies: &[YieldPolicy]) -> String {
    let values = policies.iter().filter_map(clap::ValueEnum::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(",")
}

/// Seconds from the command line; 0.1 s is the least that is worth printing.
fn interval(s: &str) -> Result<Duration, String> {
    match s.parse::<f64>() {
        Ok(v) if (0.1..=86_400.0).contains(&v) => Ok(Duration::from_secs_f64(v)),
        _ => Err("give a number of seconds from 0.1 to 86400".to_owned()),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, such as 127.0.0.1:9877".to_owned())
}
