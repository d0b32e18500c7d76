// SPDX-License-Identifier: GPL-2.0-only
//! scx_baton on the host that QEMU emulates, in real time: several last-level caches, and CPUs that
//! go and come back, which miss interrupts on the exact host of baton/tests/host/; other machines
//! and kernels, which boot faster here. What is asserted is order and correctness: emulated time is
//! no measure.

mod script;

use baton_testbed::boot;
use baton_testbed::host::{Exec, HostError, HostOptions, Stream};
use script::{Findings, GUESTS, LOST, logs};
use std::time::Duration;

/// How often a test is tried when emulation loses the host or a guest, which it does whatever
/// schedules them. What Baton breaks is broken every time.
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
    let mut host = match boot(options) {
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

fn host() -> HostOptions {
    let mut options = HostOptions::default();
    if let Ok(series) = std::env::var("BATON_KERNEL_SERIES") {
        options.source.series = Some(series.parse().expect("BATON_KERNEL_SERIES"));
    }
    options
}

/// What looks at several last-level caches is loaded only where there are some: the exact host has
/// one.
#[test]
fn vms_are_scheduled_on_two_sockets() {
    let found = on_host(
        HostOptions { pcpus: 4, sockets: 2, ..host() },
        r#"
        caches=$(cat /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list | sort -u | wc -l)
        [ "$caches" = 2 ] || fail "$caches last-level caches"
        vm a; vm b
        baton
        work a 10 barrier --pause-every 2000; work b 10 shootdown
        sleep 12
        echo "a=$(rate a)"
        echo "b=$(rate b)"
        echo "state=$(state)"
        "#,
    );
    assert!(found.number("a") > 0.0 && found.number("b") > 0.0, "{}", found.out);
    assert_eq!(found.text("state"), "enabled");
}

/// Four loops on two cores of two hyper-threads; the two on one core end, and those that stay share
/// the other one no longer.
#[test]
fn a_task_that_shares_a_core_moves_when_another_becomes_idle() {
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
        left() { sed -n 's/.*cores left \([0-9]*\) .*/\1/p' /run/baton.out; }
        echo "left=$(left | awk '{ n += $1 } END { print n + 0 }')"
        kill $stay
        "#,
    );
    // Threads of the kernel run elsewhere for moments.
    assert!(found.number("apart") > 15.0, "{}", found.out);
    assert!(found.number("left") > 0.0, "{}", found.out);
}

