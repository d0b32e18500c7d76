// SPDX-License-Identifier: GPL-2.0-only
//! Schedulers in the simulator: what scx_baton once did wrong, and what the rules are.

use std::sync::OnceLock;

use baton_sim::fuzz::{fuzz, in_process};
use baton_sim::outcome::{Outcome, VmOutcome, simulate};
use baton_sim::scenario::{MACHINES, Scenario, load};

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse(text, &[]).expect("a scenario");
    simulate(&scenario).expect("no invariant is broken").0
}

fn error(text: &str) -> String {
    let result = Scenario::parse(text, &[]).and_then(|scenario| simulate(&scenario).map(drop));
    format!("{:#}", result.expect_err("it is wrong"))
}

const HEAD: &str = "machine = \"xeon-8\"\nscheduler = \"scx_baton\"\nseconds = 1.0\n";

/// The same on a host whose kernel does nothing by itself: its threads preempt vCPUs, and that hides
/// what a scheduler forgets.
fn quiet() -> &'static str {
    static QUIET: OnceLock<(tempfile::NamedTempFile, String)> = OnceLock::new();
    let (_, head) = QUIET.get_or_init(|| {
        let file = without_noise("xeon-8");
        let head = HEAD.replace("xeon-8", &file.path().display().to_string());
        (file, head)
    });
    head
}

/// Four such cores of two hyper-threads.
fn quiet_cores(rest: &str) -> (tempfile::NamedTempFile, String) {
    let file = without_noise("cascade-lake-96");
    let machine = file.path().display();
    let head = format!("machine = \"{machine}\"\npcpus = 8\nscheduler = \"scx_baton\"\n{rest}\n");
    (file, head)
}

fn without_noise(machine: &str) -> tempfile::NamedTempFile {
    let (_, machine) = MACHINES.iter().find(|(name, _)| *name == machine).expect("known");
    let without: Vec<&str> = machine.lines().filter(|line| !line.starts_with("noise")).collect();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, without.join("\n")).expect("written");
    file
}

/// Threads that become vCPUs while they run were never charged: others waited for ever.
#[test]
fn threads_that_become_vcpus_while_they_run_are_charged() {
    let two = run(&format!("{}[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"barrier\"", quiet()));
    let alone = run(&format!("{}[[vm]]\nvcpus = 8\nworkload = \"barrier\"", quiet()));
    assert!(two.rate() > 0.9 * alone.rate(), "{} of {}", two.rate(), alone.rate());
    assert!(two.jain.is_some_and(|jain| jain > 0.99));
}

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

/// A VM that runs everywhere began its turns on other pCPUs and took this one with them; or took it
/// from the bound vCPU, at once, or behind a thread of the kernel.
/// cpu.max of one VM; the other gets what is left, and the burst is saved up while it halts.
#[test]
fn quotas_are_kept() {
    let vm = |rest: &str| format!("[[vm]]\nvcpus = 4\nworkload = \"compute\"\n{rest}\n");
    let used = |text: String| -> Vec<f64> {
        let out =
            run(&format!("{}pcpus = 4\n{text}", quiet().replace("seconds = 1.0", "seconds = 4.0")));
        out.vms.iter().map(|vm| vm.used).collect()
    };
    let half = "cpu-max = { quota-us = 50000 }";
    let got = used(vm(half));
    assert!((got[0] / 0.5 - 1.0).abs() < 0.03, "half a pCPU: {got:?}");
    let got = used(vm(half) + &vm(""));
    assert!((got[0] / 0.5 - 1.0).abs() < 0.03 && got[1] > 3.4, "beside another: {got:?}");
    let got = used(vm("cpu-max = { quota-us = 2000, period-us = 10000 }"));
    assert!((got[0] / 0.2 - 1.0).abs() < 0.05, "less than a tick of each pCPU: {got:?}");
    // Raised at 2.2 s: half of the time.
    let fault = "[[fault]]\nat-ms = 2200.0\nvm = 0\ncpu-max = { quota-us = 150000 }\n";
    let got = used(vm(half) + fault);
    assert!((got[0] - 1.0).abs() < 0.05, "half, then one and a half: {got:?}");
    let got = used(vm("cpu-max = { quota-us = 1000000 }"));
    assert!(got[0] > 3.9, "more than there is: {got:?}");
}

/// Shares of busy loops in two cgroups on two pCPUs, and what the exact host's kernel gave the first one, in pCPUs
/// (docs/sim.md). A task in no cgroup is worth as much as a whole cgroup; a cgroup is divided by where its load is.
#[test]
fn eevdf_gives_cgroups_what_the_kernel_gives_them() {
    let used = |rest: &str| {
        run(&format!(
            "machine = \"exact\"\npcpus = 2\nscheduler = \"eevdf\"\nseconds = 1.5\nwarmup = 1.0\n{rest}"
        ))
        .vms[0]
            .used
    };
    let two = |a: u32, b: u32, weight: u32| {
        let vm = "workload = \"compute\"\nvcpus";
        used(&format!("[[vm]]\n{vm} = {a}\n[[vm]]\n{vm} = {b}\nweight = {weight}\n"))
    };
    let bound = "[[vm]]\nvcpus = 2\nworkload = \"compute\"\npin = true\n\
                 [[thread]]\nrun-us = 1000\ncpu = 1\n";
    for (simulated, kernel, what) in [
        (two(2, 2, 300), 0.50, "2 and 2 loops, weights 100 and 300"),
        (two(3, 1, 300), 1.00, "3 and 1 loops, weights 100 and 300"),
        (two(1, 2, 100), 1.00, "1 and 2 loops"),
        (two(1, 4, 100), 0.67, "1 and 4 loops"),
        (used(bound), 1.34, "2 bound loops beside a bound thread of the root"),
        (used(&bound.replace("pin = true", "").replace("cpu = 1", "")), 1.00, "unbound"),
    ] {
        let ratio = simulated / kernel;
        assert!((0.85..1.15).contains(&ratio), "{what}: {simulated}, the kernel gave {kernel}");
    }
}

/// Without a cgroup of its own, each vCPU is worth as much as a thread of the host.
#[test]
fn vcpus_without_a_cgroup_are_threads_among_others() {
    let used = |own: bool| {
        let head = HEAD.replace("scx_baton", "eevdf");
        run(&format!(
            "{head}pcpus = 1\n[[vm]]\nown-cgroup = {own}\nvcpus = 3\nworkload = \"compute\"\n\
             [[thread]]\nrun-us = 1000\n"
        ))
        .vms[0]
            .used
    };
    assert!((used(true) - 0.5).abs() < 0.05, "{}", used(true));
    assert!((used(false) - 0.75).abs() < 0.05, "{}", used(false));
}

