// SPDX-License-Identifier: GPL-2.0-only
//! What is exported, as it is at one moment. Times are in seconds, and grow.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Baton schedules this host.
    pub enabled: bool,
    pub info: Option<Info>,
    /// How often Baton has ended, by the reason.
    pub exits: BTreeMap<&'static str, u64>,
    /// `None`: Baton does not run, or cannot be asked.
    pub totals: Option<Totals>,
    pub vms: Vec<Vm>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Info {
    pub version: String,
    /// As `--yield-policy` has it.
    pub policy: String,
    /// Release of the host's kernel.
    pub kernel: String,
}

/// Of the host, since Baton began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Directed yields by what became of them; together they are all.
    pub obeyed: u64,
    pub missed: u64,
    pub refused: u64,
    /// Of all, whatever became of them, those that went to a better target than KVM's.
    pub redirected: u64,
    pub turns: u64,
    pub gangs: u64,
    pub lent: u64,
}

/// Of one VM, since it was first seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vm {
    /// No other VM has it.
    pub key: String,
    /// Others may have it, too.
    pub name: String,
    pub uuid: String,
    pub namespace: String,
    pub cgroup: String,
    pub vcpus: u64,
    pub weight: u64,
    pub spread: bool,
    /// Of all vCPUs together.
    pub times: Times,
    pub spin: f64,
    pub boost: f64,
    pub ipi_wait: f64,
    /// KVM polled until the HLT's end, and in vain.
    pub poll_hit: f64,
    pub poll_miss: f64,
    /// HLTs that ended while KVM polled, and those after which the thread slept.
    pub polled: u64,
    pub slept: u64,
    pub pause_exits: u64,
    /// Boosts that were judged.
    pub useful: u64,
    pub useless: u64,
    /// Place i: wake-ups that took 2^i ns and more until the vCPU ran, and less than 2^(i+1); the
    /// last place has all that took longer.
    pub wakeups: Vec<u64>,
    /// Only if they were asked for.
    pub by_vcpu: Vec<Vcpu>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vcpu {
    /// KVM's number.
    pub id: u32,
    pub tid: i32,
    pub times: Times,
}

/// They do not overlap; what is left of the time is waiting in the guest or in the VMM.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub run: f64,
    pub ready: f64,
    pub costop: f64,
    pub throttled: f64,
}

impl Times {
    /// A run that ends while Baton reads one record after the other may be missing in an answer. A
    /// counter that went back by a millisecond would be taken for one that began again, and all of
    /// it counted again.
    pub(crate) fn at_least(self, before: Times) -> Times {
        Times {
            run: self.run.max(before.run),
            ready: self.ready.max(before.ready),
            costop: self.costop.max(before.costop),
            throttled: self.throttled.max(before.throttled),
        }
    }
}
