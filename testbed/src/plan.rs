// SPDX-License-Identifier: GPL-2.0-only
//! What an experiment asks of the emulated host, and what the host answers. The runner writes a
//! [`Plan`] to the agent's standard input; the agent prints one [`Event`] a line.

use serde::{Deserialize, Serialize};

/// Name under which the kernel's own scheduler appears in experiments and results.
pub const KERNEL_SCHEDULER: &str = "eevdf";

/// The runs that one agent performs, in order, with the guests they need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub vcpus_per_vm: u32,
    /// Memory of each guest, MiB.
    pub vm_mem_mib: u32,
    /// More for the guests' kernel command line, such as `nopvspin`.
    pub vm_cmdline: String,
    /// More for QEMU's `-cpu host`, such as `kvm-pv-unhalt=off`.
    pub vm_cpu: String,
    /// `cpu.weight` of guest 0, 1, …; guests beyond the list keep the kernel's default of 100.
    pub weights: Vec<u32>,
    pub runs: Vec<Run>,
}

/// One measurement: one workload, in some of the guests at once, under one scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Unique in the experiment.
    pub id: u32,
    /// From 0.
    pub repetition: u32,
    /// Index of the workload in the experiment: two may share a name and differ in their guests.
    pub row: usize,
    pub workload: Workload,
    pub scheduler: Scheduler,
    /// Guests that are up during the run. 0: the workload runs on the host itself.
    pub vms: u32,
    /// Numbers of the guests that work, from 0; the others idle. Empty on the host itself.
    pub active: Vec<u32>,
    pub seconds: f64,
    /// The run shows what one guest reaches alone: the reference, not a contender.
    pub alone: bool,
}

/// A command that ends by itself and whose last output line is a [`Measured`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub name: String,
    pub unit: String,
    pub argv: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scheduler {
    pub name: String,
    /// Empty: the kernel's own scheduler, nothing to start.
    pub command: Vec<String>,
}

impl Scheduler {
    pub fn is_kernel(&self) -> bool {
        self.command.is_empty()
    }
}

/// What dbench plays back, in the images of hosts and guests.
pub const DBENCH_LOAD: &str = "/opt/deb/share/dbench/client.txt";

/// What a workload reports about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Operations a second.
    pub rate: f64,
    pub unit: String,
    pub ops: u64,
    pub seconds: f64,
    /// Of each VM, where the workload runs VMs itself; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_vm: Vec<f64>,
    /// What these VMs would reach together if each had the host alone for its fair share of the
    /// time, where the workload knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ideal: Option<f64>,
}

impl Measured {
    /// `ops` in `seconds` (greater than 0).
    pub fn new(ops: u64, seconds: f64, unit: &str) -> Self {
        let (rate, unit) = (ops as f64 / seconds, unit.to_string());
        Self { rate, unit, ops, seconds, per_vm: Vec::new(), ideal: None }
    }
}

/// The one run of a prepared host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub run: Run,
    /// Makes the run another than that of another seed.
    pub seed: u64,
}

/// What the agent tells while it works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Sent by the runner's side when the host is up.
    HostUp {
        kernel: String,
    },
    GuestsUp {
        vms: u32,
        seconds: f64,
    },
    Started {
        run: u32,
    },
    Done {
        run: u32,
        /// In the order of [`Run::active`]; a single entry for a run on the host itself.
        vms: Vec<Measured>,
        /// PAUSE-loop exits during the run; `None` where the kernel would not count them.
        ple_exits: Option<u64>,
        seconds: f64,
    },
    /// The run gave no figure. `hung`: guests or scheduler stopped answering. The agent ends after
    /// this event if the run hung or was under the kernel's own scheduler.
    Failed {
        run: u32,
        what: String,
        hung: bool,
        /// The end of the console of the guest that is to blame; empty if none is.
        console: String,
    },
    /// Nothing to do with a run (guests that do not start); the agent ends after this event.
    Stuck {
        what: String,
        /// As above.
        console: String,
    },
    /// Every second: the host is alive.
    Tick,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_wire() {
        let events = [
            Event::Tick,
            Event::Started { run: 7 },
            Event::Done {
                run: 7,
                vms: vec![Measured::new(10, 2.0, "ops/s")],
                ple_exits: None,
                seconds: 2.5,
            },
            Event::Failed {
                run: 8,
                what: "guest vm1 is silent".into(),
                hung: true,
                console: "a\nb".into(),
            },
        ];
        for event in events {
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
    }
}
