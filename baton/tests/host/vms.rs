// SPDX-License-Identifier: GPL-2.0-only
//! What Baton finds on a host, and tells.

use super::*;

/// The number that follows a name on a line of statistics.
fn number_behind(line: &str) -> impl Fn(&str) -> f64 {
    move |name| {
        let number = line.split(&format!("{name} ")).nth(1).and_then(|l| l.split(' ').next());
        let number = number.unwrap_or_else(|| panic!("no {name} in: {line}"));
        number.parse().unwrap_or_else(|_| panic!("{name} is {number} in: {line}"))
    }
}

#[test]
fn finds_vms_and_forgets_them() {
    let found = on_host(
        From::Guests,
        r#"
        echo "ops=$(cat /sys/kernel/sched_ext/root/ops)"
        echo "verified=$(cat /proc/$baton_pid/fdinfo/* | sed -n 's/^verified_insns:[^0-9]*//p' | sort -n | tail -n 1)"
        work a 1 barrier; rate a >/dev/null
        echo "two=$(stats)"
        vm late
        echo "three=$(stats)"
        kill_vm a; kill_vm b; sleep 1
        echo "one=$(stats)"
        kill_vm late; sleep 1
        echo "none=$(stats)"
        stop_baton; echo "status=$?"
        echo "state=$(state)"
        "#,
    );
    assert!(found.text("ops").starts_with("baton"), "{}", found.out);
    // Measured: 31 thousand. The verifier gives up at a million, and is slow long before that.
    assert!((1.0..200e3).contains(&found.number("verified")), "{}", found.out);
    for (key, vms) in [("two", 2.0), ("three", 3.0), ("one", 1.0), ("none", 0.0)] {
        let stats = found.stats(key);
        assert_eq!((stats["VMs"], stats["vCPUs"]), (vms, 2.0 * vms), "{key}: {}", found.out);
    }
    assert_eq!(found.number("status"), 0.0);
    assert_eq!(found.text("state"), "disabled");
}

/// The parts are measured apart, at other events: their sum is the time that has passed. What the
/// kernel says of the same threads agrees, also of a wait that is not over for half a second.
#[test]
fn the_time_of_each_vcpu_is_accounted_for() {
    let found = on_host(
        From::Guests,
        r#"
        echo "30000 100000" >/sys/fs/cgroup/b/cpu.max
        kernel() { for tid in $(vcpus $1); do cut -d' ' -f1,2 /proc/$tid/schedstat; done; }
        sum() { kernel $1 | awk '{r += $1; d += $2} END {printf "%d %d", r / 1e6, d / 1e6}'; }
        told() {
            timeout 30 scx_baton --monitor 0.2 --totals --vcpus 2>/dev/null |
                sed -n '/^\[/{x;s/^/x/;/^xx/q;x};p'
        }
        a0=$(sum a) b0=$(sum b) before=$(told) a1=$(sum a) b1=$(sum b)
        work a 3 barrier; work b 3 barrier
        sleep 2
        a2=$(sum a) b2=$(sum b) after=$(told) a3=$(sum a) b3=$(sum b)
        echo "kernel_a=$a0 $a1 $a2 $a3"; echo "kernel_b=$b0 $b1 $b2 $b3"
        echo "$before" | sed 's/^/before=/'; echo "$after" | sed 's/^/after=/'
        "#,
    );
    let (ran, ready, throttled) = ("ms: ran", "ready", "throttled");
    for (vm, kernel) in [("a", "kernel_a"), ("b", "kernel_b")] {
        let line = |when: &str| {
            let is_its = |l: &&str| l.starts_with(when) && l.contains(&format!(" {vm}: vCPUs"));
            number_behind(found.out.lines().find(is_its).expect("a line of the VM"))
        };
        let (before, after) = (line("before="), line("after="));
        let grown = |key: &str| after(key) - before(key);
        let k: Vec<f64> =
            found.text(kernel).split(' ').map(|word| word.parse().expect("a number")).collect();
        // The kernel was asked before and after: what it says at first is the least.
        let range = |i: usize| 0.98 * (k[4 + i] - k[2 + i])..1.02 * (k[6 + i] - k[i]);
        assert!(range(0).contains(&grown(ran)), "{vm} {:?}: {}", range(0), found.out);
        let delay = grown(ready) + grown(throttled);
        assert!(range(1).contains(&delay), "{vm} {:?}: {}", range(1), found.out);
    }
    let mut most = [0.0; 5];
    let lines = found.out.lines().filter(|line| line.contains("%RUN"));
    for line in lines.clone() {
        let parts = ["%RUN", "%RDY", "%CSTP", "%MLMTD", "%WAIT"].map(number_behind(line));
        assert!(parts.iter().all(|part| (-0.1..100.1).contains(part)), "{line}");
        assert!((parts.iter().sum::<f64>() - 100.0).abs() < 0.3, "{line}");
        most = std::array::from_fn(|i| parts[i].max(most[i]));
    }
    // Before, one that has not run since the scheduler began is no vCPU yet.
    assert_eq!(lines.filter(|line| line.starts_with("after=")).count(), 4, "{}", found.out);
    // The one guest computes, the other has no CPU time; both were idle before.
    let [run, .., throttled, wait] = most;
    assert!(run > 20.0 && throttled > 20.0 && wait > 90.0, "{}", found.out);
}

