// SPDX-License-Identifier: GPL-2.0-only
//! Random scenarios with faults, under a scheduler that must keep all invariants. A failure is made
//! smaller as long as it stays one.

use std::fmt::Write;

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use toml::{Table, Value};

use crate::outcome::Outcome;
use crate::scenario::{FaultSpec, Scenario, Text};
use crate::sweep;

/// What went wrong, and the smallest scenario that was found to do it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub why: String,
    pub scenario: String,
}

/// A VM that always has enough to do gets its share within this, with Baton.
const SHARE_BOUND: f64 = 0.1;

struct Dice(Xoshiro256PlusPlus);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The scenario of a seed, as a person would write it.
pub fn generate(seed: u64, scheduler: &str) -> String {
    let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(seed));
    let machine = dice.one_of(&[
        "xeon-8",
        "cascade-lake-96",
        "xeon-x7560",
        "rome-192",
        "ryzen-16",
        "rome-256",
        "genoa-384",
    ]);
    let pcpus = 1 + if dice.chance(80) { dice.below(8) } else { dice.below(32) };
    let pcpus = match machine {
        "xeon-8" => pcpus.min(8),
        "ryzen-16" => pcpus.min(16),
        _ => pcpus,
    };
    let seconds = 0.1 + dice.below(15) as f64 * 0.1;
    let warmup = dice.one_of(&["0.05", "0.05", "0.9"]);
    let mut out = format!(
        "machine = \"{machine}\"\npcpus = {pcpus}\nscheduler = \"{scheduler}\"\nseed = {seed}\n\
         seconds = {seconds}\nwarmup = {warmup}\ncheck-every = {}\n",
        1 + dice.below(64)
    );
    let polls =
        ["\"off\"", "{ fixed = 200000 }", "{ adaptive = 200000 }", "{ clairvoyant = 50000 }"];
    let _ = writeln!(
        out,
        "\n[kvm]\nple = {}\nple-user = {}\non-spin = \"{}\"\nhalt-poll = {}\nposted = {}\nmissed-events = {}",
        dice.chance(85),
        dice.chance(30),
        dice.one_of(&["last-boosted", "eligible", "kernel", "pending-interrupt", "ipi-pairs"]),
        dice.one_of(&polls),
        dice.chance(50),
        if dice.chance(20) { dice.below(100) as f64 / 100.0 } else { 0.0 }
    );
    let mut threads = 0;
    let vms = 1 + dice.below(4);
    for _ in 0..vms {
        let vcpus = 1 + dice.below(pcpus + 2).min(15);
        out += &a_vm(&mut dice, pcpus, vcpus);
        threads += vcpus;
    }
    for _ in 0..dice.below(4) {
        out += &a_thread(&mut dice, pcpus);
    }
    let end_ms = (seconds * 1000.0) as u64;
    if dice.chance(60) {
        let of = Counts { pcpus, vms, threads };
        for _ in 0..dice.below(12) {
            let at = 1 + dice.below(end_ms + 50);
            let what = a_fault(&mut dice, &of, at);
            let _ = writeln!(out, "\n[[fault]]\nat-ms = {at}\n{what}");
        }
    }
    // Nobody waits for more than a second, plus four turns of everybody; what ran ahead of its
    // quota may wait for 3 s more. With 0.5 s one scenario of 12,000 broke this: threads of
    // SCHED_IDLE, and VMs with 4 to 16 vCPUs for each pCPU where they may run.
    let crowd = (threads + 12) as f64 / pcpus as f64;
    let throttled = if out.contains("cpu-max") { 3.0 } else { 0.0 };
    format!("starvation-s = {:.2}\n{out}", 1.0 + 0.1 * crowd + throttled)
}

