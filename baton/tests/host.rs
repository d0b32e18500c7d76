// SPDX-License-Identifier: GPL-2.0-only
//! scx_baton on a real kernel with real KVM and real guests, in the emulated host. Run by
//! `make test`; `BATON_KERNEL_SERIES` chooses the kernel. What is asserted is order and
//! correctness: emulated time is no measure.

use baton_testbed::host::{Exec, Host, HostError, HostOptions, Stream};
use std::collections::HashMap;
use std::time::Duration;

const GUESTS: &str = include_str!("guests.sh");

/// What a script ends with when emulation lost a guest; see guests.sh.
const LOST: i32 = 75;

/// How often a test is tried when emulation loses the host or a guest, which it does whatever
/// schedules them, though hardly ever at the pace of these tests. What Baton breaks is broken
/// every time.
const TRIES: u32 = 4;

/// Boots a host, runs `script` after guests.sh, and returns what it printed. Lines `key=value`
/// are the script's findings; the script must end with status 0.
fn on_host(options: HostOptions, script: &str) -> Findings {
    let mut losses = String::new();
    for _ in 0..TRIES {
        match try_on_host(&options, script, 600) {
            Ok(found) => return found,
            Err(loss) => {
                eprintln!("lost, trying again: {loss}");
                losses.push_str(&loss);
            }
        }
    }
    panic!("lost {TRIES} times: {losses}");
}

/// One try; the error says what emulation lost.
fn try_on_host(options: &HostOptions, script: &str, s: u64) -> Result<Findings, String> {
    let mut host = match Host::boot(options) {
        Err(e @ (HostError::Setup(_) | HostError::NotUsable { .. })) => panic!("{e}"),
        other => other.map_err(|e| e.to_string())?,
    };
    host.pace().one_at_a_time();
    let text = format!("{GUESTS}\n{script}\nall_well\n");
    let cmd = Exec::new(["sh", "-c", &text], Duration::from_secs(s));
    let mut out = Vec::new();
    let ended = host.exec(&cmd, &mut |stream, bytes| {
        if stream == Stream::Out {
            out.extend_from_slice(bytes);
        }
    });
    let out = String::from_utf8_lossy(&out).into_owned();
    match ended {
        Ok(0) => Ok(Findings { out }),
        Ok(LOST) => Err(out),
        Ok(status) => panic!("the script ended with {status}:\n{out}{}", logs(&mut host)),
        Err(e) => Err(format!("{e}\n{out}")),
    }
}

/// What the scheduler and the kernel said, for the report of a failure.
fn logs(host: &mut Host) -> String {
    let mut text = String::new();
    let cmd = Exec::new(
        ["sh", "-c", "tail -n 20 /run/baton.err /run/baton.out; dmesg | tail -n 20"],
        Duration::from_secs(30),
    );
    // A host that is gone has nothing to add.
    let _ = host.exec(&cmd, &mut |_, bytes| text.push_str(&String::from_utf8_lossy(bytes)));
    text
}

struct Findings {
    out: String,
}

impl Findings {
    fn text(&self, key: &str) -> &str {
        let found = self.out.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {key}= in:\n{}", self.out)).trim()
    }

    fn number(&self, key: &str) -> f64 {
        let text = self.text(key);
        text.parse().unwrap_or_else(|_| panic!("{key}={text} is no number:\n{}", self.out))
    }

    /// A line of `scx_baton --monitor`, as names and numbers.
    fn stats(&self, key: &str) -> HashMap<String, f64> {
        let words: Vec<&str> = self.text(key).split_whitespace().collect();
        let mut stats = HashMap::new();
        let mut name = Vec::new();
        for word in words {
            match word.parse::<f64>() {
                Ok(value) => {
                    stats.insert(name.join(" "), value);
                    name.clear();
                }
                Err(_) if word == "|" || word.ends_with(':') || word.starts_with('[') => {
                    name.clear()
                }
                Err(_) => name.push(word),
            }
        }
        stats
    }
}

fn host() -> HostOptions {
    let mut options = HostOptions::default();
    if let Ok(series) = std::env::var("BATON_KERNEL_SERIES") {
        options.source.series = Some(series.parse().expect("BATON_KERNEL_SERIES"));
    }
    options
}

