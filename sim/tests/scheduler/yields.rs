// SPDX-License-Identifier: GPL-2.0-only
//! Whom a vCPU gives its pCPU to, and for how long.

use baton_sim::scenario::load;

use super::*;

/// Spinners handed one slice on for ever; whoever they waited for never ran.
#[test]
fn directed_yields_share_one_slice() {
    let outcome = run(&format!(
        "{}[kvm]\non-spin = \"kernel\"\n\
         [[vm]]\ncount = 4\nvcpus = 8\nworkload = \"ebizzy\"\ntasks = 8",
        quiet()
    ));
    assert!(outcome.jain.is_some_and(|jain| jain > 0.99), "{}", outcome.table());
}

/// Without an end to what it is given for an IPI, the receiver computes on for a whole slice.
#[test]
fn a_boost_for_an_ipi_ends_soon() {
    let text = "yield-policy = [\"ipi\", \"kvm\"]\npcpus = 2\n[kvm]\non-spin = \"kernel\"\n\
                [[vm]]\nvcpus = 4\n[[vm.task]]\nprogram = [\"compute 1ms kernel\", \"call\", \"done\"]\n\
                [[vm.task]]\ncount = 3\nprogram = [\"compute 1ms kernel\"]";
    let rate = run(&format!("{HEAD}{text}")).rate();
    assert!(rate > 400.0, "{rate} calls a second");
}

/// The vCPUs of the VM are bound, and one of them shares its pCPU with threads: its siblings spin
/// and yield to it, and took that pCPU from the threads each time, whoever's turn it was.
#[test]
fn yields_to_a_bound_vcpu_are_not_at_the_cost_of_others() {
    let outcome = run(
        "machine = \"rome-192\"\npcpus = 7\nscheduler = \"scx_baton\"\nseconds = 1.0\nwarmup = 0.05\n\
         starvation-s = 10\n[kvm]\nple = true\nple-user = true\non-spin = \"kernel\"\n[[vm]]\nvcpus = 7\npin = true\n\
         workload = \"barrier-pause\"\n[[thread]]\ncount = 3\ncpu = 2\nrun-us = 3252\n\
         [[thread]]\ncount = 3\ncpu = 2\nrun-us = 4107\nsleep-us = 625",
    );
    assert!(outcome.longest_wait_ms < 300.0, "{} ms", outcome.longest_wait_ms);
}

/// A VM of more vCPUs than the host has pCPUs cannot run as a gang. KVM proposes vCPUs that were
/// preempted in the kernel; the spinner waits for one that was preempted in user mode and owes it
/// an answer.
#[test]
fn a_spinner_yields_to_the_one_that_owes_it_an_answer() {
    let text = |policy: &str| {
        format!(
            "{HEAD}pcpus = 4\nyield-policy = [{policy}]\n[kvm]\non-spin = \"kernel\"\n\
             [[vm]]\nvcpus = 16\nworkload = \"pbzip2\""
        )
    };
    let exits = |policy: &str| run(&text(policy)).vms[0].ple_exits_per_s;
    let (with, without) = (exits("\"ipi\", \"kvm\""), exits("\"kvm\""));
    assert!(with < 0.1 * without, "{with} and {without}");
}

/// Two VMs that fit on the host one at a time, but not both: some vCPUs of each wait while siblings
/// interrupt them. With one pCPU a VM there is no sibling to lend one, and nothing changes.
#[test]
fn siblings_lend_their_pcpu_to_one_that_is_sent_an_ipi() {
    let rate = |policy: &str, pcpus: u32| {
        let out = run(&format!(
            "{HEAD}pcpus = {pcpus}\nyield-policy = [{policy}]\n[kvm]\non-spin = \"kernel\"\n\
             [[vm]]\ncount = 2\nvcpus = 8\nworkload = \"ebizzy\""
        ));
        let lent = out.scheduler_counters.iter().find(|(name, _)| name == "lent").expect("known").1;
        assert!(pcpus == 1 || out.jain.is_some_and(|jain| jain > 0.98), "{}", out.table());
        (out.rate(), lent)
    };
    let (with, lent) = rate("\"sent\", \"ipi\", \"kvm\"", 6);
    let (without, none) = rate("\"ipi\", \"kvm\"", 6);
    assert!(with > 1.1 * without && lent > 1000 && none == 0, "{with} and {without}, lent {lent}");
    assert_eq!(rate("\"sent\", \"ipi\", \"kvm\"", 1).1, 0);
}

