// SPDX-License-Identifier: GPL-2.0-only
//! The counters, as scx_stats shows them.

use crate::bpf_intf::*;
use anyhow::Result;
use scx_stats::prelude::*;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where the time of a VM's vCPUs went, in milliseconds of all its vCPUs together.
#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(_om_prefix = "vm_", _om_label = "vm")]
pub struct VmMetrics {
    #[stat(desc = "Name of the process that runs the VM")]
    pub name: String,
    #[stat(desc = "vCPUs that have run")]
    pub vcpus: u64,
    #[stat(desc = "Weight of its cgroup")]
    pub weight: u64,
    #[stat(desc = "1: its vCPUs wait by halting and run apart")]
    pub spread: u64,
    #[stat(desc = "Time running")]
    pub ran_ms: f64,
    #[stat(desc = "Time waiting for a pCPU")]
    pub ready_ms: f64,
    #[stat(desc = "Time waiting for CPU time by cpu.max")]
    pub throttled_ms: f64,
    #[stat(desc = "Time waiting for a pCPU while a sibling ran (co-stop)")]
    pub costop_ms: f64,
    #[stat(desc = "Time from one PAUSE exit to the next one at once")]
    pub spin_ms: f64,
    #[stat(desc = "Time running on the slices of spinners, or of siblings that lent their CPU")]
    pub boost_ms: f64,
    #[stat(desc = "Time from being sent an IPI, while not running, until running")]
    pub ipi_wait_ms: f64,
    #[stat(desc = "PAUSE exits")]
    pub spins: u64,
    #[stat(desc = "HLT exits")]
    pub halts: u64,
    #[stat(desc = "HLTs that ended while KVM polled")]
    pub polled: u64,
    #[stat(desc = "HLTs after which the vCPU's thread slept")]
    pub slept: u64,
    #[stat(desc = "Time polled until HLTs ended")]
    pub poll_ms: f64,
    #[stat(desc = "Time polled in vain, until the vCPU's thread slept")]
    pub vain_poll_ms: f64,
    #[stat(desc = "Median time from being woken until running, in microseconds; a power of two")]
    pub wakeup_us: f64,
    #[stat(desc = "Who decides on polling at HLT: the host, the VMM or the guest")]
    pub poll_by: String,
    #[stat(desc = "Yields by spinners that were carried out")]
    pub boosts: u64,
    #[stat(desc = "Boosts after which the spinner went on")]
    pub useful: u64,
    #[stat(desc = "Boosts after which the spinner spun again within 200 µs of CPU time")]
    pub useless: u64,
}

impl VmMetrics {
    /// Of a VM's record, since it was first seen.
    pub fn new(vm: &vm_ctx, name: String) -> Self {
        let t = &vm.times;
        let ms = |ns: u64| ns as f64 / 1e6;
        Self {
            name,
            vcpus: vm.nr_vcpus.max(0) as u64,
            weight: vm.weight.into(),
            spread: vm.spread.into(),
            ran_ms: ms(t.ran_ns),
            ready_ms: ms(t.ready_ns),
            throttled_ms: ms(t.throttled_ns),
            costop_ms: ms(t.costop_ns),
            spin_ms: ms(t.spin_ns),
            boost_ms: ms(t.boost_ns),
            ipi_wait_ms: ms(t.owed_ns),
            spins: t.spins,
            halts: t.halts,
            polled: vm.halt.polled,
            slept: vm.halt.slept,
            poll_ms: ms(vm.halt.polled_ns),
            vain_poll_ms: ms(vm.halt.vain_ns),
            wakeup_us: median_us(&vm.halt.wakeups),
            poll_by: match (vm.own_limit, vm.guest_polls) {
                (0, 0) => "host",
                (_, 0) => "VMM",
                _ => "guest",
            }
            .into(),
            boosts: t.boosts,
            useful: t.useful,
            useless: t.useless,
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            ran_ms: self.ran_ms - before.ran_ms,
            ready_ms: self.ready_ms - before.ready_ms,
            throttled_ms: self.throttled_ms - before.throttled_ms,
            costop_ms: self.costop_ms - before.costop_ms,
            spin_ms: self.spin_ms - before.spin_ms,
            boost_ms: self.boost_ms - before.boost_ms,
            ipi_wait_ms: self.ipi_wait_ms - before.ipi_wait_ms,
            spins: self.spins.saturating_sub(before.spins),
            halts: self.halts.saturating_sub(before.halts),
            polled: self.polled.saturating_sub(before.polled),
            slept: self.slept.saturating_sub(before.slept),
            poll_ms: self.poll_ms - before.poll_ms,
            vain_poll_ms: self.vain_poll_ms - before.vain_poll_ms,
            boosts: self.boosts.saturating_sub(before.boosts),
            useful: self.useful.saturating_sub(before.useful),
            useless: self.useless.saturating_sub(before.useless),
            ..self.clone()
        }
    }

