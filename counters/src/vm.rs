// SPDX-License-Identifier: GPL-2.0-only
//! What is counted of one VM.

use crate::VcpuMetrics;
use anyhow::Result;
use scx_stats_derive::{Stats, stat_doc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;

/// Where the time of a VM's vCPUs went, in milliseconds of all its vCPUs together.
#[stat_doc]
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(_om_prefix = "vm_", _om_label = "vm")]
pub struct VmMetrics {
    #[stat(desc = "Its name, as its command line, libvirt or its unit tell; else its process's")]
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
    #[stat(desc = "Time waiting for a pCPU while no sibling ran")]
    pub ready_only_ms: f64,
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
    #[stat(desc = "Wake-ups by the time until running: place i counts those of 2^i ns and more")]
    pub wakeups: Vec<u64>,
    #[stat(desc = "Median time from being woken until running, in microseconds; a power of two")]
    pub wakeup_us: f64,
    #[stat(desc = "99th percentile of that time, in microseconds; a power of two")]
    pub wakeup99_us: f64,
    #[stat(desc = "Who decides on polling at HLT: the host, the VMM or the guest")]
    pub poll_by: String,
    #[stat(desc = "Yields by spinners that were carried out")]
    pub boosts: u64,
    #[stat(desc = "Boosts after which the spinner went on")]
    pub useful: u64,
    #[stat(desc = "Boosts after which the spinner spun again within 200 µs of CPU time")]
    pub useless: u64,
    #[stat(
        desc = "Time since its vCPUs became vCPUs, all together, in milliseconds; 0: not known of all"
    )]
    #[serde(default)]
    pub watched_ms: f64,
    #[stat(desc = "Each vCPU, by KVM's number; with the argument vcpus alone")]
    pub by_vcpu: BTreeMap<u32, VcpuMetrics>,
}

impl VmMetrics {
    pub fn since(&self, before: &Self) -> Self {
        // A run that ends while all are asked, one after the other, may be missing in an answer.
        let grown = |now: f64, before: f64| (now - before).max(0.0);
        let vcpu = |(id, vcpu): (&u32, &VcpuMetrics)| {
            let new = VcpuMetrics::default();
            (*id, vcpu.since(before.by_vcpu.get(id).unwrap_or(&new)))
        };
        let earlier = before.wakeups.iter().copied().chain(std::iter::repeat(0));
        let wakeups: Vec<u64> =
            self.wakeups.iter().zip(earlier).map(|(now, then)| now.saturating_sub(then)).collect();
        Self {
            wakeup_us: percentile_us(&wakeups, 50),
            wakeup99_us: percentile_us(&wakeups, 99),
            wakeups,
            watched_ms: grown(self.watched_ms, before.watched_ms),
            ran_ms: grown(self.ran_ms, before.ran_ms),
            ready_ms: grown(self.ready_ms, before.ready_ms),
            ready_only_ms: grown(self.ready_only_ms, before.ready_only_ms),
            throttled_ms: grown(self.throttled_ms, before.throttled_ms),
            costop_ms: grown(self.costop_ms, before.costop_ms),
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
            by_vcpu: self.by_vcpu.iter().map(vcpu).collect(),
            ..self.clone()
        }
    }

    pub fn print(&self, key: &str, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "  {key} {}: vCPUs {} weight {}{} | ms: ran {:.0} ready {:.0} throttled {:.0} co-stop \
             {:.0} spinning {:.0} boosted {:.1} waiting for IPI {:.1} | spins {} boosts {} useful {} \
             useless {} | halts {} polled {} ({:.1} ms) slept {} (after {:.1} ms), wake-up {:.0} µs, \
             polling by {}",
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
        for (id, vcpu) in &self.by_vcpu {
            vcpu.print(*id, out)?;
        }
        Ok(())
    }
}

/// Of a histogram whose bucket i begins with 2^i ns, the bucket of that percentile; 0 without any.
pub fn percentile_us(buckets: &[u64], percent: u64) -> f64 {
    let rank = (buckets.iter().sum::<u64>() * percent).div_ceil(100);
    let mut seen = 0;
    let at = buckets.iter().position(|n| {
        seen += n;
        seen >= rank && rank > 0
    });
    at.map_or(0.0, |bucket| (1u64 << bucket) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut buckets = [0; 32];
        assert_eq!(percentile_us(&buckets, 50), 0.0);
        (buckets[10], buckets[20]) = (98, 2);
        assert_eq!((percentile_us(&buckets, 50), percentile_us(&buckets, 98)), (1.024, 1.024));
        assert_eq!(percentile_us(&buckets, 99), 1048.576);
    }

    /// Two wake-ups of 1 ms are a hundredth of all; since the last line they are all there is.
    #[test]
    fn a_line_tells_of_its_own_time_alone() {
        let vm = |slow: u64| {
            let mut wakeups = vec![0; 32];
            (wakeups[10], wakeups[20]) = (1000, slow);
            VmMetrics { wakeups, ran_ms: slow as f64, ..VmMetrics::default() }
        };
        let since = vm(2).since(&vm(0));
        assert_eq!((since.wakeup_us, since.ran_ms), (1048.576, 2.0));
        assert_eq!(since.wakeups.iter().sum::<u64>(), 2);
    }
}
