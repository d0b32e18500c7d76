// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton's statistics server tells.

use crate::snapshot::{Times, Totals, Vcpu, Vm};
use anyhow::{Context, Result};
use scx_stats::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// It answers within milliseconds, or is stuck.
const TIMEOUT_MS: u64 = 2000;

/// A connection to the scx_baton that runs.
pub struct Client {
    stats: StatsClient,
}

pub struct Told {
    /// Seconds since it began.
    pub counted: f64,
    /// Empty if it does not tell.
    pub policy: String,
    pub totals: Totals,
    pub vms: Vec<Vm>,
}

impl Client {
    /// Errors: nobody listens there, or not to this user.
    pub fn connect(socket: &Path) -> Result<Client> {
        let stats = StatsClient::new().set_path(socket).connect(Some(TIMEOUT_MS));
        let stats = stats.with_context(|| format!("cannot use {}", socket.display()))?;
        Ok(Client { stats })
    }

    /// All since it began; each vCPU too, if `vcpus`.
    ///
    /// Errors: it has gone, or is of another version.
    pub fn ask(&mut self, vcpus: bool) -> Result<Told> {
        let argument = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut arguments = vec![argument("target", "totals")];
        arguments.extend(vcpus.then(|| argument("vcpus", "1")));
        let told: serde_json::Value = self.stats.request("stats", arguments)?;
        let Answer { counted_s, policy, counts, by_vm } = serde_json::from_value(told)
            .context("the scx_baton that runs is of another version than this program")?;
        let vms = by_vm.into_iter().map(|(key, vm)| vm.told(key)).collect();
        Ok(Told { counted: counted_s, policy, totals: counts.told(), vms })
    }
}

/// What is used of the answer; a later version may have more.
#[derive(Deserialize)]
struct Answer {
    counted_s: f64,
    #[serde(default)]
    policy: String,
    #[serde(flatten)]
    counts: Counts,
    by_vm: BTreeMap<String, VmAnswer>,
}

#[derive(Deserialize)]
struct Counts {
    obeyed: u64,
    redirected: u64,
    missed_running: u64,
    missed_asleep: u64,
    missed_spent: u64,
    missed_raced: u64,
    missed_foreign: u64,
    refused: u64,
    turns: u64,
    gangs: u64,
    lent: u64,
}

impl Counts {
    fn told(&self) -> Totals {
        let missed = [
            self.missed_running,
            self.missed_asleep,
            self.missed_spent,
            self.missed_raced,
            self.missed_foreign,
        ];
        Totals {
            obeyed: self.obeyed,
            missed: missed.into_iter().fold(0, u64::saturating_add),
            refused: self.refused,
            redirected: self.redirected,
            turns: self.turns,
            gangs: self.gangs,
            lent: self.lent,
        }
    }
}

#[derive(Deserialize)]
struct TimesAnswer {
    ran_ms: f64,
    ready_only_ms: f64,
    costop_ms: f64,
    throttled_ms: f64,
}

impl TimesAnswer {
    fn told(&self) -> Times {
        Times {
            run: seconds(self.ran_ms),
            ready: seconds(self.ready_only_ms),
            costop: seconds(self.costop_ms),
            throttled: seconds(self.throttled_ms),
        }
    }
}

/// A difference of sums of floats may be a little below 0, and no counter is.
fn seconds(ms: f64) -> f64 {
    if ms > 0.0 { ms / 1e3 } else { 0.0 }
}

#[derive(Deserialize)]
struct VmAnswer {
    name: String,
    vcpus: u64,
    weight: u64,
    spread: u64,
    #[serde(flatten)]
    times: TimesAnswer,
    spin_ms: f64,
    boost_ms: f64,
    ipi_wait_ms: f64,
    poll_ms: f64,
    vain_poll_ms: f64,
    polled: u64,
    slept: u64,
    spins: u64,
    useful: u64,
    useless: u64,
    wakeups: Vec<u64>,
    #[serde(default)]
    by_vcpu: BTreeMap<u32, VcpuAnswer>,
}

#[derive(Deserialize)]
struct VcpuAnswer {
    tid: i32,
    #[serde(flatten)]
    times: TimesAnswer,
}

impl VmAnswer {
    fn told(self, key: String) -> Vm {
        let vcpu = |(id, vcpu): (u32, VcpuAnswer)| {
            let times = vcpu.times.told();
            Vcpu { id, tid: vcpu.tid, times }
        };
        Vm {
            key,
            name: self.name,
            vcpus: self.vcpus,
            weight: self.weight,
            spread: self.spread > 0,
            times: self.times.told(),
            spin: seconds(self.spin_ms),
            boost: seconds(self.boost_ms),
            ipi_wait: seconds(self.ipi_wait_ms),
            poll_hit: seconds(self.poll_ms),
            poll_miss: seconds(self.vain_poll_ms),
            polled: self.polled,
            slept: self.slept,
            pause_exits: self.spins,
            useful: self.useful,
            useless: self.useless,
            wakeups: self.wakeups,
            by_vcpu: self.by_vcpu.into_iter().map(vcpu).collect(),
            ..Vm::default()
        }
    }
}