/// The tree of cgroups divides at each level among those that want the CPU.
#[test]
fn shares_follow_the_tree() {
    let text = quiet().replace("seconds = 1.0", "seconds = 10.0\nwarmup = 2.0\npcpus = 4");
    let used = |rest: &str| -> (Vec<f64>, Vec<f64>) {
        let out = run(&format!("{text}{rest}"));
        (out.vms.iter().map(|vm| vm.used).collect(), out.threads)
    };
    let near = |got: f64, due: f64| (got / due - 1.0).abs() < 0.02;
    let slices = "[[cgroup]]\nname = \"a\"\n[[cgroup]]\nname = \"b\"\n";
    let vm = |slice: &str, rest: &str| {
        format!("[[vm]]\ncgroup = \"{slice}\"\nvcpus = 4\nworkload = \"compute\"\n{rest}\n")
    };
    // Two VMs in one slice, a third one in another: a quarter, a quarter, a half.
    let (got, _) = used(&(slices.to_string() + &vm("a", "count = 2") + &vm("b", "")));
    assert!(near(got[0], 1.0) && near(got[1], 1.0) && near(got[2], 2.0), "{got:?}");
    // Weights inside a slice, and of slices.
    let heavy = slices.replace("\"b\"", "\"b\"\nweight = 300");
    let (got, _) =
        used(&(heavy.clone() + &vm("a", "weight = 50") + &vm("a", "weight = 150") + &vm("b", "")));
    assert!(near(got[0], 0.25) && near(got[1], 0.75) && near(got[2], 3.0), "{got:?}");
    // One that halts nearly all the time takes nothing from its neighbour.
    let idle = vm("a", "").replace("compute", "idle");
    let (got, _) = used(&(slices.to_string() + &vm("a", "") + &idle + &vm("b", "")));
    assert!(
        (got[1] / got[2] - 1.0).abs() < 0.02 || (got[0] / got[2] - 1.0).abs() < 0.02,
        "{got:?}"
    );
    // Eight loops of the host in a slice of their own weigh as much as one VM in its.
    let loops = "[[thread]]\ncount = 8\nrun-us = 1000.0\ncgroup = \"b\"\n";
    let (got, _) = used(&(slices.to_string() + &vm("a", "") + loops));
    assert!(near(got[0], 2.0), "{got:?}");
}

/// What is not used in one period may be used in the next, up to the burst.
#[test]
fn bursts_are_saved_up() {
    let rate = |burst: u32| {
        let quota = format!("cpu-max = {{ quota-us = 20000, burst-us = {burst} }}");
        let task = "[[vm.task]]\nprogram = [\"compute 60ms\", \"sleep 440ms\", \"done\"]";
        let text = quiet().replace("seconds = 1.0", "seconds = 20.0");
        run(&format!("{text}pcpus = 1\n[[vm]]\nvcpus = 1\n{quota}\n{task}")).vms[0].rate
    };
    // 60 ms take two periods and a bit, or with a burst one.
    let (without, with) = (rate(0), rate(20_000));
    assert!(with > 1.1 * without, "{without} and {with}");
}

#[test]
fn a_bound_vcpu_keeps_its_share_beside_a_vm_that_runs_everywhere() {
    // Between turns a quiet host gives it less than its whole pCPU.
    for (head, least) in [(HEAD, 0.9), (quiet(), 0.5)] {
        for seed in 1..4 {
            let outcome = run(&format!(
                "seed = {seed}\n{head}[[vm]]\nvcpus = 1\npin = true\nworkload = \"compute\"\n\
                 [[vm]]\nvcpus = 12\nworkload = \"hackbench\""
            ));
            assert!(outcome.vms[0].used > least, "seed {seed}\n{}", outcome.table());
        }
    }
}

/// Work and p99 of lateness, ns, of the first VM under EEVDF and under scx_baton.
fn beside(rest: &str) -> [(f64, u64); 2] {
    ["eevdf", "scx_baton"].map(|scheduler| {
        let head = HEAD.replace("scx_baton", scheduler);
        let out = run(&format!("{head}warmup = 0.9\n{rest}"));
        (out.vms[0].rate, out.vms[0].lateness.as_ref().map_or(0, |late| late.p99))
    })
}

/// A vCPU that woke within a millisecond of its last visit waited for a turn's end.
#[test]
fn who_sleeps_does_not_wait_for_a_turn_to_end() {
    for (pcpus, vcpus, other) in [(2, 1, "compute"), (2, 2, "barrier"), (8, 4, "compute")] {
        let [eevdf, baton] = beside(&format!(
            "pcpus = {pcpus}\n[[vm]]\nvcpus = {vcpus}\n[[vm.task]]\ncount = {vcpus}\n\
             program = [\"sleep 50us ±20%\", \"compute 5us ±20%\", \"done\"]\n\
             [[vm]]\nvcpus = {pcpus}\nworkload = \"{other}\""
        ));
        assert!(baton.0 > eevdf.0, "{other}: {} and {}", baton.0, eevdf.0);
        assert!(baton.1 < 100_000, "{other}: {} ns", baton.1);
    }
}

/// Several that sleep: a visitor that found another one on the pCPU waited until who had been visited, which went
/// on, had used up its turn. It did 0.46 and 0.31 of its work under EEVDF.
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

/// What a sleeper keeps was not weighed: beside a heavy VM it was a few hundred µs, and it did a third of its work
/// under EEVDF.
#[test]
fn a_sleeper_keeps_its_time_beside_a_heavy_vm() {
    let [eevdf, baton] = beside(
        "pcpus = 2\n[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"compute 81us ±20%\", \"io 89us\", \
         \"done\"]\n[[vm]]\nvcpus = 2\nweight = 1000\nworkload = \"compute\"",
    );
    assert!(baton.0 > eevdf.0, "{baton:?} and {eevdf:?}");
}

