// SPDX-License-Identifier: GPL-2.0-only
//! The mixture of a seed, drawn.

use std::fmt::Write;

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

struct Dice(Xoshiro256PlusPlus);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// From `least` to `most`, each octave as likely, by integers alone.
    fn octaves(&mut self, least: u64, most: u64) -> u64 {
        let octaves = u64::from((most / least).ilog2());
        let low = least << self.below(octaves + 1);
        (low + self.below(low)).min(most)
    }
}

/// One VM's table, but for its cgroup.
fn vm(dice: &mut Dice, pcpus: u64) -> String {
    let program = |vcpus: u64, steps: &str| {
        format!("vcpus = {vcpus}\n[[vm.task]]\ncount = {vcpus}\nprogram = [{steps}, \"done\"]\n")
    };
    let few = 1 + dice.below(pcpus.min(4));
    let all = if dice.chance(70) { pcpus } else { 1 + dice.below(pcpus) };
    match dice.below(10) {
        0..4 => {
            let sleep = dice.octaves(20, 50_000);
            let run = dice.octaves(2, 200).min(sleep / 2);
            program(few, &format!("\"sleep {sleep}us ±20%\", \"compute {run}us ±20%\""))
        }
        4 => {
            let (run, io) = (dice.octaves(10, 100), dice.octaves(50, 500));
            program(few, &format!("\"compute {run}us ±20%\", \"io {io}us\""))
        }
        5..7 => format!("vcpus = {all}\nworkload = \"compute\"\n"),
        _ => {
            let gang = dice.one_of(&["barrier", "barrier-pause", "lock", "mutex", "ebizzy"]);
            format!("vcpus = {all}\nworkload = \"{gang}\"\n")
        }
    }
}

/// A table of host threads that compute, or sleep and wake.
fn threads(dice: &mut Dice, pcpus: u64) -> String {
    let count = 1 + dice.below(pcpus.min(8));
    let (run, sleep) = match dice.below(10) {
        0..3 => (1_000, 0),
        _ => {
            let sleep = dice.octaves(20, 50_000);
            (dice.octaves(2, 500).min(sleep / 2), sleep)
        }
    };
    let cpu =
        if dice.chance(40) { format!("cpu = {}\n", dice.below(pcpus)) } else { String::new() };
    format!("count = {count}\nrun-us = {run}\nsleep-us = {sleep}\nspread = 0.2\n{cpu}")
}

/// What is beside the VMs of a seed, or changes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct With {
    /// More host threads.
    pub host_threads: bool,
    /// The same VMs and threads, but some may run on some pCPUs alone.
    pub cpusets: bool,
}

/// A part of the host, as `cpus` names it: half of the pCPUs, a quarter, and so on, or any of them.
fn cpuset(dice: &mut Dice, pcpus: u64) -> String {
    let any = dice.chance(20);
    let size = if any { 1 + dice.below(pcpus) } else { (pcpus >> (1 + dice.below(3))).max(1) };
    let first = if any { dice.below(pcpus - size + 1) } else { size * dice.below(pcpus / size) };
    format!("cpus = \"{first}-{}\"\n", first + size - 1)
}

/// Half of the VMs and of the threads that may run anywhere are confined to a part of the host.
fn confine(seed: u64, text: &str) -> String {
    let pcpus = text.lines().find_map(|line| line.strip_prefix("pcpus = ")?.parse().ok());
    let pcpus: u64 = pcpus.unwrap_or(1);
    // Others than those that draw the VMs, which are the same without.
    let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(!seed));
    let mut tables = text.split("\n[[");
    let mut out = tables.next().unwrap_or_default().to_string();
    for table in tables {
        let (name, rest) = table.split_once('\n').unwrap_or((table, ""));
        let bound = rest.lines().any(|line| line == "pin = true" || line.starts_with("cpu = "));
        let confined = name != "vm.task]]" && !bound && pcpus > 1 && dice.chance(50);
        let cpus = if confined { cpuset(&mut dice, pcpus) } else { String::new() };
        let _ = write!(out, "\n[[{name}\n{cpus}{rest}");
    }
    out
}

/// The mixture of a seed, as a person would write it.
pub fn generate(seed: u64, with: With) -> String {
    let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(seed));
    let (machine, pcpus) = dice.one_of(&[
        ("xeon-8", 1),
        ("xeon-8", 2),
        ("xeon-8", 2),
        ("xeon-8", 4),
        ("xeon-8", 4),
        ("xeon-8", 8),
        ("cascade-lake-96", 8),
        ("xeon-16", 16),
        ("cascade-lake-96", 64),
    ]);
    let own = dice.chance(60);
    let mut out = format!(
        "machine = \"{machine}\"\npcpus = {pcpus}\nseed = {seed}\nseconds = 1.0\nwarmup = 0.9\n\n\
         [kvm]\nple-user = {}\n",
        dice.chance(20)
    );
    let mut vcpus = 0;
    let most = pcpus * (1 + dice.below(4));
    while vcpus == 0 || (vcpus < most && out.matches("[[vm]]").count() < 6) {
        let table = vm(&mut dice, pcpus);
        let n = table.strip_prefix("vcpus = ").and_then(|rest| rest.lines().next());
        vcpus += n.and_then(|n| n.parse::<u64>().ok()).unwrap_or(1);
        let _ = writeln!(out, "\n[[vm]]\nown-cgroup = {own}");
        if own && dice.chance(15) {
            let _ = writeln!(out, "weight = {}", dice.one_of(&[20, 50, 200, 1000]));
        }
        if dice.chance(15) {
            let _ = writeln!(out, "pin = true");
        }
        out += &table;
    }
    // A busy thread, bound or not; or one of I/O.
    if dice.chance(35) {
        let cpu = dice.chance(60).then(|| format!("cpu = {}\n", dice.below(pcpus)));
        let sleep = if dice.chance(50) { 0 } else { dice.octaves(50, 5_000) };
        let run = if sleep == 0 { 1_000 } else { dice.octaves(5, 100) };
        let _ = writeln!(
            out,
            "\n[[thread]]\nrun-us = {run}\nsleep-us = {sleep}\n{}",
            cpu.unwrap_or_default()
        );
    }
    if with.host_threads {
        for _ in 0..1 + dice.below(4) {
            let _ = writeln!(out, "\n[[thread]]\n{}", threads(&mut dice, pcpus));
        }
    }
    if with.cpusets { confine(seed, &out) } else { out }
}
