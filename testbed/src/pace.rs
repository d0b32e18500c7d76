// SPDX-License-Identifier: GPL-2.0-only
//! Whether the CPUs of an emulated host run at once or one at a time.

use std::path::PathBuf;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Says on how many of this machine's CPUs the emulator runs. Emulation loses guests while emulated
/// CPUs run at once, and most while guests boot; on one CPU it has lost none. See docs/testbed.md.
pub struct Pace {
    emulator: u32,
}

impl Pace {
    /// For the emulator with this process id.
    pub(crate) fn of(emulator: u32) -> Pace {
        Pace { emulator }
    }

    /// Emulated CPUs take turns on one CPU: slower, and no measure of anything, but safe.
    pub fn one_at_a_time(&self) {
        let Ok(ours) = sched_getaffinity(Pid::this()) else { return };
        let first = (0..CpuSet::count()).find(|cpu| ours.is_set(*cpu).unwrap_or(false));
        let mut one = CpuSet::new();
        if first.is_some_and(|cpu| one.set(cpu).is_ok()) {
            self.confine(&one);
        }
    }

    /// Emulated CPUs run at once, as those of a real host do.
    pub fn at_once(&self) {
        if let Ok(ours) = sched_getaffinity(Pid::this()) {
            self.confine(&ours);
        }
    }

    /// Best effort: a thread that ends meanwhile needs no CPU, a new one inherits.
    fn confine(&self, cpus: &CpuSet) {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.emulator));
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            if let Some(tid) = task.file_name().to_str().and_then(|tid| tid.parse().ok()) {
                let _ = sched_setaffinity(Pid::from_raw(tid), cpus);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confines_and_releases_every_thread() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let count = || {
            let set = sched_getaffinity(pid).unwrap();
            (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).count()
        };
        let all = count();
        let pace = Pace::of(child.id());
        pace.one_at_a_time();
        assert_eq!(count(), 1);
        pace.at_once();
        assert_eq!(count(), all);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
