// SPDX-License-Identifier: GPL-2.0-only
//! Processes that end, and are followed by new ones: compilers, shell scripts.

use super::{HEAD, run};

/// What two loops in one cgroup have of two pCPUs, beside `count` processes at a time, of `run_us`
/// each, in another cgroup; and the longest wait, ms.
fn loops(scheduler: &str, count: u32, run_us: u32) -> (f64, f64) {
    let head = HEAD.replace("scx_baton", scheduler).replace("1.0", "3.0");
    let out = run(&format!(
        "{head}pcpus = 2\nwarmup = 2.0\n[[cgroup]]\nname = \"loops\"\n\
         [[cgroup]]\nname = \"processes\"\n\
         [[thread]]\ncount = 2\nrun-us = 1000\ncgroup = \"loops\"\n\
         [[thread]]\ncount = {count}\nrun-us = {run_us}\nspread = 0.3\nprocesses = true\n\
         cgroup = \"processes\"\n"
    ));
    (out.threads_used[..2].iter().sum(), out.longest_wait_ms)
}

/// A process began where those were that are furthest behind, owed nothing, and did not count in
/// its cgroup: the loops had nothing for as long as the processes came, 0.0 and 0.2 pCPUs.
#[test]
fn processes_have_the_share_of_their_cgroup_however_short_they_are() {
    for (count, run_us) in [(2, 2000), (8, 100), (8, 2000), (8, 20_000), (8, 100_000)] {
        let (used, wait) = loops("scx_baton", count, run_us);
        assert!((0.85..1.15).contains(&used), "{count} of {run_us} us: {used}");
        assert!(wait < 200.0, "{count} of {run_us} us: {wait} ms");
    }
}

/// They begin at the average, with half a request.
#[test]
fn eevdf_gives_processes_the_share_of_their_cgroup() {
    for (count, run_us) in [(2, 2000), (8, 2000), (8, 20_000)] {
        let (used, _) = loops("eevdf", count, run_us);
        assert!((0.95..1.05).contains(&used), "{count} of {run_us} us: {used}");
    }
}

/// A parallel build took all pCPUs from a VM of the same weight: 0.03 of 8.
#[test]
fn a_vm_has_its_share_beside_a_parallel_build() {
    for run_us in [1000, 50_000] {
        let out = run(&format!(
            "{HEAD}warmup = 2.0\n[[cgroup]]\nname = \"build\"\n\
             [[vm]]\nvcpus = 8\nworkload = \"lock\"\n\
             [[thread]]\ncount = 16\nrun-us = {run_us}\nspread = 0.3\nprocesses = true\n\
             cgroup = \"build\"\n"
        ));
        assert!((3.6..4.4).contains(&out.vms[0].used), "{run_us} us: {}", out.table());
    }
}

/// New ones went before a loop that is bound to the same pCPU, for ever.
#[test]
fn bound_processes_leave_a_bound_loop_its_part() {
    for run_us in [100, 1000] {
        let out = run(&format!(
            "{HEAD}pcpus = 2\nwarmup = 1.0\n[[thread]]\ncount = 2\nrun-us = 1000\ncpu = 1\n\
             [[thread]]\ncount = 2\nrun-us = {run_us}\nspread = 0.3\nprocesses = true\ncpu = 1\n"
        ));
        let used: f64 = out.threads_used[..2].iter().sum();
        assert!((0.45..0.55).contains(&used), "{run_us} us: {used}");
    }
}
