// SPDX-License-Identifier: GPL-2.0-only
//! What the simulator itself does: inputs, determinism, rules of sched_ext, costs.

use baton_sim::fuzz::{fuzz, in_process};
use baton_sim::outcome::VmOutcome;

use super::*;

#[test]
fn a_kfunc_that_the_kernel_forbids_there_is_named_with_its_callback() {
    let scheduler = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/forbidden.bpf.c");
    let text = format!(
        "machine = \"xeon-8\"\nscheduler = \"{scheduler}\"\n[[vm]]\ncount = 2\nvcpus = 8\nworkload = \"lock\""
    );
    let why = error(&text);
    assert!(why.contains("scx_bpf_dsq_insert may not be called from yield()"), "{why}");
}

/// ops.dequeue() comes once for each task that leaves the scheduler's queue, affinities changed or
/// not.
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
    let vms =
        "[[vm]]\nvcpus = 5\nworkload = \"timer\"\n[[vm]]\nvcpus = 4\nworkload = \"hackbench\"";
    let why = says(
        "cores",
        &format!("machine = \"cascade-lake-96\"\npcpus = 8\nstaggered-ticks = true\n{vms}"),
    );
    assert!(why.contains("a thousand found"), "{why}");
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
        (format!("{HEAD}{}\ntasks = 5", vm.replace("lock", "timer")), "vm.0.tasks: the tasks of"),
        (format!("{HEAD}{}\ntasks = 50", vm.replace("lock", "hackbench")), "tasks: must be groups"),
        (
            format!("{HEAD}{}", vm.replace("lock", "ipi").replace('2', "1")),
            "key vm.0.vcpus: \"ipi\" needs one to send to",
        ),
        (
            format!("{HEAD}{vm}\nown-cgroup = false\n[[fault]]\nat-ms = 1\nvm = 0\nweight = 300"),
            "key fault.0.vm: weight and cpu-max need a cgroup",
        ),
        (
            format!("{HEAD}[costs]\nmove_ns = [0, 0, 0, {}]\n{vm}", i64::MAX),
            "key costs.move_ns: must be from 0 to 10^9",
        ),
        (
            format!("{HEAD}[kvm]\nhalt-poll = {{ fixed = {} }}\n{vm}", i64::MAX),
            "key kvm.halt-poll: must be from 0 to 10^9",
        ),
        (
            format!(
                "{HEAD}{vm}\n[[cgroup]]\nname = \"a\"\ncpus = \"1\"\n\
                 [[thread]]\ncgroup = \"a\"\nrun-us = 5.0\ncpu = 3"
            ),
            "key thread.0.cpu: ",
        ),
    ] {
        let why = error(&text);
        assert!(why.contains(words) && !why.contains('\n'), "\"{words}\" is not in: {why}");
    }
}

#[test]
fn a_mutex_has_one_holder_and_who_waits_spins_while_that_runs() {
    let program = "[[vm.task]]\ncount = 4\nprogram = [\"compute 1us\", \"mutex 0\", \"compute 50us kernel\", \
                   \"release 0\", \"done\"]";
    let alone = run(&format!("{HEAD}[[vm]]\nvcpus = 4\n{program}"));
    let rate = alone.vms[0].rate;
    assert!((15_000.0..=20_000.0).contains(&rate), "{rate} a second, held for 50 µs each");
    // All spin in line while the holder runs.
    assert!(alone.vms[0].used > 3.8, "{} pCPUs", alone.vms[0].used);
    // On one pCPU nobody spins for a holder that is preempted.
    let crowded = run(&format!("{}pcpus = 1\n[[vm]]\nvcpus = 4\n{program}", quiet()));
    assert!(crowded.vms[0].spinning < 0.05, "{} pCPUs spin", crowded.vms[0].spinning);
}

/// They took turns only where one of them computed for a whole slice.
#[test]
fn tasks_of_one_vcpu_take_turns_whatever_their_steps_are() {
    let task = |step: &str, done: &str| {
        format!("[[vm.task]]\nprogram = [\"compute {step}\", \"compute {step}\"{done}]\n")
    };
    let rate = |tasks: String| run(&format!("{}[[vm]]\nvcpus = 1\n{tasks}", quiet())).vms[0].rate;
    let alone = rate(task("500us", ", \"done\""));
    let shared = rate(task("500us", ", \"done\"") + &task("100us", ""));
    assert!((0.45..0.55).contains(&(shared / alone)), "{shared} of {alone}");
}

/// A task that was woken while another one computed waited until that was done, 100 ms.
#[test]
fn a_task_that_is_woken_has_its_turn_after_a_slice() {
    let task = |program: &str| format!("[[vm.task]]\nprogram = [{program}]\n");
    let out = run(&format!(
        "{}[[vm]]\nvcpus = 2\n{}{}{}{}",
        quiet(),
        task("\"compute 100ms\""),
        task("\"compute 100ms\""),
        task("\"wait 0\", \"compute 10us\", \"done\", \"post 1\""),
        task("\"compute 10us\", \"post 0\", \"wait 1\"")
    ));
    assert!(out.rate() > 60.0, "{}", out.table());
}

/// Who releases a mutex and comes again takes it before the one that it has woken, over and over.
#[test]
fn who_was_woken_in_vain_has_the_mutex_next() {
    let task = |done: &str| {
        format!(
            "[[vm.task]]\nprogram = [\"mutex 0\", \"compute 3ms kernel\", \"release 0\", \
             \"compute 1us\"{done}]\n"
        )
    };
    let out = run(&format!("{}[[vm]]\nvcpus = 1\n{}{}", quiet(), task(""), task(", \"done\"")));
    assert!((100.0..200.0).contains(&out.rate()), "{}", out.table());
}

