// SPDX-License-Identifier: GPL-2.0-only
//! What commands write, and what they refuse before they begin.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn baton(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.current_dir(directory).args(words);
    command
}

fn run(directory: &Path, words: &[&str]) -> Output {
    baton(directory, words).output().expect("baton runs")
}

/// Its status is 1 and its last line on standard error says this.
fn refused(directory: &Path, words: &[&str], why: &str) {
    let output = run(directory, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains(why), "{words:?}: \"{why}\" is not in: {errors}");
    assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
}

const SHORT: [&str; 4] = ["two-barriers", "--set", "seconds=0.02", "--set=warmup=0.01"];

fn short<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["sim", command], &SHORT[..], more].concat()
}

#[test]
fn standard_output_that_cannot_be_written_is_an_error_of_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let run_short = short("run", &[]);
    let commands: [&[&str]; 9] = [
        &["--version"],
        &["--help"],
        &["sim", "list"],
        &["sim", "show", "xeon-8"],
        &["sim", "explain", "two-barriers"],
        &["sim", "fuzz", "--show"],
        &run_short,
        &["bench", "list"],
        &["doctor", "--list"],
    ];
    for words in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = baton(dir.path(), words).stdout(full).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        assert!(errors.contains("cannot write standard output: "), "{words:?}: {errors}");
        assert!(!errors.contains("panicked"), "{words:?}: {errors}");
        // Nor does standard error, if that is full.
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = baton(dir.path(), words).stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(0), "{words:?}");
    }
}

#[test]
fn outputs_follow_links_and_leave_devices_in_place() {
    let dir = tempfile::tempdir().unwrap();
    symlink("real.json", dir.path().join("link.json")).unwrap();
    let words = short("run", &["--json", "link.json", "--csv", "/dev/null"]);
    assert!(run(dir.path(), &words).status.success());
    assert!(fs::symlink_metadata(dir.path().join("link.json")).unwrap().is_symlink());
    assert!(dir.path().join("real.json").is_file());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    refused(dir.path(), &short("run", &["--json", "/dev/full"]), "No space left on device");
    // On a pipe it comes behind the table, and nothing is lost.
    let output = run(dir.path(), &short("run", &["--csv", "/dev/stdout"]));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.find("work/s") < text.find("vm,vcpus,work_per_s"), "{text}");
}

#[test]
fn no_output_goes_over_another_one_or_over_an_input() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("s.toml");
    let text = String::from_utf8(run(dir.path(), &["sim", "show", "two-barriers"]).stdout).unwrap();
    fs::write(&scenario, &text).unwrap();
    let short = ["--set", "seconds=0.02", "--set", "warmup=0.01"];
    let run_to = |more: &[&str], why: &str| {
        refused(dir.path(), &[&["sim", "run", "s.toml"], &short[..], more].concat(), why);
    };
    run_to(&["--json", "./s.toml"], "--json ./s.toml would overwrite the scenario");
    run_to(&["--json", "a", "--csv", "./a"], "--json and --csv name the same file");
    run_to(&["--svg", "a", "--trace", "a"], "--svg and --trace name the same file");
    // Of any point, not of the first alone.
    let machine = run(dir.path(), &["sim", "show", "xeon-8"]).stdout;
    fs::write(dir.path().join("m.toml"), &machine).unwrap();
    for command in ["compare", "sweep"] {
        let words =
            ["sim", command, "s.toml", "--vary", "machine=xeon-8,m.toml", "--csv", "m.toml"];
        refused(dir.path(), &words, "would overwrite the machine's file");
    }
    assert_eq!(fs::read(dir.path().join("m.toml")).unwrap(), machine);
    let experiment = dir.path().join("e.toml");
    fs::write(
        &experiment,
        "repetitions = 1\nseconds = 1\nschedulers = [\"eevdf\"]\n[[workload]]\nname = \"barrier\"\n",
    )
    .unwrap();
    refused(
        dir.path(),
        &["testbed", "ab", "e.toml", "--json", "e.toml"],
        "would overwrite the experiment",
    );
    assert_eq!(fs::read_to_string(&scenario).unwrap(), text);
}

#[test]
fn a_trace_that_fails_or_is_interrupted_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    refused(dir.path(), &short("run", &["--trace", "/dev/full"]), "No space left on device");
    let words = ["sim", "run", "two-barriers", "--set", "seconds=36000", "--trace", "t.pftrace"];
    let mut child = baton(dir.path(), &words).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| fs::read_dir(dir.path()).unwrap().count() > 0);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A file that may not grow stands for a disk that is full.
