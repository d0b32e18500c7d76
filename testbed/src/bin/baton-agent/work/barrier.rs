// SPDX-License-Identifier: GPL-2.0-only
//! The workload that suffers most from a host that preempts vCPUs one by one: every thread computes
//! a fixed amount, then spins until all have arrived. OpenMP and MPI programs look like this.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use baton_testbed::plan::Measured;

use super::on_every_cpu;

/// Dependent multiply-adds a round, 4 cycles each: 100 µs at 3 GHz, the grain of a fine parallel
/// loop, and well below the 3 ms slice of the kernel's scheduler, so that one round never outlasts
/// the time its sibling runs.
const STEPS: u32 = 75_000;

/// One cache line each: spinning on `round` must not slow down those who arrive.
#[repr(align(64))]
struct Line<T>(T);

struct SpinBarrier {
    arrived: Line<AtomicU32>,
    round: Line<AtomicU32>,
}

impl SpinBarrier {
    /// Returns when all `threads` have called it. The last to arrive runs `last` before the others
    /// go on.
    fn wait(&self, threads: u32, pause_every: u32, last: impl FnOnce()) {
        let round = self.round.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.0.store(0, Ordering::Relaxed);
            last();
            self.round.0.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        // No `spin_loop()` here: it is a PAUSE, and whether one is executed is what is measured.
        let mut turns = 0u64;
        while self.round.0.load(Ordering::Acquire) == round {
            turns += 1;
            if turns == u64::from(pause_every) {
                turns = 0;
                std::arch::x86_64::_mm_pause();
            }
        }
    }
}

/// Rounds that all threads completed. With `pause_every` N, a spinning thread executes PAUSE every
/// N-th time around; 0 means never.
pub fn run(time: Duration, pause_every: u32) -> Result<Measured> {
    let barrier = SpinBarrier { arrived: Line(AtomicU32::new(0)), round: Line(AtomicU32::new(0)) };
    let over = AtomicBool::new(false);
    let reached = on_every_cpu(|_, threads| {
        let start = Instant::now();
        let mut rounds = 0u64;
        let mut value = 1u64;
        // `over` is set by the last to arrive, before it releases the others: all threads see it in
        // the same round, so nobody waits for one that has left.
        while !over.load(Ordering::Relaxed) {
            for _ in 0..STEPS {
                value = black_box(value.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
            barrier.wait(threads as u32, pause_every, || {
                if start.elapsed() >= time {
                    over.store(true, Ordering::Relaxed);
                }
            });
            rounds += 1;
        }
        Ok((rounds, start.elapsed().as_secs_f64()))
    })?;
    let seconds = reached.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let rounds = reached.iter().map(|(rounds, _)| *rounds).min().unwrap_or(0);
    Ok(Measured::new(rounds, seconds, "rounds/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_barrier_holds_everybody_until_the_last() {
        let barrier =
            SpinBarrier { arrived: Line(AtomicU32::new(0)), round: Line(AtomicU32::new(0)) };
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 1..=50 {
                        inside.fetch_add(1, Ordering::SeqCst);
                        barrier.wait(2, 3, || {
                            assert_eq!(inside.load(Ordering::SeqCst), 2 * round);
                        });
                    }
                });
            }
        });
        assert_eq!(inside.load(Ordering::SeqCst), 100);
    }

    #[test]
    fn ends_with_and_without_pause() {
        for pause_every in [0, 7] {
            assert!(run(Duration::from_millis(20), pause_every).unwrap().ops > 0);
        }
    }
}
