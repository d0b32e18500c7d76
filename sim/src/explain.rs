// SPDX-License-Identifier: GPL-2.0-only
//! A scenario in words, with every default.

use std::fmt::Write;

use anyhow::Result;

use crate::guest::Op;
use crate::kvm::{HaltPoll, Kvm};
use crate::machine::{Ns, Quota};
use crate::scenario::{FaultSpec, Host, Scenario, ThreadSpec, VmSpec, is_source};
use crate::sim::Fault;
use crate::topology::{Siblings, Where};
use crate::workload::Program;

fn time(ns: Ns) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{} ms", ns as f64 / 1e6),
        _ => format!("{} s", ns as f64 / 1e9),
    }
}

/// A value as one writes it in a scenario: serde's kebab-case of its name.
fn kebab(value: impl std::fmt::Debug) -> String {
    let mut out = String::new();
    for letter in format!("{value:?}").chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// What will be simulated.
///
/// Errors: as when it is built.
pub fn explain(scenario: &Scenario) -> Result<String> {
    let host = scenario.host()?;
    let mut out = String::new();
    if !scenario.about.is_empty() {
        let _ = writeln!(out, "{}\n", scenario.about);
    }
    out += &machine_in_words(scenario, &host)?;
    let policy = scenario.yield_policy.as_ref().map(|all| format!(", yields: {}", all.join(", ")));
    let _ = writeln!(out, "Scheduler: {}{}.", scenario.scheduler, policy.unwrap_or_default());
    out += &kvm_in_words(&scenario.kvm(&host)?);
    for cgroup in &scenario.cgroups {
        let parent = cgroup.parent.as_deref().unwrap_or("the root");
        let quota = quota_in_words(cgroup.cpu_max);
        let (name, weight) = (&cgroup.name, cgroup.weight);
        let at = place_in_words(&cgroup.cpus);
        let _ = writeln!(out, "Cgroup {name}, in {parent}: weight {weight}{quota}{at}.");
    }
    let mut first = 0;
    for vm in &scenario.vms {
        out += &vm_in_words(vm, first)?;
        first += vm.count;
    }
    let mut thread = scenario.vms.iter().map(|vm| vm.count * vm.vcpus).sum::<u32>();
    for spec in &scenario.threads {
        out += &thread_in_words(spec, thread);
        thread += spec.count;
    }
    if !scenario.faults.is_empty() {
        out += "Faults, from the start of the simulation, the warm-up included:\n";
    }
    let pcpus = scenario.pcpus(&host)?;
    for (place, spec) in scenario.faults.iter().enumerate() {
        let (at, fault) = scenario.fault(place, pcpus, u64::MAX)?;
        let _ = writeln!(out, "  after {}: {}.", time(at), fault_in_words(&fault, spec));
    }
    out += "Numbered apart, each from 0: VMs, pCPUs, and threads (all vCPUs, VM after VM, then the \
            host's); in a VM spinlocks, mutexes and futexes.\n";
    if is_source(&scenario.scheduler) {
        out += "The scheduler is compiled as C: nothing of it is verified as the kernel would.\n";
    }
    let _ = writeln!(
        out,
        "It is measured for {} s after {} s; seed {}; no thread may wait for more than {} s.",
        scenario.seconds, scenario.warmup, scenario.seed, scenario.starvation_s
    );
    Ok(out)
}

fn machine_in_words(scenario: &Scenario, host: &Host) -> Result<String> {
    let mut out = String::new();
    let all = host.all_pcpus();
    let _ = writeln!(
        out,
        "Machine: {}, {} sockets of {} cores, {} hyper-threads a core; {} pCPUs are used.",
        scenario.machine,
        host.sockets,
        host.cores,
        host.threads,
        scenario.pcpus.unwrap_or(all)
    );
    let _ = writeln!(
        out,
        "  {} cores share a last-level cache; a socket is {}; hyper-threads of a core have numbers {}.",
        host.cores_of_llc(),
        if host.nodes == 1 { "one node".into() } else { format!("{} nodes", host.nodes) },
        match host.siblings {
            Siblings::Adjacent => "side by side",
            Siblings::Split => "half of the host apart",
        }
    );
    let c = scenario.costs(host)?;
    let _ = writeln!(
        out,
        "  A switch takes {}, a wake-up {} and up to {} if the pCPU was idle, an exit {}; a tick comes {} \
         times a second.",
        time(c.switch_ns),
        time(c.wake_ns),
        time(c.idle_exits.iter().map(|state| state.1).max().unwrap_or(0)),
        time(c.exit_ns),
        host.hz
    );
    if c.move_ns != [0; 4] {
        let [core, llc, node, far] = c.move_ns.map(time);
        let _ = writeln!(
            out,
            "  To move takes a thread {core} within a core, {llc} within a last-level cache, {node} within \
             a node, {far} to another one.",
        );
    }
    if let Some(noise) = &host.noise {
        let us = |us: f64| time((us * 1e3) as Ns);
        let (run, sleep) = (us(noise.run_us), us(noise.sleep_us));
        let _ = writeln!(out, "  Its kernel runs {run} on each pCPU, and sleeps {sleep}.");
    }
    Ok(out)
}

fn kvm_in_words(kvm: &Kvm) -> String {
    let ple = if kvm.ple {
        let grow = match kvm.ple_grow {
            1 => "always".into(),
            grow => {
                format!("at first; times {grow} each time, up to {}", time(kvm.ple_window_max_ns))
            }
        };
        let where_ = if kvm.ple_user { "in user mode, too" } else { "in the guest's kernel" };
        format!("a spin of {} {grow}, {where_}, exits", time(kvm.ple_window_ns))
    } else {
        "spins do not exit".into()
    };
    let poll = match kvm.halt_poll {
        HaltPoll::Off => "does not poll at HLT".into(),
        HaltPoll::Fixed(ns) => format!("polls for {} at HLT", time(ns)),
        HaltPoll::Adaptive(ns) => format!("polls for up to {} at HLT", time(ns)),
        HaltPoll::Governed(budget) => {
            format!(
                "polls at HLT as Baton's governor says, {} % of the host at most",
                budget * 100.0
            )
        }
        HaltPoll::Clairvoyant(ns) => format!("polls at HLTs that end within {}", time(ns)),
    };
    let mut out = String::new();
    let _ = writeln!(out, "KVM: {ple}; whom it yields to: {}; it {poll}.", kebab(kvm.on_spin));
    let with = |has: bool, what: &'static str| if has { what } else { "" };
    let paths = [
        with(kvm.icr_fast, "the fast path of the ICR"),
        with(kvm.timer_fast, "that of the TSC deadline"),
        with(kvm.posted, "posted interrupts"),
        with(kvm.avic, "AVIC"),
    ];
    let paths: Vec<&str> = paths.into_iter().filter(|path| !path.is_empty()).collect();
    let paths = if paths.is_empty() { "no fast paths".into() } else { paths.join(", ") };
    let _ = writeln!(out, "  It has {paths}.");
    out
}

/// The threads of a table, of which the first has the number `first`.
fn thread_in_words(spec: &ThreadSpec, first: u32) -> String {
    let sleep = match spec.sleep_us {
        0.0 => "without end".into(),
        us => format!("and sleeps {}", time((us * 1e3) as Ns)),
    };
    let run = time((spec.run_us * 1e3) as Ns);
    let spread = match spec.spread {
        0.0 => String::new(),
        spread => format!(", both ±{}%", spread * 100.0),
    };
    let at =
        spec.cpu.map_or_else(|| place_in_words(&spec.cpus), |cpu| format!(", on pCPU {cpu} alone"));
    let group = spec.cgroup.as_ref().map_or(String::new(), |name| format!(", in cgroup {name}"));
    let own = match spec.own_cgroup {
        true => {
            let quota = quota_in_words(spec.cpu_max);
            format!(", each in one of its own: weight {}{quota}", spec.weight)
        }
        false => String::new(),
    };
    let numbers = numbered("host thread", first, spec.count);
    let idle = if spec.sched_idle { ", of SCHED_IDLE" } else { "" };
    let ends = if spec.processes { ", each run a process of its own" } else { "" };
    format!("{numbers}: runs {run} {sleep}{spread}{at}{group}{own}{idle}{ends}.\n")
}

fn numbered(what: &str, first: u32, count: u32) -> String {
    let mut letters = what.chars();
    let what: String =
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    match count {
        1 => format!("{what} {first}"),
        _ => format!("{what}s {first} to {}, each", first + count - 1),
    }
}

fn quota_in_words(quota: Option<Quota>) -> String {
    let Some(Quota { quota_us, period_us, burst_us }) = quota else { return String::new() };
    let burst = match burst_us {
        0 => String::new(),
        us => format!(" and {} saved up", time(us * 1000)),
    };
    format!(
        ", at most {} of CPU time in each {}{burst}",
        time(quota_us * 1000),
        time(period_us * 1000)
    )
}

fn place_in_words(at: &Option<Where>) -> String {
    match at.as_ref().map(|at| at.0.as_str()) {
        None => String::new(),
        Some("llc") => ", each on the pCPUs of the next last-level cache".into(),
        Some("node") => ", each on the pCPUs of the next node".into(),
        Some(list) => format!(", on pCPUs {list} alone"),
    }
}

fn fault_in_words(fault: &Fault, spec: &FaultSpec) -> String {
    match fault {
        Fault::Offline(cpu) => format!("pCPU {cpu} goes offline"),
        Fault::Online(cpu) => format!("pCPU {cpu} comes online"),
        Fault::Affinity(task, _) => {
            let cpus: Vec<String> = spec.cpus.iter().map(u32::to_string).collect();
            format!("thread {task} may run on pCPUs {} only", cpus.join(", "))
        }
        Fault::VmEnds(vm, 0) => format!("VM {vm} ends"),
        Fault::VmEnds(vm, ns) => format!("VM {vm} ends, each thread within {}", time(*ns)),
        Fault::Weight(vm, weight) => format!("VM {vm} weighs {weight} from then on"),
        Fault::Quota(vm, quota) => {
            let quota = quota_in_words(*quota);
            let quota =
                if quota.is_empty() { " no cpu.max" } else { quota.trim_start_matches(',') };
            let whose = spec.cgroup.as_ref().map(|name| format!("cgroup \"{name}\""));
            format!("{} gets from then on{quota}", whose.unwrap_or(format!("VM {vm}")))
        }
        Fault::LeavesGuest(vm) => format!("the threads of VM {vm} leave the guest for good"),
        Fault::ClockJumps(ns) if *ns < 0 => {
            format!("the scheduler's clock jumps back by {}", time(ns.unsigned_abs()))
        }
        Fault::ClockJumps(ns) => {
            format!("the scheduler's clock jumps forth by {}", time(ns.unsigned_abs()))
        }
    }
}

/// A VM's tasks by their programs: those that are alike are said once.
fn programs_in_words(tasks: &[Program]) -> String {
    /// Of a program with more steps the first so many are printed.
    const MOST_STEPS: usize = 12;
    const MOST_PROGRAMS: usize = 6;
    let mut kinds: Vec<(Vec<String>, usize)> = Vec::new();
    for program in tasks {
        let steps: Vec<String> = program.iter().map(Op::to_string).collect();
        let known = kinds.iter().position(|(known, _)| *known == steps);
        match known {
            Some(place) => kinds[place].1 += 1,
            None if kinds.len() < MOST_PROGRAMS => kinds.push((steps, 1)),
            None => {}
        }
    }
    let said: usize = kinds.iter().map(|(_, n)| n).sum();
    let mut out = String::new();
    for (steps, n) in kinds {
        let first: Vec<String> =
            steps.iter().take(MOST_STEPS).map(|step| format!("\"{step}\"")).collect();
        let more = match steps.len().saturating_sub(MOST_STEPS) {
            0 => String::new(),
            more => format!(", … and {more} steps more"),
        };
        let tasks = if n == 1 { "1 task".into() } else { format!("{n} tasks, each") };
        let _ = writeln!(out, "  {tasks}: [{}{more}], over and over.", first.join(", "));
    }
    match tasks.len() - said {
        0 => out,
        rest => out + &format!("  {rest} tasks more, like these with other numbers.\n"),
    }
}

fn vm_in_words(vm: &VmSpec, first: u32) -> Result<String> {
    let tasks = vm.programs()?;
    let what = vm.workload.as_ref().map_or(String::new(), |name| format!(" workload {name},"));
    let g = &vm.guest;
    let with = |has: bool, what: &'static str| if has { what } else { "" };
    let features = [
        with(g.pv_ipi, ", PV IPIs"),
        with(g.pv_tlb_flush, ", PV TLB flushes"),
        with(g.sched_yield, ", sched-yield hypercall"),
        with(g.kick_yields, ", yield to the kicked"),
        with(g.tlb_lock, ", a lock over each TLB shootdown"),
        with(g.idle_poll, ", polling when idle"),
    ];
    let slots = match vm.memslots {
        0 => String::new(),
        n => format!(", {n} memory slots"),
    };
    let group = vm.cgroup.as_ref().map_or(String::new(), |name| format!(", in cgroup {name}"));
    let scale = match vm.work_scale {
        1.0 => String::new(),
        scale => format!(" computing takes {scale} times as long,"),
    };
    Ok(format!(
        "{}: {} vCPUs{}{slots}, weight {}{}{group};{what}{scale} {} locks{}.\n{}",
        numbered("VM", first, vm.count),
        vm.vcpus,
        place_in_words(&vm.cpus)
            + if vm.pin { ", vCPU i on pCPU i alone (of these, counted round)" } else { "" },
        vm.weight,
        quota_in_words(vm.cpu_max),
        kebab(g.lock),
        features.concat(),
        programs_in_words(&tasks)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_scenario_has_is_told_in_the_words_that_one_writes() {
        let text = "machine = \"xeon-8\"\n\
            [[cgroup]]\nname = \"lab\"\nweight = 50\ncpu-max = { quota-us = 20000 }\n\
            [[vm]]\ncount = 2\nvcpus = 2\ncgroup = \"lab\"\n\
            [[vm.task]]\ncount = 2\nprogram = [\"compute 100us ±20%\", \"lock 0\", \"unlock 0\"]\n\
            [[vm]]\nvcpus = 4\nworkload = \"hackbench\"\n\
            [[thread]]\ncount = 2\nrun-us = 500.0\nsleep-us = 2000.0\ncpu = 3\ncgroup = \"lab\"\n\
            [[fault]]\nat-ms = 100.0\noffline = 3\n\
            [[fault]]\nat-ms = 110.0\ntask = 8\ncpus = [1, 2]\n\
            [[fault]]\nat-ms = 120.0\nvm = 2\nweight = 7\n\
            [[fault]]\nat-ms = 130.0\nclock-jump-us = -5000\n";
        let scenario = Scenario::parse(text, &[]).unwrap();
        let words = explain(&scenario).unwrap();
        for part in [
            "Cgroup lab, in the root: weight 50, at most 20 ms of CPU time in each 100 ms.",
            "VMs 0 to 1, each: 2 vCPUs, weight 100, in cgroup lab; ticket locks.",
            "  2 tasks, each: [\"compute 100us ±20%\", \"lock 0\", \"unlock 0\"], over and over.",
            "VM 2: 4 vCPUs, weight 100; workload hackbench, ticket locks.",
            "tasks more, like these with other numbers.",
            "Host threads 8 to 9, each: runs 500 µs and sleeps 2 ms, on pCPU 3 alone, in cgroup lab.",
            "  after 100 ms: pCPU 3 goes offline.",
            "  after 110 ms: thread 8 may run on pCPUs 1, 2 only.",
            "  after 120 ms: VM 2 weighs 7 from then on.",
            "  after 130 ms: the scheduler's clock jumps back by 5 ms.",
            "Numbered apart",
        ] {
            assert!(words.contains(part), "\"{part}\" is not in:\n{words}");
        }
    }
}