/// scx_baton asks its BPF programs for 64 vCPUs (`NR_REPORTS`) at a time.
#[test]
fn a_large_vm_is_told_of_with_all_its_vcpus() {
    let found = on_host(
        From::Guests,
        r#"
        command baton bench barrier --vcpus 70 --seconds 60 >/dev/null 2>&1 & bench=$!
        top() { command baton top --batch -n 1 -d 0.5 --json --vcpus "$@" | tr '\n' ' '; }
        for try in 1 2 3 4 5 6 7 8 9 10; do
            sleep 2
            told=$(top)
            # Of one VM: the two others have vCPUs, too, while this one still creates its own.
            of_one=$(echo "$told" | sed 's/"vcpus":/\n/g' |
                awk '{ n = gsub(/"tid":/, ""); if (n > most) most = n } END { print most + 0 }')
            [ $of_one -ge 70 ] && break
        done
        echo "told=$told"
        kill $bench
        "#,
    );
    let told: serde_json::Value = serde_json::from_str(found.text("told")).expect("JSON");
    let vms = told["vms"].as_array().expect("a list");
    let vcpus = |vm: &serde_json::Value| vm["vcpus"].as_array().map_or(0, Vec::len);
    let large = vms.iter().max_by_key(|vm| vcpus(vm)).expect("a VM");
    assert_eq!(vcpus(large), 70, "{}", found.out);
    for (id, vcpu) in large["vcpus"].as_array().expect("a list").iter().enumerate() {
        assert_eq!(vcpu["id"], id, "{}", found.out);
    }
}

