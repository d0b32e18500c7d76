// SPDX-License-Identifier: GPL-2.0-only
//! Hosts with several last-level caches, and with hyper-threads.

use super::*;

/// Two VMs that shared cores stayed there when the other two had ended, and whole cores were idle.
#[test]
fn who_shares_a_core_leaves_for_one_that_is_idle() {
    let (_machine, head) = quiet_cores("seconds = 1.0\nwarmup = 0.3");
    let vms = "[[vm]]\ncount = 4\nvcpus = 2\nworkload = \"compute\"\n";
    let end = |vm: u32| format!("[[fault]]\nat-ms = 100\nvm-ends = {vm}\n");
    let alone = run(&format!("{head}[[vm]]\nvcpus = 2\nworkload = \"compute\"")).rate();
    for gone in [[1, 3], [2, 3], [0, 2]] {
        let out = run(&format!("{head}{vms}{}{}", end(gone[0]), end(gone[1])));
        assert!(out.rate() > 1.99 * alone, "{} of {alone}\n{}", out.rate(), out.table());
    }
}

/// A host of six caches with sleeping threads everywhere: two threads of weight 20 that computed
/// near one of them drove the virtual time of all, and had 0.9 of a pCPU each, more than half of
/// what a VM of weight 100 had.
#[test]
fn light_threads_are_light_near_many_caches() {
    let text = "machine = \"genoa-384\"\nscheduler = \"scx_baton\"\npcpus = 48\nseconds = 0.5\n\
                warmup = 1.0\ncosts.move_ns = [0, 0, 0, 0]\n\
                [[vm]]\ncount = 20\nvcpus = 2\nworkload = \"compute\"\n\
                [[thread]]\ncount = 12\nown-cgroup = true\nweight = 20\nrun-us = 10000\n\
                [[thread]]\ncount = 240\nown-cgroup = true\nrun-us = 200\nsleep-us = 5000\n\
                spread = 0.5\n";
    let outcome = run(text);
    let light: f64 = outcome.threads[..12].iter().sum::<f64>() * 0.01;
    let vms: f64 = outcome.vms.iter().map(|vm| vm.used).sum();
    assert!(light < 9.0 && vms > 29.0, "light threads {light:.1}, VMs {vms:.1} pCPUs");
}

/// Two gangs as large as a host of 32 caches: each stood on some caches with more vCPUs than there
/// are pCPUs, and never ran whole. 140 rounds a second instead of 4,500.
#[test]
fn a_gang_spreads_over_the_caches_as_it_runs() {
    let text = "machine = \"rome-256\"\nscheduler = \"scx_baton\"\nseconds = 0.2\nwarmup = 0.5\n\
                [[vm]]\ncount = 2\nvcpus = 256\nworkload = \"barrier\"\n";
    let rate = run(text).rate();
    assert!(rate > 1500.0, "{rate} rounds a second");
}

/// A gang that is larger than a cache, and has few pCPUs elsewhere, stays there: its vCPUs yield to
/// each other, and none of them waits for so long that another cache takes it. Beside one that is
/// bound to the pCPUs of the other cache, all of which spin for one that does not run.
#[test]
fn a_gang_that_yields_is_seen_from_other_caches() {
    for pin in ["", "pin = true\n"] {
        let [machine, small, large] = match pin {
            "" => ["machine = \"ryzen-16\"\n", "vcpus = 12\n", "vcpus = 16\n"],
            _ => ["machine = \"cascade-lake-96\"\npcpus = 64\n", "vcpus = 49\n", "vcpus = 64\n"],
        };
        let text = format!(
            "{machine}scheduler = \"scx_baton\"\nseconds = 0.2\nwarmup = 0.3\n\
             [kvm]\nple-user = true\n\
             [[vm]]\n{small}{pin}own-cgroup = false\nworkload = \"lock\"\n\
             [[vm]]\n{large}own-cgroup = false\nworkload = \"lock\"\n"
        );
        let out = run(&text);
        assert!(out.vms.iter().all(|vm| vm.rate > 60_000.0), "{}", out.table());
    }
}

/// A host without rivals: a vCPU that a thread of the kernel interrupted was taken to another cache
/// by a sibling's yield. 0.56 of the work under EEVDF.
#[test]
fn a_vcpu_that_is_interrupted_for_a_moment_stays_near_its_cache() {
    let text = "machine = \"rome-256\"\nscheduler = \"scx_baton\"\nseconds = 0.2\nwarmup = 0.3\n\
                [[vm]]\ncount = 4\nvcpus = 64\nworkload = \"lock\"\n";
    let rate = run(text).rate();
    let eevdf = run(&text.replace("scx_baton", "eevdf")).rate();
    assert!(rate > 0.75 * eevdf, "{:.2} of what it does under EEVDF", rate / eevdf);
}

