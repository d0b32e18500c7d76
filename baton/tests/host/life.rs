// SPDX-License-Identifier: GPL-2.0-only
//! What comes and goes: guests, KVM, its parameters, the scheduler.

use super::*;

#[test]
fn a_guest_killed_while_it_spins_leaves_nothing() {
    let found = on_host(
        From::Guests,
        r#"
        work a 30 barrier --pause-every 100; work b 30 barrier --pause-every 100
        sleep 1
        kill_vm a; sleep 1
        echo "left=$(stats)"
        [ -d /proc/$(pid_of a) ] && fail "the guest's process is still there"
        kill_vm b; sleep 1
        vm c
        work c 1 barrier --pause-every 100
        echo "c=$(rate c)"
        echo "after=$(stats)"
        echo "state=$(state)"
        "#,
    );
    assert_eq!(found.stats("left")["VMs"], 1.0, "{}", found.out);
    assert_eq!(found.stats("after")["VMs"], 1.0, "{}", found.out);
    assert!(found.number("c") > 0.0);
    assert_eq!(found.text("state"), "enabled");
}

/// KVM's modules are loaded after the scheduler, and unloaded while it runs.
#[test]
fn kvm_may_come_later_and_go() {
    let found = on_host(
        From::Boot,
        r#"
        rmmod kvm_intel && rmmod kvm && rmmod irqbypass || fail "rmmod"
        BATON_READY=started baton --halt-poll 50000
        poll=/sys/module/kvm/parameters/halt_poll_ns
        insmods() { for m; do baton-agent insmod /lib/modules/$m.ko || fail "insmod $m"; done; }
        insmods irqbypass kvm kvm-intel
        until_true 'grep -q "watching KVM" /run/baton.err'
        vm a
        work a 1 barrier --pause-every 1000
        echo "a=$(rate a)"
        echo "stats=$(stats)"
        kill_vm a; sleep 1
        echo "set=$(cat $poll)"
        rmmod kvm_intel || fail "rmmod kvm_intel"
        until_true 'grep -q "KVM is gone" /run/baton.err'
        rmmod kvm || fail "rmmod kvm"
        echo "state=$(state)"
        insmods kvm kvm-intel
        until_true '[ $(grep -c "watching KVM" /run/baton.err) = 2 ]'
        echo "again=$(cat $poll)"
        stop_baton
        echo "restored=$(cat $poll)"
        "#,
    );
    assert!(found.number("a") > 0.0, "{}", found.out);
    assert_eq!(found.stats("stats")["VMs"], 1.0, "{}", found.out);
    assert_eq!(found.text("state"), "enabled");
    assert_eq!((found.number("set"), found.number("again")), (5e4, 5e4), "{}", found.out);
    assert_eq!(found.number("restored"), 2e5, "{}", found.out);
}

/// KVM's parameters are as they were before the first of two scx_batons that were killed.
#[test]
fn polling_is_restored() {
    let found = on_host(
        From::Boot,
        r#"
        poll=/sys/module/kvm/parameters/halt_poll_ns
        gone() { kill -9 $baton_pid; wait $baton_pid; until_true '[ "$(state)" = disabled ]'; }
        echo "before=$(cat $poll)"
        baton --halt-poll off
        echo "off=$(cat $poll)"
        gone
        echo "killed=$(cat $poll) $(command baton doctor | sed -n 's/.*\(an scx_baton\)/\1/p')"
        baton --halt-poll 50000
        echo "set=$(cat $poll)"
        gone
        echo "doctor=$(command baton doctor --restore) $(cat $poll)"
        "#,
    );
    let before = found.text("before");
    assert_eq!((found.number("set"), found.number("off")), (5e4, 0.0), "{}", found.out);
    assert!(found.text("killed").starts_with("0 an scx_baton that was killed"), "{}", found.out);
    assert_eq!(found.text("doctor"), format!("halt_poll_ns is {before} again {before}"));
}

