// SPDX-License-Identifier: GPL-2.0-only
//! vCPU 0 measures how long things take; the others serve it.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::layout::*;
use crate::throughput::spin;
use crate::{area, calibrate, cpu, params, setup, store};

const MSR_TSC_DEADLINE: u32 = 0x6e0;
const ICR: u32 = 0x30;
const ICR_HIGH: u64 = LAPIC + 0x310;
const ICR_LOW: u64 = LAPIC + 0x300;

const LOGICAL: u64 = 1 << 11;
const ALL_BUT_SELF: u64 = 3 << 18;
const TO_SELF: u64 = 1 << 18;

const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;

/// A hypercall of no meaning (KVM answers -KVM_ENOSYS).
const HYPERCALL_NONE: u64 = 0xba70;

/// Enough for KVM to find out for how long it should poll: it doubles that every time.
const FIRST_FEW: u64 = 16;

const SAMPLES_PER_CALIBRATION: u64 = 16;

pub fn measure(test: u64) {
    let params = params();
    let arg = |i: usize| params.args[i].load(Relaxed);
    let samples = params.samples.load(Relaxed).min(MAX_SAMPLES as u64);
    let amd = cpu::is_amd();
    let port = |port| move || cpu::out(port, 0);
    let mmio = |at| move || cpu::mmio(at, 0);
    match test {
        TEST_CPUID => cost(samples, cpu::cpuid),
        TEST_HYPERCALL => cost(samples, || cpu::hypercall(amd, HYPERCALL_NONE, 0, 0)),
        TEST_PIO_USER => cost(samples, port(PORT_USER)),
        TEST_PIO_KERNEL => cost(samples, port(PORT_KERNEL)),
        TEST_MMIO_USER => cost(samples, mmio(MMIO_USER)),
        TEST_MMIO_KERNEL => cost(samples, mmio(MMIO_KERNEL)),
        TEST_PAUSE => cost(samples, cpu::pause),
        TEST_TOUCH => {
            let mut page = arg(0);
            cost(samples, || {
                cpu::write(page);
                page += 4096;
            });
        }
        TEST_IPI => ipi(samples, arg(0), arg(1), arg(2), arg(3)),
        TEST_CALL => call(samples, arg(0)),
        TEST_TIMER => timer(samples, arg(0), arg(1)),
        TEST_PING_PONG => ping_pong(samples, arg(0), arg(1)),
        TEST_IO => io(samples, arg(0)),
        TEST_FAULT => setup::fault(),
        TEST_HANG => wait(|| false),
        _ => {}
    }
}

/// What the other vCPUs do meanwhile.
pub fn serve(test: u64, index: u64) -> ! {
    let area = area(index);
    let halts = match test {
        TEST_IPI => params().args[1].load(Relaxed) == WAIT_HALT,
        TEST_CALL => false,
        _ => true,
    };
    if test == TEST_CALL {
        area.acknowledge.store(&raw const params().shared[0].value as u64, SeqCst);
    }
    if !halts {
        if test == TEST_IPI && params().args[1].load(Relaxed) == WAIT_PREEMPTED {
            cpu::wrmsr(MSR_KVM_STEAL_TIME, steal(index) | 1);
        }
        area.halted.store(1, SeqCst);
        cpu::interrupts_on();
        loop {
            core::hint::black_box(0);
        }
    }
    loop {
        area.halted.store(1, SeqCst);
        let before = area.interrupts.load(Relaxed);
        while area.interrupts.load(Relaxed) == before {
            cpu::halt();
        }
        area.halted.store(0, SeqCst);
        if test == TEST_PING_PONG && index == 1 {
            cpu::spin_cycles(params().args[0].load(Relaxed));
            params().shared[1].value.store(cpu::tsc(), SeqCst);
            send(IPI_UNICAST, 0, 1);
        }
    }
}

/// Where KVM writes about this vCPU.
fn steal(index: u64) -> u64 {
    AREAS + index * AREA_SIZE + AREA_STEAL
}

fn preempted(index: u64) -> bool {
    cpu::read_byte(steal(index) + STEAL_PREEMPTED) != 0
}

/// One sample, in TSC cycles.
fn note(series: usize, sample: u64, cycles: u64) {
    store(series, sample, cycles);
    area(0).samples.store(sample + 1, SeqCst);
    // Among the samples, so that the other vCPUs, and whoever is behind them, do what they do then.
    if series == 0 && sample % SAMPLES_PER_CALIBRATION == 0 {
        calibrate();
    }
}

fn cost(samples: u64, mut action: impl FnMut()) {
    for sample in 0..samples {
        let start = cpu::tsc();
        action();
        note(0, sample, cpu::tsc() - start);
    }
}

fn wait(reached: impl FnMut() -> bool) {
    spin(params().spins_per_pause.load(Relaxed), reached);
}

fn icr(low: u64, destination: u64) {
    if params().apic.load(Relaxed) == APIC_X2 {
        cpu::wrmsr(setup::X2APIC + ICR, destination << 32 | low);
    } else {
        cpu::mmio(ICR_HIGH, (destination << 24) as u32);
        cpu::mmio(ICR_LOW, low as u32);
    }
}

