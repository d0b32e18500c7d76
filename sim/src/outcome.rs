// SPDX-License-Identifier: GPL-2.0-only
//! What a simulation found out.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use anyhow::{Result, ensure};
use baton_report::columns::aligned;
use baton_report::stats::jain;
use serde::{Deserialize, Serialize};

use crate::machine::NONE;
use crate::scenario::Scenario;
use crate::sim::Sim;
use crate::trace::Trace;

/// Latencies, ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    pub count: u64,
    pub mean: f64,
    pub stdev: f64,
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// One VM, since the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmOutcome {
    pub vcpus: u32,
    /// Units of its workload a second.
    pub rate: f64,
    /// pCPUs that it used, and that its vCPUs waited for.
    pub used: f64,
    pub ready: f64,
    pub ple_exits_per_s: f64,
    pub yields_per_s: f64,
    pub ipis_per_s: f64,
    pub halts_per_s: f64,
    /// Starts of its vCPUs on another pCPU: of the same core, of the same last-level cache, of the
    /// same node, of another node.
    #[serde(default)]
    pub moves_per_s: [f64; 4],
    /// Of all polls at HLT, those that an interrupt ended.
    pub polls_hit: Option<f64>,
    /// pCPUs that it spent polling at HLT, and spinning in the guest.
    pub polling: f64,
    pub spinning: f64,
    /// By how much CPU time its vCPUs are apart since the start, ms; what runs is counted when it
    /// stops.
    pub skew_ms: f64,
    /// How late its timers' tasks ran; `None` without timers.
    pub lateness: Option<Lateness>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub scheduler: String,
    pub pcpus: usize,
    pub sim_s: f64,
    pub events: u64,
    pub vms: Vec<VmOutcome>,
    /// Of the VMs' rates.
    pub jain: Option<f64>,
    /// The longest that a thread waited for a pCPU, ms.
    pub longest_wait_ms: f64,
    /// pCPUs that waited for locks of runqueues and of dispatch queues (`Costs::lock_ns`).
    #[serde(default)]
    pub lock_waits: f64,
    /// Rounds a second of each thread of the host.
    pub threads: Vec<f64>,
    /// CPU time of each, in pCPUs.
    #[serde(default)]
    pub threads_used: Vec<f64>,
    /// Starts of the host's threads on another pCPU, as [`VmOutcome::moves_per_s`].
    #[serde(default)]
    pub thread_moves_per_s: [f64; 4],
    pub scheduler_counters: Vec<(String, u64)>,
    /// Keys of the scenario (`vm.0.weight`) that the scheduler knows nothing of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// What it took; never the same twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    pub wall_s: f64,
    pub events_per_s: f64,
    pub peak_rss_mib: f64,
}

/// What else a simulation is to do.
#[derive(Default)]
pub struct Watch {
    /// A trace of everything, for the Perfetto UI.
    pub trace: Option<Box<dyn Write>>,
    /// Counts events.
    pub beat: Option<Arc<AtomicU64>>,
}

/// Simulates a scenario.
///
/// Errors: it cannot be built, the scheduler breaks a rule, an invariant does not hold, or it was
/// interrupted.
pub fn simulate(scenario: &Scenario) -> Result<(Outcome, Speed)> {
    simulate_watched(scenario, Watch::default()).map(|(outcome, speed, _)| (outcome, speed))
}

/// The same, watched; and whether the trace had to leave something out.
///
/// Errors: as [`simulate`], or the trace cannot be written. Of a simulation that failed the trace
/// is whole up to there.
pub fn simulate_watched(scenario: &Scenario, watch: Watch) -> Result<(Outcome, Speed, bool)> {
    let mut sim = scenario.build()?;
    sim.beat = watch.beat;
    let vm_of = |vm: usize, task: u32| format!("VM {vm} vCPU {}", task - sim.vms[vm].first);
    let name = |task: u32| match sim.m.task(task).vm {
        NONE => format!("host thread {task}"),
        vm => vm_of(vm as usize, task),
    };
    if let Some(out) = watch.trace {
        let names = (0..sim.m.tasks.len() as u32).map(name).collect();
        sim.trace = Some(Trace::new(out, sim.m.cpus.len(), names));
    }
    let start = Instant::now();
    let result = sim.run();
    // Also of a simulation that failed: that is when one wants to see it.
    let cut = sim.trace.take().map_or(Ok(false), Trace::end)?;
    result?;
    // Throttled tasks wait while pCPUs are idle, rightly.
    let quotas = !scenario.weights_and_quotas().1.is_empty();
    let forgotten = if quotas { 0 } else { sim.forgotten() };
    ensure!(
        forgotten == 0,
        "the scheduler has lost all its tasks: at the end {forgotten} are runnable and every pCPU is \
         idle"
    );
    let wall_s = start.elapsed().as_secs_f64();
    let outcome = outcome(scenario, &sim);
    let speed = speed(&outcome, wall_s);
    Ok((outcome, speed, cut))
}

fn speed(outcome: &Outcome, wall_s: f64) -> Speed {
    let events_per_s = outcome.events as f64 / wall_s;
    Speed { wall_s, events_per_s, peak_rss_mib: peak_rss_mib() }
}

