// SPDX-License-Identifier: GPL-2.0-only
//! What happened between two samples: the figures of a screen.

use crate::sample::{HostSample, Sample, ThreadSample, Times, VcpuSample, VmSample, Yields};
use baton_counters::percentile_us;
use serde::Serialize;

/// Between two samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Seconds between them.
    pub seconds: f64,
    pub host: HostRates,
    /// A second each; `None`: scx_baton does not tell.
    pub yields: Option<YieldRates>,
    pub vms: Vec<VmRates>,
}

/// Percent of the time of all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostRates {
    pub run: f64,
    pub idle: f64,
    pub irq: f64,
    pub steal: f64,
    /// Of the time, for which some task waited.
    pub pressure: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct YieldRates {
    pub yields: f64,
    /// Percent of them.
    pub obeyed: f64,
    pub redirected: f64,
    pub missed: f64,
    pub refused: f64,
    pub lent: f64,
    pub turns: f64,
    /// Percent of turns.
    pub gangs: f64,
}

/// Percent of the time; of a VM, the mean of its vCPUs. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    pub run: f64,
    pub ready: f64,
    pub costop: Option<f64>,
    pub throttled: Option<f64>,
    pub wait: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VmRates {
    pub key: String,
    pub name: String,
    /// Its process; 0: not known.
    pub pid: i32,
    pub nr_vcpus: u32,
    pub parts: Parts,
    /// KVM's own word on polling, percent; `None`: scx_baton's is in `more`, or there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<f64>,
    pub more: Option<MoreRates>,
    pub vcpus: Vec<VcpuRates>,
    /// Of the host, at work for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadRates>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MoreRates {
    pub weight: u64,
    pub spread: bool,
    /// Percent of the time, as [`Parts`].
    pub spin: f64,
    pub poll: f64,
    /// Milliseconds a second, all vCPUs together.
    pub ipi_wait: f64,
    /// PAUSE exits a second.
    pub spins: f64,
    pub boosts: f64,
    /// Percent of boosts after which the spinner went on. `None`: there was none.
    pub useful: Option<f64>,
    /// 99th percentile from being woken until running, µs; a power of two. `None`: no wake-up.
    pub wake99: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VcpuRates {
    pub id: u32,
    pub tid: i32,
    /// -1: not known.
    pub cpu: i32,
    pub parts: Parts,
}

/// Percent of the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ThreadRates {
    pub tid: i32,
    pub name: String,
    pub run: f64,
    pub ready: f64,
}

impl Rates {
    /// VMs that one of the two samples lacks are left out.
    pub fn between(before: &Sample, now: &Sample) -> Rates {
        let seconds = (now.at_s - before.at_s).max(1e-3);
        let vm = |(place, vm): (usize, &VmSample)| {
            // VMs stand where they stood, but for those that come and go.
            let is_it = |old: &&VmSample| old.key == vm.key;
            let there = before.vms.get(place).filter(is_it);
            let old = there.or_else(|| before.vms.iter().find(is_it))?;
            Some(vm_rates(old, vm, seconds))
        };
        let yields = match (&before.baton, &now.baton) {
            (Ok(before), Ok(now)) => Some(yield_rates(before, now, seconds)),
            _ => None,
        };
        let host = host_rates(&before.host, &now.host, seconds);
        Rates { seconds, host, yields, vms: now.vms.iter().enumerate().filter_map(vm).collect() }
    }
}

fn percent(part: f64, all: f64) -> f64 {
    if all > 0.0 { 100.0 * part.max(0.0) / all } else { 0.0 }
}

fn host_rates(before: &HostSample, now: &HostSample, seconds: f64) -> HostRates {
    let grown = |of: fn(&HostSample) -> u64| of(now).saturating_sub(of(before)) as f64;
    let [busy, idle, irq, steal] =
        [grown(|h| h.busy), grown(|h| h.idle), grown(|h| h.irq), grown(|h| h.steal)];
    let all = busy + idle + irq + steal;
    let pressure = now.pressure_us.zip(before.pressure_us);
    HostRates {
        run: percent(busy, all),
        idle: percent(idle, all),
        irq: percent(irq, all),
        steal: percent(steal, all),
        pressure: pressure
            .map(|(now, before)| percent(now.saturating_sub(before) as f64, seconds * 1e6)),
    }
}

fn yield_rates(before: &Yields, now: &Yields, seconds: f64) -> YieldRates {
    let grown = |of: fn(&Yields) -> u64| of(now).saturating_sub(of(before)) as f64;
    let yields = grown(|y| y.yields);
    let turns = grown(|y| y.turns);
    YieldRates {
        yields: yields / seconds,
        obeyed: percent(grown(|y| y.obeyed), yields),
        redirected: percent(grown(|y| y.redirected), yields),
        missed: percent(grown(|y| y.missed), yields),
        refused: percent(grown(|y| y.refused), yields),
        lent: grown(|y| y.lent) / seconds,
        turns: turns / seconds,
        gangs: percent(grown(|y| y.gangs), turns),
    }
}