#[test]
fn finds_vms_and_forgets_them() {
    let found = on_host(
        host(),
        r#"
        vm early
        baton
        echo "ops=$(cat /sys/kernel/sched_ext/root/ops)"
        echo "verified=$(cat /proc/$baton_pid/fdinfo/* | sed -n 's/^verified_insns:[^0-9]*//p' | sort -n | tail -n 1)"
        work early 4 barrier; rate early >/dev/null
        echo "one=$(stats)"
        vm late
        echo "two=$(stats)"
        kill_vm early; sleep 1
        echo "gone=$(stats)"
        kill_vm late; sleep 1
        echo "none=$(stats)"
        stop_baton; echo "status=$?"
        echo "state=$(state)"
        "#,
    );
    assert!(found.text("ops").starts_with("baton"), "{}", found.out);
    // Measured: 63 thousand. The verifier gives up at a million, and is slow long before that.
    assert!((1.0..200e3).contains(&found.number("verified")), "{}", found.out);
    for (key, vms) in [("one", 1.0), ("two", 2.0), ("gone", 1.0), ("none", 0.0)] {
        let stats = found.stats(key);
        assert_eq!((stats["VMs"], stats["vCPUs"]), (vms, 2.0 * vms), "{key}: {}", found.out);
    }
    assert_eq!(found.number("status"), 0.0);
    assert_eq!(found.text("state"), "disabled");
}

/// Both vCPUs on one pCPU, so that a barrier round needs both of them in turn. Without the yield
/// each round would take a slice, and a tick of 4 ms at the least; with it, an exit.
#[test]
fn a_directed_yield_moves_the_cpu_to_the_sibling() {
    let found = on_host(
        host(),
        r#"
        vm one taskset 1
        vm other taskset 1
        baton
        work other 14 barrier
        work one 10 barrier --pause-every 200
        sleep 4
        echo "stats=$(stats)"
        echo "rate=$(rate one)"
        echo "other=$(rate other)"
        "#,
    );
    let stats = found.stats("stats");
    assert!(stats["yields"] > 50.0, "KVM yielded too rarely: {}", found.out);
    // Beside two busy processes 0.61 were obeyed: guests that are slowed down sleep at their locks,
    // and who sleeps cannot be yielded to. A scheduler that does not listen obeys none.
    assert!(stats["obeyed"] > 0.4 * stats["yields"], "yields were not obeyed: {}", found.out);
    let possible = stats["yields"] - stats["asleep"] - stats["spent"];
    assert!(stats["obeyed"] > 0.9 * possible, "yields were not obeyed: {}", found.out);
    assert!(stats["boost"] > 0.0, "{}", found.out);
    // `other` has no PAUSE to yield at: it gets a round for every switch at the end of a slice.
    assert!(found.number("rate") > 2.0 * found.number("other"), "{}", found.out);
}

#[test]
fn weights_share_the_cpus() {
    let found = on_host(
        host(),
        r#"
        vm light; vm heavy
        echo 100 >/sys/fs/cgroup/light/cpu.weight
        echo 300 >/sys/fs/cgroup/heavy/cpu.weight
        baton
        work light 25 barrier; work heavy 25 barrier
        sleep 2
        usage() { sed -n 's/^usage_usec //p' /sys/fs/cgroup/$1/cpu.stat; }
        l0=$(usage light) h0=$(usage heavy)
        sleep 20
        echo "light=$(($(usage light) - l0))"
        echo "heavy=$(($(usage heavy) - h0))"
        rate light >/dev/null; rate heavy >/dev/null
        "#,
    );
    let ratio = found.number("heavy") / found.number("light");
    assert!((2.7..=3.3).contains(&ratio), "weights 100:300 gave 1:{ratio:.2}\n{}", found.out);
}