fn peak_rss_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

fn outcome(scenario: &Scenario, sim: &Sim) -> Outcome {
    let seconds = scenario.seconds;
    let vms: Vec<VmOutcome> = (0..sim.vms.len())
        .map(|vm| {
            let counts = &sim.counts[vm];
            let (ran, waited) = sim.used(vm);
            let per_s = |count: u64| count as f64 / seconds;
            let share = |ns: u64| ns as f64 / 1e9 / seconds;
            let polls = counts.polls_hit + counts.polls_missed;
            let late = &sim.lateness[vm];
            VmOutcome {
                vcpus: sim.vms[vm].n,
                rate: per_s(sim.vms[vm].done - counts.done),
                used: share(ran - counts.ran),
                ready: share(waited - counts.waited),
                ple_exits_per_s: per_s(counts.ple_exits),
                yields_per_s: per_s(counts.yields),
                ipis_per_s: per_s(counts.ipis),
                halts_per_s: per_s(counts.halts),
                moves_per_s: counts.moves.map(per_s),
                polls_hit: (polls > 0).then(|| counts.polls_hit as f64 / polls as f64),
                polling: share(counts.poll_ns),
                spinning: share(counts.spin_ns),
                skew_ms: sim.skew(vm) as f64 / 1e6,
                lateness: (!late.is_empty()).then(|| Lateness {
                    count: late.len(),
                    mean: late.mean(),
                    stdev: late.stdev(),
                    p50: late.value_at_quantile(0.5),
                    p99: late.value_at_quantile(0.99),
                    p999: late.value_at_quantile(0.999),
                    max: late.max(),
                }),
            }
        })
        .collect();
    Outcome {
        scheduler: scenario.scheduler.clone(),
        pcpus: sim.m.cpus.len(),
        sim_s: scenario.warmup + seconds,
        events: sim.events,
        jain: (vms.len() > 1)
            .then(|| jain(&vms.iter().map(|vm| vm.rate).collect::<Vec<_>>()))
            .flatten(),
        vms,
        longest_wait_ms: sim.longest_wait() as f64 / 1e6,
        lock_waits: sim.m.locks.total() as f64 / 1e9 / seconds,
        threads: sim.threads.iter().map(|thread| thread.done as f64 / seconds).collect(),
        threads_used: (0..sim.threads.len())
            .map(|thread| sim.used_by_thread(thread) as f64 / 1e9 / seconds)
            .collect(),
        thread_moves_per_s: sim.thread_moves.map(|moves| moves as f64 / seconds),
        scheduler_counters: sim
            .scheduler_counters()
            .into_iter()
            .map(|(name, count)| (name.to_string(), count))
            .collect(),
        ignored: {
            let (heeds, (weights, quotas)) = (sim.heeds(), scenario.weights_and_quotas());
            let of = |heeded: bool, keys| if heeded { Vec::new() } else { keys };
            let policy = scenario.yield_policy.as_ref().map(|_| "yield-policy".to_string());
            let policy = policy.filter(|_| scenario.scheduler != "scx_baton");
            let policy = policy.into_iter().collect();
            [of(heeds.weights, weights), of(heeds.quotas, quotas), policy].concat()
        },
    }
}

impl Outcome {
    /// Of all VMs, a second.
    pub fn rate(&self) -> f64 {
        // The sum of none is -0.
        self.vms.iter().map(|vm| vm.rate).sum::<f64>() + 0.0
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut rows = vec![
            [
                "VM",
                "vCPUs",
                "work/s",
                "used",
                "ready",
                "spin",
                "PLE/s",
                "yields/s",
                "IPIs/s",
                "halts/s",
                "polls",
                "late p50 µs",
                "p99",
            ]
            .map(String::from)
            .to_vec(),
        ];
        for (vm, o) in self.vms.iter().enumerate() {
            let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
            let late = o.lateness.as_ref();
            rows.push(vec![
                vm.to_string(),
                o.vcpus.to_string(),
                short(o.rate),
                format!("{:.2}", o.used),
                format!("{:.2}", o.ready),
                format!("{:.2}", o.spinning),
                short(o.ple_exits_per_s),
                short(o.yields_per_s),
                short(o.ipis_per_s),
                short(o.halts_per_s),
                format!("{:.3}", o.polling),
                late.map_or("–".into(), |late| us(late.p50)),
                late.map_or("–".into(), |late| us(late.p99)),
            ]);
        }
        let mut out = aligned(&rows, false);
        out += "used, ready, spin, polls: in pCPUs\n";
        let jain = self.jain.map_or(String::new(), |jain| format!(", Jain {jain:.3}"));
        out += &format!("all VMs: {}/s{jain}\n", short(self.rate()));
        if self.lock_waits > 0.0 {
            out += &format!("waiting for locks: {:.2} pCPUs\n", self.lock_waits);
        }
        out
    }
}

/// Three digits, or all of the integer.
pub fn short(value: f64) -> String {
    if value >= 100.0 || value == 0.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}
