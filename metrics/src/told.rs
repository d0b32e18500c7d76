// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton tells, as it is exported.

use crate::snapshot::{Times, Totals, Vcpu, Vm};
use baton_counters::{Metrics, VcpuMetrics, VmMetrics};

pub fn totals(told: &Metrics) -> Totals {
    let missed = [
        told.missed_running,
        told.missed_asleep,
        told.missed_spent,
        told.missed_raced,
        told.missed_foreign,
    ];
    Totals {
        obeyed: told.obeyed,
        missed: missed.into_iter().fold(0, u64::saturating_add),
        refused: told.refused,
        redirected: told.redirected,
        turns: told.turns,
        gangs: told.gangs,
        lent: told.lent,
    }
}

pub fn vms(told: Metrics) -> Vec<Vm> {
    told.by_vm.into_iter().map(|(key, told)| vm(key, told)).collect()
}

/// A difference of sums of floats may be a little below 0, and no counter is.
fn seconds(ms: f64) -> f64 {
    if ms > 0.0 { ms / 1e3 } else { 0.0 }
}

fn vcpu(id: u32, told: &VcpuMetrics) -> Vcpu {
    let times = Times {
        run: seconds(told.ran_ms),
        ready: seconds(told.ready_only_ms),
        costop: seconds(told.costop_ms),
        throttled: seconds(told.throttled_ms),
    };
    Vcpu { id, tid: told.tid, times }
}

fn vm(key: String, told: VmMetrics) -> Vm {
    Vm {
        key,
        name: told.name,
        vcpus: told.vcpus,
        weight: told.weight,
        spread: told.spread > 0,
        times: Times {
            run: seconds(told.ran_ms),
            ready: seconds(told.ready_only_ms),
            costop: seconds(told.costop_ms),
            throttled: seconds(told.throttled_ms),
        },
        spin: seconds(told.spin_ms),
        boost: seconds(told.boost_ms),
        ipi_wait: seconds(told.ipi_wait_ms),
        poll_hit: seconds(told.poll_ms),
        poll_miss: seconds(told.vain_poll_ms),
        polled: told.polled,
        slept: told.slept,
        pause_exits: told.spins,
        useful: told.useful,
        useless: told.useless,
        wakeups: told.wakeups,
        by_vcpu: told.by_vcpu.iter().map(|(id, told)| vcpu(*id, told)).collect(),
        ..Vm::default()
    }
}
