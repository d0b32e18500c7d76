// SPDX-License-Identifier: GPL-2.0-only
//! A scenario in words, with every default.

use std::fmt::Write;

use anyhow::Result;

use crate::guest::Op;
use crate::kvm::HaltPoll;
use crate::machine::Ns;
use crate::scenario::{Scenario, VmSpec};

fn time(ns: Ns) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{} ms", ns as f64 / 1e6),
        _ => format!("{} s", ns as f64 / 1e9),
    }
}

/// What will be simulated.
///
/// Errors: as when it is built.
pub fn explain(scenario: &Scenario) -> Result<String> {
    scenario.build()?;
    let host = scenario.host()?;
    let kvm = scenario.kvm(&host)?;
    let mut out = String::new();
    if !scenario.about.is_empty() {
        let _ = writeln!(out, "{}\n", scenario.about);
    }
    let all = host.sockets * host.cores * host.threads;
    let _ = writeln!(
        out,
        "Machine: {}, {} sockets of {} cores, {} hyper-threads a core; {} pCPUs are used.",
        scenario.machine,
        host.sockets,
        host.cores,
        host.threads,
        scenario.pcpus.unwrap_or(all)
    );
    let c = scenario.costs(&host)?;
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
    if let Some(noise) = &host.noise {
        let us = |us: f64| time((us * 1e3) as Ns);
        let (run, sleep) = (us(noise.run_us), us(noise.sleep_us));
        let _ = writeln!(out, "  Its kernel runs {run} on each pCPU, and sleeps {sleep}.");
    }
    let policy = scenario.yield_policy.as_ref().map(|all| format!(", yields: {}", all.join(", ")));
    let _ = writeln!(out, "Scheduler: {}{}.", scenario.scheduler, policy.unwrap_or_default());
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
    let _ = writeln!(out, "KVM: {ple}; whom it yields to: {:?}; it {poll}.", kvm.on_spin);
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
    for vm in &scenario.vms {
        let _ = writeln!(out, "{}", vm_in_words(vm)?);
    }
    for thread in &scenario.threads {
        let sleep = match thread.sleep_us {
            0.0 => "without end".into(),
            us => format!("and sleeps {}", time((us * 1e3) as Ns)),
        };
        let run = time((thread.run_us * 1e3) as Ns);
        let _ = writeln!(out, "{} threads of the host: each runs {run} {sleep}.", thread.count);
    }
    if !scenario.faults.is_empty() {
        let _ = writeln!(out, "{} faults.", scenario.faults.len());
    }
    let _ = writeln!(
        out,
        "It is measured for {} s after {} s; seed {}; no thread may wait for more than {} s.",
        scenario.seconds, scenario.warmup, scenario.seed, scenario.starvation_s
    );
    Ok(out)
}

fn vm_in_words(vm: &VmSpec) -> Result<String> {
    let tasks = vm.programs()?;
    let what = vm.workload.as_deref().unwrap_or("a program of the scenario");
    let count = |fits: fn(&Op) -> bool| {
        let steps = tasks.iter().flat_map(|task| task.iter());
        steps.filter(|op| fits(op)).count()
    };
    let uses = [
        ("locks", count(|op| matches!(op, Op::Lock(_)))),
        ("mutexes", count(|op| matches!(op, Op::Mutex(_)))),
        ("calls of other vCPUs", count(|op| matches!(op, Op::Call | Op::CallOne))),
        ("waits", count(|op| matches!(op, Op::Wait(_) | Op::Barrier { .. }))),
        ("sleeps and requests", count(|op| matches!(op, Op::Sleep { .. } | Op::Io { .. }))),
    ];
    let uses: Vec<&str> = uses.iter().filter(|(_, n)| *n > 0).map(|(what, _)| *what).collect();
    let uses = if uses.is_empty() { String::new() } else { format!(" with {}", uses.join(", ")) };
    let g = &vm.guest;
    let with = |has: bool, what: &'static str| if has { what } else { "" };
    let features = [
        with(g.pv_ipi, ", PV IPIs"),
        with(g.pv_tlb_flush, ", PV TLB flushes"),
        with(g.sched_yield, ", sched-yield hypercall"),
        with(g.kick_yields, ", yield to the kicked"),
        with(g.idle_poll, ", polling when idle"),
    ];
    let quota = vm.cpu_max.map_or(String::new(), |q| {
        format!(", at most {} of each {}", time(q.quota_us * 1000), time(q.period_us * 1000))
    });
    let slots = match vm.memslots {
        0 => String::new(),
        n => format!(", {n} memory slots"),
    };
    Ok(format!(
        "{} VMs of {} vCPUs{}{slots}, weight {}{quota}: {} tasks, {what}{uses}; {:?} locks{}.",
        vm.count,
        vm.vcpus,
        if vm.pin { ", pinned" } else { "" },
        vm.weight,
        tasks.len(),
        g.lock,
        features.concat()
    ))
}
