// SPDX-License-Identifier: GPL-2.0-only
//! Random mixtures of VMs and host threads, each under EEVDF and under the scheduler in question:
//! none may lose what it is due, nor a VM wake later, for another one's sake.
//!
//! The *due* is the smaller of what a VM, or a thread, uses alone and its share by weight of the
//! pCPUs where it may run.

mod draw;

pub use draw::{With, generate};

use crate::fuzz::Simulate;
use crate::outcome::{Outcome, VmOutcome};
use crate::scenario::{Scenario, ThreadSpec, VmSpec};
use crate::topology::{Where, listed};

/// Work of each relative to EEVDF's, with or without PAUSE exits, whichever is more.
const LEAST_WORK: f64 = 0.95;
/// Work of the thread of a table that does least, relative to the mean of the table.
const LEAST_OF_ONE: f64 = 0.8;
/// So many pieces of work of each, in the mean, tell which one that is.
const ENOUGH_WORK: f64 = 20.0;
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

/// One VM beside its neighbours, or the host threads of one table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its number and its workload.
    pub kind: String,
    /// Work relative to EEVDF's up to its due.
    pub work: f64,
    /// Work of the thread that does least, relative to the mean. `None`: a VM, or too little work
    /// to tell.
    pub least: Option<f64>,
    /// `None`: it sets no timer, or is no VM.
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
        if let Some(least) = self.least.filter(|least| *least < LEAST_OF_ONE) {
            return Some(format!("one of {} does {least:.2} of their mean", self.kind));
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
    pub vms: Vec<Row>,
    pub threads: Vec<Row>,
    pub events: u64,
}

impl Mixture {
    /// What breaks a bound.
    pub fn broken(&self) -> Vec<String> {
        self.vms.iter().chain(&self.threads).filter_map(Row::broken).collect()
    }
}

/// Who wants pCPUs: a VM, or the threads of a table.
struct Entity {
    weight: f64,
    /// On so many pCPUs at once.
    most: usize,
    /// By pCPU.
    may_run: Vec<bool>,
    /// What it uses alone, in pCPUs.
    alone: f64,
}

impl Entity {
    /// A VM without a cgroup of its own is worth as much as another one, however many vCPUs it has.
    ///
    /// Errors: it is confined to what is no list of pCPUs.
    fn of_vm(vm: &VmSpec, pcpus: usize, alone: f64) -> Result<Entity, String> {
        Ok(Entity {
            weight: f64::from(vm.weight),
            most: vm.vcpus as usize,
            may_run: may_run(vm.cpus.as_ref(), pcpus, |cpu| !vm.pin || cpu < vm.vcpus as usize)?,
            alone,
        })
    }

    /// Errors: as above.
    fn of_threads(spec: &ThreadSpec, pcpus: usize) -> Result<Entity, String> {
        let here = |cpu| spec.cpu.is_none_or(|only| only as usize == cpu);
        Ok(Entity {
            weight: 100.0 * f64::from(spec.count),
            most: spec.count as usize,
            may_run: may_run(spec.cpus.as_ref(), pcpus, here)?,
            alone: f64::from(spec.count) * spec.run_us / (spec.run_us + spec.sleep_us),
        })
    }
}

