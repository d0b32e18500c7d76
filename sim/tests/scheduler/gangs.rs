// SPDX-License-Identifier: GPL-2.0-only
//! VMs whose vCPUs wait for each other.

use baton_sim::scenario::load;

use super::*;

/// VMs whose vCPUs spin often, and halt often, ran spread out: spinners met holders that did not
/// run, and both VMs together did 0.5 of what one does alone.
#[test]
fn vcpus_that_halt_run_together_if_they_spin() {
    let served = |vms: u32, scheduler: &str, ple: bool| {
        let changes = [
            ("vm.count".to_string(), vms.to_string()),
            ("scheduler".to_string(), scheduler.to_string()),
            ("kvm.ple".to_string(), ple.to_string()),
        ];
        let scenario = load("file-server", &changes).expect("it ships");
        simulate(&scenario).expect("no invariant is broken").0
    };
    let (alone, two) = (served(1, "scx_baton", true), served(2, "scx_baton", true));
    assert!(two.rate() > 0.95 * alone.rate(), "{} of {}", two.rate(), alone.rate());
    assert!(two.jain.is_some_and(|jain| jain > 0.99));
    for ple in [true, false] {
        let fair = served(2, "eevdf", ple);
        assert!(two.rate() > fair.rate(), "{} of {}", two.rate(), fair.rate());
    }
}

/// A VM had its share by the vCPUs that could run; the others starved.
#[test]
fn no_vcpu_starves_when_others_of_its_vm_run() {
    let outcome = run(&format!(
        "{HEAD}pcpus = 4\n[[thread]]\ncount = 3\nrun-us = 4773.0\n\
         [[vm]]\nvcpus = 5\npin = true\nworkload = \"compute\""
    ));
    assert!(outcome.longest_wait_ms < 400.0, "{}", outcome.longest_wait_ms);
}

/// VMs of more vCPUs than there are pCPUs wait at barriers for those in the queue, and spin without
/// an exit: what brings those on is the end of slices alone. It once was that of the VM's turn, and
/// EEVDF did twice as many.
#[test]
fn vcpus_that_do_not_fit_on_the_host_take_turns_often() {
    let rounds = |scheduler: &str| {
        let text = format!("{HEAD}[[vm]]\ncount = 4\nvcpus = 16\nworkload = \"barrier\"");
        run(&text.replace("scx_baton", scheduler)).rate()
    };
    let (baton, eevdf) = (rounds("scx_baton"), rounds("eevdf"));
    assert!(baton > 1.5 * eevdf, "{baton} and {eevdf}");
}

/// A VM that is as large as the host, beside a thread that computes: one vCPU always waits, and
/// the others spin for it until a slice ends. They met 0.56 and 0.78 times as often as under EEVDF.
#[test]
fn a_gang_that_lacks_one_pcpu_takes_turns_often() {
    for pcpus in [4, 8] {
        let [eevdf, baton] = beside(&format!(
            "pcpus = {pcpus}\n[[vm]]\nvcpus = {pcpus}\nworkload = \"barrier\"\n\
             [[thread]]\nown-cgroup = true\nrun-us = 1000\nsleep-us = 0"
        ));
        assert!(baton.0 > 2.0 * eevdf.0, "{pcpus}: {} and {}", baton.0, eevdf.0);
    }
}

/// Two VMs of ten vCPUs take turns on eight pCPUs, in slices of a millisecond. Where these end at
/// once on all pCPUs, the two that wait begin to run once in a millisecond: 6.6 times the rounds
/// that EEVDF does, instead of 12.
#[test]
fn short_slices_end_one_after_the_other() {
    let vms = "pcpus = 8\n[[vm]]\ncount = 2\nvcpus = 10\nworkload = \"barrier\"";
    let [eevdf, baton] = beside(vms);
    assert!(baton.0 > 9.0 * eevdf.0, "{} and {}", baton.0, eevdf.0);
}

/// Four vCPUs on four pCPUs spin for a fifth that sleeps now and then: when it wakes all have long
/// slices.
#[test]
fn one_that_comes_late_is_not_waited_for_in_vain() {
    let text = HEAD.replace("seconds = 1.0", "seconds = 2.0\npcpus = 4");
    let rounds = |scheduler: &str| {
        let text = text.replace("scx_baton", scheduler);
        run(&format!(
            "{text}[[vm]]\nown-cgroup = false\nvcpus = 5\n[[vm.task]]\nprogram = [\"sleep 3ms\", \"compute 50us\", \"barrier\", \
             \"done\"]\n[[vm.task]]\ncount = 4\nprogram = [\"compute 50us\", \"barrier\"]\n\
             [[vm]]\nown-cgroup = false\nvcpus = 4\nworkload = \"compute\""
        ))
        .vms[0]
            .rate
    };
    let (baton, eevdf) = (rounds("scx_baton"), rounds("eevdf"));
    assert!(baton > 0.9 * eevdf, "{baton} and {eevdf}");
}

/// Siblings that all want to run get the same, in gangs and where not all fit: within two turns and
/// what runs.
#[test]
fn siblings_are_not_far_apart() {
    for (vms, vcpus) in [(4, 8), (4, 16), (2, 10), (1, 16), (3, 5)] {
        for workload in ["compute", "barrier"] {
            let vm = format!("[[vm]]\ncount = {vms}\nvcpus = {vcpus}\nworkload = \"{workload}\"");
            let out = run(&format!("{HEAD}warmup = 0\n{vm}"));
            let skew = out.vms.iter().map(|vm| vm.skew_ms).fold(0.0, f64::max);
            assert!(skew < 36.0, "{vms} VMs of {vcpus}, {workload}: {skew} ms apart");
        }
    }
}

/// Seven vCPUs spin for a lock, and an eighth halts 2,000 times a second, as for a device: the VM
/// was spread for that, and the seven did an eighth of what they do beside one that hardly halts.
#[test]
fn one_vcpu_that_halts_does_not_spread_a_gang() {
    let rate = ["50ms", "450us"].map(|sleep| {
        let out = run(&format!(
            "machine = \"rome-256\"\npcpus = 8\nscheduler = \"scx_baton\"\nseconds = 1.0\n\
             [kvm]\nple = false\n\
             [[vm]]\ncount = 2\nvcpus = 8\nguest = {{ lock = \"queued\" }}\n\
             [[vm.task]]\ncount = 7\n\
             program = [\"compute 6us ±30%\", \"lock 0\", \"compute 2us ±30%\", \"unlock 0\", \
             \"done\"]\n\
             [[vm.task]]\ncount = 1\nprogram = [\"sleep {sleep} ±20%\", \"compute 10us\"]\n"
        ));
        out.vms.iter().map(|vm| vm.rate).sum::<f64>()
    });
    assert!(rate[1] > 0.5 * rate[0], "{rate:?} turns a second");
}
