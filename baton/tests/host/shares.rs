// SPDX-License-Identifier: GPL-2.0-only
//! Who gets how much: weights, quotas, host threads, affinity.

use super::*;

const SHARE: &str = r#"
    usage() { sed -n 's/^usage_usec //p' /sys/fs/cgroup/$1/cpu.stat; }
    # Permille of a pCPU, over the given number of seconds.
    share() {
        u0=$(usage $1) t0=$(cut -d' ' -f1 /proc/uptime)
        sleep $2
        u1=$(usage $1) t1=$(cut -d' ' -f1 /proc/uptime)
        echo "$u0 $u1 $t0 $t1" | awk '{ printf "%d", ($2 - $1) / ($4 - $3) / 1000 }'
    }"#;

#[test]
fn weights_share_the_cpus() {
    let found = on_host(
        From::Guests,
        r#"
        echo 300 >/sys/fs/cgroup/b/cpu.weight
        work a 6 barrier; work b 6 barrier
        sleep 1
        usage() { sed -n 's/^usage_usec //p' /sys/fs/cgroup/$1/cpu.stat; }
        l0=$(usage a) h0=$(usage b)
        sleep 4
        echo "light=$(($(usage a) - l0))"
        echo "heavy=$(($(usage b) - h0))"
        rate a >/dev/null; rate b >/dev/null
        "#,
    );
    let ratio = found.number("heavy") / found.number("light");
    assert!((2.7..=3.3).contains(&ratio), "weights 100:300 gave 1:{ratio:.2}\n{}", found.out);
}

/// A cgroup with two loops in each of two cgroups in it, and one with two loops: half for each.
#[test]
fn shares_follow_the_tree_of_cgroups() {
    let found = on_host(
        From::Guests,
        r#"
        cd /sys/fs/cgroup
        mkdir -p p/1 p/2 q
        echo +cpu >p/cgroup.subtree_control
        for at in p/1 p/1 p/2 p/2 q q; do busy; echo ${busy##* } >$at/cgroup.procs; done
        usage() { sed -n 's/^usage_usec //p' $1/cpu.stat; }
        sleep 1
        p0=$(usage p) q0=$(usage q)
        sleep 4
        echo "p=$(($(usage p) - p0))"
        echo "q=$(($(usage q) - q0))"
        kill $busy
        "#,
    );
    let ratio = found.number("p") / found.number("q");
    assert!((0.85..=1.15).contains(&ratio), "one to {ratio:.2}\n{}", found.out);
}

/// A guest with a quota of half a pCPU, which is lifted while it runs.
#[test]
fn a_guests_quota_is_enforced() {
    let script = r#"
        echo "50000 100000" >/sys/fs/cgroup/a/cpu.max
        work a 8 barrier
        sleep 1
        echo "half=$(share a 3)"
        echo "max 100000" >/sys/fs/cgroup/a/cpu.max
        sleep 1
        echo "all=$(share a 2)"
        rate a >/dev/null
        echo "state=$(state)"
        "#;
    let found = on_host(From::Guests, &format!("{SHARE}{script}"));
    assert!((400.0..=600.0).contains(&found.number("half")), "{}", found.out);
    assert!(found.number("all") > 1300.0, "{}", found.out);
    assert_eq!(found.text("state"), "enabled", "{}", found.out);
}

/// Two loops of the host, whose quota is that of the cgroup above their own.
#[test]
fn a_quota_is_enforced_for_the_cgroups_below() {
    let script = r#"
        busy; busy
        for p in $busy; do echo $p >/sys/fs/cgroup/box/inner/cgroup.procs; done
        sleep 2
        echo "box=$(share box 4)"
        kill $busy
        echo "state=$(state)"
        "#;
    let found = on_host(From::Guests, &format!("{SHARE}{script}"));
    assert!((220.0..=380.0).contains(&found.number("box")), "{}", found.out);
    assert_eq!(found.text("state"), "enabled", "{}", found.out);
}

/// Two threads that sleep 10 ms and work a little, without guests and next to guests that want
/// every cycle.
#[test]
fn host_threads_stay_prompt() {
    let found = on_host(
        From::Guests,
        r#"
        now() { set -- $(cat /proc/uptime); echo $1; }
        beat() { for i in $(seq 50); do usleep 10000; done; now >$RUN/beat.$1; }
        beats() {
            start=$(now)
            beat 1 & one=$!
            beat 2 & two=$!
            wait $one; wait $two
            for i in 1 2; do
                echo "$1.$i=$(echo "$(cat $RUN/beat.$i) $start" | awk '{ print $1 - $2 }')"
            done
        }
        beats idle
        work a 6 barrier; work b 6 barrier
        sleep 1
        beats loaded
        rate a >/dev/null; rate b >/dev/null
        "#,
    );
    // Each of the 50 times forks a process. Waiting each time for the end of a guest's turn, which
    // is 12 ms and a tick, and for the other guest's turn, would multiply the time.
    for thread in [1, 2] {
        let idle = found.number(&format!("idle.{thread}"));
        assert!(found.number(&format!("loaded.{thread}")) <= 3.0 * idle, "{}", found.out);
    }
}

/// Four loops on two pCPUs, and no VM: half of a pCPU for each.
#[test]
fn host_tasks_share_without_guests() {
    let found = on_host(
        From::Guests,
        r#"
        busy; busy; busy; busy
        sleep 3
        # Fields 14 and 15, user and system time; the name before them has no blank here.
        for p in $busy; do used="$used $(cut -d' ' -f14 /proc/$p/stat)"; done
        echo "used=$used"
        kill $busy
        echo "state=$(state)"
        "#,
    );
    let used: Vec<f64> =
        found.text("used").split_whitespace().map(|n| n.parse().expect("ticks")).collect();
    assert_eq!(used.len(), 4, "{}", found.out);
    let most = used.iter().copied().fold(0.0, f64::max);
    assert!(used.iter().all(|ticks| *ticks > 0.5 * most), "{}", found.out);
    assert_eq!(found.text("state"), "enabled");
}

/// A vCPU bound to a pCPU runs there and nowhere else, also when the binding changes.
#[test]
fn affinity_is_honoured() {
    let found = on_host(
        From::Guests,
        r#"
        work a 6 barrier --pause-every 2000; work b 6 barrier
        for cpu in 1 0; do
            for t in $(vcpus a); do taskset -p $((1 << cpu)) $t >/dev/null; done
            sleep 1
            for i in $(seq 10); do
                for t in $(vcpus a); do
                    # Field 39, "processor"; the name before it has blanks in it.
                    on=$(sed 's/.*) //' /proc/$t/stat 2>/dev/null | cut -d' ' -f37)
                    [ "${on:-$cpu}" = $cpu ] || fail "thread $t ran on CPU $on instead of $cpu"
                done
                usleep 50000
            done
        done
        echo "bound=$(rate a)"
        "#,
    );
    assert!(found.number("bound") > 0.0, "{}", found.out);
}
