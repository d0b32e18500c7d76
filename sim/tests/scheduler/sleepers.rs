// SPDX-License-Identifier: GPL-2.0-only
//! Who sleeps and wakes, beside those that compute.

use baton_sim::scenario::load;

use super::*;

/// A vCPU that woke within a millisecond of its last visit waited for a turn's end. One that woke
/// while threads of the kernel had all pCPUs was not looked for as these went: 0.89 of its work.
#[test]
fn who_sleeps_does_not_wait_for_a_turn_to_end() {
    for (pcpus, vcpus, other) in [(2, 1, "compute"), (2, 2, "barrier"), (8, 4, "compute")] {
        let [eevdf, baton] = beside(&format!(
            "pcpus = {pcpus}\n[[vm]]\nvcpus = {vcpus}\n[[vm.task]]\ncount = {vcpus}\n\
             program = [\"sleep 50us ±20%\", \"compute 5us ±20%\", \"done\"]\n\
             [[vm]]\nvcpus = {pcpus}\nworkload = \"{other}\""
        ));
        assert!(baton.0 > 0.99 * eevdf.0, "{other}: {} and {}", baton.0, eevdf.0);
        assert!(baton.1 < 100_000, "{other}: {} ns", baton.1);
    }
}

/// Several that sleep: a visitor that found another one on the pCPU waited until who had been
/// visited, which went on, had used up its turn. It did 0.46 and 0.31 of its work under EEVDF.
#[test]
fn who_sleeps_does_not_wait_behind_who_is_visited() {
    let task =
        |steps: &str| format!("[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [{steps}, \"done\"]\n");
    let sleeps = task("\"sleep 58us ±20%\", \"compute 29us ±20%\"");
    let io = [(34, 72), (67, 500)]
        .map(|(run, io)| task(&format!("\"compute {run}us ±20%\", \"io {io}us\"")));
    let others = "[[vm]]\nvcpus = 1\nworkload = \"compute\"";
    let [eevdf, baton] = beside(&format!("pcpus = 1\n{sleeps}{}{others}", io.concat()));
    assert!(baton.0 > eevdf.0 && baton.1 < eevdf.1, "{baton:?} and {eevdf:?}");
    let [eevdf, baton] = beside(&format!("pcpus = 1\n{}{sleeps}{others}", io.concat()));
    assert!(baton.0 > eevdf.0, "{baton:?} and {eevdf:?}");
}

/// What a sleeper keeps was not weighed: beside a heavy VM it was a few hundred µs, and it did a
/// third of its work under EEVDF.
#[test]
fn a_sleeper_keeps_its_time_beside_a_heavy_vm() {
    let [eevdf, baton] = beside(
        "pcpus = 2\n[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"compute 81us ±20%\", \"io 89us\", \
         \"done\"]\n[[vm]]\nvcpus = 2\nweight = 1000\nworkload = \"compute\"",
    );
    assert!(baton.0 > eevdf.0, "{baton:?} and {eevdf:?}");
}

/// Its vCPUs often sleep at once, for a moment, and each time it kept no more of what it had waited
/// for its turn than if it had slept for long: 0.86 of its work under EEVDF.
#[test]
fn a_vm_that_sleeps_for_a_moment_keeps_what_it_is_owed() {
    let (mut fair, mut ours) = (0.0, 0.0);
    for seed in 1..=4 {
        let [eevdf, baton] = beside(&format!(
            "pcpus = 4\nseed = {seed}\nstaggered-ticks = true\n\
             [[vm]]\nvcpus = 3\n[[vm.task]]\ncount = 3\n\
             program = [\"sleep 42us ±20%\", \"compute 21us ±20%\", \"done\"]\n\
             [[vm]]\nvcpus = 4\nworkload = \"compute\"\n[[vm]]\nvcpus = 4\nworkload = \"lock\"\n\
             [[vm]]\nvcpus = 4\nweight = 200\nworkload = \"compute\"\n"
        ));
        fair += eevdf.0;
        ours += baton.0;
    }
    assert!(ours > 0.95 * fair, "{ours} and {fair}");
}

/// Threads of the host that sleep a lot are as prompt beside a crowd as on an idle host (a thread
/// that runs for 5 us and sleeps for 50 does so 18,182 times a second), and cost the crowd what
/// they use.
#[test]
fn vhost_threads_do_not_wait_for_a_crowd() {
    let crowd = |scheduler: &str| {
        let changes = vec![("scheduler".to_string(), scheduler.to_string())];
        simulate(&load("vhost-crowd", &changes).expect("it ships")).expect("no invariant breaks").0
    };
    let (ours, fair) = (crowd("scx_baton"), crowd("eevdf"));
    assert!(ours.threads[..4].iter().all(|done| *done > 17_000.0), "{:?}", ours.threads);
    assert!(ours.threads[0] > fair.threads[0], "{:?}", fair.threads);
    assert!(ours.rate() > fair.rate(), "{} and {}", ours.rate(), fair.rate());
    assert!(ours.jain.is_some_and(|jain| jain > 0.99), "{}", ours.table());
}

