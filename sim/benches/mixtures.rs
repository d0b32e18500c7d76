// SPDX-License-Identifier: GPL-2.0-only
//! Halt polling on random mixtures: a VM of four vCPUs, each with a task that computes and sleeps
//! for lengths of its own, alone on four pCPUs or beside a VM that wants all of them. `make
//! bench-halt-poll`.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use anyhow::{Context, Result};
use baton_report::stats::median;
use baton_sim::outcome::simulate;
use baton_sim::scenario::Scenario;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const MIXTURES: u64 = 40;

/// The first is what the others are measured against: it knows when the sleep will end.
const POLICIES: [(&str, &str); 5] = [
    ("clairvoyant, HLTs of up to 1 ms", "{ clairvoyant = 1000000 }"),
    ("off", "\"off\""),
    ("KVM's default, up to 200 µs", "{ adaptive = 200000 }"),
    ("governor, 10 % of the host (0.4 pCPUs)", "{ governed = 0.1 }"),
    ("governor, 50 % of the host (2 pCPUs)", "{ governed = 0.5 }"),
];

fn scenario(seed: u64, crowded: bool, polls: &str) -> String {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut text = format!(
        "machine = \"xeon-2014\"\npcpus = 4\nscheduler = \"scx_baton\"\nwarmup = 10.0\nseconds = 2.0\n\
         seed = {seed}\n[kvm]\nhalt-poll = {polls}\n[[vm]]\nvcpus = 4\n"
    );
    for _ in 0..4 {
        let mut unit = || (dice.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let run = (10.0 + 190.0 * unit()) as u32;
        // 5 µs to 5 ms.
        let sleep = 10f64.powf(0.7 + 3.0 * unit());
        let spread = (95.0 * unit()) as u32;
        text += &format!(
            "[[vm.task]]\nprogram = [\"compute {run}us\", \"sleep {sleep:.1}us ±{spread}%\", \"done\"]\n"
        );
    }
    if crowded {
        text += "[[vm]]\nvcpus = 4\nworkload = \"compute\"\n";
    }
    text
}

fn main() -> Result<()> {
    for crowded in [false, true] {
        println!("{MIXTURES} mixtures, {}", if crowded { "2:1" } else { "1:1" });
        println!("| | work of the clairvoyant's: median | least | polled, pCPUs: median | most |");
        println!("|---|---:|---:|---:|---:|");
        let mut best = Vec::new();
        for (name, polls) in POLICIES {
            let (mut shares, mut polled) = (Vec::new(), Vec::new());
            for seed in 0..MIXTURES {
                let text = scenario(seed, crowded, polls);
                let outcome = simulate(&Scenario::parse(&text, &[])?)?.0;
                let vm = outcome.vms.first().context("no VM")?;
                if best.len() < MIXTURES as usize {
                    best.push(vm.rate);
                }
                shares.push(vm.rate / best[seed as usize]);
                polled.push(vm.polling);
            }
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            let most = polled.iter().copied().fold(0.0, f64::max);
            let (share, time) = (median(&shares), median(&polled));
            let (share, time) = share.zip(time).context("no mixture")?;
            println!("| {name} | {share:.3} | {least:.3} | {time:.3} | {most:.3} |");
        }
    }
    Ok(())
}
