// SPDX-License-Identifier: GPL-2.0-only
//! A cgroup for each VM, so that VMs can weigh differently. VMs are threads of one process here, so
//! these are threaded cgroups (Documentation/admin-guide/cgroup-v2.rst, "Threads").

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, ensure};

const ROOT: &str = "/sys/fs/cgroup";

/// Dropped, the process is back where it was, and the cgroups are gone.
pub struct Cgroups {
    ours: PathBuf,
    before: PathBuf,
    weights: Vec<u32>,
}

impl Cgroups {
    /// One cgroup for each weight, 1 to 10,000 (`cpu.weight`).
    ///
    /// Errors: no cgroup v2, or no permission.
    pub fn new(weights: &[u32]) -> Result<Self> {
        let all =
            fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let path = all.lines().find_map(|line| line.strip_prefix("0::/"));
        // Where v1 and v2 are mounted below a tmpfs, these files would be ordinary ones.
        ensure!(
            Path::new(ROOT).join("cgroup.controllers").exists(),
            "--weights needs cgroup v2 at {ROOT}"
        );
        let before = Path::new(ROOT).join(path.context("--weights needs cgroup v2")?);
        let ours = Path::new(ROOT).join(format!("baton-bench-{}", process::id()));
        write(&Path::new(ROOT).join("cgroup.subtree_control"), "+cpu")?;
        fs::create_dir(&ours).with_context(|| format!("cannot make {}", ours.display()))?;
        let cgroups = Cgroups { ours, before, weights: weights.to_vec() };
        write(&cgroups.ours.join("cgroup.procs"), &process::id().to_string())?;
        for (vm, weight) in weights.iter().enumerate() {
            let cgroup = cgroups.of(vm);
            fs::create_dir(&cgroup).with_context(|| format!("cannot make {}", cgroup.display()))?;
            write(&cgroup.join("cgroup.type"), "threaded")?;
            if vm == 0 {
                write(&cgroups.ours.join("cgroup.subtree_control"), "+cpu")?;
            }
            write(&cgroup.join("cpu.weight"), &weight.to_string())?;
        }
        Ok(cgroups)
    }

    fn of(&self, vm: usize) -> PathBuf {
        self.ours.join(format!("vm{vm}"))
    }

    /// This thread, and those that it starts from now on, belong to a VM; to none if there is no
    /// cgroup for it.
    ///
    /// Errors: the kernel refuses.
    pub fn enter(&self, vm: usize) -> Result<()> {
        let cgroup = if vm < self.weights.len() { self.of(vm) } else { self.ours.clone() };
        // 0 is whoever writes.
        write(&cgroup.join("cgroup.threads"), "0")
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // What cannot be undone here is a directory without tasks, which harms nobody.
        let _ = fs::write(self.before.join("cgroup.procs"), process::id().to_string());
        for vm in 0..self.weights.len() {
            let _ = fs::remove_dir(self.of(vm));
        }
        let _ = fs::remove_dir(&self.ours);
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {text} to {}", file.display()))
}