    fn print(&self, key: &str, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "  {key} {}: vCPUs {} weight {}{} | ms: ran {:.0} ready {:.0} throttled {:.0} co-stop {:.0} spinning {:.0} \
             boosted {:.1} waiting for IPI {:.1} | spins {} boosts {} useful {} useless {} | \
             halts {} polled {} ({:.1} ms) slept {} (after {:.1} ms), wake-up {:.0} µs, polling by {}",
            self.name,
            self.vcpus,
            self.weight,
            if self.spread > 0 { " spread" } else { "" },
            self.ran_ms,
            self.ready_ms,
            self.throttled_ms,
            self.costop_ms,
            self.spin_ms,
            self.boost_ms,
            self.ipi_wait_ms,
            self.spins,
            self.boosts,
            self.useful,
            self.useless,
            self.halts,
            self.polled,
            self.poll_ms,
            self.slept,
            self.vain_poll_ms,
            self.wakeup_us,
            self.poll_by
        )?;
        Ok(())
    }
}

/// Of a histogram whose bucket i begins with 2^i ns, the bucket of the median; 0 without any.
fn median_us(buckets: &[u64]) -> f64 {
    let half = buckets.iter().sum::<u64>().div_ceil(2);
    let mut seen = 0;
    let at = buckets.iter().position(|n| {
        seen += n;
        seen >= half && half > 0
    });
    at.map_or(0.0, |bucket| (1u64 << bucket) as f64 / 1e3)
}

/// VMs that `--stats` shows: those that ran most. The statistics server has them all.
const MOST_SHOWN: usize = 16;

#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(top)]
pub struct Metrics {
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
    /// From the sum of the per-CPU counters, and the VMs that there are now.
    pub fn new(s: &baton_stats, by_vm: BTreeMap<String, VmMetrics>) -> Self {
        let count = |stat: baton_stat| s.count[stat as usize];
        Self {
            vms: by_vm.len() as u64,
            vcpus: by_vm.values().map(|vm| vm.vcpus).sum(),
            spread: by_vm.values().filter(|vm| vm.spread > 0).count() as u64,
            spins: count(baton_stat_STAT_SPINS),
            yields: count(baton_stat_STAT_YIELDS),
            obeyed: count(baton_stat_STAT_OBEYED),
            missed_running: count(baton_stat_STAT_MISSED_RUNNING),
            missed_asleep: count(baton_stat_STAT_MISSED_ASLEEP),
            missed_spent: count(baton_stat_STAT_MISSED_SPENT),
            missed_raced: count(baton_stat_STAT_MISSED_RACED),
            missed_foreign: count(baton_stat_STAT_MISSED_FOREIGN),
            redirected: count(baton_stat_STAT_REDIRECTED),
            refused: count(baton_stat_STAT_REFUSED),
            plain_yields: count(baton_stat_STAT_PLAIN_YIELDS),
            turns: count(baton_stat_STAT_TURNS),
            gangs: count(baton_stat_STAT_GANGS),
            stacking_avoided: count(baton_stat_STAT_STACKING_AVOIDED),
            host_preempts: count(baton_stat_STAT_HOST_PREEMPTS),
            visits: count(baton_stat_STAT_VISITS),
            lent: count(baton_stat_STAT_LENT),
            polls_cut: count(baton_stat_STAT_POLLS_CUT),
            cores_left: count(baton_stat_STAT_CORES_LEFT),
            boost_us: count(baton_stat_STAT_BOOST_NS) / 1000,
            by_vm,
        }
    }

    /// What happened since `before`; the numbers of VMs and vCPUs are those of now.
    fn since(&self, before: &Self) -> Self {
        Self {
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

    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "[{}] VMs {} vCPUs {} spread {} | spins {} yields {} obeyed {} redirected {} refused {} missed: running {} asleep {} \
             spent {} raced {} foreign {} | plain yields {} | turns {} gangs {} stacking avoided {} | \
             host preempts {} visits {} lent {} polls cut {} cores left {} | boost {:.1} ms",
            crate::NAME,
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

/// The server's side: each client gets what happened since its last request.
pub fn server_data() -> StatsServerData<(), Metrics> {
    let open: Box<dyn StatsOpener<(), Metrics>> = Box::new(move |(req_ch, res_ch)| {
        req_ch.send(())?;
        let mut before = res_ch.recv()?;
        let read: Box<dyn StatsReader<(), Metrics>> = Box::new(move |_args, (req_ch, res_ch)| {
            req_ch.send(())?;
            let now = res_ch.recv()?;
            let since = now.since(&before);
            before = now;
            since.to_json()
        });
        Ok(read)
    });
    StatsServerData::new()
        .add_meta(Metrics::meta())
        .add_meta(VmMetrics::meta())
        .add_ops("top", StatsOps { open, close: None })
}

/// The client's side: print a line every `interval` until `shutdown`.
pub fn monitor(interval: Duration, shutdown: Arc<AtomicBool>) -> Result<()> {
    scx_utils::monitor_stats::<Metrics>(
        &[],
        interval,
        || shutdown.load(Ordering::Relaxed),
        |m| m.print(&mut std::io::stdout()),
    )
}
