// SPDX-License-Identifier: GPL-2.0-only
//! One thing that a host's scheduler sees, N times; what it costs is counted from outside.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use nix::sched::{CpuSet, sched_setaffinity, sched_yield};
use nix::unistd::{Pid, pipe};

#[derive(Args)]
pub struct Event {
    kind: Kind,
    /// How often
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A thread wakes on an idle CPU, and sleeps again
    WakeIdle,
    /// A thread wakes on a CPU where another one computes, and sleeps again
    WakeBusy,
    /// A thread wakes another one on its CPU, and sleeps
    Switch,
    /// A thread yields to another one
    Yield,
    /// The tick of a CPU on which one thread computes; 4 ms each
    Tick,
}

pub fn run(event: &Event) -> Result<()> {
    let n = event.count;
    match event.kind {
        // Both threads wake: each turn is two of them.
        Kind::WakeIdle => ping_pong(n.div_ceil(2), 1),
        Kind::Switch => ping_pong(n.div_ceil(2), 0),
        Kind::WakeBusy => wake_busy(n),
        Kind::Yield => together(|| (0..n.div_ceil(2)).try_for_each(|_| Ok(sched_yield()?))),
        Kind::Tick => {
            pin(0)?;
            let (start, time) = (Instant::now(), Duration::from_millis(4) * n as u32);
            while start.elapsed() < time {}
            Ok(())
        }
    }
}

/// This thread runs on CPU `cpu` alone.
fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &only)
        .with_context(|| format!("cannot pin a thread to CPU {cpu}"))
}

fn ends() -> Result<(File, File)> {
    let (read, write): (OwnedFd, OwnedFd) = pipe().context("cannot make a pipe")?;
    Ok((File::from(read), File::from(write)))
}

/// Two threads, on CPU 0 and on `cpu`, that wake each other in turn.
fn ping_pong(turns: u64, cpu: usize) -> Result<()> {
    let ((mut here, mut to_here), (mut there, mut to_there)) = (ends()?, ends()?);
    thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            pin(cpu)?;
            let mut byte = [0];
            while there.read(&mut byte)? == 1 {
                to_here.write_all(&byte)?;
            }
            Ok(())
        });
        let result = pin(0).and_then(|()| {
            let mut byte = [0];
            for _ in 0..turns {
                to_there.write_all(&byte)?;
                here.read_exact(&mut byte)?;
            }
            Ok(())
        });
        drop(to_there); // the other one ends
        result.and(joined(other))
    })
}

/// A thread on CPU 1, where another one computes, is woken from CPU 0, which waits by spinning.
fn wake_busy(turns: u64) -> Result<()> {
    let (mut there, mut to_there) = ends()?;
    let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (seen, over) = (&seen, &over);
        let busy = scope.spawn(move || -> Result<()> {
            pin(1)?;
            while !over.load(Ordering::Relaxed) {}
            Ok(())
        });
        let woken = scope.spawn(move || -> Result<()> {
            pin(1)?;
            let mut byte = [0];
            while there.read(&mut byte)? == 1 {
                seen.fetch_add(1, Ordering::Release);
            }
            Ok(())
        });
        let result = pin(0).and_then(|()| {
            for turn in 1..=turns {
                to_there.write_all(&[0])?;
                while seen.load(Ordering::Acquire) < turn {
                    ensure!(!woken.is_finished(), "the thread that is woken has ended");
                }
                // It sleeps again, and has done so for a while: else its scheduler finds it awake.
                let since = Instant::now();
                while since.elapsed() < Duration::from_micros(100) {}
            }
            Ok(())
        });
        drop(to_there);
        over.store(true, Ordering::Relaxed);
        result.and(joined(woken)).and(joined(busy))
    })
}

/// `body` in two threads on CPU 0.
fn together(body: impl Fn() -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let body = &body;
        let both = [0, 1].map(|_| scope.spawn(move || pin(0).and_then(|()| body())));
        both.into_iter().try_for_each(joined)
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
