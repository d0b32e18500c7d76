// SPDX-License-Identifier: GPL-2.0-only
//! The counters, as scx_stats shows them.

use crate::bpf_intf::*;
use anyhow::Result;
use scx_stats::prelude::*;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    #[stat(desc = "Directed yields refused: none of --yield-policy applied")]
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
    #[stat(desc = "CPU time that vCPUs got from directed yields, in microseconds")]
    pub boost_us: u64,
}

impl Metrics {
    /// From the sum of the per-CPU counters and the numbers of VMs, vCPUs and spread VMs now.
    pub fn new(s: &baton_stats, vms: u64, vcpus: u64, spread: u64) -> Self {
        let count = |stat: baton_stat| s.count[stat as usize];
        Self {
            vms,
            vcpus,
            spread,
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
            boost_us: count(baton_stat_STAT_BOOST_NS) / 1000,
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
            boost_us: self.boost_us - before.boost_us,
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "[{}] VMs {} vCPUs {} spread {} | spins {} yields {} obeyed {} redirected {} refused {} missed: running {} asleep {} \
             spent {} raced {} foreign {} | plain yields {} | turns {} gangs {} stacking avoided {} | \
             host preempts {} | boost {:.1} ms",
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
            self.boost_us as f64 / 1000.0
        )?;
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
    StatsServerData::new().add_meta(Metrics::meta()).add_ops("top", StatsOps { open, close: None })
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