/// Threads of the host that sleep a lot are as prompt beside a crowd as on an idle host (a thread
/// that runs for 5 us and sleeps for 50 does so 18,182 times a second), and cost the crowd what they
/// use.
#[test]
fn vhost_threads_do_not_wait_for_a_crowd() {
    let crowd = |scheduler: &str| {
        let changes = vec![("scheduler".to_string(), scheduler.to_string())];
        simulate(&load("vhost-crowd", &changes).expect("it ships")).expect("no invariant breaks").0
    };
    let (ours, fair) = (crowd("scx_baton"), crowd("eevdf"));
    assert!(ours.threads[..4].iter().all(|done| *done > 17_000.0), "{:?}", ours.threads);
    assert!(ours.threads[0] > 10.0 * fair.threads[0], "{:?}", fair.threads);
    assert!(ours.rate() > fair.rate(), "{} and {}", ours.rate(), fair.rate());
    assert!(ours.jain.is_some_and(|jain| jain > 0.99), "{}", ours.table());
}

/// The VM had its share by its other vCPU; the one beside the thread got 4 % of its pCPU.
#[test]
fn a_bound_vcpu_shares_its_pcpu_with_a_bound_thread() {
    for steps in ["\"compute 100us\"", "\"compute 100us kernel\", \"call\""] {
        let [eevdf, baton] = beside(&format!(
            "pcpus = 2\n[[vm]]\nvcpus = 2\npin = true\n[[vm.task]]\ncount = 2\n\
             program = [{steps}, \"done\"]\n[[thread]]\ncpu = 1\nrun-us = 1000"
        ));
        assert!(baton.0 > 0.95 * eevdf.0, "{steps}: {} and {}", baton.0, eevdf.0);
    }
}

/// VMs whose vCPUs spin often, and halt often, ran spread out: spinners met holders that did not run, and both
/// VMs together did 0.5 of what one does alone.
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

/// Without an end to what it is given for an IPI, the receiver computes on for a whole slice.
#[test]
fn a_boost_for_an_ipi_ends_soon() {
    let text = "yield-policy = [\"ipi\", \"kvm\"]\npcpus = 2\n[kvm]\non-spin = \"kernel\"\n\
                [[vm]]\nvcpus = 4\n[[vm.task]]\nprogram = [\"compute 1ms kernel\", \"call\", \"done\"]\n\
                [[vm.task]]\ncount = 3\nprogram = [\"compute 1ms kernel\"]";
    let rate = run(&format!("{HEAD}{text}")).rate();
    assert!(rate > 400.0, "{rate} calls a second");
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

/// A thread that weighs little has used an idle host, which is idle no more: it was kept out for as long
/// as it had been ahead, 4.8 s here, and for more than sched_ext's watchdog bears on a real host.
#[test]
fn a_light_host_task_is_not_kept_out_for_seconds() {
    let text = quiet().replace("seconds = 1.0", "seconds = 10.0");
    let outcome = run(&format!(
        "{text}pcpus = 2\n[[cgroup]]\nname = \"low\"\nweight = 1\n\
         [[thread]]\ncgroup = \"low\"\nrun-us = 100000.0\n\
         [[thread]]\nrun-us = 300.0\nsleep-us = 3000.0\n[[vm]]\ncount = 16\nvcpus = 2\n\
         [[vm.task]]\ncount = 2\nprogram = [\"compute 4s\", \"sleep 1s\", \"done\"]"
    ));
    assert!(outcome.longest_wait_ms < 3000.0, "{} ms", outcome.longest_wait_ms);
    let vms = outcome.vms.iter().map(|vm| vm.used).sum::<f64>();
    assert!(vms > 1.7, "{vms} of 2 pCPUs are left to the VMs");
}

/// The vCPUs of the VM are bound, and one of them shares its pCPU with threads: its siblings spin and yield to
/// it, and took that pCPU from the threads each time, whoever's turn it was.
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

/// However crowded the host is, weights hold.
#[test]
fn shares_follow_the_weights_when_the_host_is_crowded() {
    let outcome = run(&format!(
        "{HEAD}pcpus = 1\nwarmup = 1.0\n[[vm]]\ncount = 3\nvcpus = 4\nworkload = \"compute\"\n\
         [[vm]]\nvcpus = 4\nweight = 300\nworkload = \"compute\""
    ));
    assert!((outcome.vms[3].used - 0.5).abs() < 0.05, "{}", outcome.table());
}

/// A VM of more vCPUs than the host has pCPUs cannot run as a gang. KVM proposes vCPUs that were preempted
/// in the kernel; the spinner waits for one that was preempted in user mode and owes it an answer.
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

/// Two VMs that fit on the host one at a time, but not both: some vCPUs of each wait while siblings interrupt
/// them. With one pCPU a VM there is no sibling to lend one, and nothing changes.
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

/// Guests that name whom they wait for, by the sched-yield hypercall and PV kicks: obeyed, unless switched off.
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
    assert!(without.0 == 0 && without.1 > 1000, "{without:?}");
}

/// One vCPU interrupts three others and waits, on half as many pCPUs: those that do not run are given the
/// time that an interrupt takes, and no slice.
#[test]
fn calls_to_preempted_vcpus_are_answered_soon() {
    let calls = |scheduler: &str| {
        let scenario = load("call", &[("scheduler".into(), scheduler.into())]).expect("known");
        simulate(&scenario).expect("no invariant broken").0.rate()
    };
    let (baton, eevdf) = (calls("scx_baton"), calls("eevdf"));
    assert!(baton > 1.5 * eevdf, "{baton} and {eevdf}");
}

/// Whoever spins without PAUSE never exits for it. It once did, whenever anything else made its pCPU look.
#[test]
fn spins_without_pause_do_not_exit() {
    for (scheduler, kvm) in [("eevdf", "ple = true"), ("scx_baton", "ple-user = true")] {
        let head = HEAD.replace("scx_baton", scheduler);
        let out = run(&format!(
            "{head}[kvm]\n{kvm}\n[[vm]]\ncount = 2\nvcpus = 9\nworkload = \"barrier\""
        ));
        let exits: f64 = out.vms.iter().map(|vm| vm.ple_exits_per_s).sum();
        assert!(exits == 0.0 && out.rate() > 0.0, "{}", out.table());
    }
}

