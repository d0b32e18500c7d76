// SPDX-License-Identifier: GPL-2.0-only
//! Random mixtures of VMs and host threads, each under EEVDF and under the scheduler in question:
//! no VM may lose what it is due, nor wake later, for another one's sake.
//!
//! A VM's *due* is the smaller of what it uses alone and its share by weight of the pCPUs where it
//! may run.

use std::fmt::Write;

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::fuzz::Simulate;
use crate::outcome::{Outcome, VmOutcome};
use crate::scenario::{Scenario, VmSpec};

/// Work of a VM relative to EEVDF's, with or without PAUSE exits, whichever is more.
const LEAST_WORK: f64 = 0.95;
/// Lateness of a VM below its due, beyond EEVDF's, ns; the median and the 99th percentile.
const LATER_NS: u64 = 10_000;
/// So many wake-ups tell the 99th percentile.
const ENOUGH_WAKES: u64 = 200;
/// A VM that uses less than this of its share alone is below its due, whatever happens beside it.
const BELOW: f64 = 0.9;

/// How late its vCPUs woke, ns: p50 and p99, under EEVDF and under the scheduler in question.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    pub fair: [u64; 2],
    pub ours: [u64; 2],
}

/// One VM beside its neighbours.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its workload, in a word.
    pub kind: String,
    /// Work relative to EEVDF's up to its due.
    pub work: f64,
    /// `None`: it sets no timer.
    pub late: Option<Late>,
    /// It uses less than its share.
    pub below: bool,
}

impl Row {
    /// What is wrong, in one line.
    fn broken(&self) -> Option<String> {
        if self.work < LEAST_WORK {
            return Some(format!("{} does {:.2} of its work under EEVDF", self.kind, self.work));
        }
        let Late { fair, ours: late } = self.late.filter(|_| self.below)?;
        let [p50, p99] = [0, 1].map(|at| late[at] > fair[at] + LATER_NS);
        let us = |ns: u64| ns as f64 / 1e3;
        (p50 || p99).then(|| {
            format!(
                "{} wakes {:.0} us late (p99 {:.0}), under EEVDF {:.0} ({:.0})",
                self.kind,
                us(late[0]),
                us(late[1]),
                us(fair[0]),
                us(fair[1])
            )
        })
    }
}

/// One mixture.
#[derive(Clone, Debug)]
pub struct Mixture {
    pub text: String,
    pub rows: Vec<Row>,
    pub events: u64,
}

impl Mixture {
    /// What breaks a bound.
    pub fn broken(&self) -> Vec<String> {
        let of_vm =
            |(place, row): (usize, &Row)| row.broken().map(|why| format!("VM {place}: {why}"));
        self.rows.iter().enumerate().filter_map(of_vm).collect()
    }
}

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

/// The mixture of a seed, as a person would write it.
pub fn generate(seed: u64) -> String {
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
    out
}

/// What each VM may have of the host at least, in pCPUs: of each pCPU where its vCPUs may run its
/// part by weight, as if all who may run there wanted to.
fn shares(scenario: &Scenario, pcpus: usize) -> Vec<f64> {
    // A VM without a cgroup of its own is worth as much as another one, however many vCPUs it has.
    let own = |vm: &VmSpec| f64::from(vm.weight);
    let goes = |vm: &VmSpec, cpu: usize| !vm.pin || cpu < vm.vcpus as usize;
    let threads = |cpu: usize| {
        let here = scenario
            .threads
            .iter()
            .filter(|thread| thread.cpu.is_none_or(|only| only as usize == cpu));
        here.map(|thread| 100.0 * f64::from(thread.count)).sum::<f64>()
    };
    let all = |cpu: usize| {
        let vms = scenario.vms.iter().filter(|vm| goes(vm, cpu));
        vms.map(own).sum::<f64>() + threads(cpu)
    };
    let share = |vm: &VmSpec| {
        let cpus = (0..pcpus).filter(|cpu| goes(vm, *cpu));
        cpus.map(|cpu| own(vm) / all(cpu)).sum::<f64>().min(f64::from(vm.vcpus))
    };
    scenario.vms.iter().map(share).collect()
}

/// What it is, in a few words.
fn kind(vm: &VmSpec) -> String {
    let steps = vm.programs.first().map(|task| task.program.join(", "));
    let what = vm.workload.clone().or(steps).unwrap_or_default();
    let pinned = if vm.pin { "pinned, " } else { "" };
    format!("{} vCPUs ({pinned}weight {}, {what})", vm.vcpus, vm.weight)
}

fn late(vm: &VmOutcome) -> Option<[u64; 2]> {
    vm.lateness.as_ref().filter(|late| late.count >= ENOUGH_WAKES).map(|late| [late.p50, late.p99])
}

