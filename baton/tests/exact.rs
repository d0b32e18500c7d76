// SPDX-License-Identifier: GPL-2.0-only
//! The exact host: what it gives depends on its inputs alone, and its failures are told apart.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_testbed::ab::exact::conduct;
use baton_testbed::ab::{Notice, Record};
use baton_testbed::boot;
use baton_testbed::exact::{Cpu, Exact, MAX_MIB, MAX_PCPUS, Ready};
use baton_testbed::experiment::Experiment;
use baton_testbed::host::{Exec, Host, HostError, HostOptions, Stream};

/// Times, kernel messages with theirs, exits and two VMs that preempt each other.
const OBSERVED: &str = "\
    cat /proc/uptime /proc/interrupts /proc/schedstat; dmesg | tail -n 3
    baton bench exit-cpuid lock-ticket --vms 2 --repetitions 1 --samples 20 --seconds 0.05 \
        --json /tmp/figures >/dev/null
    cat /tmp/figures /proc/uptime";

fn options() -> HostOptions {
    // As in baton/tests/host/, so that one host is booted for both.
    let exact = Exact { mips: 100, ..Exact::default() };
    HostOptions { mem_mib: 1024, exact: Some(exact), ..HostOptions::default() }
}

/// One host for all tests: booted at the most once, and restored by each.
fn ready() -> &'static Ready {
    static READY: LazyLock<Ready> =
        LazyLock::new(|| Ready::get(&options()).unwrap_or_else(|error| panic!("{error}")));
    &READY
}

/// What the script prints on a host restored for it.
fn observed(seed: u64, script: &str) -> String {
    observed_on(ready(), seed, script)
}

fn observed_on(ready: &Ready, seed: u64, script: &str) -> String {
    let mut host = ready.restore(seed).unwrap();
    let exec = Exec {
        seed: Some(seed),
        ..Exec::new(["sh", "-e", "-c", script], Duration::from_secs(300))
    };
    let mut out = Vec::new();
    let status = host.exec(&exec, &mut |stream, bytes| match stream {
        Stream::Out => out.extend_from_slice(bytes),
        Stream::Err => eprint!("{}", String::from_utf8_lossy(bytes)),
    });
    assert_eq!(status.unwrap(), 0);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_run_depends_on_its_seed_alone() {
    let quiet = observed(1, OBSERVED);
    assert!(quiet.contains("lock-ticket"), "{quiet}");
    let over = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| while !over.load(Ordering::Relaxed) {});
        }
        let busy = observed(1, OBSERVED);
        over.store(true, Ordering::Relaxed);
        busy
    });
    assert_eq!(quiet, busy, "the same seed beside two busy loops");
    assert_ne!(quiet, observed(2, OBSERVED), "another seed");
}

/// The image has them, and where they lie in memory decides what a run does.
#[test]
fn programs_do_not_depend_on_the_directory_of_their_build() {
    let baton = Path::new(env!("CARGO_BIN_EXE_baton"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in ["baton", "baton-agent", "scx_baton"] {
        let stripped = dir.path().join(name);
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&stripped).arg(baton.with_file_name(name));
        assert!(strip.status().unwrap().success(), "{name}");
        let program = fs::read(&stripped).unwrap();
        let needle = format!("{}/", root.display()).into_bytes();
        let at = program.windows(needle.len()).position(|window| window == needle);
        let words = at.map(|at| String::from_utf8_lossy(&program[at..at + 100]).into_owned());
        assert_eq!(words, None, "{name}");
    }
}

#[test]
fn an_experiment_gives_the_same_figures_again() {
    let experiment = Experiment::parse(
        "repetitions = 2\nseconds = 0.1\nschedulers = [\"eevdf\"]\n\
         [[workload]]\nname = \"bench-lock-ticket\"",
    );
    let experiment = experiment.unwrap();
    let conduct = || {
        let mut records: Vec<Record> = Vec::new();
        conduct(&experiment, &options(), &mut |notice| {
            if let Notice::Recorded(record) = notice {
                records.push(record.clone());
            }
        })
        .unwrap();
        // Several run at once: which ends first is real time.
        records.sort_by_key(|record| record.run.id);
        records.into_iter().map(|record| record.outcome.unwrap().vms).collect::<Vec<_>>()
    };
    let first = conduct();
    assert_eq!(first, conduct());
    assert_ne!(first[0], first[1], "two seeds");
}

/// KVM's other paths: AMD's guests, and virtual interrupts. On both KVM ends a loop of PAUSEs, but
/// not each PAUSE.
#[test]
fn other_cpu_models_run_guests_and_filter_pauses() {
    for cpu in [Cpu::Amd, Cpu::IntelApicv] {
        let options = options();
        let exact = Exact { cpu, ..options.exact.unwrap() };
        let ready = Ready::get(&HostOptions { exact: Some(exact), ..options }).unwrap();
        let script = "baton bench pause ipi-unicast --repetitions 1 --seconds 0.05 --samples 20";
        let table = observed_on(&ready, 1, script);
        assert!(table.contains("ipi-unicast"), "{cpu}: {table}");
        let (before, _) = table.split_once(" PAUSEs an exit").expect(&table);
        let to_an_exit: u64 = before.split_whitespace().last().unwrap().parse().unwrap();
        // The window and the count are about 4,000, and grow.
        assert!(to_an_exit > 500, "{cpu}: {table}");
    }
}

#[test]
fn sixteen_pcpus_run_a_vm_of_as_many() {
    let ready = Ready::get(&HostOptions { pcpus: MAX_PCPUS, ..options() }).unwrap();
    let script = "nproc; baton bench call --vcpus 16 --repetitions 1 --seconds 0.05 --samples 5";
    let table = observed_on(&ready, 1, script);
    assert!(table.starts_with("16\n") && table.contains("all acknowledged"), "{table}");
}

/// Eight pCPUs, of full speed.
fn eight() -> &'static Ready {
    static READY: LazyLock<Ready> = LazyLock::new(|| {
        let exact = Some(Exact::default());
        let options = HostOptions { pcpus: 8, exact, ..options() };
        Ready::get(&options).unwrap_or_else(|error| panic!("{error}"))
    });
    &READY
}

