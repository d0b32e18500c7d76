// SPDX-License-Identifier: GPL-2.0-only
//! Threads of the host beside each other, and beside VMs.

use super::{HEAD, run};

/// Rounds a second of those that sleep, beside as many that compute as there are pCPUs.
fn sleepers(scheduler: &str, cpu: &str) -> f64 {
    let hogs = if cpu.is_empty() { 2 } else { 1 };
    let head = HEAD.replace("scx_baton", scheduler);
    let out = run(&format!(
        "{head}pcpus = 2\nwarmup = 0.5\n\
         [[thread]]\ncount = {hogs}\nrun-us = 100000\n{cpu}\
         [[thread]]\nrun-us = 20\nsleep-us = 200\nspread = 0.1\n{cpu}"
    ));
    out.threads[hogs]
}

/// Nobody took a pCPU from a host thread that had run for less than a millisecond, nor was it
/// looked at again when that was over: a tenth of the rounds under EEVDF.
#[test]
fn a_host_thread_that_sleeps_does_not_wait_for_one_that_computes() {
    for cpu in ["", "cpu = 1\n"] {
        let (fair, ours) = (sleepers("eevdf", cpu), sleepers("scx_baton", cpu));
        assert!(ours > 4000.0 && ours > fair, "{ours} rounds a second, {fair} under EEVDF ({cpu})");
    }
}

/// Rounds of the first thread in @rest under scx_baton, times those under EEVDF; of four seeds.
fn rounds(rest: &str) -> f64 {
    let of = |scheduler: &str| -> f64 {
        let head = HEAD.replace("scx_baton", scheduler);
        let one = |seed| run(&format!("{head}seed = {seed}\nwarmup = 0.9\n{rest}")).threads[0];
        (1..=4).map(one).sum()
    };
    of("scx_baton") / of("eevdf")
}

/// A thread of the kernel had taken the pCPU: the vCPU went on after it, to the end of its slice,
/// though the sleeper had woken meanwhile. 0.70 of the rounds.
#[test]
fn a_sleeper_that_wakes_beside_a_thread_of_the_kernel_is_not_forgotten() {
    let rounds = rounds(
        "pcpus = 2\n[[vm]]\nvcpus = 2\nworkload = \"compute\"\n\
         [[thread]]\nrun-us = 17\nsleep-us = 238\ncpu = 0\n",
    );
    assert!(rounds > 0.9, "{rounds}");
}

/// The same beside a visitor, after which the vCPU went on that it had visited. 0.80.
#[test]
fn a_sleeper_that_wakes_beside_a_visitor_is_not_forgotten() {
    let rounds = rounds(
        "pcpus = 1\n[[vm]]\nvcpus = 1\n[[vm.task]]\ncount = 1\n\
         program = [\"sleep 1670us ±20%\", \"compute 200us ±20%\", \"done\"]\n\
         [[vm]]\nvcpus = 1\nworkload = \"compute\"\n\
         [[thread]]\nrun-us = 7\nsleep-us = 125\nspread = 0.2\n",
    );
    assert!(rounds > 0.9, "{rounds}");
}

/// Who was not before a VM as it woke, and is so soon after, waited for the end of the slice: no
/// tick looked at host threads. 0.72.
#[test]
fn a_tick_gives_way_to_a_host_thread_that_is_due() {
    let rounds = rounds(
        "pcpus = 4\n[[vm]]\npin = true\nvcpus = 3\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 4\nworkload = \"lock\"\n[[vm]]\nvcpus = 1\n[[vm.task]]\ncount = 1\n\
         program = [\"sleep 19126us ±20%\", \"compute 89us ±20%\", \"done\"]\n\
         [[thread]]\nrun-us = 72\nsleep-us = 164\ncpu = 0\n",
    );
    assert!(rounds > 0.78, "{rounds}");
}

/// Two host threads bound to its pCPU take turns there: each began anew what the vCPU had waited
/// for, and it ran for a twentieth of the time.
#[test]
fn a_bound_vcpu_has_its_part_beside_two_bound_threads() {
    // EEVDF: 0.33. By the seed it has 24 to 33 turns in a second.
    let used: Vec<f64> = (1..=5)
        .map(|seed| {
            let head = format!("{HEAD}seed = {seed}\npcpus = 2\nwarmup = 0.9\n");
            let out = run(&format!(
                "{head}[[vm]]\npin = true\nvcpus = 1\nworkload = \"compute\"\n\
                 [[vm]]\nvcpus = 2\nworkload = \"compute\"\n\
                 [[thread]]\ncount = 2\nrun-us = 1000\ncpu = 0\n\
                 [[thread]]\nrun-us = 1000\n"
            ));
            out.vms[0].used
        })
        .collect();
    assert!(used.iter().sum::<f64>() > 5.0 * 0.27, "{used:?}");
}