#[test]
fn a_trace_that_does_not_fit_leaves_the_older_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t.pftrace"), "older").unwrap();
    let words = short("run", &["--trace", "t.pftrace"]);
    let mut limited = Command::new("sh");
    limited.current_dir(dir.path()).args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh"]);
    let output = limited.arg(env!("CARGO_BIN_EXE_baton")).args(&words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("--trace t.pftrace: cannot write the trace"), "{errors}");
    assert_eq!(fs::read_to_string(dir.path().join("t.pftrace")).unwrap(), "older");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

fn wait_until(mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupted_sweep_keeps_what_is_done_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.json");
    let sweep = |more: &[&str]| {
        let words = ["sim", "sweep", "two-barriers", "--jobs", "1", "--set", "warmup=0.01"];
        let vary = ["--vary", "seconds=0.02,0.03,36000,0.04"];
        baton(dir.path(), &[&words, &vary[..], more].concat())
    };
    // The third point takes minutes. It is reached when the terminal would say so; here, by time.
    let mut child =
        sweep(&["--json", "r.json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_secs(2));
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let entries: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let done = |place: usize| entries[place]["outcome"].is_object();
    assert!(entries.as_array().is_some_and(|all| all.len() == 4) && !done(2), "{errors}");
    assert!(entries[2]["outcome"].is_null() && entries[2].get("error").is_none());
    assert!(done(0) && done(1), "{errors}");
    // Another sweep's results are not taken for this one's.
    let other = dir.path().join("other.json");
    fs::write(&other, r#"[{"point": {"seconds": "9"}, "outcome": null}]"#).unwrap();
    let output = sweep(&["--resume", "other.json"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("--vary is not the same") && output.status.code() == Some(1),
        "{errors}"
    );
    let words = ["sim", "sweep", "two-barriers", "--set", "warmup=0.02", "--resume", "r.json"];
    let vary = ["--vary", "seconds=0.02,0.03,36000,0.04"];
    refused(dir.path(), &[&words, &vary[..]].concat(), "is of another scenario");
    // Done points stay as they are, even if they could not be simulated again.
    let mut marked = entries.clone();
    marked[0]["outcome"]["sim_s"] = 42.0.into();
    marked[2] = entries[1].clone();
    marked[2]["point"]["seconds"] = "36000".into();
    marked[2]["inputs"] = entries[2]["inputs"].clone();
    fs::write(&file, marked.to_string()).unwrap();
    let output = sweep(&["--resume", "r.json"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("3 of 4 points are there already"), "{errors}");
    let now: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(now[0]["outcome"]["sim_s"], 42.0);
    assert!(now[3]["outcome"].is_object());
}

#[test]
fn what_a_sweep_or_comparison_cannot_mean_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for (command, more, why) in [
        (
            "compare",
            &["--vary", "scheduler=eevdf,nonsense"][..],
            "there is no scheduler \"nonsense\"",
        ),
        (
            "sweep",
            &["--vary", "scheduler=eevdf,nonsense"],
            "--vary scheduler=nonsense: there is no",
        ),
        ("sweep", &["--vary", "vm.vcpus=2,x"], "--vary vm.vcpus=x: it takes a whole number"),
        ("sweep", &["--vary", "pcpus=1", "--vary", "pcpus=2"], "--vary gives pcpus twice"),
        ("sweep", &["--vary", "pcpus=1,2,1"], "--vary pcpus has 1 twice"),
        ("sweep", &["--vary", "seconds=1,2"], "seconds is in --set and in --vary"),
        ("run", &["--set", "seconds=1"], "--set gives seconds twice"),
        ("compare", &["--vary", "seed=1,2"], "compare sets the seeds itself"),
        ("compare", &["--vary", "pcpus=1,2", "--set", "seed=1"], "compare sets the seeds itself"),
        ("compare", &["--vary", "pcpus=1"], "has one value only"),
        (
            "sweep",
            &["--vary", "vm.0.vcpus=1,2", "--vary", "vm.vcpus=3,4"],
            "--vary gives vm.0.vcpus and vm.vcpus, of which one contains the other",
        ),
        (
            "sweep",
            &["--set", "vm.0.vcpus=1", "--vary", "vm.vcpus=3,4"],
            "--vary vm.vcpus would override --set vm.0.vcpus",
        ),
        ("run", &["--set", "thread.0.run-us=5"], "there is no [[thread]]"),
        ("run", &["--set", "kvm.halt-poll=adaptive"], "it takes \"off\", { fixed = NS }"),
        ("sweep", &["--vary", "=1,2"], "is not key=a,b,c"),
        ("run", &["--json", "-"], "write /dev/stdout"),
    ] {
        refused(dir.path(), &short(command, more), why);
    }
    refused(
        dir.path(),
        &["sim", "fuzz", "--scheduler", "nope"],
        "--scheduler: there is no scheduler",
    );
    let wrong = run(dir.path(), &["sim", "fuzz", "--seeds", "0..18446744073709551615"]);
    assert_eq!(wrong.status.code(), Some(2));
    // The last ones that there are: it ends.
    let last = format!("{}..{}", i64::MAX - 1, i64::MAX);
    assert!(run(dir.path(), &["sim", "fuzz", "--seeds", &last]).status.success());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn several_keys_are_compared_with_the_first_value_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--vary", "scheduler=eevdf,cfs", "--vary", "vm.vcpus=2,4", "--seeds", "2"];
    let output = run(dir.path(), &short("compare", &more));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].starts_with("scheduler, vm.vcpus"), "{text}");
    assert!(rows[1].starts_with("eevdf, 2") && rows[4].starts_with("cfs, 4"), "{text}");
}

/// A scheduler of the user's may do anything.
#[test]
fn a_scheduler_that_crashes_hangs_or_forgets_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let source = |name: &str, body: &str| {
        let text = format!(
            "#include <scx/common.bpf.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n\
             volatile int turns;\nvoid BPF_STRUCT_OPS(x_enqueue, struct task_struct *p, u64 \
             flags)\n\
             {{\n{body}\n}}\ns32 BPF_STRUCT_OPS(x_select_cpu, struct task_struct *p, s32 cpu, u64 \
             flags)\n\
             {{\nreturn cpu;\n}}\nSCX_OPS_DEFINE(x_ops, .select_cpu = (void *)x_select_cpu, \
             .enqueue = (void *)x_enqueue, .name = \"x\");\n"
        );
        fs::write(dir.path().join(name), text).unwrap();
    };
    source("null.bpf.c", "*(volatile int *)0 = 1;");
    source("hang.bpf.c", "for (;;) turns++;");
    source("lose.bpf.c", "turns++;");
    source("broken.bpf.c", "no c;");
    source("exit.bpf.c", "void exit(int); exit(0);");
    source("prints.bpf.c", "int puts(const char *); puts(\"{}\"); *(volatile int *)0 = 1;");
    source("undefined.bpf.c", "void nobody_has_this(void); nobody_has_this();");
    // Beside the scenario, wherever one is.
    let scenario = dir.path().join("sub");
    fs::create_dir(&scenario).unwrap();
    for name in ["null", "hang", "lose", "broken", "exit", "prints", "undefined"] {
        let text = format!(
            "machine = \"m.toml\"\nscheduler = \"../{name}.bpf.c\"\nseconds = 0.5\n[[vm]]\nvcpus = 24\n\
             workload = \"compute\"\n"
        );
        fs::write(scenario.join(format!("{name}.toml")), text).unwrap();
    }
    let machine = run(dir.path(), &["sim", "show", "xeon-8"]).stdout;
    fs::write(scenario.join("m.toml"), machine).unwrap();
    for (name, why) in [
        ("null", "used memory that it does not have (SIGSEGV), in enqueue"),
        ("hang", "the scheduler hangs: no event for 10 s, in enqueue"),
        ("lose", "the scheduler has lost all its tasks"),
        ("broken", "does not compile for the simulator"),
        ("exit", "the scheduler called exit(), in enqueue"),
        ("prints", "(SIGSEGV), in enqueue"),
        ("undefined", "undefined"),
    ] {
        let file = format!("sub/{name}.toml");
        refused(dir.path(), &["sim", "run", &file], why);
    }
    // In a comparison the others go on.
    let output =
        run(dir.path(), &short("compare", &["--vary", "scheduler=eevdf,null.bpf.c", "--seeds=2"]));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().any(|line| line.starts_with("eevdf")), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("2 of 4 simulations failed"));
}

