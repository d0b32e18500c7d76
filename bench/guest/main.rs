// SPDX-License-Identifier: GPL-2.0-only
//! What runs in the guests of `baton bench`: bare metal, one vCPU after the other straight into
//! long mode. The host chooses the test in `Params`, the guest leaves its results in its areas.
#![no_std]
#![no_main]

mod cpu;
mod latency;
#[allow(dead_code)]
#[path = "../src/layout.rs"]
mod layout;
mod setup;
mod throughput;

use core::arch::naked_asm;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use layout::*;

/// The host has put the index of the vCPU into RDI and a stack into RSP.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn start() -> ! {
    naked_asm!("xor ebp, ebp", "call {main}", "ud2", main = sym main)
}

extern "C" fn main(index: u64) -> ! {
    setup::tables(index);
    setup::apic(index);
    let params = params();
    if index == 0 {
        params.spins_per_pause.store(cpu::spins_per_pause(), SeqCst);
    }
    params.up.fetch_add(1, SeqCst);
    while params.up.load(Relaxed) < params.vcpus.load(Relaxed) {
        cpu::pause();
    }
    match params.test.load(Relaxed) {
        test @ (TEST_BARRIER | TEST_LOCK | TEST_PAUSES | TEST_DIRTY) => {
            if index == 0 {
                (0..16).for_each(|_| calibrate());
            }
            throughput::run(test, index)
        }
        test if index == 0 => {
            latency::measure(test);
            done(DONE_OK)
        }
        test => latency::serve(test, index),
    }
}

fn params() -> &'static Params {
    // SAFETY: the host has put it there before any vCPU runs; all fields are atomic.
    unsafe { &*(PARAMS as *const Params) }
}

fn area(index: u64) -> &'static Area {
    // SAFETY: as above; there is one for each vCPU.
    unsafe { &*((AREAS + index * AREA_SIZE) as *const Area) }
}

/// Tells the host, which lets this vCPU run no more.
fn done(how: u8) -> ! {
    loop {
        cpu::out(PORT_DONE, how);
    }
}

/// What the same few instructions take now tells how fast this machine is now.
fn calibrate() {
    let area = area(0);
    let n = area.calibrations.load(Relaxed);
    if n < MAX_SAMPLES as u64 {
        let start = cpu::tsc();
        cpu::compute(CALIBRATION_ROUNDS);
        store(CALIBRATION, n, cpu::tsc() - start);
        area.calibrations.store(n + 1, SeqCst);
    }
}

/// One sample of vCPU 0, in TSC cycles.
fn store(series: usize, sample: u64, cycles: u64) {
    let at = params().samples_at.load(Relaxed) as *mut u64;
    // SAFETY: the host has set memory for SERIES times MAX_SAMPLES aside there.
    unsafe { at.add(series * MAX_SAMPLES + sample as usize).write_volatile(cycles) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    done(DONE_EXCEPTION)
}

// core is built for unwinding, and names this; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// The compiler calls these for copies and fills; there is no libc here.

/// # Safety
///
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") value as u8);
    }
    to
}

/// # Safety
///
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _);
    }
    to
}