/// A pCPU without a sibling beside cores that have two hyper-threads each.
#[test]
fn eevdf_spreads_where_not_all_cores_have_siblings() {
    let head = HEAD.replace("xeon-8", "ryzen-16").replace("scx_baton", "eevdf");
    run(&format!("{head}pcpus = 9\n[[vm]]\nvcpus = 2\ncpus = \"0,8\"\nworkload = \"compute\"\n"));
}

/// What the others draw at random changes nothing for a VM that has its pCPU for itself.
#[test]
fn each_task_has_random_numbers_of_its_own() {
    let rate = |others: &str| {
        let tasks = format!("[[vm.task]]\nprogram = [\"compute 40us ±{others}%\"]\n");
        let vms = format!(
            "[[vm]]\nvcpus = 1\npin = true\n[[vm.task]]\n\
             program = [\"sleep 30us ±50%\", \"compute 20us ±50%\", \"done\"]\n\
             [[vm]]\nvcpus = 4\ncpus = \"4-7\"\n{tasks}"
        );
        run(&format!("{}{vms}", quiet())).vms[0].rate
    };
    assert_eq!(rate("10"), rate("90"));
}

/// Eight vCPUs that compute on the sixteen hyper-threads of eight cores: a core each.
#[test]
fn eevdf_spreads_over_idle_cores() {
    let head = HEAD.replace("xeon-8", "ryzen-16").replace("scx_baton", "eevdf");
    let out = run(&format!("{head}warmup = 0.5\n[[vm]]\nvcpus = 8\nworkload = \"compute\"\n"));
    assert!(out.rate() > 7_000.0, "{}", out.table());
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

/// Whoever spins without PAUSE never exits for it. It once did, whenever anything else made its
/// pCPU look.
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

/// What the scheduler counts of a VM's time, and what the simulator knows of it. Whether anybody
/// waits for an IPI, or is boosted, and when a spin ends, depends on the seed.
#[test]
fn times_are_those_that_passed() {
    let (mut useful, mut useless, mut owed, mut counted, mut spun) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for seed in 1..=8 {
        let text = format!(
            "{}seed = {seed}\nwarmup = 0\npcpus = 2\n[kvm]\nple-user = true\n\
             [[vm]]\ncount = 2\nvcpus = 2\nworkload = \"barrier-pause\"\n\
             [[vm]]\nvcpus = 2\n[[vm.task]]\ncount = 2\nprogram = [\"compute 3ms\", \"call\"]",
            quiet()
        );
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
        counted += ms("spin ns");
        spun += real(|vm| vm.spinning);
        assert!(ms("useful") + ms("useless") <= ms("boosts"), "more judged than there were");
        useful += ms("useful");
        useless += ms("useless");
        owed += ms("IPI wait ns");
    }
    assert!(useful > useless && owed > 0.0, "{useful} {useless} {owed}");
    assert!(counted < 1.1 * spun && counted > 0.2 * spun, "{counted} of {spun}");
}

/// A weight of a VM without a cgroup was ignored.
#[test]
fn a_vm_without_a_cgroup_has_no_weight() {
    let vm = "[[vm]]\nvcpus = 1\nworkload = \"compute\"\n";
    for (rest, why) in [
        (format!("{vm}own-cgroup = false\nweight = 300\n"), "weight and cpu-max need one"),
        (
            format!("{vm}own-cgroup = false\ncpu-max = {{ quota-us = 1000 }}\n"),
            "weight and cpu-max need one",
        ),
    ] {
        let error = error(&format!("{HEAD}pcpus = 1\n{rest}"));
        assert!(error.contains(why), "{error}");
    }
}

/// vCPUs that spin beside each other on hyper-threads spin all the time, however slow they are.
#[test]
fn spinning_is_time_that_passed() {
    let spinners = "count = 15\nprogram = [\"compute 1us\", \"barrier\"]\n";
    let out = run(&format!(
        "machine = \"ryzen-16\"\nscheduler = \"eevdf\"\nseconds = 0.5\nwarmup = 0.2\n\
         [[vm]]\nvcpus = 16\n[[vm.task]]\n{spinners}\
         [[vm.task]]\nprogram = [\"compute 10s\", \"barrier\", \"done\"]\n"
    ));
    assert!(out.vms[0].spinning > 14.0, "{}", out.table());
}

/// They counted the warm-up, too, unlike all that stands beside them.
#[test]
fn counters_begin_after_the_warm_up() {
    let yields = |times: &str| {
        let out = run(&format!(
            "machine = \"xeon-8\"\nscheduler = \"scx_baton\"\n{times}\n\
             [[vm]]\ncount = 2\nvcpus = 8\nworkload = \"lock\"\n"
        ));
        let yields = out.scheduler_counters.iter().find(|(name, _)| name == "yields");
        yields.expect("it is counted").1
    };
    let [late, early] = ["warmup = 0.9\nseconds = 0.1", "warmup = 0.1\nseconds = 0.9"].map(yields);
    assert!(late > 0 && late < early / 3, "{late} {early}");
}

/// Only those were looked at that wait as one looks.
#[test]
fn a_wait_that_has_ended_is_too_long_as_well() {
    let why = error(
        "machine = \"xeon-8\"\npcpus = 1\nseconds = 1.0\nwarmup = 0.0\nstarvation-s = 0.001\n\
         [[vm]]\ncount = 2\nvcpus = 1\n[[vm.task]]\n\
         program = [\"compute 20ms\", \"sleep 100s\", \"done\"]\n",
    );
    assert!(why.contains("ms for a pCPU"), "{why}");
}
