// SPDX-License-Identifier: GPL-2.0-only
//! The workloads that an experiment runs, in a guest or on the host: `baton-agent work NAME`. Each
//! works for a given time, then prints one line of JSON: what it reached.

mod barrier;
mod build;
mod dbench;
mod hackbench;
mod pbzip2;
mod repeat;
mod shootdown;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_testbed::plan::Measured;
use baton_testbed::scheduler::last_line;
use clap::{Args, Subcommand};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

#[derive(Args)]
pub struct Work {
    #[command(subcommand)]
    kind: Kind,
    /// How long to work, in seconds
    #[arg(long, global = true, default_value_t = 6.0)]
    seconds: f64,
}

#[derive(Subcommand)]
enum Kind {
    /// Threads that compute and meet at a spin barrier, round after round
    Barrier {
        /// Execute PAUSE every N-th time around the spin loop (0: never)
        #[arg(long, value_name = "N", default_value_t = 0)]
        pause_every: u32,
    },
    /// Threads of one process that map, touch, discard and unmap memory
    Shootdown,
    /// Forty processes that pass messages through pipes
    Hackbench,
    /// A parallel compressor on a fixed text
    Pbzip2,
    /// A file server's load on a file system in memory
    Dbench,
    /// A parallel build of C files
    Build,
    /// Any command, again and again
    Repeat {
        /// What one completion is, per second
        #[arg(long, default_value = "runs/s")]
        unit: String,
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<String>,
    },
}

pub fn run(work: &Work) -> Result<()> {
    ensure!(
        work.seconds > 0.0 && work.seconds <= 3600.0,
        "--seconds must be above 0 and at most 3600"
    );
    let time = Duration::from_secs_f64(work.seconds);
    let measured = match &work.kind {
        Kind::Barrier { pause_every } => barrier::run(time, *pause_every)?,
        Kind::Shootdown => shootdown::run(time)?,
        Kind::Hackbench => hackbench::run(time)?,
        Kind::Pbzip2 => pbzip2::run(time)?,
        Kind::Dbench => dbench::run(time)?,
        Kind::Build => build::run(time)?,
        Kind::Repeat { unit, command } => repeat::run(time, command, unit)?,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// Runs a workload's command to its end and reads the [`Measured`] of its last line. After
/// `deadline` it is killed with all it started, and that is an error.
pub fn report(argv: &[String], deadline: Duration) -> Result<Measured> {
    let (name, args) = argv.split_first().context("empty command")?;
    let child = Command::new(name)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let group = Pid::from_raw(child.id() as i32);
    let (tell, ended) = channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(deadline) else {
        killpg(group, Signal::SIGKILL).with_context(|| format!("cannot end {name}"))?;
        bail!("{name} did not end in {deadline:.0?}");
    };
    let output = output?;
    if !output.status.success() {
        bail!("{name}: {} ({})", last_line(&output.stderr), output.status);
    }
    serde_json::from_str(&last_line(&output.stdout))
        .with_context(|| format!("{name} did not report what it reached"))
}

/// Runs `body` in one thread per usable CPU, each pinned to its own, and returns what they
/// returned. `body` gets the thread's number and how many there are.
fn on_every_cpu<T: Send>(body: impl Fn(usize, usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let usable = sched_getaffinity(Pid::from_raw(0)).context("cannot read the CPU affinity")?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| usable.is_set(*cpu).unwrap_or(false)).collect();
    // All are pinned before any starts: a thread that cannot be would leave the others waiting.
    let pinned = std::sync::Barrier::new(cpus.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(number, cpu)| {
                let (body, pinned, count) = (&body, &pinned, cpus.len());
                scope.spawn(move || {
                    let mut only = CpuSet::new();
                    only.set(*cpu)?;
                    let bound = sched_setaffinity(Pid::from_raw(0), &only);
                    pinned.wait();
                    bound.with_context(|| format!("cannot pin a thread to CPU {cpu}"))?;
                    body(number, count)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
