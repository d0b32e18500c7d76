// SPDX-License-Identifier: GPL-2.0-only
//! All vCPUs work together until the host lets them run no more.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::layout::*;
use crate::{area, cpu, params};

/// Spins of a waiter of a queued lock with kicks before it halts: SPIN_THRESHOLD of Linux,
/// arch/x86/include/asm/qspinlock.h.
const SPINS_BEFORE_HALT: u64 = 1 << 15;

/// So that counting them costs nothing beside them.
const PAUSES_AT_ONCE: u64 = 64;

/// KVM_HC_KICK_CPU: ends the HLT of the vCPU with this APIC id, or its next one.
const HYPERCALL_KICK: u64 = 5;

pub fn run(test: u64, index: u64) -> ! {
    let params = params();
    let arg = |i: usize| params.args[i].load(Relaxed);
    let ops = &area(index).ops;
    let pause = params.spins_per_pause.load(Relaxed);
    if test == TEST_BARRIER {
        let (work, pause) = (arg(0), if arg(1) == 0 { 0 } else { pause });
        loop {
            barrier(work, pause);
            ops.fetch_add(1, Relaxed);
        }
    }
    if test == TEST_PAUSES {
        loop {
            (0..PAUSES_AT_ONCE).for_each(|_| cpu::pause());
            ops.fetch_add(PAUSES_AT_ONCE, Relaxed);
        }
    }
    if test == TEST_DIRTY {
        let (first, step, pages) = (arg(0), arg(1), arg(2));
        loop {
            (0..pages).for_each(|page| cpu::write(first + page * step));
            ops.fetch_add(1, Relaxed);
        }
    }
    let (kind, inside, outside) = (arg(0), arg(1), arg(2));
    let amd = cpu::is_amd();
    loop {
        lock(kind, index, pause);
        cpu::compute(inside);
        unlock(kind, index, amd);
        cpu::compute(outside);
        ops.fetch_add(1, Relaxed);
    }
}

/// Spins, with PAUSE every `pause`-th time (0: never).
pub fn spin(pause: u64, mut reached: impl FnMut() -> bool) {
    let mut spins = 0u64;
    while !reached() {
        spins += 1;
        if pause != 0 && spins % pause == 0 {
            cpu::pause();
        }
    }
}

fn barrier(work: u64, pause: u64) {
    let [arrived, round, ..] = &params().shared;
    cpu::compute(work);
    let now = round.value.load(Acquire);
    if arrived.value.fetch_add(1, SeqCst) + 1 == params().vcpus.load(Relaxed) {
        arrived.value.store(0, Relaxed);
        round.value.store(now + 1, Release);
    } else {
        spin(pause, || round.value.load(Acquire) != now);
    }
}

fn lock(kind: u64, index: u64, pause: u64) {
    let [word, serving, ..] = &params().shared;
    let (word, serving) = (&word.value, &serving.value);
    match kind {
        LOCK_TEST_AND_SET => {
            spin(pause, || word.load(Relaxed) == 0 && word.swap(1, Acquire) == 0);
        }
        LOCK_TICKET => {
            let ticket = word.fetch_add(1, Relaxed);
            spin(pause, || serving.load(Acquire) == ticket);
        }
        _ => {
            // MCS: the word is the last in the queue, each waits at its own area.
            let me = area(index);
            me.next.store(0, Relaxed);
            me.waits.store(1, Relaxed);
            let before = word.swap(index + 1, SeqCst);
            if before == 0 {
                return;
            }
            area(before - 1).next.store(index + 1, Release);
            wait_in_queue(me, kind == LOCK_QUEUED_KICK, pause);
        }
    }
}

fn wait_in_queue(me: &Area, kicked: bool, pause: u64) {
    let freed = || me.waits.load(Acquire) == 0;
    if !kicked {
        return spin(pause, freed);
    }
    loop {
        let mut spins = 0;
        spin(pause, || {
            spins += 1;
            freed() || spins == SPINS_BEFORE_HALT
        });
        if freed() {
            return;
        }
        // The one who frees us looks here after that: it kicks, or we see it.
        me.halted.store(1, SeqCst);
        if !freed() {
            cpu::halt();
        }
        me.halted.store(0, SeqCst);
    }
}

fn unlock(kind: u64, index: u64, amd: bool) {
    let [word, serving, ..] = &params().shared;
    let (word, serving) = (&word.value, &serving.value);
    match kind {
        LOCK_TEST_AND_SET => word.store(0, Release),
        LOCK_TICKET => serving.store(serving.load(Relaxed) + 1, Release),
        _ => {
            let me = area(index);
            if me.next.load(Acquire) == 0 {
                if word.compare_exchange(index + 1, 0, SeqCst, Relaxed).is_ok() {
                    return;
                }
                // Somebody is between taking its place and telling us.
                spin(0, || me.next.load(Acquire) != 0);
            }
            let next = me.next.load(Acquire) - 1;
            area(next).waits.store(0, SeqCst);
            if kind == LOCK_QUEUED_KICK && area(next).halted.load(SeqCst) == 1 {
                cpu::hypercall(amd, HYPERCALL_KICK, 0, next);
            }
        }
    }
}
