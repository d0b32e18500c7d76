// SPDX-License-Identifier: GPL-2.0-only
//! VMs that may run on a part of the host, or on one pCPU, beside others.

use super::*;

/// Thirty VMs that may run on two pCPUs alone go before the one that may use the other two: a pCPU
/// that has tried eight of them in vain takes any VM that may run there, rather than none.
#[test]
fn no_pcpu_is_idle_for_those_that_may_not_run_there() {
    let out = run(&format!(
        "{HEAD}pcpus = 4\n[[vm]]\nvcpus = 2\ncpus = \"2-3\"\nworkload = \"compute\"\n\
         [[vm]]\ncount = 30\nvcpus = 2\ncpus = \"0-1\"\nworkload = \"compute\"\n"
    ));
    assert!(out.vms[0].used > 1.9, "{} of 2 pCPUs", out.vms[0].used);
}

/// VMs and threads confined to a few pCPUs of many share these by weight, whatever the host has
/// beside them. What a VM wants was compared with its share of the whole host, and cost next to
/// nothing: the thread had 0.15 of a pCPU instead of one, the smaller VM twice what the other had.
#[test]
fn the_pcpus_of_a_cpuset_are_shared_by_weight() {
    let head = HEAD.replace("xeon-8", "cascade-lake-96") + "pcpus = 64\n";
    let vm = |vcpus: u32, cpus: &str| {
        format!("[[vm]]\nvcpus = {vcpus}\ncpus = \"{cpus}\"\nworkload = \"compute\"\n")
    };
    let thread = "[[thread]]\ncpus = \"0-1\"\nrun-us = 1000.0\nsleep-us = 0.0\nown-cgroup = true\n";
    let used = run(&(head.clone() + &vm(2, "0-1") + thread)).vms[0].used;
    assert!((used - 1.0).abs() < 0.1, "beside a thread: {used} of 2 pCPUs");
    let out = run(&(head + &vm(4, "0-3") + &vm(8, "0-3")));
    let used = [out.vms[0].used, out.vms[1].used];
    assert!((used[0] - 2.0).abs() < 0.1 && (used[1] - 2.0).abs() < 0.1, "{used:?} of 4 pCPUs");
}

/// A VM of 64 vCPUs that may run on a quarter of the host is behind its due, as one of 10 is, and
/// that one went before it whatever each had: how long a VM stays behind was told by the number of
/// its vCPUs, also of those that have no pCPU to run on. It had 7.9 pCPUs.
#[test]
fn a_vm_in_a_part_of_the_host_has_that_part_if_it_is_due() {
    let out = run(&format!(
        "{}pcpus = 64\nwarmup = 0.9\n[[vm]]\nvcpus = 64\ncpus = \"0-15\"\n\
         workload = \"compute\"\n\
         [[vm]]\ncount = 2\nvcpus = 64\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 10\ncpus = \"0-31\"\nworkload = \"compute\"\n",
        HEAD.replace("xeon-8", "cascade-lake-96")
    ));
    assert!(out.vms[0].used > 15.0, "of 16 pCPUs\n{}", out.table());
    assert!((out.vms[1].used / out.vms[2].used - 1.0).abs() < 0.1, "{}", out.table());
}

/// Nor does it hold back virtual time, by which the others share the rest: the one of a low weight
/// had half of what it is due, as it was never behind, and the larger two 7.5 and 5.9 pCPUs.
#[test]
fn a_vm_in_a_part_of_the_host_does_not_change_the_shares_of_the_others() {
    let out = run(&format!(
        "{}pcpus = 16\nwarmup = 0.6\n\
         [[vm]]\nvcpus = 4\nweight = 20\nown-cgroup = true\n[[vm.task]]\ncount = 4\n\
         program = [\"sleep 342us ±20%\", \"compute 171us ±20%\", \"done\"]\n\
         [[vm]]\nvcpus = 16\ncpus = \"0-1\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\ncount = 2\nvcpus = 16\nown-cgroup = true\nworkload = \"compute\"\n",
        HEAD.replace("xeon-8", "xeon-16")
    ));
    assert!(out.vms[0].used > 0.9 && out.vms[1].used > 1.9, "{}", out.table());
    assert!((out.vms[2].used / out.vms[3].used - 1.0).abs() < 0.1, "{}", out.table());
}