/// A thread that runs is further behind than a sleeper may keep, as VMs come on elsewhere: the
/// sleeper always came after it.
#[test]
fn a_bound_sleeper_does_not_come_after_a_thread_that_is_far_behind() {
    let out = run(&format!(
        "{HEAD}warmup = 0.9\n[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"compute\"\n\
         [[thread]]\nrun-us = 1000\n\
         [[thread]]\ncount = 2\nrun-us = 20\nsleep-us = 300\ncpu = 1\n"
    ));
    assert!(out.threads[1].min(out.threads[2]) > 1200.0, "{:?}", &out.threads[..3]);
}

/// All of them fell behind VMs, which come on elsewhere, as far as they may, where they were level:
/// those that sleep took turns with those that compute, and had a sixtieth of the pCPU's time.
#[test]
fn threads_bound_to_one_pcpu_share_it_whatever_vms_do_elsewhere() {
    let out = run(&format!(
        "{HEAD}warmup = 0.9\n[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"compute\"\n\
         [[thread]]\ncount = 8\nrun-us = 1000\ncpu = 3\n\
         [[thread]]\ncount = 4\nrun-us = 50\nsleep-us = 100\ncpu = 3\n"
    ));
    for used in &out.threads_used[..12] {
        assert!((used * 12.0 - 1.0).abs() < 0.2, "{:?}", &out.threads_used[..12]);
    }
}

/// One that left while the only other one was on its way from the queue was held within a turn of
/// `vnow`, far ahead of that one: it had a sixth of the pCPU, and none where they slept, too.
#[test]
fn threads_bound_to_one_pcpu_have_equal_parts_beside_gangs() {
    let vms = "pcpus = 4\nwarmup = 0.9\n[[vm]]\nvcpus = 4\nworkload = \"barrier\"\n\
               [[vm]]\nvcpus = 3\nworkload = \"mutex\"\n";
    let out = run(&format!("{HEAD}{vms}[[thread]]\ncount = 2\nrun-us = 1000\ncpu = 1\n"));
    for used in &out.threads_used[..2] {
        assert!((used - 0.5).abs() < 0.05, "{:?}", &out.threads_used[..2]);
    }
}

/// The VM paid half, as it wanted half of its share of the host: the thread had a third of the
/// pCPU, and less on a larger host.
#[test]
fn a_bound_thread_has_half_of_its_pcpu_beside_a_pinned_vm_on_an_idle_host() {
    let out = run("machine = \"xeon-8\"\npcpus = 8\nscheduler = \"scx_baton\"\nwarmup = 0.5\n\
         [[vm]]\nvcpus = 2\npin = true\nown-cgroup = true\nworkload = \"compute\"\n\
         [[thread]]\ncpu = 1\nrun-us = 1000\nown-cgroup = true\n");
    assert!(out.threads_used[0] > 0.47, "{:?}\n{}", out.threads_used, out.table());
}

/// Its VM was charged for the other pCPU only when somebody waited for that, which none could: the
/// thread had two thirds of the one that it may run on.
#[test]
fn a_bound_thread_has_its_pcpu_where_a_vm_can_run_on_the_other_one() {
    let out = run(&format!(
        "{HEAD}pcpus = 2\nwarmup = 0.9\n[[vm]]\nvcpus = 2\nworkload = \"compute\"\n\
         [[thread]]\nrun-us = 1000\ncpu = 1\n"
    ));
    assert!(out.threads_used[0] > 0.95, "{:?}\n{}", out.threads_used, out.table());
}

/// A thread that computes lost what it was owed each time that others came on in one leap while it
/// ran, and was the last one in the queue after each visit.
#[test]
fn a_host_thread_that_computes_keeps_its_share_beside_visitors() {
    let out = run(&format!(
        "{HEAD}pcpus = 4\nwarmup = 0.9\n\
         [[vm]]\nvcpus = 3\n[[vm.task]]\ncount = 3\n\
         program = [\"compute 22us ±20%\", \"io 95us\", \"done\"]\n\
         [[vm]]\npin = true\nvcpus = 3\nworkload = \"mutex\"\n\
         [[vm]]\nvcpus = 4\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 1\nworkload = \"ebizzy\"\n\
         [[thread]]\nrun-us = 1000\n"
    ));
    let (thread, vm) = (out.threads_used[0], out.vms[2].used);
    assert!(thread > 0.9 * vm, "the thread has {thread} pCPUs\n{}", out.table());
}