/// A guest that halts often, and polls for as long as it may, beside one that wants the CPU: the
/// time that it polls goes to the other.
#[test]
fn polling_vcpus_give_way() {
    let found = on_host(
        From::Guests,
        r#"
        echo 10000000 >/sys/module/kvm/parameters/halt_poll_ns
        echo 10000000 >/sys/module/kvm/parameters/halt_poll_ns_grow_start
        work a 9 barrier; work b 9 hackbench
        sleep 2
        timeout 20 scx_baton --monitor 3 2>/dev/null | sed -n 's/^  [^:]*:/vm=&/p' | tail -n 2
        rate a >/dev/null; rate b >/dev/null
        "#,
    );
    // Two VMs, half of two pCPUs each: what the halting one polled in vain is little of 3 s.
    let vain = |line: &str| -> f64 {
        let text = line.split("slept").nth(1).and_then(|rest| rest.split("(after ").nth(1));
        let ms = text.and_then(|rest| rest.split(' ').next()).unwrap_or("");
        ms.parse().unwrap_or_else(|_| panic!("no figures in {line}"))
    };
    let lines: Vec<&str> = found.out.lines().filter(|line| line.starts_with("vm=")).collect();
    assert_eq!(lines.len(), 2, "{}", found.out);
    assert!(lines.iter().all(|line| vain(line) < 600.0), "{}", found.out);
}

#[test]
fn refuses_what_it_must() {
    let found = on_host(
        From::Guests,
        r#"
        echo "second=$(scx_baton 2>&1; echo "status $?")" | tr '\n' ' '; echo
        echo "nobody:x:65534:65534::/:/bin/sh" >>/etc/passwd
        echo "user=$(su -s /bin/sh nobody -c scx_baton 2>&1; echo "status $?")" | tr '\n' ' '; echo
        busy; below=$(echo 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 | tr ' ' /)
        echo ${busy##* } >/sys/fs/cgroup/deep/$below/cgroup.procs
        sleep 4; echo "late=$(state) $(tail -n 1 /run/baton.err)"
        kill $busy
        "#,
    );
    let second = found.text("second");
    assert!(second.contains("another scx_baton is loaded (baton"), "{second}");
    assert!(second.contains("status 1"), "{second}");
    assert!(found.text("user").contains("run it as root"), "{}", found.out);
    assert!(found.text("user").contains("status 1"), "{}", found.out);
    let late = found.text("late");
    assert!(late.contains("cpu.max") && late.contains("enabled"), "{}", found.out);
}

#[test]
fn guests_survive_the_scheduler() {
    let found = on_host(
        From::Guests,
        r#"
        work a 6 barrier --pause-every 2000; work b 6 shootdown
        sleep 2
        kill -9 $baton_pid
        until_true '[ "$(state)" = disabled ]'
        echo "a=$(rate a)"
        echo "b=$(rate b)"
        baton
        echo "again=$(state)"
        "#,
    );
    assert!(found.number("a") > 0.0 && found.number("b") > 0.0, "{}", found.out);
    assert_eq!(found.text("again"), "enabled");
}

/// SysRq-S gives the host back to the kernel's scheduler for good: with a failure's exit status,
/// systemd started scx_baton again. And an address for metrics that is not to be had, or not yet as
/// a host boots, kept the scheduler off.
#[test]
fn an_operator_ends_it_and_an_address_does_not() {
    let found = on_host(
        From::Boot,
        r#"
        ip link set lo up
        command baton exporter --listen 127.0.0.1:9877 & exporter=$!
        until_true 'wget -qO- http://127.0.0.1:9877/metrics | grep -q "^baton_enabled 0"'
        baton --metrics 127.0.0.1:9877
        echo "warned=$(grep -c "no metrics, cannot listen at 127.0.0.1:9877" /run/baton.err)"
        kill $exporter
        until_true 'wget -qO- http://127.0.0.1:9877/metrics | grep -q "^baton_enabled 1"'
        echo "state=$(state)"
        echo S >/proc/sysrq-trigger
        wait $baton_pid; echo "status=$?"
        echo "after=$(state) $(grep -c "EXIT:" /run/baton.err)"
        "#,
    );
    assert_eq!(found.text("warned"), "1", "{}", found.out);
    assert_eq!(found.text("state"), "enabled");
    assert_eq!(found.text("status"), "0", "{}", found.out);
    assert_eq!(found.text("after"), "disabled 1", "{}", found.out);
}