/// VMs of more vCPUs than there are pCPUs wait at barriers for those in the queue, and spin without an exit: what
/// brings those on is the end of slices alone. It once was that of the VM's turn, and EEVDF did twice as many.
#[test]
fn vcpus_that_do_not_fit_on_the_host_take_turns_often() {
    let rounds = |scheduler: &str| {
        let text = format!("{HEAD}[[vm]]\ncount = 4\nvcpus = 16\nworkload = \"barrier\"");
        run(&text.replace("scx_baton", scheduler)).rate()
    };
    let (baton, eevdf) = (rounds("scx_baton"), rounds("eevdf"));
    assert!(baton > 1.5 * eevdf, "{baton} and {eevdf}");
}

/// Four vCPUs on four pCPUs spin for a fifth that sleeps now and then: when it wakes all have long slices.
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
    assert!(baton > 1.05 * eevdf, "{baton} and {eevdf}");
}

/// Siblings that all want to run get the same, in gangs and where not all fit: within two turns and what runs.
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

/// Before the tree of cgroups has been counted up to the root, each of many VMs that start at once would have all of
/// the host for its share, and seem to use less than a quarter of it: two preempted the others for 250 ms.
#[test]
fn vms_that_start_at_once_share_from_the_start() {
    // A turn of one VM is a tenth of a pCPU second: over 1 s it would be 5 % of what each gets.
    let head = HEAD.replace("seconds = 1.0", "seconds = 2.0");
    let text = format!("{head}warmup = 0\n[[vm]]\ncount = 4\nvcpus = 16\nworkload = \"compute\"");
    let out = run(&text);
    assert!(out.longest_wait_ms < 120.0, "{}", out.table());
    assert!(out.jain.is_some_and(|jain| jain > 0.998), "{}", out.table());
}

/// What the scheduler counts of a VM's time, and what the simulator knows of it.
#[test]
fn times_are_those_that_passed() {
    let text = format!(
        "{}warmup = 0\npcpus = 2\n[[vm]]\ncount = 2\nvcpus = 2\nworkload = \"barrier-pause\"\n\
         [[vm]]\nvcpus = 2\n[[vm.task]]\ncount = 2\nprogram = [\"compute 3ms\", \"call\"]",
        quiet()
    );
    let text = text.replace("[[vm]]\ncount", "[kvm]\nple-user = true\n[[vm]]\ncount");
    let out = run(&text);
    let ms = |name: &str| {
        let found = out.scheduler_counters.iter().find(|(known, _)| known == name);
        found.expect("known").1 as f64 / 1e6
    };
    let real = |of: fn(&VmOutcome) -> f64| out.vms.iter().map(of).sum::<f64>() * 1000.0;
    let (used, ready) = (real(|vm| vm.used), real(|vm| vm.ready));
    // A thread is a vCPU from the first tick after it has entered its guest on.
    assert!((ms("ran ns") / used - 1.0).abs() < 0.02, "{} of {used}", ms("ran ns"));
    assert!((ms("ready ns") / ready - 1.0).abs() < 0.05, "{} of {ready}", ms("ready ns"));
    assert!(ms("co-stop ns") <= ms("ready ns"), "{} co-stop", ms("co-stop ns"));
    let spinning = real(|vm| vm.spinning);
    assert!(ms("spin ns") < 1.1 * spinning && ms("spin ns") > 0.2 * spinning, "{spinning}");
    assert!(ms("useful") + ms("useless") <= ms("boosts"), "more judged than there were");
    assert!(ms("useful") > ms("useless") && ms("IPI wait ns") > 0.0);
}

/// A VM whose vCPUs compute a little and sleep, beside one that wants every pCPU: they woke half as often as
/// under EEVDF, behind siblings that waited for the other VM's turn to end.
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

/// A VM that halts all the time and may poll for long, beside one that wants more than there is. The
/// vCPUs that wait are on other runqueues than the polling one's, so that KVM does not see them.
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

/// Seed 001's trap: who has taken an IPI while it ran, and was preempted then, owes nothing. With debts
/// that are never settled, spinners yield to vCPUs that have answered, and nobody gets anywhere.
#[test]
fn a_debt_ends_when_the_ipi_is_taken() {
    let text = |policy: &str| {
        format!(
            "{HEAD}pcpus = 4\nyield-policy = [{policy}]\n[kvm]\non-spin = \"kernel\"\n\
             [[vm]]\nvcpus = 16\nworkload = \"ebizzy\""
        )
    };
    let (with, without) = (run(&text("\"ipi\", \"kvm\"")), run(&text("\"kvm\"")));
    assert!(with.rate() > 0.9 * without.rate(), "{} and {}", with.rate(), without.rate());
}

#[test]
fn a_kfunc_that_the_kernel_forbids_there_is_named_with_its_callback() {
    let scheduler = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/forbidden.bpf.c");
    let text = format!(
        "machine = \"xeon-8\"\nscheduler = \"{scheduler}\"\n[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"lock\""
    );
    let why = error(&text);
    assert!(why.contains("scx_bpf_dsq_insert may not be called from yield()"), "{why}");
}

/// One of the schedulers beside this file, which say themselves what they found.
fn says(scheduler: &str, rest: &str) -> String {
    let file = format!("{}/tests/{scheduler}.bpf.c", env!("CARGO_MANIFEST_DIR"));
    error(&format!("scheduler = \"{file}\"\nseconds = 3.0\n{rest}"))
}

/// ops.dequeue() comes once for each task that leaves the scheduler's queue, affinities changed or not.
#[test]
fn custody_ends_with_dequeue() {
    let faults: String = (1..200)
        .map(|n| format!("[[fault]]\nat-ms = {n}\ntask = {}\ncpus = [{}]\n", n % 16, n % 7))
        .collect();
    let vms = "machine = \"xeon-8\"\n[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"hackbench\"\n";
    let why = says("custody", &format!("{vms}{faults}"));
    assert!(why.contains("a thousand have left"), "{why}");
}

#[test]
fn the_watchdog_finds_a_stall() {
    let why = says("stalls", "machine = \"xeon-8\"\n[[vm]]\nvcpus = 2\nworkload = \"compute\"");
    assert!(why.contains("runnable task stall (task 0 failed to run for 0."), "{why}");
}

#[test]
fn idle_cores_are_whole() {
    let vms = "[[vm]]\nvcpus = 5\nworkload = \"timer\"\ntasks = 5\n[[vm]]\nvcpus = 4\nworkload = \"hackbench\"";
    let why = says("cores", &format!("machine = \"cascade-lake-96\"\npcpus = 8\n{vms}"));
    assert!(why.contains("a thousand found"), "{why}");
}

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