#[test]
fn a_rate_is_read_when_its_line_is_whole() {
    let run = tempfile::tempdir().expect("a directory");
    let script = r#"
        log=$RUN/a.log
        printf '\n@baton done 1 {"rate":12' >$log
        (sleep 1; printf '3.5,"unit":"x/s"}\n' >>$log) &
        echo "rate=$(rate a)"
        printf '@baton fail 1 no memory\n' >$log
        failed=$(rate a)
        (all_well)
        echo "status=$?"
        "#;
    let text = format!("{GUESTS}\n{script}");
    let sh = std::process::Command::new("sh").args(["-c", &text]).env("RUN", run.path()).output();
    let out = String::from_utf8_lossy(&sh.expect("a shell").stdout).into_owned();
    let found = Findings { out };
    assert_eq!(found.text("rate"), "123.5");
    assert_eq!(found.number("status"), f64::from(LOST), "{}", found.out);
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

/// Debian's 6.12 has no sched_ext: one line says so.
#[test]
fn refuses_a_kernel_without_sched_ext() {
    let mut options = host();
    options.source.series = Some("6.12".parse().expect("a series"));
    options.any_kernel = true;
    let found =
        on_host(options, r#"echo "said=$(scx_baton 2>&1; echo "status $?")" | tr '\n' ' '"#);
    assert!(found.text("said").contains("has no sched_ext"), "{}", found.out);
    assert!(found.text("said").contains("status 78"), "{}", found.out);
}

/// What fills a cache from the emulated host's own image, and a QEMU that changes the host's
/// command line for emulated SVM: it offers guests no usable XSAVE, of which Linux dies early, and
/// refuses them the ports that ioperm(2) gave, at which the agent looks for an exact host.
const CACHE: &str = r#"
    export BATON_CACHE=$RUN/cache
    usr=$BATON_CACHE/$ENTRY/usr modules=$RUN/modules/$(uname -r)/kernel
    mkdir -p $usr/bin $usr/lib $usr/share/dbench $usr/share/seabios $modules
    ln -s /opt/deb/lib $usr/lib/x86_64-linux-gnu
    ln -s /opt/deb/bin/* /bin/busybox $usr/bin/
    ln -s /opt/deb/share/qemu $usr/share/qemu
    ln -s /opt/deb/share/dbench/client.txt $usr/share/dbench/
    ln -s /lib/modules/*.ko $modules/
    cat >$RUN/qemu <<'END'
#!/bin/sh
count=$# last=
for word; do
    [ "$last" = -append ] && word="$word noxsave lockdown=integrity"
    last=$word
    set -- "$@" "$word"
done
shift $count
exec qemu-system-x86_64 "$@"
END
    chmod 755 $RUN/qemu
    on_kvm() { command baton testbed run --accel kvm --mem 1024 "$@"; }
    refused() { echo "$1=$(on_kvm -- true 2>&1; echo "status $?")" | tr '\n' ' '; echo; }"#;

/// On the emulated host's KVM: the host in it is nested, and its VMs are once more. This is as near
/// as emulation comes to `--accel kvm` on hardware.
#[test]
#[ignore = "two minutes: make test-operate"]
fn a_host_runs_under_kvm() {
    let script = r#"
        on_kvm --kernel /guest/bzImage --modules $RUN/modules --qemu $RUN/qemu -- sh -c '
            echo "kernel=$(uname -r)"
            echo "cmdline=$(cat /proc/cmdline)"
            scx_baton 2>/run/err &
            for i in $(seq 100); do grep -q "watching KVM" /run/err && break; sleep 1; done
            baton bench barrier-pause --vms 2 --repetitions 1 --seconds 0.5 --csv /run/csv >/dev/null
            echo "barrier=$(grep -c barrier-pause,total /run/csv)"
            echo "state=$(cat /sys/kernel/sched_ext/state)"' >$RUN/out 2>$RUN/err ||
            lost "the host under KVM: $(tail -n 3 $RUN/err)"
        cat $RUN/out
        echo "release=$(uname -r)"
        echo "told=$(grep -c 'runs nested under KVM' $RUN/err)"

        echo "nobody:x:65534:65534::/:/bin/sh" >>/etc/passwd
        echo "user=$(su -s /bin/sh nobody -c "baton testbed run --accel kvm -- true" 2>&1)"
        mv /dev/kvm /dev/away; refused device; mv /dev/away /dev/kvm
        rmmod kvm_amd && insmod /lib/modules/kvm-amd.ko nested=0 || fail "no KVM without nesting"
        refused nested
        "#;
    let cache = CACHE.replace("$ENTRY", &baton_testbed::userland::entry());
    let found = on_host(
        host(),
        &format!(
            "{cache}
{script}"
        ),
    );
    assert_eq!(found.text("kernel"), found.text("release"), "{}", found.out);
    assert!(!found.text("cmdline").contains("setcpuid"), "{}", found.out);
    assert_eq!((found.number("barrier"), found.number("told")), (1.0, 1.0), "{}", found.out);
    assert_eq!(found.text("state"), "enabled", "{}", found.out);
    assert!(found.text("user").contains("no permission for /dev/kvm"), "{}", found.out);
    for (key, words) in [("device", "no /dev/kvm"), ("nested", "kvm_amd.nested = 0")] {
        let said = found.text(key);
        assert!(said.contains(words) && said.ends_with("status 125"), "{}", found.out);
    }
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
        complaints() {
            dmesg -c >>/run/dmesg
            grep 'watchdog\|stall\|sched_ext.*error\|BUG\|WARNING' /run/dmesg
        }
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
                kill -0 $(pid_of $name) && ! grep -q 'panic\|Oops\|stall' $RUN/$name.log ||
                    new $name
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
    // About 15 s each; emulation loses a guest now and then, a scheduler that stalls them loses one
    // each time.
    let rounds = found.number("rounds");
    assert!(rounds >= (seconds / 60) as f64, "{}", found.out);
    assert!(found.number("lost") <= 1.0 + rounds / 10.0, "{}", found.out);
    assert_eq!(found.number("complaints"), 0.0, "{}", found.out);
}
