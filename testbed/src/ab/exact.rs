// SPDX-License-Identifier: GPL-2.0-only
//! Conducts an experiment on exact hosts. Each run has a host of its own, restored where guests and
//! scheduler are ready: it depends on its inputs and its seed alone, so that several run at a time
//! and none is tried twice.

use std::collections::VecDeque;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::{Lines, Notice, RUN_GRACE, Reached, Record, SILENCE, Stop, keep_console, stop};
use crate::exact::Ready;
use crate::experiment::Experiment;
use crate::host::{Exec, HostOptions, Stream};
use crate::plan::{Event, Plan, Run, Step, Workload};

/// Performs the whole experiment. A run that fails is a result.
pub fn conduct(
    experiment: &Experiment,
    options: &HostOptions,
    watch: &mut dyn FnMut(Notice),
) -> Result<(), Stop> {
    let base = Ready::get(options).map_err(stop)?;
    watch(Notice::Event(&Event::HostUp { kernel: base.release().to_string() }));
    watch(Notice::Inputs(base.inputs()));
    let mut left = experiment.runs();
    while let Some(first) = left.first().cloned() {
        // All runs that begin where this one does.
        let (runs, others): (Vec<Run>, Vec<Run>) = left
            .into_iter()
            .partition(|run| run.vms == first.vms && run.scheduler == first.scheduler);
        left = others;
        watch(Notice::Preparing(&first.scheduler.name));
        match prepared(&base, experiment, &first) {
            Ok(ready) => perform_all(&ready, runs, watch)?,
            Err(Stop::Fault(why)) => {
                for run in runs {
                    watch(Notice::Recorded(&Record { run, outcome: Err(why.clone()) }));
                }
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// What a run needs before it begins, as a plan. It goes into the host's memory, and hosts are
/// shared by all runs that need the same: nothing else of a run may be in it.
fn beginning(plan: &Plan, run: &Run) -> Plan {
    let guests = run.vms > 0;
    Plan {
        vcpus_per_vm: if guests { plan.vcpus_per_vm } else { 0 },
        vm_mem_mib: if guests { plan.vm_mem_mib } else { 0 },
        vm_cmdline: if guests { plan.vm_cmdline.clone() } else { String::new() },
        vm_cpu: if guests { plan.vm_cpu.clone() } else { String::new() },
        weights: if guests { plan.weights.clone() } else { Vec::new() },
        runs: vec![Run {
            id: 0,
            repetition: 0,
            row: 0,
            workload: Workload { name: String::new(), unit: String::new(), argv: Vec::new() },
            scheduler: run.scheduler.clone(),
            vms: run.vms,
            active: Vec::new(),
            seconds: 0.0,
            alone: false,
        }],
    }
}

/// The host with the guests and the scheduler that the run needs.
fn prepared(base: &Ready, experiment: &Experiment, run: &Run) -> Result<Ready, Stop> {
    let plan = beginning(&experiment.plan(&[]), run);
    let what = serde_json::to_string(&plan).map_err(|error| Stop::Setup(error.into()))?;
    let text = format!("{what}\n").into_bytes();
    let mut failed = None;
    let ready = base.prepared(&what, |host| {
        let mut exec = exec(run);
        exec.stdin = text;
        let mut events = Lines::default();
        host.begin(&exec, &mut |stream, bytes| {
            if stream == Stream::Out {
                events.push(bytes, |line| failed = failure(line));
            }
        })
    });
    ready.map_err(|error| match failed {
        Some(what) => Stop::Fault(what),
        None => stop(error),
    })
}

/// Why the agent could not do what it was asked for.
fn failure(line: &str) -> Option<String> {
    match keep_console(serde_json::from_str(line).ok()?) {
        Event::Failed { what, .. } | Event::Stuck { what, .. } => Some(what),
        _ => None,
    }
}

/// As many at a time as this machine has CPUs.
fn perform_all(ready: &Ready, runs: Vec<Run>, watch: &mut dyn FnMut(Notice)) -> Result<(), Stop> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let queue = Mutex::new(VecDeque::from(runs));
    let next = || queue.lock().ok()?.pop_front();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let tell = tell.clone();
            scope.spawn(move || {
                while let Some(run) = next() {
                    let _ = tell.send(Told::Started(run.id));
                    let told = match perform(ready, &run) {
                        Ok(outcome) => Told::Ended(Box::new(Record { run, outcome })),
                        Err(stop) => Told::Stopped(stop),
                    };
                    let _ = tell.send(told);
                }
            });
        }
        drop(tell);
        let mut stopped = Ok(());
        for told in told {
            match told {
                Told::Started(run) => watch(Notice::Event(&Event::Started { run })),
                Told::Ended(record) => watch(Notice::Recorded(&record)),
                Told::Stopped(stop) => {
                    // The others end after the run that they are at.
                    if let Ok(mut queue) = queue.lock() {
                        queue.clear();
                    }
                    stopped = Err(stop);
                }
            }
        }
        stopped
    })
}

