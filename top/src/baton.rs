// SPDX-License-Identifier: GPL-2.0-only
//! VMs as scx_baton's statistics server tells of them.

use crate::sample::{Times, VcpuSample, VmMore, VmSample, Yields};
use baton_counters::{Metrics, VcpuMetrics, VmMetrics};

pub fn yields(told: &Metrics) -> Yields {
    let missed = told.missed_running + told.missed_asleep + told.missed_spent;
    Yields {
        yields: told.yields,
        obeyed: told.obeyed,
        redirected: told.redirected,
        missed: missed + told.missed_raced + told.missed_foreign,
        refused: told.refused,
        lent: told.lent,
        turns: told.turns,
        gangs: told.gangs,
    }
}

pub fn vms(told: Metrics) -> Vec<VmSample> {
    told.by_vm.into_iter().map(|(key, told)| vm(key, told)).collect()
}

fn vm(key: String, told: VmMetrics) -> VmSample {
    VmSample {
        // "PROCESS.SLOT.GENERATION"
        pid: key.split('.').next().and_then(|pid| pid.parse().ok()).unwrap_or(0),
        key,
        name: told.name,
        nr_vcpus: told.vcpus.try_into().unwrap_or(u32::MAX),
        times: Times {
            ran: told.ran_ms,
            ready: told.ready_only_ms,
            costop: Some(told.costop_ms),
            throttled: Some(told.throttled_ms),
            watched: (told.watched_ms > 0.0).then_some(told.watched_ms),
        },
        poll: None,
        more: Some(VmMore {
            weight: told.weight,
            spread: told.spread > 0,
            spin_ms: told.spin_ms,
            poll_ms: told.poll_ms + told.vain_poll_ms,
            ipi_wait_ms: told.ipi_wait_ms,
            spins: told.spins,
            boosts: told.boosts,
            useful: told.useful,
            wakeups: told.wakeups,
        }),
        vcpus: told.by_vcpu.into_iter().map(|(id, told)| vcpu(id, &told)).collect(),
        threads: Vec::new(),
    }
}

fn vcpu(id: u32, told: &VcpuMetrics) -> VcpuSample {
    let times = Times {
        ran: told.ran_ms,
        ready: told.ready_only_ms,
        costop: Some(told.costop_ms),
        throttled: Some(told.throttled_ms),
        watched: Some(told.watched_ms),
    };
    VcpuSample { id, tid: told.tid, cpu: told.cpu, times }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its threads on the host are looked for by it.
    #[test]
    fn a_vms_process_is_told_by_its_key() {
        let pid = |key: &str| vm(key.to_owned(), VmMetrics::default()).pid;
        assert_eq!((pid("4121.3.1"), pid("4121"), pid("x.3.1"), pid("")), (4121, 4121, 0, 0));
    }
}