/// What the bench writes in JSON.
fn measured(options: &str) -> serde_json::Value {
    let script = format!(
        "baton bench {options} --repetitions 1 --json /tmp/figures >/dev/null; cat /tmp/figures"
    );
    serde_json::from_str(&observed_on(eight(), 1, &script)).expect("JSON")
}

/// A pCPU that looks for a vCPU of the gang while a spinner is on its way from its yield to the
/// queue takes another VM's: if the gang did not get it back at once, it would do half of the
/// ideal.
#[test]
fn a_gang_of_eight_stays_whole() {
    let figures = measured("lock-ticket --vms 2 --vcpus 8 --schedulers scx_baton --seconds 0.1");
    let of_ideal = figures["scx_baton"]["measurements"][0]["of_ideal"].as_f64();
    assert!(of_ideal.is_some_and(|of| of > 0.85), "{of_ideal:?}");
}

/// A vCPU that was preempted inside of a BPF program at its PAUSE exit kept the kernel from running
/// that program for whoever exited on its pCPU next: those did not count as spinners, and a lock
/// had 0.09 of its turns where spinners alone may yield.
#[test]
fn who_spins_is_known_where_another_spinner_was_preempted() {
    let figures = measured(
        "lock-ticket --vcpus 16 --seconds 0.1 \
         --schedulers 'scx_baton,scx_baton --yield-policy kvm'",
    );
    let turns =
        |scheduler: &str| figures[scheduler]["measurements"][0]["totals"][0].as_f64().unwrap();
    let [all, spinners] = ["scx_baton", "scx_baton --yield-policy kvm"].map(turns);
    assert!(spinners > 0.4 * all, "{all} turns, {spinners} where only spinners yield");
}

/// While no vCPU waits, nobody follows IPIs: a probe would make each half as slow again.
#[test]
fn an_ipi_between_vcpus_that_run_costs_nothing() {
    let figures = measured("ipi-unicast --exact --schedulers eevdf,scx_baton --samples 30");
    let [eevdf, baton] = ["eevdf", "scx_baton"].map(|scheduler| {
        let series = &figures[scheduler]["measurements"][0]["series"];
        ["send", "one-way"].map(|series_name| series[series_name]["medians"][0].as_f64().unwrap())
    });
    for (eevdf, baton) in eevdf.into_iter().zip(baton) {
        assert!(baton < 1.05 * eevdf, "{eevdf} ns, {baton} under scx_baton");
    }
}

#[test]
fn deadlines_are_in_virtual_time() {
    let mut host = ready().restore(0).unwrap();
    let ended = host.exec(&Exec::new(["sleep", "1000"], Duration::from_secs(5)), &mut |_, _| {});
    match ended {
        Err(HostError::Deadline { what, .. }) => assert!(what.contains("within 5 s"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_counted_is_kept_when_the_command_does_not_end() {
    ready(); // not booted twice
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("profile.tsv");
    let mut run = Command::new(env!("CARGO_BIN_EXE_baton"));
    run.args(["testbed", "run", "--exact", "--mips", "100", "--mem", "1024", "--timeout", "2"]);
    run.arg("--profile").arg(&file).args(["--", "sleep", "1000"]);
    assert_eq!(run.status().unwrap().code(), Some(124));
    let profile = fs::read_to_string(&file).unwrap();
    assert!(profile.contains("\t__schedule\n"), "{profile}");
    // Two pCPUs could execute 400 million in two seconds: those that are idle sleep.
    let counts = profile.lines().skip(1).map(|line| line.split('\t').next().unwrap());
    let executed: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    assert!(executed < 100_000_000, "{profile}");
}

#[test]
fn the_ways_of_a_host_to_end_are_told_apart() {
    let ended = |script: &str, meanwhile: fn()| {
        let mut host: Host = ready().restore(0).unwrap();
        let exec = Exec::new(["sh", "-c", script], Duration::from_secs(600));
        let error = host.exec(&exec, &mut |_, _| meanwhile()).unwrap_err();
        (matches!(error, HostError::Oops { .. }), error.to_string())
    };
    let (oops, text) = ended("echo c > /proc/sysrq-trigger", || {});
    assert!(oops, "{text}");
    let (_, text) = ended("poweroff -f", || {});
    assert!(text.contains("switched off or restarted"), "{text}");
    let (_, text) = ended("echo up; while :; do :; done", kill_emulator);
    assert!(text.contains("the emulator crashed"), "{text}");
}

/// Kills the children of this thread: there is one. Other tests have their own.
fn kill_emulator() {
    let children = fs::read_to_string("/proc/thread-self/children").unwrap();
    for child in children.split_whitespace() {
        let pid = nix::unistd::Pid::from_raw(child.parse().unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

#[test]
fn what_the_emulator_cannot_do_is_refused() {
    for (options, words) in [
        (HostOptions { pcpus: MAX_PCPUS + 1, ..options() }, "1 to 16"),
        (HostOptions { mem_mib: MAX_MIB + 1, ..options() }, "up to 2048"),
        (HostOptions { pcpus: 3, smt: true, ..options() }, "even number"),
        (HostOptions { sockets: 2, ..options() }, "one socket"),
        (HostOptions { pcpus: 3, sockets: 2, ..HostOptions::default() }, "divisor"),
    ] {
        let error = boot(&options).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(words), "{error}");
    }
}