fn a_vm(dice: &mut Dice, pcpus: u64, vcpus: u64) -> String {
    let mut out = String::new();
    let workload = dice.one_of(&[
        "compute",
        "barrier",
        "barrier-pause",
        "lock",
        "mutex",
        "ebizzy",
        "kernbench",
        "sysbench-oltp",
        "hackbench",
        "pbzip2",
        "o-dsync",
        "timer",
        "idle",
    ]);
    let _ = writeln!(
        out,
        "\n[[vm]]\nvcpus = {vcpus}\nworkload = \"{workload}\"\nweight = {}\npin = {}",
        if dice.chance(70) { 100 } else { 20 + dice.below(400) },
        dice.chance(10)
    );
    if dice.chance(20) {
        let _ = writeln!(out, "cpus = \"{}\"", places(dice, pcpus));
    }
    if dice.chance(15) {
        let _ = writeln!(out, "cpu-max = {}", quota(dice, vcpus));
    }
    let _ = writeln!(
        out,
        "guest = {{ lock = \"{}\", pv-ipi = {}, pv-tlb-flush = {}, sched-yield = {}, kick-yields = {}, \
         idle-poll = {} }}",
        dice.one_of(&["test-and-set", "ticket", "queued", "pv-queued"]),
        dice.chance(50),
        dice.chance(50),
        dice.chance(50),
        dice.chance(50),
        dice.chance(10)
    );
    out
}

fn a_thread(dice: &mut Dice, pcpus: u64) -> String {
    let mut out = String::new();
    let at = match dice.below(10) {
        0..3 => format!("\ncpu = {}", dice.below(pcpus)),
        3 => format!("\ncpus = \"{}\"", places(dice, pcpus)),
        _ => String::new(),
    };
    let own = dice.chance(20);
    let count = 1 + dice.below(3);
    let run = 10 + dice.below(5000);
    let _ = writeln!(
        out,
        "\n[[thread]]\ncount = {count}\nrun-us = {run}\nsleep-us = {}\nown-cgroup = {own}{at}",
        if dice.chance(30) { 0 } else { 50 + dice.below(20_000) },
    );
    if own && dice.chance(30) {
        let _ = writeln!(out, "cpu-max = {}", quota(dice, 1));
    }
    if dice.chance(10) {
        let _ = writeln!(out, "sched-idle = true");
    }
    // Without a throw of its own: what else a seed gives stays as it was.
    if run.is_multiple_of(6) {
        let _ = writeln!(out, "processes = true");
    }
    out
}

/// What there is of each.
struct Counts {
    pcpus: u64,
    vms: u64,
    /// vCPUs.
    threads: u64,
}

/// One at `at` ms, and perhaps what takes it back.
fn a_fault(dice: &mut Dice, of: &Counts, at: u64) -> String {
    match dice.below(10) {
        0..3 => {
            let cpu = dice.below(of.pcpus);
            let back = at + 1 + dice.below(100);
            format!("offline = {cpu}\n\n[[fault]]\nat-ms = {back}\nonline = {cpu}")
        }
        3 => format!("vm-ends = {}\nexit-ms = {}", dice.below(of.vms), dice.below(40)),
        4 => format!("clock-jump-us = {}", dice.below(40_000) as i64 - 20_000),
        5 if dice.chance(50) => {
            let quota = quota(dice, 4);
            format!("vm = {}\ncpu-max = {quota}", dice.below(of.vms))
        }
        5 if dice.chance(20) => format!("vm = {}\nleaves-guest = true", dice.below(of.vms)),
        5 => format!("vm = {}\nweight = {}", dice.below(of.vms), 20 + dice.below(400)),
        _ => {
            let cpus: Vec<String> =
                (0..1 + dice.below(3)).map(|_| dice.below(of.pcpus).to_string()).collect();
            format!("task = {}\ncpus = [{}]", dice.below(of.threads), cpus.join(", "))
        }
    }
}

/// A cpuset.
fn places(dice: &mut Dice, pcpus: u64) -> String {
    let first = dice.below(pcpus);
    match dice.below(4) {
        0 => "llc".into(),
        1 => "node".into(),
        _ => format!("{first}-{}", first + dice.below(pcpus - first)),
    }
}