/// The kernel puts one that exits back without asking the scheduler. Told to leave its core, or out of CPU time
/// by cpu.max, it was left in the queue of a pCPU that went idle and did not look.
#[test]
fn who_exits_is_not_left_behind() {
    let (_machine, head) = quiet_cores("seconds = 8.0");
    let vms = "[[vm]]\ncount = 4\nvcpus = 2\nworkload = \"compute\"\n";
    let ends = |vm: u32, ms: u32| {
        format!("[[fault]]\nat-ms = {}\nvm-ends = {vm}\nexit-ms = {ms}\n", 100 + vm)
    };
    // Those that end soon leave cores idle, and one that takes long shares its own.
    for long in 0..4 {
        let faults: String =
            (0..3).map(|n| ends((long + n) % 4, if n == 0 { 2000 } else { 0 })).collect();
        run(&format!("{head}{vms}{faults}"));
    }
    let quota = "[[vm]]\nvcpus = 1\nworkload = \"compute\"\ncpu-max = { quota-us = 10000 }\n";
    run(&format!("{head}{quota}{}", ends(0, 500)));
}

/// A VM whose cgroup weighs more from the middle on gets more from then on.
#[test]
fn weights_change_at_run_time() {
    let text = |fault: &str| {
        run(&format!("{HEAD}[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"compute\"\n{fault}")).vms[1]
            .used
    };
    let (before, after) = (text(""), text("[[fault]]\nat-ms = 700\nvm = 1\nweight = 300"));
    // Half a second of a half and half a second of three quarters.
    assert!((before - 4.0).abs() < 0.3 && (after - 5.0).abs() < 0.4, "{before} {after}");
}

