// SPDX-License-Identifier: GPL-2.0-only
//! VMs as scx_baton's statistics server tells of them.

use crate::sample::{Times, VcpuSample, VmMore, VmSample, Yields};
use anyhow::{Context, Result};
use scx_stats::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;

/// It answers within milliseconds, or is stuck.
const TIMEOUT_MS: u64 = 2000;

/// A connection to the scx_baton that runs.
pub struct Baton {
    client: StatsClient,
}

impl Baton {
    /// Errors: it does not listen, or not to this user.
    pub fn connect() -> Result<Baton> {
        let client = StatsClient::new().connect(Some(TIMEOUT_MS));
        Ok(Baton { client: client.context("scx_baton's statistics cannot be asked for")? })
    }

    /// All since it began; each vCPU too, if `vcpus`.
    ///
    /// Errors: it has gone, or is of another version.
    pub fn ask(&mut self, vcpus: bool) -> Result<(Yields, Vec<VmSample>)> {
        let argument = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut arguments = vec![argument("target", "totals")];
        arguments.extend(vcpus.then(|| argument("vcpus", "1")));
        let told: serde_json::Value = self.client.request("stats", arguments)?;
        let totals: Totals = serde_json::from_value(told)
            .context("the scx_baton that runs is of another version than this 'baton'")?;
        let vms = totals.by_vm.into_iter().map(|(key, vm)| vm.sample(key)).collect();
        Ok((totals.counts.sum(), vms))
    }
}

/// What is used of the server's answer.
#[derive(Deserialize)]
struct Totals {
    #[serde(flatten)]
    counts: Counts,
    by_vm: BTreeMap<String, Vm>,
}

#[derive(Deserialize)]
struct Counts {
    yields: u64,
    obeyed: u64,
    redirected: u64,
    missed_running: u64,
    missed_asleep: u64,
    missed_spent: u64,
    missed_raced: u64,
    missed_foreign: u64,
    refused: u64,
    lent: u64,
    turns: u64,
    gangs: u64,
}

impl Counts {
    fn sum(&self) -> Yields {
        let missed = self.missed_running + self.missed_asleep + self.missed_spent;
        Yields {
            yields: self.yields,
            obeyed: self.obeyed,
            redirected: self.redirected,
            missed: missed + self.missed_raced + self.missed_foreign,
            refused: self.refused,
            lent: self.lent,
            turns: self.turns,
            gangs: self.gangs,
        }
    }
}

#[derive(Deserialize)]
struct Vm {
    name: String,
    vcpus: u32,
    weight: u64,
    spread: u64,
    ran_ms: f64,
    ready_only_ms: f64,
    costop_ms: f64,
    throttled_ms: f64,
    spin_ms: f64,
    poll_ms: f64,
    vain_poll_ms: f64,
    ipi_wait_ms: f64,
    spins: u64,
    boosts: u64,
    useful: u64,
    wakeups: Vec<u64>,
    by_vcpu: BTreeMap<u32, Vcpu>,
}

#[derive(Deserialize)]
struct Vcpu {
    tid: i32,
    cpu: i32,
    ran_ms: f64,
    ready_only_ms: f64,
    costop_ms: f64,
    throttled_ms: f64,
}

impl Vm {
    fn sample(self, key: String) -> VmSample {
        VmSample {
            key,
            name: self.name,
            nr_vcpus: self.vcpus,
            times: Times {
                ran: self.ran_ms,
                ready: self.ready_only_ms,
                costop: Some(self.costop_ms),
                throttled: Some(self.throttled_ms),
            },
            more: Some(VmMore {
                weight: self.weight,
                spread: self.spread > 0,
                spin_ms: self.spin_ms,
                poll_ms: self.poll_ms + self.vain_poll_ms,
                ipi_wait_ms: self.ipi_wait_ms,
                spins: self.spins,
                boosts: self.boosts,
                useful: self.useful,
                wakeups: self.wakeups,
            }),
            vcpus: self.by_vcpu.into_iter().map(|(id, vcpu)| vcpu.sample(id)).collect(),
        }
    }
}

impl Vcpu {
    fn sample(self, id: u32) -> VcpuSample {
        VcpuSample {
            id,
            tid: self.tid,
            cpu: self.cpu,
            times: Times {
                ran: self.ran_ms,
                ready: self.ready_only_ms,
                costop: Some(self.costop_ms),
                throttled: Some(self.throttled_ms),
            },
        }
    }
}
