// SPDX-License-Identifier: GPL-2.0-only
//! What a host says of itself, whatever schedules it.

use crate::sample::HostSample;
use baton_hostinfo::Host;

pub fn sample(host: &Host) -> HostSample {
    let read = |path: &str| host.read(path).unwrap_or_default();
    let stat = read("/proc/stat");
    let cpu: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))
        .map(|line| line.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is part of user's.
    let at = |place: usize| cpu.get(place).copied().unwrap_or(0);
    HostSample {
        name: read("/proc/sys/kernel/hostname"),
        kernel: read("/proc/sys/kernel/osrelease"),
        cpus: stat.lines().filter(|line| is_a_cpu(line)).count() as u32,
        scheduler: scheduler(host),
        busy: at(0) + at(1) + at(2),
        idle: at(3) + at(4),
        irq: at(5) + at(6),
        steal: at(7),
        pressure_us: pressure(&read("/proc/pressure/cpu")),
    }
}

/// `cpu12 …`, of an online CPU.
fn is_a_cpu(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The name of the sched_ext scheduler in charge, without its version; `kernel` if none is.
pub fn scheduler(host: &Host) -> String {
    let is_on = host.read("/sys/kernel/sched_ext/state").is_some_and(|state| state != "disabled");
    let ops = host.read("/sys/kernel/sched_ext/root/ops").filter(|ops| is_on && !ops.is_empty());
    let name = ops.unwrap_or_else(|| "kernel".to_owned());
    name.split('_').next().map_or(name.clone(), str::to_owned)
}

/// `some … total=N`.
fn pressure(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some"))?;
    some.split("total=").nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reads_what_the_kernel_tells() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        for (file, text) in [
            ("proc/stat", "cpu  10 1 20 300 4 5 6 7 8 0\ncpu0 1 2\ncpu3 1 2\nctxt 9\n"),
            ("proc/pressure/cpu", "some avg10=0.00 total=77\nfull avg10=0 total=1\n"),
            ("proc/sys/kernel/hostname", "kvm-07\n"),
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/root/ops", "baton_0.1.0\n"),
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap_or(root.path()))?;
            fs::write(path, text)?;
        }
        let host = sample(&Host::at(root.path()));
        assert_eq!((host.busy, host.idle, host.irq, host.steal), (31, 304, 11, 7));
        assert_eq!((host.cpus, host.pressure_us), (2, Some(77)));
        assert_eq!((host.name.as_str(), host.scheduler.as_str()), ("kvm-07", "baton"));
        fs::write(root.path().join("sys/kernel/sched_ext/state"), "disabled\n")?;
        assert_eq!(scheduler(&Host::at(root.path())), "kernel");
        // None of it is there, or none of it makes sense.
        assert_eq!(sample(&Host::at("/nonexistent")).cpus, 0);
        fs::write(root.path().join("proc/stat"), "cpu  x -1\ncpux\n")?;
        assert_eq!(sample(&Host::at(root.path())).cpus, 0);
        Ok(())
    }
}