/// From a tenth of a pCPU to more than its vCPUs can use.
fn quota(dice: &mut Dice, vcpus: u64) -> String {
    let period = 5_000 + dice.below(200_000);
    let quota = (period / 10 + dice.below(period * vcpus)).max(1000);
    let burst = if dice.chance(50) { 0 } else { dice.below(quota) };
    format!("{{ quota-us = {quota}, period-us = {period}, burst-us = {burst} }}")
}

/// How a scenario's text becomes an outcome: in this process, or in another one.
pub type Simulate<'a> = &'a (dyn Fn(&str) -> Result<Outcome, String> + Sync);

/// In this process.
///
/// Errors: why there is no outcome.
pub fn in_process(text: &str) -> Result<Outcome, String> {
    sweep::here(&Text { text: text.into(), ..Text::default() }, &[], &[])
}

/// Runs one; `Ok` is how many events there were.
fn run(text: &str, simulate: Simulate) -> Result<u64, String> {
    let scenario = Scenario::parse(text, &[]).map_err(|error| format!("{error:#}"))?;
    let outcome = match simulate(text) {
        // Right, for a scheduler that does not know hotplug.
        Err(why) if why.contains("CPU hotplug ends a scheduler") => return Ok(0),
        result => result?,
    };
    quotas(&scenario, &outcome)?;
    shares(&scenario, &outcome)?;
    Ok(outcome.events)
}

/// No VM gets more than its quota, beyond what it saved and one tick on each of its vCPUs.
fn quotas(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    const TICK_S: f64 = 0.004;
    let clock_jumps = scenario.faults.iter().any(|fault| fault.clock_jump_us.is_some());
    let changes = scenario.faults.iter().any(|fault| fault.cpu_max.is_some());
    if scenario.scheduler != "scx_baton" || clock_jumps || changes {
        return Ok(());
    }
    for (place, (vm, got)) in scenario.vms.iter().zip(&outcome.vms).enumerate() {
        let Some(quota) = vm.cpu_max else { continue };
        let s = |us: u64| us as f64 / 1e6;
        let may = s(quota.quota_us) / s(quota.period_us) * scenario.seconds;
        let ahead = s(2 * quota.quota_us + quota.burst_us) + TICK_S * f64::from(2 * vm.vcpus);
        // The kernel does not let a scheduler keep one that exits from running.
        let of_vm = |fault: &&FaultSpec| fault.vm_ends == Some(place as u32);
        let exits = scenario.faults.iter().find(of_vm).and_then(|fault| fault.exit_ms);
        let exits = exits.unwrap_or(0.0) / 1000.0 * f64::from(vm.vcpus);
        let used = got.used * scenario.seconds;
        if used > may + ahead + exits {
            return Err(format!(
                "VM {place} got {used:.3} s of CPU time; its cpu.max is {may:.3} s"
            ));
        }
    }
    Ok(())
}

/// VMs that could each use the whole host, and nothing else: what they get is by weight.
fn shares(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    let greedy = |name: &str| matches!(name, "compute" | "barrier" | "barrier-pause" | "lock");
    let all_greedy = scenario.vms.iter().all(|vm| {
        vm.workload.as_deref().is_some_and(greedy)
            && vm.vcpus as usize >= outcome.pcpus
            && !vm.pin
            && vm.cpus.is_none()
            && vm.cpu_max.is_none()
            && !vm.guest.idle_poll
            && vm.guest.lock != crate::guest::LockKind::PvQueued
    });
    let quiet = scenario.threads.is_empty() && scenario.faults.is_empty();
    // What a VM wants is known after one epoch of 2^28 ns, its cgroup counts in the next one, and
    // its parent knows what all weigh together in the one after that.
    let baton = scenario.scheduler == "scx_baton" && scenario.warmup > 0.85;
    if !(baton && all_greedy && quiet && scenario.vms.len() > 1 && scenario.seconds >= 0.5) {
        return Ok(());
    }
    let weights: f64 = scenario.vms.iter().map(|vm| f64::from(vm.weight)).sum();
    const TURN_S: f64 = 0.012;
    for (place, (vm, got)) in scenario.vms.iter().zip(&outcome.vms).enumerate() {
        let due = f64::from(vm.weight) / weights * outcome.pcpus as f64;
        // One turn on each of its vCPUs, more or less, within so short a time.
        let slack = SHARE_BOUND + 2.0 * TURN_S / scenario.seconds;
        if (got.used / due - 1.0).abs() > slack {
            return Err(format!(
                "VM {place} got {:.2} pCPUs; its share is {due:.2} (weight {})",
                got.used, vm.weight
            ));
        }
    }
    Ok(())
}