/// The sibling that gave its pCPU to such a vCPU was boosted on one of another cache next, and so
/// on: 3,700 moves a second, and on 256 pCPUs 0.62 of the work under EEVDF.
#[test]
fn a_gang_of_many_caches_does_not_scatter_by_its_yields() {
    let outcome =
        run("machine = \"rome-256\"\nscheduler = \"scx_baton\"\npcpus = 64\nseconds = 0.2\n\
                       warmup = 0.2\n[kvm]\nple-user = true\n\
                       [[vm]]\nvcpus = 64\nworkload = \"ebizzy\"\n");
    let moves: f64 = outcome.vms[0].moves_per_s[1..].iter().sum();
    assert!(moves < 1000.0, "{moves:.0} moves a second");
}

/// One VM as large as the host, alone: what a thread of the kernel interrupts runs on where it was.
/// 140,000 moves between pCPUs a second where a yield took it to another one of its cache,
/// 4,000 where any pCPU might have it from a tick on that found the thread.
#[test]
fn a_vm_as_large_as_the_host_stays_where_it_is() {
    for (machine, vcpus) in [("ice-lake-160", 160), ("rome-256", 256)] {
        let outcome = run(&format!(
            "machine = \"{machine}\"\nscheduler = \"scx_baton\"\nseconds = 0.2\nwarmup = 0.2\n\
             [[vm]]\nvcpus = {vcpus}\nworkload = \"ebizzy\"\n"
        ));
        let moves: f64 = outcome.vms[0].moves_per_s.iter().sum();
        assert!(moves < 2000.0, "{machine}: {moves:.0} moves a second");
    }
}

/// A vCPU may run on one pCPU alone, which is idle, but for one that ends and goes away within a
/// millisecond; it has run near another cache before. Nobody looked at it again.
#[test]
fn an_idle_pcpu_looks_again_for_vcpus_near_other_caches() {
    run("machine = \"ryzen-16\"\npcpus = 8\nscheduler = \"scx_baton\"\nseconds = 0.6\n\
         warmup = 0.05\nseed = 1076152\nstarvation-s = 0.3\n\
         [kvm]\non-spin = \"kernel\"\nple-user = false\nhalt-poll = { fixed = 200000 }\n\
         [[vm]]\nvcpus = 8\ncpus = \"llc\"\nworkload = \"sysbench-oltp\"\n\
         guest = { lock = \"test-and-set\", pv-tlb-flush = true, sched-yield = true }\n\
         [[fault]]\nat-ms = 350\ntask = 7\ncpus = [0]\n\
         [[fault]]\nat-ms = 461\nvm-ends = 0\nexit-ms = 34\n\
         [[fault]]\nat-ms = 474\ntask = 7\ncpus = [3]\n\
         [[fault]]\nat-ms = 70\noffline = 3\n[[fault]]\nat-ms = 88\nonline = 3\n");
}

/// Threads that wait for a last-level cache whose pCPUs all go offline waited for ever, beside
/// VMs on the other one.
#[test]
fn threads_leave_a_cache_whose_pcpus_are_gone() {
    let gone = [0, 1, 2, 3, 8, 9, 10, 11]
        .map(|cpu| format!("[[fault]]\nat-ms = 500.0\noffline = {cpu}\n"))
        .concat();
    run(&format!(
        "machine = \"ryzen-16\"\nscheduler = \"scx_baton\"\nseconds = 6.0\nstarvation-s = 3.0\n\
         [[vm]]\ncount = 4\nvcpus = 8\nworkload = \"compute\"\n\
         [[thread]]\ncount = 40\nrun-us = 1000.0\n{gone}"
    ));
}

/// Services, gangs and VMs that compute, on two last-level caches: a vCPU left its own one 9,000
/// times a second in all, as each pCPU without work took what would run where it was in a moment.
#[test]
fn vcpus_stay_near_their_cache() {
    let services = "[[vm]]\ncount = 6\nvcpus = 2\n[[vm.task]]\ncount = 2\n\
                    program = [\"compute 80us ±20%\", \"io 300us\", \"done\"]\n";
    let others = [(3, 2, "compute"), (2, 4, "lock"), (1, 8, "ebizzy"), (1, 8, "compute")]
        .map(|(count, vcpus, workload)| {
            format!("[[vm]]\ncount = {count}\nvcpus = {vcpus}\nworkload = \"{workload}\"\n")
        })
        .concat();
    let out = run(&format!(
        "machine = \"ryzen-16\"\nscheduler = \"scx_baton\"\nseconds = 1.0\n{services}{others}"
    ));
    let left: f64 = out.vms.iter().map(|vm| vm.moves_per_s[2]).sum();
    assert!((1.0..3000.0).contains(&left), "{left} a second");
}

/// ... and no pCPU is idle for long while a vCPU waits near another cache.
#[test]
fn caches_share_what_they_have_to_do() {
    let used = ["eevdf", "scx_baton"].map(|scheduler| {
        let out = run(&format!(
            "machine = \"ryzen-16\"\nscheduler = \"{scheduler}\"\nseconds = 5.0\n\
             [[vm]]\ncount = 18\nvcpus = 1\n[[vm.task]]\ncount = 1\n\
             program = [\"compute 200ms ±20%\", \"io 60ms\", \"done\"]\n"
        ));
        out.vms.iter().map(|vm| vm.used).sum::<f64>()
    });
    assert!(used[1] > 0.96 * used[0], "pCPUs used under EEVDF and Baton: {used:?}");
}
