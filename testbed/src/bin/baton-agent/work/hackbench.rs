// SPDX-License-Identifier: GPL-2.0-only
//! Wakeups, context switches and pipe locks: the classic load of a scheduler.

use std::time::Duration;

use anyhow::Result;
use baton_testbed::plan::Measured;

/// One group is the smallest: 20 senders, 20 receivers, as processes, through pipes; already
/// twenty runnable tasks for each vCPU. Each sender sends LOOPS times to each receiver. Ten take
/// 0.3 s in an emulated guest that has the host for itself: a run of 3 s holds
/// several also at a quarter of that speed.
const LOOPS: &str = "10";

pub fn run(time: Duration) -> Result<Measured> {
    let command = ["hackbench", "--pipe", "--groups", "1", "--loops", LOOPS].map(String::from);
    super::repeat::run(time, &command, "runs/s")
}
