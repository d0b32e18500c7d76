// SPDX-License-Identifier: GPL-2.0-only
//! `baton trial`.

use super::*;

/// Slots are short here: a claim about figures is no part of these tests.
const TRIAL: &str = r#"
    stop_baton
    cd /run
    trial() { command baton trial --yes --slot 0.5s --for 6s "$@"; }
    verdict() { command baton trial verify $1 2>&1 | tr '\n' ' '; }
    # A process of its own, that no shell stands before.
    begin() {
        baton=$(which baton)
        $baton trial --yes --slot 0.5s --for 6s --bundle $1 >/run/$1.out 2>&1 & trial=$!
        until_true '[ "$(state)" = enabled ]'
    }
    over() { until_true '[ "$(state)" = disabled ]'; }
    "#;

/// On what follows [`TRIAL`]: each key's text has these words.
fn trial(script: &str, expected: &[(&str, &[&str])]) {
    let found = on_host(From::Guests, &format!("{TRIAL}{script}"));
    for (key, words) in expected {
        let text = found.text(key);
        assert!(words.iter().all(|words| text.contains(words)), "{key}: {}", found.out);
    }
}

#[test]
fn a_trial_that_is_killed_leaves_the_kernels_scheduler_and_its_bundle() {
    trial(
        r#"
        begin KILL; kill -9 $trial; wait $trial; status=$?; over
        echo "KILL=$status $(verdict KILL)"
        unfit=$(trial --probe false --bundle unfit 2>&1; echo "status $?")
        echo "unfit="$unfit
        echo "short=$(command baton trial --for 1m 2>&1; echo "status $?")" | tr '\n' ' '; echo
        "#,
        &[
            ("KILL", &["137", "killed after"]),
            ("unfit", &["the probe: exit status: 1", "status 1"]),
            ("short", &["too short", "status 1"]),
        ],
    );
}

#[test]
#[ignore = "minutes: make test-operate"]
fn a_trial_ends_in_the_kernels_scheduler_however_it_ends() {
    trial(
        r#"
        work a 9 barrier; work b 9 shootdown
        trial --bundle whole >whole.out 2>whole.err; status=$?
        echo "whole=$status $(state) $(verdict whole)"
        echo "order=$(grep -o '[KB] [KB] [KB] [KB]' whole.out | tr '\n' ' ')"
        echo "names=$(grep -c -e /run -e CPU.0 -e qemu -e guest whole)"
        rate a >/dev/null; rate b >/dev/null
        own='grep -q disabled /sys/kernel/sched_ext/state && echo 5'
        echo "probe=$(trial --probe "$own" --bundle probe >/dev/null 2>probe.err; echo $?) $(state)"
        echo "said=$(tail -n 1 probe.err) $(verdict probe)"
        for signal in INT HUP; do
            begin $signal; kill -$signal $trial; wait $trial; status=$?; over
            echo "$signal=$status $(verdict $signal)"
        done
        begin STOP; kill -STOP $trial; over; kill -CONT $trial; wait $trial
        echo "STOP=$? $(verdict STOP)"
        sed 's/"who":"kernel"/"who":"baton"/' whole >edited
        echo "edited=$(verdict edited)"
        baton
        echo "runs=$(trial 2>&1; echo "status $?")" | tr '\n' ' '; echo
        "#,
        &[
            ("whole", &["0 disabled", "control:", "whole is consistent"]),
            ("order", &["K B B K "]),
            ("names", &["0"]),
            ("probe", &["1 disabled"]),
            ("said", &["the probe failed", "the kernel's scheduler is in charge", "ended early"]),
            ("INT", &["130", "the user ended it", "is consistent"]),
            ("HUP", &["130", "the user ended it"]),
            ("STOP", &["1 ", "It ended early"]),
            ("edited", &["was changed"]),
            ("runs", &["scx_baton schedules this host", "status 1"]),
        ],
    );
}