/// A cgroup with two loops in each of two cgroups in it, and one with two loops: half for each.
#[test]
fn shares_follow_the_tree_of_cgroups() {
    let found = on_host(
        host(),
        r#"
        cd /sys/fs/cgroup
        mkdir -p p/1 p/2 q
        echo +cpu >p/cgroup.subtree_control
        for at in p/1 p/1 p/2 p/2 q q; do busy; echo ${busy##* } >$at/cgroup.procs; done
        baton
        usage() { sed -n 's/^usage_usec //p' $1/cpu.stat; }
        sleep 3
        p0=$(usage p) q0=$(usage q)
        sleep 12
        echo "p=$(($(usage p) - p0))"
        echo "q=$(($(usage q) - q0))"
        kill $busy
        "#,
    );
    let ratio = found.number("p") / found.number("q");
    assert!((0.85..=1.15).contains(&ratio), "one to {ratio:.2}\n{}", found.out);
}

/// A guest with a quota of half a pCPU, which is lifted while it runs; and a loop of the host, whose
/// quota is that of the cgroup above its own.
#[test]
fn quotas_are_enforced() {
    let found = on_host(
        host(),
        r#"
        usage() { sed -n 's/^usage_usec //p' /sys/fs/cgroup/$1/cpu.stat; }
        # Permille of a pCPU, over the given number of seconds.
        share() {
            u0=$(usage $1) t0=$(cut -d' ' -f1 /proc/uptime)
            sleep $2
            u1=$(usage $1) t1=$(cut -d' ' -f1 /proc/uptime)
            echo "$u0 $u1 $t0 $t1" | awk '{ printf "%d", ($2 - $1) / ($4 - $3) / 1000 }'
        }
        vm a
        echo "50000 100000" >/sys/fs/cgroup/a/cpu.max
        baton
        work a 30 barrier
        sleep 2
        echo "half=$(share a 8)"
        echo "max 100000" >/sys/fs/cgroup/a/cpu.max
        sleep 1
        echo "all=$(share a 6)"
        rate a >/dev/null
        mkdir -p /sys/fs/cgroup/box/inner
        echo +cpu >/sys/fs/cgroup/box/cgroup.subtree_control
        busy; busy
        for p in $busy; do echo $p >/sys/fs/cgroup/box/inner/cgroup.procs; done
        echo "30000 100000" >/sys/fs/cgroup/box/cpu.max
        sleep 2
        echo "box=$(share box 8)"
        kill $busy
        echo "state=$(state)"
        "#,
    );
    assert!((400.0..=600.0).contains(&found.number("half")), "{}", found.out);
    assert!(found.number("all") > 1300.0, "{}", found.out);
    assert!((220.0..=380.0).contains(&found.number("box")), "{}", found.out);
    assert_eq!(found.text("state"), "enabled", "{}", found.out);
}

/// Two threads that sleep 10 ms and work a little, without guests and next to guests that want
/// every cycle.
#[test]
fn host_threads_stay_prompt() {
    let found = on_host(
        host(),
        r#"
        beat() { for i in $(seq 200); do usleep 10000; done; date +%s >$RUN/beat.$1; }
        beats() {
            start=$(date +%s)
            beat 1 & one=$!
            beat 2 & two=$!
            wait $one; wait $two
            echo "$1.one=$(($(cat $RUN/beat.1) - start))"
            echo "$1.two=$(($(cat $RUN/beat.2) - start))"
        }
        vm a; vm b
        baton
        beats idle
        work a 30 barrier; work b 30 barrier
        sleep 2
        beats loaded
        rate a >/dev/null; rate b >/dev/null
        "#,
    );
    // Each of the 200 times forks a process. Waiting each time for the end of a guest's turn, which
    // is 12 ms and a tick, and for the other guest's turn, would multiply the time.
    for thread in ["one", "two"] {
        let idle = found.number(&format!("idle.{thread}"));
        assert!(found.number(&format!("loaded.{thread}")) <= 3.0 * idle + 3.0, "{}", found.out);
    }
}

/// Four loops on two pCPUs, and no VM: half of a pCPU for each.
#[test]
fn host_tasks_share_without_guests() {
    let found = on_host(
        host(),
        r#"
        baton
        busy; busy; busy; busy
        sleep 12
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

#[test]
fn guests_survive_the_scheduler() {
    let found = on_host(
        host(),
        r#"
        vm a; vm b
        baton
        work a 10 barrier --pause-every 2000; work b 10 shootdown
        sleep 4
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

#[test]
fn a_guest_killed_while_it_spins_leaves_nothing() {
    let found = on_host(
        host(),
        r#"
        vm a; vm b
        baton
        work a 30 barrier --pause-every 100; work b 30 barrier --pause-every 100
        sleep 3
        kill_vm a; sleep 1
        echo "left=$(stats)"
        [ -d /proc/$(pid_of a) ] && fail "the guest's process is still there"
        kill_vm b; sleep 1
        vm c
        work c 3 barrier --pause-every 100
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

#[test]
fn cpus_come_and_go_under_load() {
    let found = on_host(
        host(),
        r#"
        vm a; vm b
        baton
        work a 20 barrier --pause-every 2000; work b 20 shootdown
        cpu1=/sys/devices/system/cpu/cpu1/online
        # One of two that are bound to the CPU waits when it goes.
        busy; busy
        for i in 1 2 3; do
            for p in $busy; do taskset -p 2 $p >/dev/null; done
            sleep 2; echo 0 >$cpu1 || fail "offline"
            sleep 2; echo 1 >$cpu1 || fail "online"
        done
        kill $busy
        echo "a=$(rate a)"
        echo "b=$(rate b)"
        echo "state=$(state)"
        "#,
    );
    assert!(found.number("a") > 0.0 && found.number("b") > 0.0, "{}", found.out);
    assert_eq!(found.text("state"), "enabled");
}

/// A vCPU bound to a pCPU runs there and nowhere else, also when the binding changes.
#[test]
fn affinity_is_honoured() {
    let found = on_host(
        host(),
        r#"
        vm bound; vm free
        baton
        work bound 20 barrier --pause-every 2000; work free 20 barrier
        for cpu in 1 0; do
            for t in $(vcpus bound); do taskset -p $((1 << cpu)) $t >/dev/null; done
            sleep 1
            for i in $(seq 40); do
                for t in $(vcpus bound); do
                    # Field 39, "processor"; the name before it has blanks in it.
                    on=$(sed 's/.*) //' /proc/$t/stat 2>/dev/null | cut -d' ' -f37)
                    [ "${on:-$cpu}" = $cpu ] || fail "thread $t ran on CPU $on instead of $cpu"
                done
                usleep 50000
            done
        done
        echo "bound=$(rate bound)"
        "#,
    );
    assert!(found.number("bound") > 0.0, "{}", found.out);
}

/// Four loops on two cores of two hyper-threads; the two on one core end, and those that stay share
/// the other one no longer.
#[test]
fn who_shares_a_core_leaves_for_one_that_is_idle() {
    let found = on_host(
        HostOptions { pcpus: 4, smt: true, ..host() },
        r#"
        [ "$(cat /sys/devices/system/cpu/smt/active)" = 1 ] || fail "no SMT"
        baton --stats 1
        busy; busy; busy; busy
        # Without starting a program: that would move them about.
        on() { read -r stat </proc/$1/stat; set -- ${stat##*) }; shift 36; cpu=$1; }
        # On which pCPUs they are, or with 1 on which cores; and who is not on the first core.
        seen() {
            mask=0 far= near=
            for p in $2; do
                on $p
                mask=$((mask | 1 << (cpu >> $1)))
                if [ $cpu -ge 2 ]; then far="$far $p"; else near="$near $p"; fi
            done
        }
        until_true 'seen 0 "$busy"; [ $mask = 15 ]'
        end=$far stay=$near
        kill $end
        apart=0
        for i in $(seq 20); do
            sleep 0.2
            seen 1 "$stay"
            [ $mask != 3 ] || apart=$((apart + 1))
        done
        echo "apart=$apart"
        sleep 1.5
        echo "left=$(sed -n 's/.*cores left \([0-9]*\) .*/\1/p' /run/baton.out | awk '{ n += $1 } END { print n + 0 }')"
        kill $stay
        "#,
    );
    // Threads of the kernel run elsewhere for moments.
    assert!(found.number("apart") > 15.0, "{}", found.out);
    assert!(found.number("left") > 0.0, "{}", found.out);
}

/// KVM's modules are loaded after the scheduler, and unloaded while it runs.
#[test]
fn kvm_may_come_later_and_go() {
    let found = on_host(
        HostOptions { without_kvm: true, ..host() },
        r#"
        BATON_READY=started baton --halt-poll 50000
        poll=/sys/module/kvm/parameters/halt_poll_ns
        for m in irqbypass kvm kvm-amd; do baton-agent insmod /lib/modules/$m.ko || fail "insmod $m"; done
        until_true 'grep -q "watching KVM" /run/baton.err'
        vm a
        work a 3 barrier --pause-every 1000
        echo "a=$(rate a)"
        echo "stats=$(stats)"
        kill_vm a; sleep 1
        echo "set=$(cat $poll)"
        rmmod kvm_amd || fail "rmmod kvm_amd"
        until_true 'grep -q "KVM is gone" /run/baton.err'
        rmmod kvm || fail "rmmod kvm"
        echo "state=$(state)"
        for m in kvm kvm-amd; do baton-agent insmod /lib/modules/$m.ko || fail "insmod $m"; done
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

/// KVM's parameters are as they were, however scx_baton ends.
#[test]
fn polling_is_restored() {
    let found = on_host(
        host(),
        r#"
        poll=/sys/module/kvm/parameters/halt_poll_ns
        gone() { kill -9 $baton_pid; wait $baton_pid; until_true '[ "$(state)" = disabled ]'; }
        echo "before=$(cat $poll)"
        baton --halt-poll 50000
        echo "set=$(cat $poll)"
        stop_baton
        echo "ended=$(cat $poll)"
        baton --halt-poll off
        echo "off=$(cat $poll)"
        gone
        echo "killed=$(cat $poll) $(command baton doctor)"
        echo "doctor=$(command baton doctor --restore) $(cat $poll)"
        baton --halt-poll off
        gone
        baton --halt-poll auto
        stop_baton
        echo "next=$(cat $poll)"
        "#,
    );
    let before = found.text("before");
    assert_eq!((found.number("set"), found.number("off")), (5e4, 0.0), "{}", found.out);
    assert_eq!((found.text("ended"), found.text("next")), (before, before), "{}", found.out);
    assert!(found.text("killed").starts_with("0 an scx_baton that was killed"), "{}", found.out);
    assert_eq!(found.text("doctor"), format!("halt_poll_ns is {before} again {before}"));
}

/// A guest that halts often, and polls for as long as it may, beside one that wants the CPU: the
/// time that it polls goes to the other.
#[test]
fn polling_vcpus_give_way() {
    let found = on_host(
        host(),
        r#"
        echo 10000000 >/sys/module/kvm/parameters/halt_poll_ns
        echo 10000000 >/sys/module/kvm/parameters/halt_poll_ns_grow_start
        vm a; vm b
        baton
        work a 20 barrier; work b 20 hackbench
        sleep 4
        timeout 20 scx_baton --monitor 5 2>/dev/null | sed -n 's/^  [^:]*:/vm=&/p' | tail -n 2
        rate a >/dev/null; rate b >/dev/null
        "#,
    );
    // Two VMs, half of two pCPUs each: what the halting one polled in vain is little of 5 s.
    let vain = |line: &str| -> f64 {
        let text = line.split("slept").nth(1).and_then(|rest| rest.split("(after ").nth(1));
        let ms = text.and_then(|rest| rest.split(' ').next()).unwrap_or("");
        ms.parse().unwrap_or_else(|_| panic!("no figures in {line}"))
    };
    let lines: Vec<&str> = found.out.lines().filter(|line| line.starts_with("vm=")).collect();
    assert_eq!(lines.len(), 2, "{}", found.out);
    assert!(lines.iter().all(|line| vain(line) < 1000.0), "{}", found.out);
}

#[test]
fn refuses_what_it_must() {
    let found = on_host(
        host(),
        r#"
        baton
        echo "second=$(scx_baton 2>&1; echo "status $?")" | tr '\n' ' '; echo
        stop_baton
        echo "nobody:x:65534:65534::/:/bin/sh" >>/etc/passwd
        echo "user=$(su -s /bin/sh nobody -c scx_baton 2>&1; echo "status $?")" | tr '\n' ' '; echo
        mkdir -p /sys/fs/cgroup/deep/1/2/3/4
        at=/sys/fs/cgroup/deep
        for below in "" /1 /1/2 /1/2/3; do echo +cpu >$at$below/cgroup.subtree_control; done
        for below in "" /1 /1/2 /1/2/3 /1/2/3/4; do echo "50000 100000" >$at$below/cpu.max; done
        baton
        busy; echo ${busy##* } >$at/1/2/3/4/cgroup.procs
        wait $baton_pid; echo "late=$? $(state) $(tail -n 1 /run/baton.err)"
        "#,
    );
    let second = found.text("second");
    assert!(second.contains("another sched_ext scheduler is loaded (baton"), "{second}");
    assert!(second.contains("status 1"), "{second}");
    assert!(found.text("user").contains("run it as root"), "{}", found.out);
    assert!(found.text("user").contains("status 1"), "{}", found.out);
    let late = found.text("late");
    assert!(late.contains("cpu.max") && late.contains("disabled"), "{}", found.out);
    assert!(late.starts_with('1'), "{}", found.out);
}

/// Debian's 6.12 has no sched_ext: one line says so.
#[test]
fn refuses_a_kernel_without_sched_ext() {
    let mut options = host();
    options.source.series = Some("6.12".parse().expect("a series"));
    options.any_kernel = true;
    let found =
        on_host(options, r#"echo "said=$(scx_baton 2>&1; echo "status $?")" | tr '\n' ' '"#);
    assert!(found.text("said").contains("has no sched_ext"), "{}", found.out);
    assert!(found.text("said").contains("status 1"), "{}", found.out);
}

/// A vCPU that sleeps for a millisecond at a time beside a VM that wants all pCPUs: it was preempted on its
/// way to sleep, and then waited for the other VM's turn to end, 45 times as long as under EEVDF.
#[test]
fn timers_are_not_late_beside_a_vm_that_computes() {
    let found = on_host(
        host(),
        r#"
        command baton bench timer-halted-1000us --vms 2 --samples 300 --repetitions 1 \
            --schedulers eevdf,scx_baton 2>/tmp/runs >/tmp/table || lost "$(cat /tmp/table)"
        late() { sed -n "s/^run 1 of 1, $1: .*1000us late \([0-9]*\);.*/\1/p" /tmp/runs; }
        echo "eevdf=$(late eevdf)"
        echo "baton=$(late scx_baton)"
        "#,
    );
    assert!(found.number("baton") < 12.0 * found.number("eevdf"), "{}", found.out);
}

/// `make soak`: whatever a host does in an hour, over and over. Guests that emulation loses are
/// replaced.
#[test]
#[ignore = "as long as SOAK_SECONDS says"]
fn goes_on_under_mixed_load() {
    let seconds = std::env::var("SOAK_SECONDS").unwrap_or_else(|_| "60".into());
    let seconds: u64 = seconds.parse().expect("SOAK_SECONDS is a number of seconds");
    let script = r#"
        lost=0
        lost() { lost=$((lost + 1)); echo "lost: $*"; }
        new() { kill_vm $1 2>/dev/null; wait $(pid_of $1) 2>/dev/null; vm $1; }
        complaints() { dmesg -c >>/run/dmesg; grep 'watchdog\|stall\|sched_ext.*error\|BUG\|WARNING' /run/dmesg; }
        before=$(complaints | wc -l)
        rounds=0 begin=$(date +%s)
        vm a; vm b; vm c
        baton --halt-poll auto
        while [ $(($(date +%s) - begin)) -lt $SECONDS_WANTED ]; do
            rounds=$((rounds + 1))
            set -- barrier hackbench pbzip2 shootdown barrier-pause hackbench barrier shootdown
            shift $((rounds % 6))
            [ $((rounds % 2)) = 0 ] && weight=300 || weight=100
            echo $weight >/sys/fs/cgroup/a/cpu.weight
            [ $((rounds % 3)) = 0 ] && quota="60000 100000 20000" || quota="max 100000 0"
            echo ${quota##* } >/sys/fs/cgroup/b/cpu.max.burst 2>/dev/null
            echo ${quota% *} >/sys/fs/cgroup/b/cpu.max
            [ $((rounds % 7)) = 0 ] && for t in $(vcpus c); do taskset -p 1 $t >/dev/null; done
            [ $((rounds % 11)) = 0 ] && new b
            work a 4 $1; work b 4 $2; work c 4 $3
            [ $((rounds % 4)) = 0 ] && busy && other=$! || other=
            [ $((rounds % 5)) = 0 ] && hackbench -g 1 -l 20 >/dev/null 2>&1
            for name in a b c; do rate $name >/dev/null; done
            [ -z "$other" ] || kill $other
            [ $((rounds % 13)) = 0 ] && stop_baton && baton
            for name in a b c; do
                kill -0 $(pid_of $name) && ! grep -q 'panic\|Oops\|stall' $RUN/$name.log || new $name
            done 2>/dev/null
            dmesg -c >>/run/dmesg
            [ "$(state)" = enabled ] || fail "scx_baton is gone: $(tail -n 3 /run/baton.err)"
            [ $((rounds % 7)) = 0 ] && for t in $(vcpus c); do taskset -p 3 $t >/dev/null; done
        done
        for name in a b c; do kill_vm $name; done
        stop_baton
        echo "rounds=$rounds"
        echo "lost=$lost"
        complaints | tail -n +$((before + 1))
        echo "complaints=$(($(complaints | wc -l) - before))"
        "#;
    let script = script.replace("$SECONDS_WANTED", &seconds.to_string());
    let found = match try_on_host(&host(), &script, seconds + 900) {
        Ok(found) => found,
        Err(loss) => panic!("the emulated host was lost: {loss}"),
    };
    print!("{}", found.out);
    // About 15 s each; emulation loses a guest now and then, a scheduler that stalls them each time.
    let rounds = found.number("rounds");
    assert!(rounds >= (seconds / 60) as f64, "{}", found.out);
    assert!(found.number("lost") <= 1.0 + rounds / 10.0, "{}", found.out);
    assert_eq!(found.number("complaints"), 0.0, "{}", found.out);
}

/// Every measurement gives all its figures. (`baton` alone is the function of guests.sh.)
#[test]
fn bench_measures_all_that_it_lists() {
    let found = on_host(
        host(),
        r#"
        echo "listed=$(command baton bench list | wc -l)"
        command baton bench --repetitions 1 --samples 10 --seconds 0.3 --json /tmp/bench.json || fail bench
        command baton bench barrier ipi-unicast --vms 2 --repetitions 1 --samples 30 --seconds 0.3 \
            --schedulers eevdf,scx_baton --csv /tmp/bench.csv || fail "bench with schedulers"
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
    for line in ["eevdf,barrier,total", "scx_baton,barrier,total", "scx_baton,ipi-unicast,one-way"]
    {
        assert!(found.text("csv").contains(line), "{}", found.out);
    }
}

/// Four vCPUs on two pCPUs, of which one interrupts the others and waits: those that do not run are
/// boosted, also where KVM proposes another one.
#[test]
fn who_owes_an_answer_to_an_ipi_is_boosted() {
    let found = on_host(
        host(),
        r#"
        baton
        command baton bench call --vcpus 4 --repetitions 3 --samples 1500 >/tmp/bench 2>&1 &
        bench=$!
        boosted=0
        for i in 1 2 3 4 5 6; do
            kill -0 $bench 2>/dev/null || break
            line=$(stats)
            count() { echo "$line" | sed "s/.* $1 \([0-9]*\).*/\1/"; }
            boosted=$((boosted + $(count redirected)))
        done
        wait $bench || lost "the bench's VM: $(tail -1 /tmp/bench)"
        echo "boosted=$boosted"
        echo "state=$(state)"
        "#,
    );
    assert!(found.number("boosted") > 20.0, "{}", found.out);
    assert_eq!(found.text("state"), "enabled");
}

#[test]
fn bench_says_what_went_wrong() {
    let found = on_host(
        host(),
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