/// A VM whose vCPUs compute a little and sleep, beside one that wants every pCPU: they woke half as
/// often as under EEVDF, behind siblings that waited for the other VM's turn to end.
#[test]
fn a_vm_that_hardly_uses_its_share_wakes_at_once() {
    let text = quiet().replace("seconds = 1.0", "seconds = 3.0\nwarmup = 1.0");
    let rate = |scheduler: &str| {
        let text = text.replace("scx_baton", scheduler);
        run(&format!(
            "{text}pcpus = 4\n[[vm]]\nvcpus = 6\nworkload = \"compute\"\n[[vm]]\nvcpus = 3\n[[vm.task]]\n\
             count = 3\nprogram = [\"compute 100us\", \"sleep 2ms\", \"done\"]"
        ))
        .vms[1]
            .rate
    };
    let (baton, eevdf) = (rate("scx_baton"), rate("eevdf"));
    assert!(baton > 0.9 * eevdf, "{baton} wake-ups a second, {eevdf} under EEVDF");
}

/// A VM that halts all the time and may poll for long, beside one that wants more than there is.
/// The vCPUs that wait are on other runqueues than the polling one's, so that KVM does not see
/// them.
#[test]
fn polling_costs_nobody_who_waits() {
    let out = run(&format!(
        "{}pcpus = 4\n[kvm]\nhalt-poll = {{ fixed = 5000000 }}\n[[vm]]\nvcpus = 6\n\
         workload = \"compute\"\n[[vm]]\nvcpus = 3\n[[vm.task]]\ncount = 3\n\
         program = [\"compute 100us\", \"sleep 2ms\", \"done\"]",
        HEAD
    ));
    let polling = out.vms[1].polling;
    assert!(polling < 0.003 && out.vms[1].halts_per_s > 500.0, "{polling} pCPUs are polled away");
}

/// A host thread that computes on one pCPU has all that a thread can have, and was behind vnow for
/// ever, as that came on elsewhere: a VM that sleeps, bound there, too, waited for 152 ms each
/// time.
#[test]
fn a_bound_sleeper_wakes_beside_a_bound_thread_that_computes() {
    let vm = |count: u32, vcpus: u32, what: &str| {
        format!("[[vm]]\nown-cgroup = false\ncount = {count}\nvcpus = {vcpus}\n{what}\n")
    };
    let sleeps = |n: u32, sleep: &str, compute: &str| {
        format!(
            "[[vm.task]]\ncount = {n}\n\
             program = [\"sleep {sleep} ±20%\", \"compute {compute} ±20%\", \"done\"]"
        )
    };
    let text = [
        "machine = \"xeon-8\"\npcpus = 4\nscheduler = \"scx_baton\"\nseed = 10246\nwarmup = 0.9\n\
         [kvm]\nple-user = false\n"
            .to_string(),
        vm(1, 1, &format!("pin = true\n{}", sleeps(1, "70us", "4us"))),
        vm(1, 1, "workload = \"ebizzy\""),
        vm(1, 4, "workload = \"ebizzy\""),
        vm(1, 2, &sleeps(2, "294us", "10us")),
        vm(1, 1, "workload = \"ebizzy\""),
        vm(1, 4, &sleeps(4, "617us", "15us")),
        "[[thread]]\nrun-us = 1000\nsleep-us = 0\ncpu = 0\n".to_string(),
    ];
    let done = run(&text.concat()).vms[0].rate;
    // 5,249 a second; EEVDF 2,425.
    assert!(done > 2000.0, "{done} a second");
}

/// While the vCPU sleeps, the thread competes with nobody, and virtual time stood still: nobody was
/// ever behind, and each wake-up waited for the next tick, 4 ms.
#[test]
fn a_sleeper_wakes_beside_the_only_thread_of_its_pcpu() {
    let out = run("machine = \"xeon-8\"\npcpus = 1\nscheduler = \"scx_baton\"\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"sleep 74us ±20%\", \
         \"compute 11us ±20%\", \"done\"]\n\
         [[thread]]\nrun-us = 1000\nsleep-us = 0\n");
    // 11,455 a second, as alone; EEVDF 2,196.
    assert!(out.vms[0].rate > 6000.0, "{} a second", out.vms[0].rate);
}