/// The ms that passed for what `count` vCPUs did, between two answers: by the clock of whoever
/// told, if it has one.
fn passed(before: &Times, now: &Times, count: f64, seconds: f64) -> f64 {
    let watched = now.watched.zip(before.watched).map(|(now, before)| now - before);
    watched.filter(|ms| *ms > 0.0).unwrap_or(count * seconds * 1e3)
}

/// As a part of `all`, ms.
fn parts(before: &Times, now: &Times, all: f64) -> Parts {
    let grown = |now: f64, before: f64| percent(now - before, all);
    let optional = |now: Option<f64>, before: Option<f64>| {
        now.zip(before).map(|(now, before)| grown(now, before))
    };
    let run = grown(now.ran, before.ran);
    let ready = grown(now.ready, before.ready);
    let costop = optional(now.costop, before.costop);
    let throttled = optional(now.throttled, before.throttled);
    let known = run + ready + costop.unwrap_or(0.0) + throttled.unwrap_or(0.0);
    Parts { run, ready, costop, throttled, wait: (100.0 - known).max(0.0) }
}

fn vm_rates(before: &VmSample, now: &VmSample, seconds: f64) -> VmRates {
    let count = f64::from(now.nr_vcpus.max(1));
    // The time of vCPUs that came or went is in no difference.
    let same = now.nr_vcpus == before.nr_vcpus;
    let by_clock = count * seconds * 1e3;
    let all = if same { passed(&before.times, &now.times, count, seconds) } else { by_clock };
    let by_vm = all / (count * 1e3);
    let more = now.more.as_ref().zip(before.more.as_ref()).map(|(now, before)| {
        let part = |now: f64, before: f64| percent(now - before, all);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / by_vm;
        let boosts = now.boosts.saturating_sub(before.boosts);
        let useful = now.useful.saturating_sub(before.useful);
        MoreRates {
            weight: now.weight,
            spread: now.spread,
            spin: part(now.spin_ms, before.spin_ms),
            poll: part(now.poll_ms, before.poll_ms),
            ipi_wait: (now.ipi_wait_ms - before.ipi_wait_ms).max(0.0) / by_vm,
            spins: rate(now.spins, before.spins),
            boosts: boosts as f64 / by_vm,
            useful: (boosts > 0).then(|| percent(useful as f64, boosts as f64).min(100.0)),
            wake99: wake99(&before.wakeups, &now.wakeups),
        }
    });
    let vcpu = |vcpu: &VcpuSample| {
        let old = before.vcpus.iter().find(|old| (old.id, old.tid) == (vcpu.id, vcpu.tid))?;
        let all = passed(&old.times, &vcpu.times, 1.0, seconds);
        let parts = parts(&old.times, &vcpu.times, all);
        Some(VcpuRates { id: vcpu.id, tid: vcpu.tid, cpu: vcpu.cpu, parts })
    };
    let thread = |thread: &ThreadSample| {
        let old = before.threads.iter().find(|old| old.tid == thread.tid)?;
        let part = |now: f64, before: f64| percent(now - before, seconds * 1e3);
        let (run, ready) = (part(thread.ran, old.ran), part(thread.ready, old.ready));
        Some(ThreadRates { tid: thread.tid, name: thread.name.clone(), run, ready })
    };
    VmRates {
        key: now.key.clone(),
        name: now.name.clone(),
        pid: now.pid,
        nr_vcpus: now.nr_vcpus,
        parts: parts(&before.times, &now.times, all),
        poll: now.poll,
        more,
        vcpus: now.vcpus.iter().filter_map(vcpu).collect(),
        threads: now.threads.iter().filter_map(thread).collect(),
    }
}