/// The pCPUs of `cpus`, or else those for which `else_if` says so.
fn may_run(
    cpus: Option<&Where>,
    pcpus: usize,
    else_if: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, String> {
    let Some(cpus) = cpus else { return Ok((0..pcpus).map(else_if).collect()) };
    let set = listed(&cpus.0, pcpus as u32).map_err(|error| format!("{error:#}"))?;
    Ok((0..pcpus as u32).map(|cpu| set.contains(cpu)).collect())
}

/// Steps of the naive model below: a share is off by a thousandth of a pCPU, for each of them.
const STEPS: usize = 1_000;

/// What each may have of the host, in pCPUs, if all want as much as they can run on. In each step
/// each pCPU goes to the one that has had least for its weight, of those that may run there.
fn shares(all: &[Entity], pcpus: usize) -> Vec<f64> {
    let mut had = vec![0.0; all.len()];
    for step in 0..STEPS {
        let mut on = vec![0; all.len()];
        for at in 0..pcpus {
            let cpu = (at + step) % pcpus;
            let may = |i: &usize| all[*i].may_run[cpu] && on[*i] < all[*i].most;
            let had_least = |a: &usize, b: &usize| {
                (had[*a] / all[*a].weight).total_cmp(&(had[*b] / all[*b].weight))
            };
            if let Some(next) = (0..all.len()).filter(may).min_by(had_least) {
                had[next] += 1.0;
                on[next] += 1;
            }
        }
    }
    had.iter().map(|had| had / STEPS as f64).collect()
}

/// What it is, in a few words.
fn kind(place: usize, vm: &VmSpec) -> String {
    let steps = vm.programs.first().map(|task| task.program.join(", "));
    let what = vm.workload.clone().or(steps).unwrap_or_default();
    let pinned = if vm.pin { "pinned, " } else { "" };
    let on = vm.cpus.as_ref().map(|cpus| format!("on {}, ", cpus.0)).unwrap_or_default();
    format!("VM {place}: {} vCPUs ({on}{pinned}weight {}, {what})", vm.vcpus, vm.weight)
}

fn kind_of_threads(place: usize, spec: &ThreadSpec) -> String {
    let on = spec.cpus.as_ref().map(|cpus| format!(" on {}", cpus.0));
    let bound = spec.cpu.map(|cpu| format!(" bound to {cpu}")).or(on).unwrap_or_default();
    let ThreadSpec { count, run_us, sleep_us, .. } = spec;
    format!("[[thread]] {place}: {count} of the host{bound} (run {run_us} us, sleep {sleep_us})")
}

/// What is done relative to EEVDF up to the due: the work and the CPU time under EEVDF, with and
/// without PAUSE exits.
fn work(ours: f64, fair: [(f64, f64); 2], due: f64) -> f64 {
    let (best, used) = if fair[1].0 > fair[0].0 { fair[1] } else { fair[0] };
    let up_to = if used > due { due / used } else { 1.0 };
    if best > 0.0 { ours / (best * up_to) } else { 1.0 }
}

/// What the host threads of a table did.
#[derive(Clone, Copy)]
struct Did {
    /// Work and CPU time of all.
    all: (f64, f64),
    /// As [`Row::least`].
    least: Option<f64>,
}

/// For each table.
fn of_threads(scenario: &Scenario, outcome: &Outcome) -> Vec<Did> {
    let mut first = 0;
    let tables = scenario.threads.iter().map(|spec| {
        let own = first..first + spec.count as usize;
        first = own.end;
        let sum = |of: &[f64]| of.get(own.clone()).unwrap_or_default().iter().sum::<f64>();
        let all = (sum(&outcome.threads), sum(&outcome.threads_used));
        let mean = all.0 / f64::from(spec.count);
        let each = outcome.threads.get(own.clone()).unwrap_or_default().iter().copied();
        let least = each.min_by(f64::total_cmp).filter(|_| mean >= ENOUGH_WORK);
        Did { all, least: least.map(|least| least / mean) }
    });
    tables.collect()
}

fn late(vm: &VmOutcome) -> Option<[u64; 2]> {
    vm.lateness.as_ref().filter(|late| late.count >= ENOUGH_WAKES).map(|late| [late.p50, late.p99])
}

/// Simulates the mixture of a seed under `scheduler`, under EEVDF with and without PAUSE exits, and
/// each VM alone.
///
/// Errors: one of them broke an invariant.
pub fn mixture(
    seed: u64,
    with: With,
    scheduler: &str,
    simulate: Simulate,
) -> Result<Mixture, String> {
    measure(generate(seed, with), scheduler, simulate)
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
    let mut entities = Vec::new();
    for (place, spec) in scenario.vms.iter().enumerate() {
        // Its own tables: up to the next VM or thread.
        let starts = |table: &&&str| table.starts_with("vm]]");
        let first = tables.iter().enumerate().filter(|(_, table)| starts(table)).nth(place);
        let from = first.map_or(0, |(at, _)| at);
        let own: Vec<&str> = tables[from..=from + spec.programs.len()].to_vec();
        let alone = under("eevdf", true, &format!("{}\n[[{}", tables[0], own.join("\n[[")))?;
        events += alone.events;
        entities.push(Entity::of_vm(spec, ours.pcpus, alone.vms[0].used)?);
    }
    for spec in &scenario.threads {
        entities.push(Entity::of_threads(spec, ours.pcpus)?);
    }
    let shares = shares(&entities, ours.pcpus);
    let row = |at: usize, kind: String, ours_did: f64, fair_did: [(f64, f64); 2], late| {
        let (alone, share) = (entities[at].alone, shares[at]);
        let work = work(ours_did, fair_did, alone.min(share));
        Row { kind, work, least: None, late, below: alone < BELOW * share }
    };
    let vms = scenario.vms.iter().enumerate().map(|(place, spec)| {
        let (vm, fair) = (&ours.vms[place], fair.each_ref().map(|fair| &fair.vms[place]));
        let late = late(fair[0]).zip(late(vm)).map(|(fair, ours)| Late { fair, ours });
        row(place, kind(place, spec), vm.rate, fair.map(|vm| (vm.rate, vm.used)), late)
    });
    let did = of_threads(&scenario, &ours);
    let fair_did = fair.each_ref().map(|fair| of_threads(&scenario, fair));
    let threads = scenario.threads.iter().enumerate().map(|(place, spec)| {
        let Did { all, least } = did[place];
        let fair = fair_did.each_ref().map(|did| did[place].all);
        let at = scenario.vms.len() + place;
        Row { least, ..row(at, kind_of_threads(place, spec), all.0, fair, None) }
    });
    Ok(Mixture { vms: vms.collect(), threads: threads.collect(), events, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::in_process;

    #[test]
    fn every_mixture_is_a_scenario() {
        for seed in 0..300 {
            let text = generate(seed, With { host_threads: seed % 2 == 0, cpusets: seed % 3 == 0 });
            if let Err(error) = Scenario::parse(&format!("scheduler = \"eevdf\"\n{text}"), &[]) {
                panic!("{error:#}\n{text}");
            }
        }
    }

    #[test]
    fn a_share_is_by_weight_where_it_may_run() {
        let of = |weight, most, cpus: [bool; 2]| Entity {
            weight,
            most,
            may_run: cpus.to_vec(),
            alone: 0.0,
        };
        let near = |all: &[Entity], want: &[f64]| {
            let got = shares(all, 2);
            let fine = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 0.003);
            assert!(fine, "{got:?}, not {want:?}");
        };
        // Two thirds of a pCPU each, if the last two could run on pCPU 0, too.
        let (both, second) = ([true; 2], [false, true]);
        near(&[of(100.0, 2, both), of(100.0, 1, second), of(100.0, 1, second)], &[1.0, 0.5, 0.5]);
        // By weight; the second one can run on one alone.
        near(&[of(300.0, 2, both), of(100.0, 2, both)], &[1.5, 0.5]);
        near(&[of(100.0, 2, both), of(300.0, 1, both), of(100.0, 1, second)], &[0.5, 1.0, 0.5]);
    }

    /// All threads of a table together do what they are due, and one of them does nothing.
    #[test]
    fn a_thread_that_does_less_than_its_like_is_found_out() {
        let row = |least| {
            let kind = "[[thread]] 0".into();
            Row { kind, work: 1.0, least, late: None, below: false }
        };
        let broken = row(Some(0.3)).broken();
        assert_eq!(broken.as_deref(), Some("one of [[thread]] 0 does 0.30 of their mean"));
        assert_eq!((row(Some(0.9)).broken(), row(None).broken()), (None, None));
    }

    /// Two that have 0.75 and 0.25 of a pCPU, beside one that has all of another.
    #[test]
    fn the_thread_that_does_least_is_compared_with_its_like() {
        let text = "machine = \"xeon-8\"\npcpus = 2\nscheduler = \"eevdf\"\nseconds = 0.5\n\n\
                    [[thread]]\nrun-us = 1000\ncpu = 0\n\n\
                    [[thread]]\ncount = 2\nrun-us = 1000\ncpu = 1\n";
        let scenario = Scenario::parse(text, &[]).expect("it is one");
        let mut outcome = in_process(text).expect("it keeps all invariants");
        let fair: Vec<_> = of_threads(&scenario, &outcome).iter().map(|did| did.least).collect();
        assert!(fair[1].is_some_and(|least| least > 0.95), "{fair:?}");
        outcome.threads[1..3].copy_from_slice(&[750.0, 250.0]);
        let least: Vec<_> = of_threads(&scenario, &outcome).iter().map(|did| did.least).collect();
        assert_eq!(least, [Some(1.0), Some(0.5)]);
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
