// SPDX-License-Identifier: GPL-2.0-only
//! Kernels before 6.17 do not tell a scheduler of `cpu.max`, so that it cannot enforce it: there a
//! VM with one must not run under it.

use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CGROUPS: &str = "/sys/fs/cgroup";

/// CPU time for looking, each second: half a percent of one CPU. A thread takes some 20 us.
const BUDGET: Duration = Duration::from_millis(5);

/// Looks for quotas, at some of the VMs each time.
#[derive(Default)]
pub struct Watch {
    next: usize,
}

impl Watch {
    /// Looks at the VMs' processes in turn, from where it stopped, until the time is up.
    ///
    /// Errors: a thread of one of them is below a cgroup with a quota.
    pub fn look(&mut self, tgids: &BTreeSet<i32>) -> Result<()> {
        let begin = Instant::now();
        self.go_on(tgids, refuse, || begin.elapsed() >= BUDGET)
    }

    fn go_on(
        &mut self,
        tgids: &BTreeSet<i32>,
        mut refuse: impl FnMut(i32) -> Result<()>,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<()> {
        let all = tgids.len();
        for &tgid in tgids.iter().cycle().skip(self.next % all.max(1)).take(all) {
            refuse(tgid)?;
            self.next = (self.next + 1) % all;
            if is_over() {
                break;
            }
        }
        Ok(())
    }
}

fn refuse(tgid: i32) -> Result<()> {
    let paths = paths(Path::new(&format!("/proc/{tgid}/task")));
    for path in paths {
        if let Some(file) = quota_above(Path::new(CGROUPS), &path) {
            bail!(
                "the VM of process {tgid} has a quota in {}, of which this kernel does not tell a \
                 scheduler (Linux 6.17 and later do): remove it (echo max > {0}) or use such a kernel; \
                 the kernel's scheduler is in charge",
                file.display()
            );
        }
    }
    Ok(())
}

/// The cgroups (v2) of a process's threads; none if it is gone.
fn paths(threads: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(threads).into_iter().flatten().flatten();
    let files = entries.filter_map(|thread| fs::read_to_string(thread.path().join("cgroup")).ok());
    let of = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("0::").map(|path| path.to_owned()))
    };
    files.filter_map(of).collect()
}

/// The first `cpu.max` with a limit, from the cgroup at `path` upwards.
fn quota_above(root: &Path, path: &str) -> Option<PathBuf> {
    let cgroup = Path::new(path.trim_start_matches('/'));
    let files = cgroup.ancestors().map(|cgroup| root.join(cgroup).join("cpu.max"));
    files.into_iter().find(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.split_whitespace().next().is_some_and(|quota| quota != "max")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three a time of seven: all are seen within three looks, and each again.
    #[test]
    fn looks_at_some_vms_each_time_and_at_all_in_turn() -> Result<()> {
        let (tgids, mut watch) = ((10..17).collect(), Watch::default());
        let mut seen = Vec::new();
        for _ in 0..7 {
            let mut left = 3;
            let mut is_over = || {
                left -= 1;
                left == 0
            };
            let look = |tgid| {
                seen.push(tgid);
                Ok(())
            };
            watch.go_on(&tgids, look, &mut is_over)?;
        }
        assert_eq!(seen, (10..17).cycle().take(21).collect::<Vec<_>>());
        watch.go_on(&BTreeSet::new(), |_| bail!("no VM"), || false)
    }

    #[test]
    fn finds_the_quota_above_a_vm() -> Result<()> {
        let root = std::env::temp_dir().join(format!("baton-quotas-{}", std::process::id()));
        fs::create_dir_all(root.join("machine/vm/vcpu0"))?;
        fs::write(root.join("machine/cpu.max"), "50000 100000\n")?;
        fs::write(root.join("machine/vm/cpu.max"), "max 100000\n")?;
        let found = quota_above(&root, "/machine/vm/vcpu0");
        let none = quota_above(&root, "/other");
        fs::write(root.join("machine/cpu.max"), "max 100000\n")?;
        let lifted = quota_above(&root, "/machine/vm/vcpu0");
        fs::remove_dir_all(&root)?;
        assert_eq!(found, Some(root.join("machine/cpu.max")));
        assert_eq!((none, lifted), (None, None));
        Ok(())
    }
}