/// The probes of HLTs (`kvm.rs`) come when somebody asks, and were not there while nobody waited.
#[test]
fn halts_are_followed_once_somebody_asks() {
    let found = on_host(
        From::Guests,
        r#"
        links() { cat /proc/$baton_pid/fdinfo/* 2>/dev/null | grep -c '^link_type:'; }
        told() { timeout 30 scx_baton --monitor 0.5 --totals 2>/dev/null | sed -n 2p; }
        for try in 1 2 3; do
            sleep 25
            [ $(links) -ge ${quiet:-99} ] || quiet=$(links)
        done
        told >/dev/null
        sleep 1
        echo "quiet=$quiet"; echo "asked=$(links)"
        first=$(told)
        sleep 1
        echo "first=$first"; echo "later=$(told)"
        "#,
    );
    assert!(found.number("asked") >= found.number("quiet") + 2.0, "{}", found.out);
    let halts = |when: &str| number_behind(found.text(when))("halts");
    assert!(halts("later") > halts("first"), "{}", found.out);
}

/// `baton top` shows the same VMs whoever schedules them; doctor and the loader name a blocker.
#[test]
fn operators_see_vms_by_name() {
    let found = on_host(
        From::Guests,
        r#"
        top() { command baton top --batch -n 1 -d 0.5 "$@" | tr '
' ' '; }
        work a 3 barrier
        sleep 1
        echo "with=$(top --json)"
        echo "one=$(top a --csv)"
        echo "opened=$(top a --json)"
        echo "none=$(command baton top nope --batch 2>&1; echo "status $?")" | tr '\n' ' '; echo
        echo "runs=$(command baton doctor | tr '
' ' ')"
        stop_baton
        rate a >/dev/null; work a 2 barrier; sleep 0.5
        echo "without=$(top --json)"
        echo "doctor=$(command baton doctor --json >/run/doctor; echo $?)"
        ip link set lo up
        scrape() { wget -qO- http://127.0.0.1:$1/metrics | grep "$2" | tr '\n' ' '; }
        command baton exporter --listen 127.0.0.1:9877 & exporter=$!
        baton --metrics 127.0.0.1:9878
        echo "enabled=$(scrape 9877 ^baton_enabled)"
        echo "inside=$(scrape 9878 ^baton_vm_run_seconds_total)"
        echo "outside=$(scrape 9877 ^baton_vm_run_seconds_total)"
        stop_baton
        echo "gone=$(scrape 9877 ^baton_enabled)"
        kill $exporter
        "#,
    );
    for (key, scheduler) in [("with", "baton"), ("without", "kernel")] {
        let told: serde_json::Value = serde_json::from_str(found.text(key)).expect("JSON");
        assert_eq!(told["scheduler"], scheduler, "{}", found.out);
        let vms = told["vms"].as_array().expect("a list");
        let names: Vec<_> = vms.iter().filter_map(|vm| vm["name"].as_str()).collect();
        assert!(names.contains(&"a") && names.contains(&"b"), "{}", found.out);
        let run = |name: &str| {
            let vm = vms.iter().find(|vm| vm["name"] == name).expect("a VM");
            vm["parts"]["run"].as_f64().expect("a number")
        };
        assert!(run("a") > 50.0 && run("b") < 20.0, "{}", found.out);
        let is_known = vms.iter().all(|vm| vm["parts"]["costop"].is_number());
        assert_eq!(is_known, key == "with", "{}", found.out);
    }
    let opened: serde_json::Value = serde_json::from_str(found.text("opened")).expect("JSON");
    let opened = &opened["vms"][0];
    assert!(opened["pid"].is_u64(), "{}", found.out);
    let threads = opened["threads"].as_array().expect("a list");
    assert!(threads.iter().any(|thread| thread["run"].is_number()), "{}", found.out);
    let one = found.text("one");
    assert!(one.contains(",a,0,1,") && one.contains(",a,1,1,") && !one.contains(",b,"), "{one}");
    assert!(found.text("none").contains("no VM is named 'nope': there are: a, b status 1"));
    // Whatever else it finds there: its own scheduler is no rival.
    assert!(!found.text("runs").contains("rival:"), "{}", found.out);
    assert!(["0", "1"].contains(&found.text("doctor")), "{}", found.out);
    assert!(found.text("enabled").ends_with(" 1"), "{}", found.out);
    for key in ["inside", "outside"] {
        let told = found.text(key);
        assert!(told.contains("vm=\"a\"") && told.contains("vm=\"b\""), "{}", found.out);
    }
    assert!(found.text("gone").ends_with(" 0"), "{}", found.out);
}

/// What libvirt and cgroups tell of VMs comes from the kernel's fair scheduler in part, and stands
/// still where another one schedules: docs/operating.md has it.
#[test]
fn what_other_tools_read_under_sched_ext() {
    let found = on_host(
        From::Guests,
        r#"
        wait_sum() { sed -n 's/^\(se\.statistics\.\)*wait_sum *: *//p' /proc/$1/sched; }
        one=$(vcpus a | head -n 1)
        echo "off=$(wait_sum $one | wc -l)"
        echo 1 >/proc/sys/kernel/sched_schedstats || fail "no schedstats"
        echo "on=$(wait_sum $one | wc -l)"
        echo "30000 100000" >/sys/fs/cgroup/b/cpu.max
        # Of guest a; milliseconds.
        waited() { for t in $(vcpus a); do wait_sum $t; done; }
        delayed() { for t in $(vcpus a); do cut -d' ' -f2 /proc/$t/schedstat; done; }
        sum() { awk '{ n += $1 } END { printf "%.3f", n / '$1' }'; }
        of() { sed -n "s/^$2 //p" /sys/fs/cgroup/$1/cpu.stat; }
        pressure() { sed -n 's/^some .*total=//p' $1; }
        tell() {
            echo "$1.wait_sum=$(waited | sum 1)"
            echo "$1.run_delay=$(delayed | sum 1e6)"
            echo "$1.nr_throttled=$(of b nr_throttled)"
            echo "$1.throttled_usec=$(of b throttled_usec)"
            echo "$1.psi_host=$(pressure /proc/pressure/cpu)"
            echo "$1.psi_a=$(pressure /sys/fs/cgroup/a/cpu.pressure)"
            echo "$1.usage_usec=$(of a usage_usec)"
        }
        load() {
            work a 4 barrier; work b 4 barrier; busy
            sleep 1; tell $1.0
            sleep 2; tell $1.1
            kill ${busy##* }
            rate a >/dev/null; rate b >/dev/null
        }
        load baton
        stop_baton
        load kernel
        "#,
    );
    let grown = |scheduler: &str, what: &str| {
        let at = |when| found.number(&format!("{scheduler}.{when}.{what}"));
        at(1) - at(0)
    };
    assert_eq!((found.number("off"), found.number("on")), (0.0, 1.0), "{}", found.out);
    for fair in ["wait_sum", "nr_throttled", "throttled_usec"] {
        assert_eq!(grown("baton", fair), 0.0, "{fair}: {}", found.out);
        assert!(grown("kernel", fair) > 0.0, "{fair}: {}", found.out);
    }
    for (any, least) in
        [("run_delay", 100.0), ("psi_host", 1e5), ("psi_a", 1e5), ("usage_usec", 1e5)]
    {
        for scheduler in ["baton", "kernel"] {
            assert!(grown(scheduler, any) > least, "{scheduler}, {any}: {}", found.out);
        }
    }
}

/// Prints what README shows.
#[test]
#[ignore = "for README"]
fn the_readmes_lines() {
    let found = on_host(
        From::Guests,
        r#"
        echo "30000 100000" >/sys/fs/cgroup/b/cpu.max
        work a 9 barrier; work b 9 barrier; busy
        sleep 2
        command baton top --batch --vcpus -n 2
        stop_baton
        echo "before=$(state)"
        scx_baton >/run/session 2>&1 & pid=$!
        until_true '[ "$(state)" = enabled ]'
        sleep 3
        echo "while=$(state) $(cat /sys/kernel/sched_ext/root/ops)"
        kill -INT $pid; wait $pid
        cat /run/session
        echo "after=$(state)"
        "#,
    );
    println!("{}", found.out);
    assert_eq!(found.out.matches("  vCPU ").count(), 8, "{}", found.out);
    assert_eq!(found.text("before"), "disabled");
    assert!(found.text("while").starts_with("enabled baton"), "{}", found.out);
    assert_eq!(found.text("after"), "disabled");
}