/// Nor do two of different sizes in one part: by how far they are behind the larger one, which may
/// be so by half a turn of each vCPU, would have that part alone, and the other one 0.08 of a pCPU.
/// With each at the bound of what it may be behind, they had 1.20 and 0.79.
#[test]
fn vms_of_different_sizes_share_a_part_of_the_host() {
    let out = run(&format!(
        "{}pcpus = 16\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 16\ncpus = \"0-1\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 4\ncpus = \"0-1\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\ncount = 2\nvcpus = 16\nown-cgroup = true\nworkload = \"compute\"\n",
        HEAD.replace("xeon-8", "xeon-16")
    ));
    assert!(out.vms[0].used > 0.9 && out.vms[1].used > 0.9, "{}", out.table());
    assert!((out.vms[2].used / out.vms[3].used - 1.0).abs() < 0.1, "{}", out.table());
}

/// Host threads in the part of a VM that is due all of it have their due: the VM fell as far behind
/// as it may be, which is further than a thread may be, and went first. The one that sleeps did 266
/// of 2,190 rounds a second, the one that computes 267, under EEVDF 577.
#[test]
fn host_threads_have_their_share_in_the_part_of_a_vm() {
    let head = HEAD.replace("xeon-8", "cascade-lake-96") + "pcpus = 64\nwarmup = 0.9\n";
    let vms = "[[vm]]\nvcpus = 16\ncpus = \"0-7\"\nown-cgroup = true\nworkload = \"compute\"\n\
               [[vm]]\ncount = 2\nvcpus = 64\nown-cgroup = true\nworkload = \"compute\"\n";
    let rounds = |thread: &str| {
        let thread = format!("[[thread]]\nown-cgroup = true\n{thread}\n");
        run(&(head.clone() + vms + &thread)).threads[0]
    };
    let sleeps = rounds("cpus = \"0-7\"\nrun-us = 82.0\nsleep-us = 305.0");
    assert!(sleeps > 1900.0, "{sleeps} rounds a second");
    let computes = rounds("cpu = 1\nrun-us = 1000.0\nsleep-us = 0.0");
    assert!(computes > 500.0, "{computes} rounds a second");
}

/// Nor do those of a low weight take the part from the VM: it had 0.30 of 4 pCPUs, as each of them
/// may be further behind than it.
#[test]
fn a_vm_has_its_share_beside_host_threads_of_low_weight_in_its_part() {
    let out = run(&format!(
        "{}pcpus = 16\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 16\ncpus = \"0-3\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\ncount = 2\nvcpus = 16\nown-cgroup = true\nworkload = \"compute\"\n\
         [[thread]]\ncount = 4\nweight = 20\ncpus = \"0-3\"\nown-cgroup = true\n\
         run-us = 1000.0\nsleep-us = 0.0\n",
        HEAD.replace("xeon-8", "xeon-16")
    ));
    assert!((out.vms[0].used - 2.2).abs() < 0.3, "{}", out.table());
}

/// VMs in cpusets that lie across each other share what these have in common by weight, too: of a
/// weight of 1,000 and of 100 both had 2.7 pCPUs, and a third one between them 5.8.
#[test]
fn vms_in_cpusets_that_overlap_share_them_by_weight() {
    let out = run(&format!(
        "{}pcpus = 16\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 13\ncpus = \"8-15\"\nweight = 1000\nown-cgroup = true\n\
         workload = \"compute\"\n\
         [[vm]]\nvcpus = 1\ncpus = \"12-13\"\nown-cgroup = true\n\
         [[vm.task]]\nprogram = [\"compute 25us ±20%\", \"io 102us\", \"done\"]\n\
         [[vm]]\nvcpus = 16\ncpus = \"7-12\"\nown-cgroup = true\nworkload = \"mutex\"\n\
         [[vm]]\nvcpus = 16\ncpus = \"8-11\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 16\nown-cgroup = true\nworkload = \"compute\"\n",
        HEAD.replace("xeon-8", "xeon-16")
    ));
    assert!(out.vms[0].used > 5.0 && out.vms[1].used > 0.1, "{}", out.table());
    assert!(out.vms[2].used > 0.7 && out.vms[3].used > 0.6, "{}", out.table());
}

