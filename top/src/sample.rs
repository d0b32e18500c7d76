// SPDX-License-Identifier: GPL-2.0-only
//! What is known of a host at one moment. Times and counters grow from a beginning of their own:
//! two samples make a screen ([`crate::rates`]).

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds, by a clock that only goes forward.
    pub at_s: f64,
    /// Seconds since 1970, UTC.
    pub wall_s: u64,
    pub host: HostSample,
    /// What scx_baton did; or why that is not known.
    pub baton: Result<Yields, String>,
    pub vms: Vec<VmSample>,
    /// What doctor found; only in the first sample after it has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Vec<Note>>,
}

/// A finding of doctor's on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// As `baton doctor --explain` takes it.
    pub id: String,
    pub title: String,
    /// A line for each thing seen; of a VM it begins with `NAME: `.
    pub evidence: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    pub name: String,
    /// Release of its kernel.
    pub kernel: String,
    pub cpus: u32,
    /// Who schedules: `baton`, another sched_ext scheduler's name, or `kernel`.
    pub scheduler: String,
    /// In USER_HZ, all CPUs together, as in /proc/stat.
    pub busy: u64,
    pub idle: u64,
    pub irq: u64,
    pub steal: u64,
    /// Microseconds for which some task waited for a CPU: /proc/pressure/cpu.
    pub pressure_us: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Yields {
    pub yields: u64,
    pub obeyed: u64,
    pub redirected: u64,
    pub missed: u64,
    pub refused: u64,
    pub lent: u64,
    pub turns: u64,
    pub gangs: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmSample {
    /// The same VM has the same key in the next sample.
    pub key: String,
    pub name: String,
    /// Its process; 0: a recording of before this was kept.
    #[serde(default)]
    pub pid: i32,
    pub nr_vcpus: u32,
    /// Of all vCPUs together.
    pub times: Times,
    /// Percent of the time of all its vCPUs for which KVM polled, where KVM tells and scx_baton
    /// does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<f64>,
    /// Known to scx_baton alone.
    pub more: Option<VmMore>,
    /// Perhaps not asked for.
    pub vcpus: Vec<VcpuSample>,
    /// Perhaps not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadSample>,
}

/// A thread of the host that works for a VM: vhost, I/O threads, the VMM's own loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadSample {
    pub tid: i32,
    pub name: String,
    /// Milliseconds.
    pub ran: f64,
    /// Waited for a pCPU.
    pub ready: f64,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub ran: f64,
    /// Waited for a pCPU while no sibling ran; without scx_baton also while one did, or for CPU
    /// time by cpu.max (the kernel's run_delay).
    pub ready: f64,
    pub costop: Option<f64>,
    /// By cpu.max.
    pub throttled: Option<f64>,
    /// What scx_baton had seen of it when it took these, since it became a vCPU: it answers later
    /// than it was asked, and on a crowded host much later at times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmMore {
    pub weight: u64,
    pub spread: bool,
    pub spin_ms: f64,
    pub poll_ms: f64,
    pub ipi_wait_ms: f64,
    /// PAUSE exits.
    pub spins: u64,
    pub boosts: u64,
    pub useful: u64,
    /// Place i: those that took 2^i ns and more until they ran.
    pub wakeups: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuSample {
    pub id: u32,
    pub tid: i32,
    pub cpu: i32,
    pub times: Times,
}