/// Simulates the mixture of a seed under `scheduler`, under EEVDF with and without PAUSE exits, and
/// each VM alone.
///
/// Errors: one of them broke an invariant.
pub fn mixture(seed: u64, scheduler: &str, simulate: Simulate) -> Result<Mixture, String> {
    measure(generate(seed), scheduler, simulate)
}

/// The same for a mixture's text.
///
/// Errors: as above; it is no scenario.
pub fn measure(text: String, scheduler: &str, simulate: Simulate) -> Result<Mixture, String> {
    let scenario = Scenario::parse(&text, &[]).map_err(|error| format!("{error:#}"))?;
    let under = |scheduler: &str, ple: bool, text: &str| -> Result<Outcome, String> {
        let text = text.replace("[kvm]\n", &format!("[kvm]\nple = {ple}\n"));
        simulate(&format!("scheduler = \"{scheduler}\"\n{text}"))
    };
    let ours = under(scheduler, true, &text)?;
    let fair = [under("eevdf", true, &text)?, under("eevdf", false, &text)?];
    let mut events = ours.events + fair[0].events + fair[1].events;
    let tables: Vec<&str> = text.split("\n[[").collect();
    let shares = shares(&scenario, ours.pcpus);
    let mut rows = Vec::new();
    for (place, spec) in scenario.vms.iter().enumerate() {
        // Its own tables: up to the next VM or thread.
        let starts = |table: &&&str| table.starts_with("vm]]");
        let first = tables.iter().enumerate().filter(|(_, table)| starts(table)).nth(place);
        let from = first.map_or(0, |(at, _)| at);
        let own: Vec<&str> = tables[from..=from + spec.programs.len()].to_vec();
        let alone = under("eevdf", true, &format!("{}\n[[{}", tables[0], own.join("\n[[")))?;
        events += alone.events;
        let alone = alone.vms[0].used;
        let due = alone.min(shares[place]);
        let best =
            fair.iter().map(|fair| &fair.vms[place]).max_by(|a, b| a.rate.total_cmp(&b.rate));
        let (Some(best), vm) = (best, &ours.vms[place]) else { continue };
        let up_to = if best.used > due { due / best.used } else { 1.0 };
        let work = if best.rate > 0.0 { vm.rate / (best.rate * up_to) } else { 1.0 };
        rows.push(Row {
            kind: kind(spec),
            work,
            late: late(&fair[0].vms[place]).zip(late(vm)).map(|(fair, ours)| Late { fair, ours }),
            below: alone < BELOW * shares[place],
        });
    }
    Ok(Mixture { text, rows, events })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::in_process;

    #[test]
    fn every_mixture_is_a_scenario() {
        for seed in 0..300 {
            let text = generate(seed);
            if let Err(error) = Scenario::parse(&format!("scheduler = \"eevdf\"\n{text}"), &[]) {
                panic!("{error:#}\n{text}");
            }
        }
    }

    #[test]
    fn a_share_is_by_weight_where_the_vm_may_run() {
        let text = "machine = \"xeon-8\"\npcpus = 2\nscheduler = \"eevdf\"\n\
                    [[vm]]\nvcpus = 2\npin = true\nworkload = \"compute\"\n\
                    [[vm]]\nvcpus = 1\nweight = 300\nworkload = \"compute\"\n\
                    [[thread]]\nrun-us = 1\ncpu = 1\n";
        let scenario = Scenario::parse(text, &[]).unwrap();
        let got = shares(&scenario, 2);
        // A quarter of pCPU 0 and a fifth of pCPU 1; the other could have 1.35, but has one vCPU.
        assert!((got[0] - 0.45).abs() < 1e-9 && (got[1] - 1.0).abs() < 1e-9, "{got:?}");
    }

    /// First come, first served, with slices of 20 ms: who sleeps wakes late, and is found out.
    #[test]
    fn a_scheduler_that_lets_wakers_wait_is_found_out() {
        let fifo = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/fifo.bpf.c");
        let text = "machine = \"xeon-8\"\npcpus = 2\nseconds = 0.5\nwarmup = 0.5\n\n[kvm]\n\n\
                    [[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"sleep 1ms\", \"compute 10us\", \
                    \"done\"]\n\n[[vm]]\nvcpus = 4\nworkload = \"compute\"\n";
        let found = measure(text.into(), fifo, &in_process).expect("it keeps all invariants");
        let broken = found.broken();
        assert!(broken.iter().any(|why| why.starts_with("VM 0")), "{found:?}");
        let fair = measure(text.into(), "eevdf", &in_process).expect("EEVDF does");
        assert!(fair.broken().is_empty(), "{fair:?}");
    }
}
