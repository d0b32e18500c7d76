// SPDX-License-Identifier: GPL-2.0-only
//! Where the time of one vCPU went.

use anyhow::Result;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};
use std::io::Write;

/// Where the time of one vCPU went, in milliseconds; a run or a wait that is not over counts.
#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(_om_prefix = "vcpu_", _om_label = "vcpu")]
pub struct VcpuMetrics {
    #[stat(desc = "Its thread")]
    pub tid: i32,
    #[stat(desc = "CPU where it runs, or ran last")]
    pub cpu: i32,
    #[stat(desc = "Time for which it was watched: that of the five others")]
    pub watched_ms: f64,
    #[stat(desc = "Time running")]
    pub ran_ms: f64,
    #[stat(desc = "Time waiting for a pCPU while no sibling ran")]
    pub ready_only_ms: f64,
    #[stat(desc = "Time waiting for a pCPU while a sibling ran (co-stop)")]
    pub costop_ms: f64,
    #[stat(desc = "Time waiting for CPU time by cpu.max")]
    pub throttled_ms: f64,
    #[stat(desc = "Time halted, or in the VMM: the rest")]
    pub waited_ms: f64,
}

impl VcpuMetrics {
    pub fn since(&self, before: &Self) -> Self {
        // Another thread is a new vCPU of that number.
        if self.tid != before.tid || self.watched_ms < before.watched_ms {
            return self.clone();
        }
        Self {
            watched_ms: self.watched_ms - before.watched_ms,
            ran_ms: self.ran_ms - before.ran_ms,
            ready_only_ms: self.ready_only_ms - before.ready_only_ms,
            costop_ms: self.costop_ms - before.costop_ms,
            throttled_ms: self.throttled_ms - before.throttled_ms,
            waited_ms: self.waited_ms - before.waited_ms,
            ..self.clone()
        }
    }

    pub fn print(&self, id: u32, out: &mut impl Write) -> Result<()> {
        // A difference of sums of floats may be a little below 0.
        let percent = |ms: f64| 100.0 * ms.max(0.0) / self.watched_ms.max(f64::MIN_POSITIVE);
        writeln!(
            out,
            "    vCPU {id}: %RUN {:.1} %RDY {:.1} %CSTP {:.1} %MLMTD {:.1} %WAIT {:.1} of {:.0} ms \
             | pCPU {} thread {}",
            percent(self.ran_ms),
            percent(self.ready_only_ms),
            percent(self.costop_ms),
            percent(self.throttled_ms),
            percent(self.waited_ms),
            self.watched_ms,
            self.cpu,
            self.tid
        )?;
        Ok(())
    }
}