#[test]
fn small_schedulers_compile_unchanged() {
    for name in ["fifo", "vtime"] {
        let file = format!("{}/examples/{name}.bpf.c", env!("CARGO_MANIFEST_DIR"));
        let text = |scheduler: &str| {
            format!(
                "machine = \"xeon-8\"\nscheduler = \"{scheduler}\"\nseconds = 0.2\n\
                 [[vm]]\ncount = 2\nvcpus = 8\nworkload = \"hackbench\""
            )
        };
        let compiled = run(&text(&file));
        assert!(compiled.rate() > 0.0);
        let built_in = run(&text(&format!("scx_{name}")));
        assert_eq!(compiled.vms, built_in.vms);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let broken = directory.path().join("broken.bpf.c");
    std::fs::write(&broken, "#include <scx/common.bpf.h>\nnonsense\n").expect("a file");
    let why = error(&format!(
        "machine = \"xeon-8\"\nscheduler = \"{}\"\n[[vm]]\nvcpus = 1\nworkload = \"idle\"",
        broken.display()
    ));
    assert!(why.contains("does not compile") && !why.contains('\n'), "{why}");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let text = format!("{HEAD}[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"hackbench\"");
    let json = |outcome: &Outcome| serde_json::to_string(outcome).expect("JSON");
    assert_eq!(json(&run(&text)), json(&run(&text)));
    assert_ne!(json(&run(&text)), json(&run(&format!("seed = 2\n{text}"))));
}

#[test]
fn bad_scenarios_are_refused_in_one_line() {
    let vm = "[[vm]]\nvcpus = 2\nworkload = \"lock\"";
    for (text, words) in [
        (
            "machine = \"xeon-9\"\n[[vm]]\nvcpus = 1\nworkload = \"idle\"".to_string(),
            "did you mean \"xeon-8\"",
        ),
        (format!("{HEAD}sceduler = 1\n{vm}"), "did you mean \"scheduler\""),
        (
            format!("{HEAD}{}", vm.replace('2', "0")),
            "key vm.0.vcpus: must be from 1 to 1,024, not 0",
        ),
        (format!("{HEAD}{}", vm.replace('2', "1000000")), "not 1000000"),
        (
            format!("{}{vm}", HEAD.replace("1.0", "nan")),
            "key seconds: must be from 0.001 to 36,000, not NaN",
        ),
        (format!("{}{vm}", HEAD.replace("1.0", "-1.0")), "not -1"),
        (format!("{HEAD}pcpus = 9\n{vm}"), "from 1 to 8, not 9"),
        (
            format!("{HEAD}{}", vm.replace("lock", "lok")),
            "there is no \"lok\" (did you mean \"lock\"?)",
        ),
        (
            format!("{HEAD}[kvm]\non-spin = \"some\"\n{vm}"),
            "[kvm], key kvm.on-spin: \"some\" is not possible",
        ),
        (format!("{HEAD}yield-policy = [\"who\"]\n{vm}"), "there is no \"who\""),
        (format!("{}{vm}", HEAD.replace("scx_baton", "scx_bato")), "there is no scheduler"),
        (format!("{HEAD}[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"done\"]"), "takes no time"),
        (format!("{HEAD}[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"compte 1us\"]"), "no step"),
        (format!("{HEAD}[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"compute 1xs\"]"), "no time"),
        ("machine".to_string(), "line 1: "),
        // Under any scheduler.
        (
            format!("{}yield-policy = [\"who\"]\n{vm}", HEAD.replace("scx_baton", "eevdf")),
            "key yield-policy: there is no \"who\"",
        ),
        (
            format!("{HEAD}[[vm]]\nvcpus = 1\n[[vm.task]]\nprogram = [\"compute 1us so\"]"),
            "key vm.0.task.0.program.0: \"compute 1us so\": compute takes TIME [±N%] [kernel]: \
             \"so\" is left over",
        ),
        (
            format!("{HEAD}[costs]\nidle_exits = [[5000, 10], [1000, 5]]\n{vm}"),
            "[costs], key costs.idle_exits: must be sorted",
        ),
        (format!("{HEAD}{vm}\n[[fault]]\nat-ms = 1\noffline = 8"), "key fault.0.offline"),
        (format!("{HEAD}{vm}\n[[thread]]\nrun-us = 5.0\ncpu = 8"), "key thread.0.cpu"),
        (format!("{HEAD}{vm}\ncgroup = \"none\""), "key vm.0.cgroup: there is no [[cgroup]]"),
        (format!("{HEAD}{vm}\ntasks = 0"), "key vm.0.tasks: must be from 1"),
    ] {
        let why = error(&text);
        assert!(why.contains(words) && !why.contains('\n'), "\"{words}\" is not in: {why}");
    }
}

#[test]
fn a_mutex_has_one_holder_and_its_waiters_sleep() {
    let program = "[[vm.task]]\ncount = 4\nprogram = [\"compute 1us\", \"mutex 0\", \"compute 50us kernel\", \
                   \"release 0\", \"done\"]";
    let alone = run(&format!("{HEAD}[[vm]]\nvcpus = 4\n{program}"));
    let rate = alone.vms[0].rate;
    assert!((15_000.0..=20_000.0).contains(&rate), "{rate} a second, held for 50 µs each");
    // One spins while the holder runs, the others sleep.
    assert!(alone.vms[0].used < 3.0, "{} pCPUs", alone.vms[0].used);
    // On one pCPU nobody spins for a holder that is preempted.
    let crowded = run(&format!("{}pcpus = 1\n[[vm]]\nvcpus = 4\n{program}", quiet()));
    assert!(crowded.vms[0].spinning < 0.05, "{} pCPUs spin", crowded.vms[0].spinning);
}

#[test]
fn a_walk_over_many_slots_costs_each_exit() {
    let rate = |memslots: u32, lookup: &str| {
        let kvm = format!("[kvm]\nhalt-poll = \"off\"\nmemslots = \"{lookup}\"\n");
        let vm = format!(
            "[[vm]]\nvcpus = 2\nworkload = \"ipi\"\nmemslots = {memslots}\nmemslots-used = 32764"
        );
        run(&format!("{}{kvm}{vm}", quiet())).vms[0].rate
    };
    let (few, walk, search) = (rate(8, "linear"), rate(32_764, "linear"), rate(32_764, "search"));
    assert!(walk < few && search > 0.98 * few, "{few} {walk} {search}");
}

#[test]
fn a_deadlock_is_explained() {
    let why = error(&format!(
        "{HEAD}[[vm]]\nvcpus = 2\n[[vm.task]]\nprogram = [\"mutex 0\", \"sleep 1ms\", \"mutex 1\", \
         \"release 1\", \"release 0\"]\n[[vm.task]]\nprogram = [\"mutex 1\", \"sleep 1ms\", \
         \"mutex 0\", \"release 0\", \"release 1\"]"
    ));
    assert!(why.contains("deadlocked") && why.contains("mutex 0, which task 0 has"), "{why}");
    let why = error(&format!(
        "{HEAD}[[vm]]\nvcpus = 2\n[[vm.task]]\ncount = 2\nprogram = [\"compute 10us\", \"wait 3\"]"
    ));
    assert!(why.contains("deadlocked") && why.contains("futex 3"), "{why}");
}

/// A few of the rig's scenarios; `make test` runs more.
#[test]
fn invariants_hold_with_faults() {
    for seed in 0..150 {
        if let Err(failure) = fuzz(seed, "scx_baton", &in_process) {
            panic!("seed {seed}: {}\n{}", failure.why, failure.scenario);
        }
    }
}

/// A vCPU that starts on another pCPU waits for its VMCS, and a guest that runs there exits.
#[test]
fn what_moves_a_vcpu_costs_it_and_the_one_that_runs_where_it_was() {
    let work = |costs: &str, pin: bool| {
        let vms = format!("[[vm]]\ncount = 3\nvcpus = 1\nworkload = \"compute\"\npin = {pin}");
        run(&format!("{}pcpus = 2\n[costs]\n{costs}\n{vms}", quiet())).rate()
    };
    let (free, dear) = ("migrate_ns = 0", "migrate_ns = 1_000_000");
    assert!(work(dear, false) < 0.99 * work(free, false));
    assert_eq!(work(dear, true), work(free, true));
}

/// EEVDF enforces `cpu.max`, of a cgroup above, too; the VM beside it gets what is left.
#[test]
fn eevdf_keeps_quotas() {
    let text = "machine = \"xeon-8\"\npcpus = 2\nseconds = 2.0\n\
        [[cgroup]]\nname = \"lab\"\ncpu-max = { quota-us = 30000 }\n\
        [[vm]]\nvcpus = 2\ncgroup = \"lab\"\nworkload = \"compute\"\n\
        [[vm]]\nvcpus = 2\nworkload = \"compute\"\n";
    let outcome = run(text);
    let used = |vm: usize| outcome.vms[vm].used;
    assert!((0.28..0.32).contains(&used(0)), "{}", outcome.table());
    assert!(used(1) > 1.65, "{}", outcome.table());
    let lifted = run(&format!(
        "{text}[[fault]]\nat-ms = 1200.0\nvm = 1\ncpu-max = {{ quota-us = 50000 }}\n"
    ));
    assert!((1.0..1.2).contains(&lifted.vms[1].used), "{}", lifted.table());
}

/// On two last-level caches a VM that fits into one stays there, and one that is bound to a
/// cpuset never leaves it, under either scheduler.
#[test]
fn vms_stay_within_their_cpusets() {
    for scheduler in ["eevdf", "scx_baton"] {
        let text = format!(
            "machine = \"ryzen-16\"\nscheduler = \"{scheduler}\"\nseconds = 0.5\n\
             [[cgroup]]\nname = \"left\"\ncpus = \"0-3,8-11\"\n\
             [[vm]]\ncount = 2\nvcpus = 8\ncgroup = \"left\"\nworkload = \"compute\"\n\
             [[vm]]\nvcpus = 8\ncpus = \"4-7,12-15\"\nworkload = \"compute\"\n"
        );
        let outcome = run(&text);
        for vm in &outcome.vms {
            assert_eq!(vm.moves_per_s[2..], [0.0, 0.0], "{scheduler}: {:?}", vm.moves_per_s);
        }
        assert!(outcome.vms[2].used > 7.8, "{scheduler}: {}", outcome.table());
        assert!(outcome.vms[0].used + outcome.vms[1].used > 7.8, "{}", outcome.table());
    }
}

/// What a tenant does to others: Baton stays, and the VM beside it keeps its due, in pCPUs.
#[test]
fn tenants_take_no_more_than_their_share() {
    let due = [
        ("attack-container", 1.86),
        ("attack-threads", 6.9),
        ("attack-bound", 1.35),
        ("attack-vms", 3.5),
        ("attack-crowd", 0.95),
        ("attack-quotas", 1.35),
    ];
    for (name, due) in due {
        let (outcome, _) = simulate(&load(name, &[]).expect(name)).expect(name);
        let victim = outcome.vms.last().expect("a VM").used;
        assert!(victim > due, "{name}: {victim} pCPUs, due {due}");
    }
}

/// Ten thousand threads bound to one pCPU: none waits until the kernel's watchdog ends Baton.
#[test]
fn ten_thousand_bound_threads_do_not_stall() {
    let set = |key: &str, value: &str| (key.to_string(), value.to_string());
    let changes = [set("thread.0.count", "9999"), set("seconds", "40"), set("starvation-s", "15")];
    simulate(&load("attack-bound", &changes).expect("known")).expect("nobody starves");
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

/// VMs share what they may use by their weights, however much more is wanted of it than of the rest
/// of the host.
#[test]
fn cells_share_by_weight() {
    for (machine, cells) in [("xeon-16", ["0-7", "8-15"]), ("ryzen-16", ["0-3,8-11", "4-7,12-15"])]
    {
        let mut text = format!(
            "machine = \"{machine}\"\nscheduler = \"scx_baton\"\nseconds = 2.0\nwarmup = 1.0\n"
        );
        for (name, cpus) in ["a", "b"].iter().zip(cells) {
            text += &format!("[[cgroup]]\nname = \"{name}\"\ncpus = \"{cpus}\"\n");
        }
        let weights = [("a", 100), ("a", 100), ("a", 200), ("a", 400), ("b", 100), ("b", 300)];
        for (cell, weight) in weights {
            text += &format!(
                "[[vm]]\nvcpus = 8\nworkload = \"compute\"\ncgroup = \"{cell}\"\n\
                 weight = {weight}\n"
            );
        }
        let outcome = run(&text);
        for (vm, (cell, weight)) in outcome.vms.iter().zip(weights) {
            let all: u32 = weights.iter().filter(|(of, _)| *of == cell).map(|(_, w)| w).sum();
            let due = 8.0 * f64::from(weight) / f64::from(all);
            assert!((vm.used / due - 1.0).abs() < 0.08, "{machine}: {:.2} of {due:.2}", vm.used);
        }
    }
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

/// 2,000 threads of a container that has no CPU time left: a timer, in a softirq, looked at all of
/// them at once.
#[test]
fn throttled_threads_are_released_some_at_a_time() {
    let out = run("machine = \"xeon-8\"\npcpus = 4\nscheduler = \"scx_baton\"\nseconds = 3.0\n\
         [[cgroup]]\nname = \"container\"\ncpu-max = { quota-us = 50000 }\n\
         [[thread]]\ncount = 2000\nrun-us = 1000\nsleep-us = 1000\ncgroup = \"container\"\n\
         [[vm]]\nvcpus = 4\nworkload = \"compute\"\n");
    let walk = out.scheduler_counters.iter().find(|(name, _)| name == "longest walk");
    assert!(walk.is_some_and(|(_, tasks)| (1..100).contains(tasks)), "{walk:?}");
    // Half a pCPU.
    let threads: f64 = out.threads.iter().sum();
    assert!((400.0..600.0).contains(&threads), "{threads} ms a second");
}

/// A thread that was a vCPU once, and does other work, counts as a vCPU for a second of that at
/// most.
#[test]
fn a_thread_that_leaves_its_guest_is_no_vcpu() {
    let ran = |fault: &str| {
        let text = "machine = \"xeon-8\"\npcpus = 2\nscheduler = \"scx_baton\"\nseconds = 6.0\n\
                    warmup = 0.0\n[[vm]]\nvcpus = 1\nworkload = \"compute\"\n";
        let out = run(&format!("{text}{fault}"));
        let ran = out.scheduler_counters.iter().find(|(name, _)| name == "ran ns");
        ran.expect("it is counted").1 as f64 / 1e9
    };
    let (stays, leaves) =
        (ran(""), ran("[[fault]]\nat-ms = 1000.0\nvm = 0\nleaves-guest = true\n"));
    // A second before, one after, and what it takes until a tick comes.
    assert!(stays > 5.7 && (1.9..2.2).contains(&leaves), "{stays} s, {leaves} s");
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

/// Four pinned vCPUs take a lock by turns; another VM's vCPU computes, and is always behind them.
/// The one that shares its pCPU with that one hardly ran, and nobody got the lock: 1,700 a second.
#[test]
fn a_pinned_vcpu_that_its_siblings_wait_for_gets_its_part() {
    let out = run("machine = \"xeon-8\"\npcpus = 4\nscheduler = \"scx_baton\"\nwarmup = 0.9\n\
         seed = 13612\nseconds = 3.0\n[kvm]\nple-user = false\n\
         [[vm]]\nvcpus = 2\n[[vm.task]]\ncount = 2\n\
         program = [\"compute 100us ±20%\", \"io 500us\", \"done\"]\n\
         [[vm]]\npin = true\nvcpus = 4\nworkload = \"lock\"\n\
         [[vm]]\nvcpus = 1\nworkload = \"compute\"\n\
         [[vm]]\npin = true\nvcpus = 4\n[[vm.task]]\ncount = 4\n\
         program = [\"sleep 48872us ±20%\", \"compute 194us ±20%\", \"done\"]\n\
         [[thread]]\nrun-us = 5\nsleep-us = 65\ncpu = 1\n");
    let used = out.vms[2].used;
    // Of EEVDF's 160,000, its part.
    assert!(out.vms[1].rate > 30_000.0, "{} a second", out.vms[1].rate);
    assert!(used > 0.75, "the one that computes has {used} of a pCPU");
}

/// A host thread that computes on one pCPU is behind a light VM on the others, which drives virtual
/// time, for ever: a vCPU bound there had 3 % of the pCPU. And one of eight pinned vCPUs that meet
/// at barriers shares its pCPU with a VM of one vCPU: it is to run with its siblings, in their turn
/// (26 rounds a second).
#[test]
fn a_bound_vcpu_has_its_part_beside_threads_and_small_vms() {
    let out = run("machine = \"xeon-8\"\npcpus = 4\nscheduler = \"scx_baton\"\nwarmup = 0.9\n\
         seed = 10311\n\
         [[vm]]\npin = true\nvcpus = 1\nworkload = \"compute\"\n\
         [[vm]]\nweight = 20\nvcpus = 4\nworkload = \"ebizzy\"\n\
         [[vm]]\nvcpus = 2\n[[vm.task]]\ncount = 2\n\
         program = [\"sleep 72us ±20%\", \"compute 9us ±20%\", \"done\"]\n\
         [[vm]]\nweight = 200\nvcpus = 2\n[[vm.task]]\ncount = 2\n\
         program = [\"sleep 3304us ±20%\", \"compute 50us ±20%\", \"done\"]\n\
         [[thread]]\nrun-us = 1000\nsleep-us = 0\ncpu = 0\n");
    assert!((0.2..0.7).contains(&out.vms[0].used), "{} of its pCPU", out.vms[0].used);
    let out = run("machine = \"xeon-8\"\nscheduler = \"scx_baton\"\nwarmup = 0.9\nseed = 10111\n\
         [kvm]\nple-user = false\n\
         [[vm]]\npin = true\nvcpus = 1\nworkload = \"compute\"\n\
         [[vm]]\npin = true\nvcpus = 8\nworkload = \"barrier\"\n\
         [[vm]]\nvcpus = 8\nworkload = \"compute\"\n");
    assert!(out.vms[1].rate > 250.0 && out.vms[0].used > 0.8, "{}", out.table());
}

/// VMs that are behind their due visited a pCPU one after the other, for ever, and a vCPU that is
/// bound there was not looked for: it waited 1.36 s.
#[test]
fn visits_leave_room_for_who_is_bound() {
    let guest = |lock: &str, more: &str| format!("guest = {{ lock = \"{lock}\", {more} }}\n");
    run(&[
        "machine = \"ryzen-16\"\nscheduler = \"scx_baton\"\nseconds = 0.75\nwarmup = 0.9\n\
         seed = 5002052\nstarvation-s = 1.0\n[kvm]\nhalt-poll = \"off\"\nple = false\n\
         ple-user = false\non-spin = \"last-boosted\"\nposted = true\n\
         [[thread]]\ncount = 2\nown-cgroup = false\nrun-us = 3662\nsleep-us = 0\n"
            .to_string(),
        "[[vm]]\nvcpus = 9\nworkload = \"o-dsync\"\n".to_string(),
        guest("queued", "pv-ipi = true, pv-tlb-flush = true, sched-yield = true"),
        "[[vm]]\nvcpus = 15\ncpus = \"llc\"\nworkload = \"compute\"\n".to_string(),
        guest("pv-queued", "pv-tlb-flush = true, sched-yield = true"),
        "[[vm]]\nvcpus = 15\npin = true\nworkload = \"lock\"\n".to_string(),
        guest("test-and-set", "kick-yields = true, pv-ipi = true, sched-yield = true"),
        "[[vm]]\nvcpus = 7\nworkload = \"idle\"\n".to_string(),
        guest("queued", "pv-ipi = true, pv-tlb-flush = true"),
    ]
    .concat());
}

/// Two vCPUs that wait for each other have one pCPU between them, as other VMs are bound to the
/// other one. They took turns of 12 ms there, and came to one barrier in each: 94 a second.
#[test]
fn siblings_that_share_one_pcpu_take_short_slices() {
    let out = run("machine = \"xeon-8\"\npcpus = 2\nscheduler = \"scx_baton\"\nwarmup = 0.9\n\
         seed = 10202\n[kvm]\nple-user = false\n\
         [[vm]]\npin = true\nvcpus = 1\nworkload = \"ebizzy\"\n\
         [[vm]]\npin = true\nvcpus = 1\nworkload = \"barrier\"\n\
         [[vm]]\nvcpus = 2\nworkload = \"barrier\"\n");
    assert!(out.vms[2].rate > 300.0, "{} a second", out.vms[2].rate);
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

/// Three threads of one pCPU that sleep, so that one waits whenever another stops: virtual time
/// stood still, as only the first one of a queue was looked at, and the third waited for seconds.
#[test]
fn bound_threads_that_sleep_share_their_pcpu() {
    let out = run("machine = \"xeon-8\"\nscheduler = \"scx_baton\"\nseconds = 6.0\n\
                   starvation-s = 0.5\n\
                   [[thread]]\ncount = 3\nrun-us = 817\nsleep-us = 2145\ncpu = 3\n\
                   [[thread]]\ncount = 3\nrun-us = 2032\nsleep-us = 1615\ncpu = 2\n");
    let (least, most) = (3..6).fold((f64::MAX, 0.0), |(least, most), i| {
        (out.threads[i].min(least), out.threads[i].max(most))
    });
    assert!(least > 0.9 * most, "{:?}", out.threads);
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

/// Threads of SCHED_IDLE beside VMs that would use all pCPUs get about a hundredth of one each, as
/// under EEVDF, and nobody wakes late for them.
#[test]
fn sched_idle_threads_take_what_nobody_wants() {
    let out = ["eevdf", "scx_baton"].map(|scheduler| {
        run(&format!(
            "machine = \"xeon-8\"\npcpus = 4\nscheduler = \"{scheduler}\"\nseconds = 4.0\n\
             warmup = 1.5\n\
             [[vm]]\ncount = 2\nvcpus = 2\nworkload = \"compute\"\n\
             [[vm]]\nvcpus = 1\n[[vm.task]]\ncount = 1\n\
             program = [\"sleep 1000us ±20%\", \"compute 50us ±20%\", \"done\"]\n\
             [[thread]]\ncount = 4\nrun-us = 2000\nsleep-us = 500\nsched-idle = true\n"
        ))
    });
    let used = out.each_ref().map(|out| 0.002 * out.threads[..4].iter().sum::<f64>());
    let late = out.each_ref().map(|out| out.vms[2].lateness.as_ref().expect("it sleeps").p99);
    assert!(used[1] < 2.0 * used[0] && used[1] > 0.02, "pCPUs used: {used:?}");
    assert!(late[1] <= late[0], "p99 of lateness, ns: {late:?}");
}

/// A cpuset holds for a thread bound to one pCPU, too.
#[test]
fn a_thread_is_bound_within_its_cgroup() {
    let text = |cpu: u32| {
        format!(
            "{HEAD}[[cgroup]]\nname = \"cell\"\ncpus = \"0-3\"\n\
             [[vm]]\nvcpus = 1\nworkload = \"idle\"\n\
             [[thread]]\nrun-us = 10\nsleep-us = 10\ncgroup = \"cell\"\ncpu = {cpu}\n"
        )
    };
    run(&text(3));
    assert!(error(&text(4)).contains("does not have pCPU 4"), "{}", error(&text(4)));
}