/// One that was preempted in user mode is no candidate of KVM's where there is no APICv, and too
/// few wait for siblings to lend it a pCPU: those that it owes spun until a slice ended, and did
/// 0.72 of what they do under EEVDF in ebizzy, a fortieth of what they do now where all send IPIs.
#[test]
fn who_spins_lends_its_own_pcpu_where_kvm_proposes_nobody() {
    for (workload, times) in [("ebizzy", 1.0), ("ipi", 10.0)] {
        let [eevdf, baton] = beside(&format!(
            "[kvm]\nple-user = false\nposted = false\n[[vm]]\nvcpus = 8\n\
             workload = \"{workload}\"\n[[thread]]\nown-cgroup = true\nrun-us = 1000\nsleep-us = 0",
        ));
        assert!(baton.0 > times * eevdf.0, "{workload}: {} and {}", baton.0, eevdf.0);
    }
}

/// Guests that name whom they wait for, by the sched-yield hypercall and PV kicks: obeyed, unless
/// switched off.
#[test]
fn yields_of_those_that_do_not_spin_are_a_policy_of_their_own() {
    let counts = |policy: &str| {
        let out = run(&format!(
            "{HEAD}pcpus = 4\nyield-policy = [{policy}]\n[kvm]\nple = false\n[[vm]]\nvcpus = 16\n\
             workload = \"ebizzy\"\nguest = {{ lock = \"pv-queued\", sched-yield = true, kick-yields = true }}"
        ));
        let count = |name: &str| {
            out.scheduler_counters.iter().find(|(known, _)| known == name).expect("known").1
        };
        (count("obeyed"), count("refused"))
    };
    let (with, without) = (counts("\"kick\""), counts("\"ipi\", \"kvm\""));
    assert!(with.0 > 1000 && with.1 == 0, "{with:?}");
    // A waiter for a lock spins for 1.8 ms before it can be kicked.
    assert!(without.0 == 0 && without.1 > 100, "{without:?}");
}

/// One vCPU interrupts three others and waits, on half as many pCPUs: those that do not run are
/// given the time that an interrupt takes, and no slice.
#[test]
fn calls_to_preempted_vcpus_are_answered_soon() {
    let calls = |scheduler: &str| {
        let scenario = load("call", &[("scheduler".into(), scheduler.into())]).expect("known");
        simulate(&scenario).expect("no invariant broken").0.rate()
    };
    let (baton, eevdf) = (calls("scx_baton"), calls("eevdf"));
    assert!(baton > 1.5 * eevdf, "{baton} and {eevdf}");
}

/// Ishiguro 2021's trap: who has taken an IPI while it ran, and was preempted then, owes nothing.
/// With debts that are never settled, spinners yield to vCPUs that have answered, and nobody gets
/// anywhere.
#[test]
fn a_debt_ends_when_the_ipi_is_taken() {
    let text = |policy: &str| {
        format!(
            "{HEAD}pcpus = 4\nyield-policy = [{policy}]\n[kvm]\non-spin = \"kernel\"\n\
             [[vm]]\nvcpus = 16\nworkload = \"ebizzy\""
        )
    };
    let (with, without) = (run(&text("\"ipi\", \"kvm\"")), run(&text("\"kvm\"")));
    // What a debt brings on costs two switches, which are 0.12 of the work where they gain nothing.
    assert!(with.rate() > 0.8 * without.rate(), "{} and {}", with.rate(), without.rate());
}

/// What two pCPUs count, and a timer that they set, at once, in any order of their steps.
#[test]
fn what_two_pcpus_do_at_once_is_right_in_any_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("races");
    let sim = env!("CARGO_MANIFEST_DIR");
    let status = std::process::Command::new(std::env::var("BPF_CLANG").unwrap_or("clang".into()))
        .args(["-std=gnu11", "-O1", "-fno-strict-aliasing", "-fwrapv", "-Wall", "-Wno-unused"])
        .args([format!("-I{sim}/shim/include"), format!("-I{sim}/../scx_baton/bpf")])
        .arg(format!("{sim}/tests/races.c"))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.expect("clang").success());
    let out = std::process::Command::new(program).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