/// A build of sixteen threads on sixteen pCPUs beside a VM of sixteen vCPUs. Each thread that woke
/// took a vCPU from the gang, which was never whole: 109 rounds a second where it is pinned, 641
/// where it is not; under EEVDF 291 and 184, and 9,252 where the VM is alone. What the threads were
/// owed for a turn they lost as they slept for a moment, and had 6 pCPUs of their 8.
#[test]
fn a_gang_has_its_turn_beside_threads_that_compute() {
    for (pin, workload, least) in [
        (true, "barrier-pause", 1_500.0),
        (false, "barrier-pause", 1_800.0),
        // Of 103,000 and 118,000.
        (true, "lock", 125_000.0),
        (false, "lock", 160_000.0),
    ] {
        let out = run(&format!(
            "machine = \"xeon-16\"\npcpus = 16\nscheduler = \"scx_baton\"\nwarmup = 0.6\n\
             seconds = 0.8\n[[cgroup]]\nname = \"build\"\n[[vm]]\nown-cgroup = true\n\
             vcpus = 16\npin = {pin}\nworkload = \"{workload}\"\n[[thread]]\n\
             cgroup = \"build\"\ncount = 16\nrun-us = 3000\nsleep-us = 300\nspread = 0.5\n"
        ));
        let threads: f64 = out.threads_used[..16].iter().sum();
        let rate = out.vms[0].rate;
        assert!(rate > least, "{workload}, pin {pin}: {rate} a second");
        assert!((7.3..8.7).contains(&threads), "{workload}, pin {pin}: threads have {threads}");
    }
}

/// Eight vCPUs on sixteen hyper-threads that are idle otherwise: threads of the kernel preempt each
/// for 50 us now and then. It moved to an idle one, which took 400 us to leave its C-state, and
/// locks were taken 0.86 times as often as under EEVDF.
#[test]
fn a_vcpu_goes_on_where_a_thread_of_the_kernel_has_preempted_it() {
    let locks = |scheduler| {
        let head = format!("machine = \"ryzen-16\"\nscheduler = \"{scheduler}\"\nwarmup = 0.6\n");
        run(&format!("{head}[[vm]]\nvcpus = 8\nworkload = \"lock\"\n"))
    };
    let (baton, eevdf) = (locks("scx_baton"), locks("eevdf"));
    assert!(baton.vms[0].rate > eevdf.vms[0].rate, "{}", baton.table());
    // Not where its slice is over, either: it waited 14 ms there.
    assert!(baton.longest_wait_ms < 2.0, "{} ms", baton.longest_wait_ms);
}

/// Threads that may run on two pCPUs alone, and want more than these, are behind all others: each
/// other pCPU took them for whoever went first there, and started the next thread that may run
/// there before a VM in its turn, whatever it weighed. The VM had 1.6 pCPUs of 5.3.
#[test]
fn threads_of_an_overloaded_cpuset_hold_nobody_back_elsewhere() {
    let vm = |scheduler| {
        let head = HEAD.replace("scx_baton", scheduler).replace("1.0", "2.0");
        let out = run(&format!(
            "{head}warmup = 1\n[[cgroup]]\nname = \"box\"\n\
             [[cgroup]]\nname = \"low\"\nweight = 1\n\
             [[vm]]\nvcpus = 8\nown-cgroup = true\nworkload = \"compute\"\n\
             [[thread]]\ncount = 20\nrun-us = 1000\ncgroup = \"box\"\ncpus = \"0-1\"\n\
             [[thread]]\ncount = 8\nrun-us = 1000\ncgroup = \"low\"\n"
        ));
        (out.vms[0].used, out.threads_used[..20].iter().sum::<f64>())
    };
    let (baton, eevdf) = (vm("scx_baton"), vm("eevdf"));
    assert!(baton.0 > 0.95 * eevdf.0, "{baton:?}, {eevdf:?} under EEVDF");
    assert!(baton.1 > 1.8, "{baton:?}, {eevdf:?} under EEVDF");
}