/// Simulates the scenario of a seed.
///
/// Errors: an invariant was broken.
pub fn fuzz(seed: u64, scheduler: &str, simulate: Simulate) -> Result<u64, Failure> {
    let text = generate(seed, scheduler);
    run(&text, simulate).map_err(|why| {
        let (scenario, why) = minimize(&text, &why, simulate);
        Failure { seed, why, scenario }
    })
}

/// What kind of failure it is: its words without any number.
fn kind(why: &str) -> String {
    let words = why.split_once(": ").map_or(why, |(_, rest)| rest);
    words.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect()
}

/// Leaves out VMs, threads and faults, and shortens it, as long as it fails alike.
fn minimize(text: &str, why: &str, simulate: Simulate) -> (String, String) {
    let Ok(mut best) = toml::from_str::<Table>(text) else { return (text.into(), why.into()) };
    let (kind_, mut why) = (kind(why), why.to_string());
    let fails = |table: &Table| -> Option<String> {
        let text = toml::to_string(table).ok()?;
        run(&text, simulate).err().filter(|other| kind(other) == kind_)
    };
    let mut smaller = true;
    while smaller {
        smaller = false;
        for list in ["fault", "thread", "vm"] {
            let n = best.get(list).and_then(Value::as_array).map_or(0, Vec::len);
            for place in (0..n).rev() {
                let mut less = best.clone();
                if let Some(Value::Array(entries)) = less.get_mut(list) {
                    entries.remove(place);
                }
                if let Some(other) = fails(&less) {
                    (best, why, smaller) = (less, other, true);
                }
            }
        }
        for key in ["seconds", "pcpus"] {
            let mut less = best.clone();
            let halved = match less.get(key) {
                Some(Value::Float(value)) if *value > 0.02 => Value::Float(value / 2.0),
                Some(Value::Integer(value)) if *value > 1 => Value::Integer(value - 1),
                _ => continue,
            };
            less.insert(key.into(), halved);
            if let Some(other) = fails(&less) {
                (best, why, smaller) = (less, other, true);
            }
        }
    }
    (toml::to_string(&best).unwrap_or_else(|_| text.into()), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generated_scenario_is_one() {
        for seed in 0..300 {
            let text = generate(seed, "eevdf");
            if let Err(error) = Scenario::parse(&text, &[]) {
                panic!("{error:#}\n{text}");
            }
        }
    }

    /// A scheduler that forgets a task is found out, and what it takes is made small.
    #[test]
    fn a_lost_task_is_found_and_made_small() {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loses.bpf.c");
        let failure =
            (0..20).find_map(|seed| fuzz(seed, source, &in_process).err()).expect("loses");
        assert!(
            failure.why.contains("waited") || failure.why.contains("no queue"),
            "{}",
            failure.why
        );
        let table: Table = toml::from_str(&failure.scenario).unwrap();
        let before: Table = toml::from_str(&generate(failure.seed, source)).unwrap();
        let parts = |table: &Table| {
            let n = |key| table.get(key).and_then(Value::as_array).map_or(0, Vec::len);
            n("vm") + n("thread") + n("fault")
        };
        assert!(parts(&table) < parts(&before), "{}", failure.scenario);
    }
}