/// To vCPUs `first` to `first + n - 1`.
fn send(mode: u64, first: u64, n: u64) {
    let vector = u64::from(IPI_VECTOR);
    let x2 = params().apic.load(Relaxed) == APIC_X2;
    match mode {
        IPI_SELF => icr(TO_SELF | vector, 0),
        IPI_BROADCAST => icr(ALL_BUT_SELF | vector, 0),
        // x2APIC: clusters of sixteen, one bit each.
        IPI_LOGICAL if x2 => icr(LOGICAL | vector, (first / 16) << 16 | 1 << (first % 16)),
        IPI_LOGICAL => icr(LOGICAL | vector, 1 << first),
        _ => (first..first + n).for_each(|vcpu| icr(vector, vcpu)),
    }
}

/// Series: what sending took, until the last handler began, until the sender saw that.
fn ipi(samples: u64, mode: u64, state: u64, n: u64, delay: u64) {
    let first = u64::from(mode != IPI_SELF);
    let targets = first..first + n;
    let interrupts = || targets.clone().map(|i| area(i).interrupts.load(SeqCst)).sum::<u64>();
    // A vCPU that spins says so with 1, one that halts says when.
    let ready = || targets.clone().all(|i| i == 0 || area(i).halted.load(SeqCst) == 1);
    cpu::interrupts_on();
    for sample in 0..samples {
        wait(ready);
        if state == WAIT_HALT {
            cpu::spin_cycles(delay);
        }
        if state == WAIT_PREEMPTED {
            wait(|| targets.clone().all(preempted));
        }
        let before = interrupts();
        let start = cpu::tsc();
        send(mode, first, n);
        let sent = cpu::tsc();
        wait(|| interrupts() == before + n);
        let seen = cpu::tsc();
        let last = targets.clone().map(|i| area(i).interrupt_at.load(SeqCst)).max().unwrap_or(0);
        note(0, sample, sent - start);
        note(1, sample, last.saturating_sub(start));
        note(2, sample, seen - start);
    }
}

/// Series: what sending took, until the last acknowledgement was seen.
fn call(samples: u64, rounds_between: u64) {
    let others = params().vcpus.load(Relaxed) - 1;
    let acknowledged = &params().shared[0].value;
    wait(|| (1..=others).all(|i| area(i).halted.load(SeqCst) == 1));
    for sample in 0..samples {
        cpu::compute(rounds_between);
        acknowledged.store(0, SeqCst);
        let start = cpu::tsc();
        send(IPI_BROADCAST, 1, others);
        let sent = cpu::tsc();
        wait(|| acknowledged.load(SeqCst) == others);
        note(0, sample, sent - start);
        note(1, sample, cpu::tsc() - start);
    }
}

/// Series: what arming took, from the deadline until the handler began, until this loop went on.
fn timer(samples: u64, cycles: u64, state: u64) {
    let interrupts = || area(0).interrupts.load(SeqCst);
    for sample in 0..samples {
        let before = interrupts();
        let start = cpu::tsc();
        let deadline = start + cycles;
        cpu::wrmsr(MSR_TSC_DEADLINE, deadline);
        let armed = cpu::tsc();
        if state == WAIT_HALT {
            while interrupts() == before {
                cpu::halt();
            }
        } else {
            cpu::interrupts_on();
            wait(|| interrupts() != before);
            cpu::interrupts_off();
        }
        let on = cpu::tsc();
        note(0, sample, armed - start);
        note(1, sample, area(0).interrupt_at.load(SeqCst).saturating_sub(deadline));
        note(2, sample, on.saturating_sub(deadline));
    }
}

/// Series: from sending until the handler began, in the other vCPU and in this one. Each was
/// halted for `idle` cycles before that. The first few, which do not count, are halted for `first`
/// cycles.
fn ping_pong(samples: u64, idle: u64, first: u64) {
    let interrupts = || area(0).interrupts.load(SeqCst);
    let own_idle = &params().args[0];
    own_idle.store(first, SeqCst);
    for turn in 0..FIRST_FEW + samples {
        if turn == FIRST_FEW {
            own_idle.store(idle, SeqCst);
        }
        let idle = if turn < FIRST_FEW { first } else { idle };
        wait(|| area(1).halted.load(SeqCst) == 1);
        cpu::spin_cycles(idle);
        let before = interrupts();
        let start = cpu::tsc();
        send(IPI_UNICAST, 1, 1);
        while interrupts() == before {
            cpu::halt();
        }
        let back = params().shared[1].value.load(SeqCst);
        let Some(sample) = turn.checked_sub(FIRST_FEW) else { continue };
        note(0, sample, area(1).interrupt_at.load(SeqCst).saturating_sub(start));
        note(1, sample, area(0).interrupt_at.load(SeqCst).saturating_sub(back));
    }
}

/// Series: from the request until this loop goes on.
fn io(samples: u64, state: u64) {
    let interrupts = || area(0).interrupts.load(SeqCst);
    for sample in 0..samples {
        let before = interrupts();
        let start = cpu::tsc();
        cpu::out(PORT_IO, 0);
        if state == WAIT_HALT {
            while interrupts() == before {
                cpu::halt();
            }
        } else {
            cpu::interrupts_on();
            while interrupts() == before {}
            cpu::interrupts_off();
        }
        note(0, sample, cpu::tsc() - start);
    }
}
