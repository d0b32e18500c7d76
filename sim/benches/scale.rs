// SPDX-License-Identifier: GPL-2.0-only
//! How fast the simulator is: events a second with more and more vCPUs, beside a plain event loop
//! with a binary heap, which does nothing else, and SimPy with the same pattern. `make bench-sim`.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use baton_sim::outcome::{short, simulate};
use baton_sim::scenario::load;

const ROUNDS: usize = 3;

fn main() -> Result<()> {
    println!("| scenario | vCPUs | events | simulated s per s | events/s | RSS, MiB |");
    println!("|---|---:|---:|---:|---:|---:|");
    // Ten simulated seconds would show the same; a machine whose speed drifts is better asked
    // often.
    for (vcpus, pcpus, seconds) in
        [(24, 24, "1.0"), (96, 96, "0.5"), (384, 384, "0.1"), (1024, 1024, "0.04")]
    {
        let machine = std::env::temp_dir().join(format!("scale-{pcpus}.toml"));
        let machines = baton_sim::scenario::MACHINES.iter();
        let text = machines.filter(|(name, _)| *name == "cascade-lake-96").map(|(_, text)| *text);
        let text: String = text.collect();
        // The same machine with more cores.
        std::fs::write(&machine, text.replace("cores = 24", &format!("cores = {}", pcpus / 4)))?;
        let changes = [
            ("machine", machine.display().to_string()),
            ("vm.0.vcpus", vcpus.to_string()),
            ("vm.0.tasks", vcpus.to_string()),
            ("seconds", seconds.to_string()),
            ("warmup", "0.1".to_string()),
        ];
        let changes: Vec<(String, String)> =
            changes.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
        let scenario = load("scale-4x96", &changes)?;
        let mut best: Option<(f64, String)> = None;
        for _ in 0..ROUNDS {
            let (outcome, speed) = simulate(&scenario)?;
            let line = format!(
                "| 4 VMs on {pcpus} pCPUs | {} | {} | {:.2} | {} | {:.0} |",
                4 * vcpus,
                outcome.events,
                outcome.sim_s / speed.wall_s,
                short(speed.events_per_s),
                speed.peak_rss_mib
            );
            if best.as_ref().is_none_or(|(rate, _)| speed.events_per_s > *rate) {
                best = Some((speed.events_per_s, line));
            }
        }
        println!("{}", best.map(|(_, line)| line).unwrap_or_default());
    }
    let rate = (0..ROUNDS).map(|_| heap(384, 5_000_000)).fold(0.0, f64::max);
    println!("| a heap, nothing else | 384 pending | 5000000 | | {} | |", short(rate));
    match simpy() {
        Some(rate) => println!("| SimPy, the same | 384 pending | 200000 | | {rate} | |"),
        None => eprintln!("SimPy is not measured: python3 has no module simpy (pip install simpy)"),
    }
    Ok(())
}

/// As many timers pending as there are vCPUs; each starts its next one.
fn heap(pending: u64, events: u64) -> f64 {
    let mut heap: BinaryHeap<Reverse<(u64, u64)>> = (0..pending).map(|i| Reverse((i, i))).collect();
    let (mut state, mut sum) = (0x9e37_79b9_7f4a_7c15u64, 0);
    let start = Instant::now();
    for _ in 0..events {
        if let Some(Reverse((now, who))) = heap.pop() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            sum += who;
            heap.push(Reverse((now + 1 + state % 50_000, who)));
        }
    }
    std::hint::black_box(sum);
    events as f64 / start.elapsed().as_secs_f64()
}

fn simpy() -> Option<String> {
    let script = "\
import simpy, random, time
random.seed(1)
env = simpy.Environment()
left = 200000
def vcpu():
    global left
    while left > 0:
        left -= 1
        yield env.timeout(1 + random.random() * 50000)
for _ in range(384):
    env.process(vcpu())
start = time.perf_counter()
env.run()
print(round(200000 / (time.perf_counter() - start)))";
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(python).args(["-c", script]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