fn wake99(before: &[u64], now: &[u64]) -> Option<f64> {
    let earlier = before.iter().copied().chain(std::iter::repeat(0));
    let counts: Vec<u64> = now.iter().zip(earlier).map(|(n, old)| n.saturating_sub(old)).collect();
    counts.iter().any(|n| *n > 0).then(|| percentile_us(&counts, 99))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: f64, vms: Vec<VmSample>) -> Sample {
        let baton = Err("none".to_owned());
        Sample { at_s, wall_s: 0, host: HostSample::default(), baton, vms, notes: None }
    }

    fn vm(key: &str, ran: f64, ready: f64) -> VmSample {
        let costop = Some(100.0);
        let times = Times { ran, ready, costop, ..Times::default() };
        VmSample { key: key.into(), nr_vcpus: 2, times, ..VmSample::default() }
    }

    #[test]
    fn parts_are_of_the_time_of_all_vcpus() {
        let before = sample(10.0, vec![vm("a", 1000.0, 0.0), vm("gone", 0.0, 0.0)]);
        let now = sample(12.0, vec![vm("a", 3000.0, 1000.0), vm("new", 9.0, 9.0)]);
        let rates = Rates::between(&before, &now);
        assert_eq!(rates.vms.len(), 1);
        let expected =
            Parts { run: 50.0, ready: 25.0, costop: Some(0.0), throttled: None, wait: 25.0 };
        assert_eq!(rates.vms[0].parts, expected);
        assert_eq!(rates.yields, None);
    }

    #[test]
    fn threads_of_the_host_have_rates_of_their_own() {
        let thread = |tid, ran, ready| ThreadSample { tid, name: "vhost-7".into(), ran, ready };
        let with = |threads| vec![VmSample { threads, ..vm("a", 0.0, 0.0) }];
        let before = sample(1.0, with(vec![thread(8, 100.0, 5.0)]));
        let now = sample(3.0, with(vec![thread(9, 1.0, 1.0), thread(8, 1100.0, 105.0)]));
        let rates = Rates::between(&before, &now);
        let name = "vhost-7".to_owned();
        assert_eq!(rates.vms[0].threads, [ThreadRates { tid: 8, name, run: 50.0, ready: 5.0 }]);
    }

    /// A scheduler that starts again counts from 0; a clock that stands still divides by nothing.
    #[test]
    fn counters_that_fall_are_no_rates() {
        let before = sample(1.0, vec![vm("a", 5000.0, 10.0)]);
        let now = sample(1.0, vec![vm("a", 0.0, 0.0)]);
        let rates = Rates::between(&before, &now);
        assert_eq!((rates.vms[0].parts.run, rates.vms[0].parts.wait), (0.0, 100.0));
        let (before, now) = (Yields { yields: 9, ..Yields::default() }, Yields::default());
        assert_eq!(yield_rates(&before, &now, 1.0), YieldRates::default());
        assert_eq!(
            host_rates(
                &HostSample { busy: 5, ..HostSample::default() },
                &HostSample::default(),
                1.0
            )
            .run,
            0.0
        );
    }

    #[test]
    fn the_99th_percentile_is_that_of_the_wakeups_in_between() {
        assert_eq!(wake99(&[0; 32], &[0; 32]), None);
        assert_eq!(wake99(&[], &[]), None);
        let mut now = vec![0; 32];
        (now[10], now[20]) = (99, 1);
        assert_eq!(wake99(&[], &now), Some(1.024));
        assert_eq!(
            wake99(&now.clone(), &{
                now[20] = 2;
                now
            }),
            Some(1048.576)
        );
    }

    /// On a crowded host scx_baton took a third of a second longer to answer the second time: %RDY
    /// was 130.
    #[test]
    fn an_answer_that_comes_late_counts_for_the_time_that_passed() {
        let times = |ran: f64, ready: f64, watched: f64| Times {
            ran,
            ready,
            costop: Some(0.0),
            throttled: Some(0.0),
            watched: Some(watched),
        };
        let vm = |times: Times, each: Times| VmSample {
            times,
            vcpus: vec![VcpuSample { id: 0, tid: 9, cpu: 0, times: each }],
            ..vm("a", 0.0, 0.0)
        };
        let before = sample(1.0, vec![vm(times(0.0, 0.0, 500.0), times(0.0, 0.0, 250.0))]);
        let late = vm(times(520.0, 2080.0, 3100.0), times(260.0, 1040.0, 1550.0));
        let rates = Rates::between(&before, &sample(2.0, vec![late]));
        for parts in [&rates.vms[0].parts, &rates.vms[0].vcpus[0].parts] {
            assert_eq!((parts.run, parts.ready, parts.wait), (20.0, 80.0, 0.0));
        }
    }

    /// An answer in which a vCPU was missing has no such sum.
    #[test]
    fn without_the_time_of_all_vcpus_the_clock_counts() {
        let at = |ran, watched| {
            let times = Times { ran, watched, ..Times::default() };
            VmSample { times, ..vm("a", 0.0, 0.0) }
        };
        for (before, now) in [(None, Some(9e6)), (Some(9e6), None), (Some(9e6), Some(9e6))] {
            let (before, now) = (at(0.0, before), at(1000.0, now));
            let rates = Rates::between(&sample(1.0, vec![before]), &sample(2.0, vec![now]));
            assert_eq!(rates.vms[0].parts.run, 50.0);
        }
    }
}
