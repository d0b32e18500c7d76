// SPDX-License-Identifier: GPL-2.0-only
//! `baton bench`.

use super::*;

/// Every measurement gives all its figures. (`baton` alone is the function of guests.sh.)
#[test]
fn bench_measures_all_that_it_lists() {
    let found = on_host(
        From::Boot,
        r#"
        echo "listed=$(command baton bench list | wc -l)"
        command baton bench --repetitions 1 --samples 10 --seconds 0.3 --json /tmp/bench.json || fail bench
        command baton bench barrier ipi-unicast timer-halted-1000us --vms 2 --repetitions 1 \
            --samples 100 --seconds 0.3 --schedulers eevdf,scx_baton --csv /tmp/bench.csv \
            2>/tmp/runs || fail "bench with schedulers: $(cat /tmp/runs)"
        late() { sed -n "s/^run 1 of 1, $1: .*1000us late \([0-9][0-9]*\).*/\1/p" /tmp/runs; }
        echo "eevdf.late=$(late eevdf)"
        echo "baton.late=$(late scx_baton)"
        command baton bench pause barrier --vms 2 --weights 100,300 --vcpus 2,3 --repetitions 1 \
            --seconds 0.3 --json /tmp/sizes.json >/dev/null || fail "bench with weights"
        echo "cgroup=$(cat /proc/self/cgroup) $(ls /sys/fs/cgroup | grep -c bench)"
        echo "sizes=$(grep -o '"name": "[^"]*"' /tmp/sizes.json | tr '\n' ' ')"
        echo "polling=$(cd /sys/module/kvm/parameters && cat halt_poll_ns_grow_start halt_poll_ns_shrink | tr '\n' ' ')"
        command baton bench exit-cpuid --against /tmp/bench.json --repetitions 1 >/tmp/against || fail against
        echo "against=$(grep 'agree within' /tmp/against)"
        echo "csv=$(cut -d, -f1,2,3 /tmp/bench.csv | sort -u | tr '\n' ' ')"
        echo "json=$(tr -d '\n' </tmp/bench.json)"
        "#,
    );
    let json: serde_json::Value = serde_json::from_str(found.text("json")).expect("JSON");
    let measurements = json["measurements"].as_array().expect("a list");
    assert_eq!((measurements.len() + 3).to_string(), found.text("listed"));
    // Two CPUs are too few for these alone.
    let skipped = json["skipped"].as_array().expect("a list");
    let skipped: Vec<&str> = skipped.iter().filter_map(|test| test["name"].as_str()).collect();
    assert_eq!(skipped, ["ipi-multicast-2", "ipi-multicast-4", "ipi-multicast-8"]);
    for measurement in measurements {
        assert_eq!(measurement["runs"], 1, "{measurement}");
        assert_eq!(measurement["errors"].as_array().map(Vec::len), Some(0), "{measurement}");
        for series in measurement["series"].as_object().into_iter().flat_map(|all| all.values()) {
            assert_eq!(series["all"]["count"], 10, "{measurement}");
        }
    }
    assert_eq!(found.text("cgroup"), "0::/ 0", "cgroups are left");
    for name in ["pause", "barrier-2-vcpus", "barrier-3-vcpus", "barrier-pause-3-vcpus"] {
        assert!(found.text("sizes").contains(&format!("\"{name}\"")), "{}", found.out);
    }
    assert_eq!(found.text("polling").split_whitespace().collect::<Vec<_>>(), ["10000", "2"]);
    assert!(found.text("against").contains(" of 1 latencies"), "{}", found.out);
    // A vCPU that sleeps for a millisecond at a time, beside a VM that wants all pCPUs: it was once
    // preempted on its way to sleep, and then waited for a turn's end, 45 times as long.
    assert!(found.number("baton.late") < 12.0 * found.number("eevdf.late"), "{}", found.out);
    for line in ["eevdf,barrier,total", "scx_baton,barrier,total", "scx_baton,ipi-unicast,one-way"]
    {
        assert!(found.text("csv").contains(line), "{}", found.out);
    }
}

#[test]
fn bench_says_what_went_wrong() {
    let found = on_host(
        From::Boot,
        r#"
        try() { key=$1; shift; out=$("$@" 2>&1); echo "$key=status $? $(echo "$out" | tr '\n' ' ')"; }
        try fault command baton bench trouble-fault exit-cpuid --repetitions 1 --samples 10
        try hang command baton bench trouble-hang --repetitions 1 --deadline 2
        try name command baton bench no-such
        try file command baton bench exit-cpuid --json /no/such/file
        try vcpus sh -c 'ulimit -n 64 && ulimit -Hn 64; baton bench barrier --vcpus 100'
        try scheduler command baton bench exit-cpuid --schedulers eevdf,/bin/false --repetitions 1
        try missing command baton bench exit-cpuid --schedulers eevdf,scx_none --repetitions 1
        try interrupt timeout -s INT 5 baton bench --seconds 60 barrier exit --repetitions 9 --json /tmp/b.json
        echo "kept=$(grep -c exit-cpuid /tmp/b.json)"
        mv /dev/kvm /dev/kvm.away
        try nokvm command baton bench exit
        mv /dev/kvm.away /dev/kvm
        "#,
    );
    let said = |key: &str, words: &[&str]| {
        for word in words {
            assert!(found.text(key).contains(word), "no \"{word}\" in {key} of\n{}", found.out);
        }
    };
    said("fault", &["status 1", "triple fault", "rip", "exit-cpuid cost"]);
    said("hang", &["status 1", "the guest hangs", "nothing could be measured"]);
    said("name", &["status 1", "there is no measurement no-such"]);
    said("file", &["status 1", "cannot write /no/such/file"]);
    said("vcpus", &["status 1", "KVM makes no vCPU", "ulimit -n"]);
    said("scheduler", &["status 1", "exit-cpuid cost", "not measured: /bin/false"]);
    said("missing", &["status 1", "there is no scheduler scx_none"]);
    said("nokvm", &["status 1", "there is no /dev/kvm"]);
    said("interrupt", &["interrupted: what was measured until then"]);
    said("kept", &["1"]);
}