#[test]
fn figures_of_speed_are_apart_from_what_is_the_same_every_time() {
    let dir = tempfile::tempdir().unwrap();
    let json = |name: &str| -> serde_json::Value {
        assert!(run(dir.path(), &short("run", &["--json", name])).status.success());
        serde_json::from_str(&fs::read_to_string(dir.path().join(name)).unwrap()).unwrap()
    };
    let (mut a, mut b) = (json("a"), json("b"));
    for json in [&mut a, &mut b] {
        let speed = json.as_object_mut().unwrap().remove("speed").unwrap();
        for key in ["wall_s", "events_per_s", "peak_rss_mib"] {
            assert!(speed[key].is_f64() && json.get(key).is_none(), "{key}");
        }
    }
    assert_eq!(a, b);
}

#[test]
fn what_the_scheduler_ignores_of_cgroups_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let errors = |set: &str| {
        let more = ["--set", set, "--vary", "scheduler=eevdf,scx_baton,scx_fifo", "--seeds=1"];
        String::from_utf8(run(dir.path(), &short("compare", &more)).stderr).unwrap()
    };
    assert_eq!(errors("vm.0.weight=300"), "scx_fifo ignores vm.0.weight\n");
    let quotas = "scx_fifo ignores vm.0.cpu-max\n";
    assert_eq!(errors("vm.0.cpu-max={ quota-us = 100000 }"), quotas);
}

