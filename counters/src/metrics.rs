// SPDX-License-Identifier: GPL-2.0-only
//! What is counted of the host.

use crate::VmMetrics;
use anyhow::Result;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;

/// The argument of a request that asks for vCPUs.
pub const VCPUS: &str = "vcpus";

/// VMs that `--stats` shows: those that ran most. The statistics server has them all.
const MOST_SHOWN: usize = 16;

#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(top)]
pub struct Metrics {
    #[stat(desc = "Seconds in which this was counted")]
    pub counted_s: f64,
    #[stat(desc = "Whom a spinning vCPU gives its CPU to, as --yield-policy has it")]
    pub policy: String,
    #[stat(desc = "VMs that exist")]
    pub vms: u64,
    #[stat(desc = "vCPUs of these VMs that have run")]
    pub vcpus: u64,
    #[stat(desc = "VMs whose vCPUs wait by halting and run apart")]
    pub spread: u64,
    #[stat(desc = "PAUSE-loop exits and other spins that KVM noticed")]
    pub spins: u64,
    #[stat(desc = "Directed yields seen: vCPUs that KVM asked to run instead of a spinner")]
    pub yields: u64,
    #[stat(desc = "Directed yields obeyed: the vCPU ran on the spinner's slice")]
    pub obeyed: u64,
    #[stat(desc = "Directed yields missed: the vCPU was running already")]
    pub missed_running: u64,
    #[stat(desc = "Directed yields missed: the vCPU was asleep, or not preempted by us")]
    pub missed_asleep: u64,
    #[stat(desc = "Directed yields missed: the slice to donate was used up by others before")]
    pub missed_spent: u64,
    #[stat(desc = "Directed yields missed: gone when the pCPU came to take it")]
    pub missed_raced: u64,
    #[stat(desc = "Directed yields missed: not a vCPU of the same VM")]
    pub missed_foreign: u64,
    #[stat(desc = "Directed yields that went to a better target than KVM's")]
    pub redirected: u64,
    #[stat(
        desc = "Directed yields refused: none of --yield-policy applied, or others would have paid"
    )]
    pub refused: u64,
    #[stat(desc = "sched_yield(2) calls")]
    pub plain_yields: u64,
    #[stat(desc = "Turns that VMs began")]
    pub turns: u64,
    #[stat(desc = "Turns in which two or more vCPUs of the VM ran at once")]
    pub gangs: u64,
    #[stat(desc = "Wakeups of a vCPU kept off a pCPU where a sibling ran")]
    pub stacking_avoided: u64,
    #[stat(desc = "vCPUs preempted by a waking host thread")]
    pub host_preempts: u64,
    #[stat(desc = "CPUs that vCPUs of VMs behind their due took for a moment")]
    pub visits: u64,
    #[stat(desc = "CPUs that vCPUs lent to a sibling that was sent an IPI")]
    pub lent: u64,
    #[stat(desc = "vCPUs that polled at HLT and were preempted by a waking task")]
    pub polls_cut: u64,
    #[stat(desc = "Tasks that left a core that they shared for one that was idle")]
    pub cores_left: u64,
    #[stat(
        desc = "CPU time that vCPUs got from directed yields and lending siblings, in microseconds"
    )]
    pub boost_us: u64,
    #[stat(desc = "Each VM, by its process and slot")]
    pub by_vm: BTreeMap<String, VmMetrics>,
}

impl Metrics {
    /// What happened since `before`; the numbers of VMs and vCPUs are those of now.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counted_s: self.counted_s - before.counted_s,
            policy: self.policy.clone(),
            vms: self.vms,
            vcpus: self.vcpus,
            spread: self.spread,
            spins: self.spins - before.spins,
            yields: self.yields - before.yields,
            obeyed: self.obeyed - before.obeyed,
            missed_running: self.missed_running - before.missed_running,
            missed_asleep: self.missed_asleep - before.missed_asleep,
            missed_spent: self.missed_spent - before.missed_spent,
            missed_raced: self.missed_raced - before.missed_raced,
            missed_foreign: self.missed_foreign - before.missed_foreign,
            redirected: self.redirected - before.redirected,
            refused: self.refused - before.refused,
            plain_yields: self.plain_yields - before.plain_yields,
            turns: self.turns - before.turns,
            gangs: self.gangs - before.gangs,
            stacking_avoided: self.stacking_avoided - before.stacking_avoided,
            host_preempts: self.host_preempts - before.host_preempts,
            visits: self.visits - before.visits,
            lent: self.lent - before.lent,
            polls_cut: self.polls_cut - before.polls_cut,
            cores_left: self.cores_left - before.cores_left,
            boost_us: self.boost_us - before.boost_us,
            by_vm: self
                .by_vm
                .iter()
                .map(|(key, vm)| {
                    let new = VmMetrics::default();
                    (key.clone(), vm.since(before.by_vm.get(key).unwrap_or(&new)))
                })
                .collect(),
        }
    }

    /// Without the vCPUs, unless a client asks for them.
    pub fn shown(mut self, args: &BTreeMap<String, String>) -> Self {
        if !args.contains_key(VCPUS) {
            self.by_vm.values_mut().for_each(|vm| vm.by_vcpu.clear());
        }
        self
    }

    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "[scx_baton] {:.1} s | VMs {} vCPUs {} spread {} | spins {} yields {} obeyed {} \
             redirected {} refused {} missed: running {} asleep {} spent {} raced {} foreign {} | \
             plain yields {} | turns {} gangs {} stacking avoided {} | host preempts {} visits {} lent {} polls cut \
             {} cores left {} | boost {:.1} ms",
            self.counted_s,
            self.vms,
            self.vcpus,
            self.spread,
            self.spins,
            self.yields,
            self.obeyed,
            self.redirected,
            self.refused,
            self.missed_running,
            self.missed_asleep,
            self.missed_spent,
            self.missed_raced,
            self.missed_foreign,
            self.plain_yields,
            self.turns,
            self.gangs,
            self.stacking_avoided,
            self.host_preempts,
            self.visits,
            self.lent,
            self.polls_cut,
            self.cores_left,
            self.boost_us as f64 / 1000.0
        )?;
        let mut vms: Vec<_> = self.by_vm.iter().collect();
        vms.sort_by(|(_, a), (_, b)| b.ran_ms.total_cmp(&a.ran_ms));
        for (key, vm) in vms.iter().take(MOST_SHOWN) {
            vm.print(key, out)?;
        }
        if vms.len() > MOST_SHOWN {
            writeln!(out, "  and {} VMs more", vms.len() - MOST_SHOWN)?;
        }
        Ok(())
    }
}
