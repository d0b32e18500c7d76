// SPDX-License-Identifier: GPL-2.0-only
//! Threads of the host that are no vCPUs.

use crate::machine::Ns;
use crate::random::{self, Random};

/// A thread of the host that is no vCPU: runs, and sleeps.
#[derive(Clone, Debug)]
pub struct HostThread {
    pub run: Ns,
    /// 0: never.
    pub sleep: Ns,
    /// By what share of that each run, and each sleep, is longer or shorter at most.
    pub spread: f64,
    /// Each run is a process of its own, which ends.
    pub ends: bool,
    pub left: Ns,
    pub work: Ns,
    pub done: u64,
    /// CPU time at the end of the warm-up.
    pub ran: Ns,
    pub random: Random,
}

impl HostThread {
    pub fn new(run: Ns, sleep: Ns, spread: f64) -> Self {
        let random = random::unseeded();
        HostThread { run, sleep, spread, ends: false, left: run, work: 0, done: 0, ran: 0, random }
    }
}
