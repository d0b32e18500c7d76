// SPDX-License-Identifier: GPL-2.0-only
//! What the BPF programs have recorded, as statistics.

use crate::bpf_intf::*;
use baton_counters::{Metrics, VcpuMetrics, VmMetrics, percentile_us};
use std::collections::BTreeMap;
use std::time::Duration;

/// From the sum of the per-CPU counters, and the VMs that there are now.
pub fn host(
    s: &baton_stats,
    counted: Duration,
    policy: String,
    by_vm: BTreeMap<String, VmMetrics>,
) -> Metrics {
    let count = |stat: baton_stat| s.count[stat as usize];
    Metrics {
        counted_s: counted.as_secs_f64(),
        policy,
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

/// Of a VM's record, since it was first seen; what its vCPUs have not ended counts, too.
pub fn vm(vm: &vm_ctx, name: String, vcpus: &[vcpu_report]) -> VmMetrics {
    let mut t = vm.times;
    for open in vcpus.iter().map(|vcpu| &vcpu.open) {
        t.ran_ns += open.ran_ns;
        t.ready_ns += open.ready_ns;
        t.costop_ns += open.costop_ns;
        t.throttled_ns += open.throttled_ns;
    }
    let ms = |ns: u64| ns as f64 / 1e6;
    // Of some of them the sum is of no use: the next one may be of others.
    let all = vcpus.len() as i64 == i64::from(vm.nr_vcpus);
    VmMetrics {
        name,
        vcpus: vm.nr_vcpus.max(0) as u64,
        weight: vm.weight.into(),
        spread: vm.spread.into(),
        ran_ms: ms(t.ran_ns),
        ready_ms: ms(t.ready_ns),
        ready_only_ms: ms(t.ready_ns.saturating_sub(t.costop_ns)),
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
        wakeups: vm.halt.wakeups.to_vec(),
        wakeup_us: percentile_us(&vm.halt.wakeups, 50),
        wakeup99_us: percentile_us(&vm.halt.wakeups, 99),
        poll_by: match (vm.own_limit, vm.guest_polls) {
            (0, 0) => "host",
            (_, 0) => "VMM",
            _ => "guest",
        }
        .into(),
        boosts: t.boosts,
        useful: t.useful,
        useless: t.useless,
        watched_ms: if all { vcpus.iter().map(|vcpu| ms(vcpu.age_ns)).sum() } else { 0.0 },
        by_vcpu: vcpus.iter().map(|of| (of.vcpu_id, vcpu(of))).collect(),
    }
}

/// Since its thread became a vCPU.
fn vcpu(r: &vcpu_report) -> VcpuMetrics {
    let ms = |closed: u64, open: u64| (closed + open) as f64 / 1e6;
    let (t, open) = (&r.times, &r.open);
    let watched_ms = r.age_ns as f64 / 1e6;
    let ran_ms = ms(t.ran_ns, open.ran_ns);
    let ready_ms = ms(t.ready_ns, open.ready_ns);
    let costop_ms = ms(t.costop_ns, open.costop_ns);
    let throttled_ms = ms(t.throttled_ns, open.throttled_ns);
    VcpuMetrics {
        tid: r.pid,
        cpu: r.cpu,
        watched_ms,
        ran_ms,
        ready_only_ms: ready_ms - costop_ms,
        costop_ms,
        throttled_ms,
        waited_ms: watched_ms - ran_ms - ready_ms - throttled_ms,
    }
}
