// SPDX-License-Identifier: GPL-2.0-only
//! Kernels before 6.17 do not tell a scheduler of `cpu.max`, so that it cannot enforce it: there a VM with
//! one must not run under it.

use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

/// Errors: a thread of this process is below a cgroup with a quota.
pub fn refuse(tgid: i32) -> Result<()> {
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