/// Before it asks for KVM: what is wrong is told on any machine.
#[test]
fn the_bench_refuses_what_it_cannot_write_or_find_before_it_measures() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "mine").unwrap();
    let bench = |more: &[&str], why: &str| {
        refused(dir.path(), &[&["bench", "exit-cpuid"], more].concat(), why);
    };
    bench(&["--plot", "file"], "cannot write into the directory file: it is no directory");
    bench(&["--json", "a", "--csv", "./a"], "--json and --csv name the same file");
    bench(&["--schedulers", "eevdf,scx_nobody_has"], "there is no scheduler scx_nobody_has");
    for few in ["1", "2,1"] {
        let few = ["bench", "barrier", "--vcpus", few];
        refused(dir.path(), &few, "--vcpus 1: barrier takes 2 at least");
    }
    // Beside itself it looks first.
    let own = Path::new(env!("CARGO_BIN_EXE_baton")).parent().unwrap().display().to_string();
    bench(&["--schedulers", "scx_nobody_has"], &format!("nor a program in {own}"));
    fs::write(dir.path().join("old.json"), r#"{"measurements": []}"#).unwrap();
    bench(&["--against", "old.json", "--json", "old.json"], "would overwrite what --against reads");
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "mine");
}

#[test]
fn every_help_tells_exit_statuses_and_every_column_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let help = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().chain(["--help"]).collect();
        String::from_utf8(run(dir.path(), &words).stdout).unwrap()
    };
    for command in ["", "demo", "bench", "doctor", "sim", "testbed run", "testbed ab"] {
        assert!(help(command).contains("Exit status"), "{command}");
    }
    // Head lines, two blanks or more between columns.
    let columns = |words: &[&str]| -> Vec<String> {
        let text = String::from_utf8(run(dir.path(), words).stdout).unwrap();
        let head = text.lines().next().unwrap_or_default();
        head.split("  ").map(|name| name.trim().to_string()).filter(|n| !n.is_empty()).collect()
    };
    let legend = help("sim run");
    for column in columns(&short("run", &[])) {
        assert!(matches!(&column[..], "VM" | "vCPUs") || legend.contains(&column), "{column}");
    }
    let legend = help("sim compare");
    let compared = columns(&short("compare", &["--vary", "scheduler=eevdf,cfs", "--seeds=1"]));
    for column in &compared[1..] {
        let name = column.split(" [").next().unwrap_or(column).trim_end_matches(" ms");
        assert!(legend.contains(name), "{column}");
    }
    let list = String::from_utf8(run(dir.path(), &["sim", "list"]).stdout).unwrap();
    let output = run(dir.path(), &short("run", &["--set", "scheduler=scx_baton"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let counters = text.lines().find(|line| line.starts_with("yields ")).expect("counters");
    for counter in counters.split("  ").map(str::trim).filter(|counter| !counter.is_empty()) {
        let name = counter.rsplit_once(' ').map_or(counter, |(name, _)| name);
        assert!(list.lines().any(|line| line.trim_start().starts_with(name)), "{name}");
    }
}

/// Whatever this machine's KVM is.
#[test]
fn an_exact_host_under_kvm_is_refused_before_anything_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let under_kvm = ["--exact", "--accel", "kvm"];
    let experiment = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/experiments/qemu.toml");
    let commands: [(&[&str], &[&str], i32); 4] = [
        (&["testbed", "run"], &["--", "true"], 125),
        (&["testbed", "shell"], &[], 125),
        (&["testbed", "ab", experiment, "--peers"], &[], 1),
        (&["demo"], &[], 1),
    ];
    for (first, last, status) in commands {
        let words = [first, &under_kvm, last].concat();
        let cache = dir.path().join("cache");
        let output = baton(dir.path(), &words).env("BATON_CACHE", &cache).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {errors}");
        assert!(errors.contains("leave --exact or --accel kvm out"), "{words:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
        assert!(!cache.exists(), "{words:?} made a cache");
    }
}