enum Told {
    Started(u32),
    Ended(Box<Record>),
    Stopped(Stop),
}

fn perform(ready: &Ready, run: &Run) -> Result<Result<Reached, String>, Stop> {
    // 0 is the seed of hosts that nobody repeats.
    let seed = u64::from(run.repetition) + 1;
    let step = Step { run: run.clone(), seed };
    let mut text = serde_json::to_vec(&step).map_err(|error| Stop::Setup(error.into()))?;
    text.push(b'\n');
    let mut exec = exec(run);
    exec.stdin = text;
    let mut outcome = Err("the agent ended without a result".to_string());
    let (mut events, mut errors) = (Lines::default(), Lines::default());
    let ended = ready.restore(seed).and_then(|mut host| {
        host.answer(&exec, &mut |stream, bytes| match stream {
            Stream::Out => events.push(bytes, |line| match serde_json::from_str(line) {
                Ok(Event::Done { vms, ple_exits, seconds, .. }) => {
                    outcome = Ok(Reached { vms, ple_exits, seconds });
                }
                Ok(_) => {
                    if let Some(what) = failure(line) {
                        outcome = Err(what);
                    }
                }
                Err(_) => outcome = Err(format!("unexpected output: {line}")),
            }),
            Stream::Err => errors.push(bytes, |line| {
                if outcome.is_err() {
                    outcome = Err(line.to_string());
                }
            }),
        })
    });
    match ended.map_err(stop) {
        Ok(_) => Ok(outcome),
        // That a host dies is what the run shows.
        Err(Stop::Fault(what)) => Ok(Err(what)),
        Err(other) => Err(other),
    }
}

fn exec(run: &Run) -> Exec {
    let most = Duration::from_secs_f64(run.seconds * 4.0 + RUN_GRACE);
    Exec {
        silence: most.max(SILENCE),
        ..Exec::new(["baton-agent", "experiment", "--prepare"], most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_begin_alike_that_need_the_same() {
        let parse = |more: &str, workload: &str| {
            let text = format!(
                "repetitions = 2\nseconds = 1\nschedulers = [\"eevdf\", \"scx_x\"]\n{more}\n\
                 [[workload]]\nname = \"{workload}\""
            );
            let experiment = Experiment::parse(&text).unwrap();
            let plan = experiment.plan(&[]);
            let runs = experiment.runs();
            runs.iter().map(|run| beginning(&plan, run)).collect::<Vec<_>>()
        };
        // A run on the host itself has no guests, whatever the experiment says of guests.
        let host = parse("", "bench-barrier");
        assert_eq!(host[0], parse("vm_mem_mib = 512\nvms = 3", "bench-lock-ticket")[0]);
        assert_ne!(host[0], host[1], "two schedulers");
        let guests = parse("", "barrier");
        assert_eq!(guests[0], parse("", "hackbench")[0]);
        for other in ["vms = 3", "vcpus_per_vm = 4", "vm_mem_mib = 512", "weights = [200]"] {
            assert_ne!(guests[0], parse(other, "barrier")[0], "{other}");
        }
    }
}
