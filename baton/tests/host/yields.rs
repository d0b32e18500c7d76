// SPDX-License-Identifier: GPL-2.0-only
//! Whom a vCPU gives its pCPU to.

use super::*;

/// Both vCPUs on one pCPU, so that a barrier round needs both of them in turn. Without the yield
/// each would have it for a tick of 4 ms at the least, 125 rounds a second; with it, until an exit.
#[test]
fn a_directed_yield_moves_the_cpu_to_the_sibling() {
    let found = on_host(
        From::Guests,
        r#"
        bench() {
            taskset 1 baton bench $1 --vcpus 2 --repetitions 1 --seconds $2 >/tmp/bench 2>&1
        }
        bench barrier-pause 5 &
        bench=$!
        sleep 1
        echo "stats=$(stats)"
        wait $bench || fail "$(cat /tmp/bench)"
        bench barrier 1 || fail "$(cat /tmp/bench)"
        rate() { sed -n "s/^run 1.* $1, rounds.s \([0-9.]*\).*/\1/p" /tmp/bench; }
        echo "yielding=$(rate barrier-pause)"
        echo "other=$(rate barrier)"
        "#,
    );
    let stats = found.stats("stats");
    assert!(stats["yields"] > 50.0, "KVM yielded too rarely: {}", found.out);
    // The rest were out of their slice, which ends with their turn.
    assert!(stats["obeyed"] > 0.9 * (stats["yields"] - stats["spent"]), "{}", found.out);
    assert!(stats["boost"] > 0.0, "{}", found.out);
    assert!(found.number("yielding") > 1.5 * 125.0, "{}", found.out);
    // The other has no PAUSE to yield at: as its vCPUs share a pCPU, a timer ends their slices.
    assert!(found.number("other") > 1.2 * 125.0, "{}", found.out);
}

/// Four vCPUs on two pCPUs, of which one interrupts the others and waits: those that do not run are
/// boosted, also where KVM proposes another one.
#[test]
fn who_owes_an_answer_to_an_ipi_is_boosted() {
    let found = on_host(
        From::Guests,
        r#"
        command baton bench call --vcpus 4 --repetitions 1 --samples 500 >/tmp/bench 2>&1 &
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