/// Where one of them is bound to one pCPU, too: the one of weight 200 had 0.05 of a pCPU, or the
/// bound one had 0.19.
#[test]
fn a_vm_of_one_vcpu_shares_its_pcpu_with_one_that_has_two() {
    let out = run(&format!(
        "{HEAD}pcpus = 4\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 2\ncpus = \"2-2\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 4\nown-cgroup = true\nworkload = \"barrier\"\n\
         [[vm]]\nvcpus = 1\ncpus = \"3-3\"\nown-cgroup = true\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 1\ncpus = \"2-2\"\nown-cgroup = true\n\
         [[vm.task]]\nprogram = [\"sleep 33us ±20%\", \"compute 16us ±20%\", \"done\"]\n\
         [[vm]]\nvcpus = 4\ncpus = \"2-3\"\nweight = 200\nown-cgroup = true\n\
         workload = \"compute\"\n"
    ));
    let used = |i: usize| out.vms[i].used;
    assert!(used(0) > 0.3 && used(2) > 0.3 && used(4) > 0.6, "{}", out.table());
}

/// VMs that have all that they want on other pCPUs leave a part of the host to the one that has no
/// others: that one had 7.9 of 16.
#[test]
fn who_has_what_it_wants_elsewhere_leaves_a_part_of_the_host() {
    let out = run(&format!(
        "{}pcpus = 64\nwarmup = 0.9\n[[vm]]\nvcpus = 64\ncpus = \"0-15\"\n\
         workload = \"compute\"\n\
         [[vm]]\ncount = 2\nvcpus = 64\nworkload = \"compute\"\n\
         [[vm]]\ncount = 10\nvcpus = 1\ncpus = \"0-31\"\nworkload = \"compute\"\n",
        HEAD.replace("xeon-8", "cascade-lake-96")
    ));
    assert!(out.vms[0].used > 14.0 && out.vms[12].used > 0.9, "{}", out.table());
}

/// Who sleeps in a part of the host that is due more than it has does not wait until the others
/// there have come as far as `vnow`: with no bound to how far a VM may be behind there, a VM waited
/// 200 ms at each wake-up, and a thread that may run in two such parts never ran.
#[test]
fn who_sleeps_does_not_wait_in_a_part_that_is_due_more_than_it_has() {
    let part = |cpus: &str| {
        format!(
            "[[vm]]\nvcpus = 16\ncpus = \"{cpus}\"\nown-cgroup = true\nworkload = \"compute\"\n\
             [[thread]]\ncount = 4\ncpus = \"{cpus}\"\nown-cgroup = true\n\
             run-us = 1000.0\nsleep-us = 0.0\n"
        )
    };
    let out = run(&format!(
        "{}pcpus = 16\nwarmup = 3.0\n\
         [[thread]]\ncpus = \"0-7\"\nown-cgroup = true\nrun-us = 1000.0\nsleep-us = 20000.0\n\
         [[thread]]\ncpus = \"0-7\"\nown-cgroup = true\nrun-us = 1000.0\nsleep-us = 0.0\n\
         [[vm]]\nvcpus = 1\ncpus = \"0-3\"\nown-cgroup = true\n[[vm.task]]\n\
         program = [\"sleep 50ms ±20%\", \"compute 100us ±20%\", \"done\"]\n\
         [[vm]]\ncount = 2\nvcpus = 16\nown-cgroup = true\nworkload = \"compute\"\n{}{}",
        HEAD.replace("xeon-8", "xeon-16"),
        part("0-3"),
        part("4-7")
    ));
    let late = out.vms[0].lateness.as_ref().expect("it sleeps").p99;
    assert!(late < 1_000_000, "{late} ns\n{}", out.table());
    assert!(out.threads[0] > 20.0, "{} rounds a second", out.threads[0]);
    assert!(out.threads[1] > 500.0, "{} rounds a second", out.threads[1]);
    assert!((out.vms[1].used / out.vms[2].used - 1.0).abs() < 0.1, "{}", out.table());
}

/// The vCPUs of a VM that may all run on one and the same pCPU wait for each other's slices to end:
/// a turn was as long for them as for those that have a pCPU each, and barriers, whose spins do not
/// exit, got 98 rounds a second done, under EEVDF 276.
#[test]
fn vcpus_of_a_vm_that_share_a_pcpu_take_short_slices() {
    let out = run(&format!(
        "{HEAD}pcpus = 4\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 2\ncpus = \"2-2\"\nown-cgroup = true\nworkload = \"barrier\"\n\
         [[vm]]\nvcpus = 4\ncpus = \"1-2\"\nown-cgroup = true\n[[vm.task]]\ncount = 4\n\
         program = [\"compute 10us ±20%\", \"io 309us\", \"done\"]\n"
    ));
    assert!(out.vms[0].rate > 500.0, "{}", out.table());
}
