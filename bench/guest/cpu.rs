// SPDX-License-Identifier: GPL-2.0-only
//! Instructions.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};
use core::hint::black_box;

/// Ordered: after everything before it, before everything behind it.
pub fn tsc() -> u64 {
    // SAFETY: every 64-bit CPU has both.
    unsafe {
        _mm_lfence();
        let tsc = _rdtsc();
        _mm_lfence();
        tsc
    }
}

pub fn pause() {
    core::hint::spin_loop();
}

/// How often a loop executes PAUSE: each time around, as cpu_relax() in the loops of Linux. Where
/// each PAUSE exits, as under QEMU, which claims SVM's pause filter and lacks it, a loop would
/// hardly run. An exit takes a thousand cycles or more, PAUSE 140 at most (Intel's Optimization
/// Reference Manual, 2.1.3).
pub fn spins_per_pause() -> u64 {
    const EXIT: u64 = 500;
    let cost = |_| {
        let start = tsc();
        pause();
        tsc() - start
    };
    let least = (0..8).map(cost).min();
    if least.is_some_and(|cycles| cycles < EXIT) { 1 } else { 2000 }
}

pub fn cpuid() {
    black_box(__cpuid(0));
}

/// Whether hypercalls are VMMCALL here: KVM would otherwise patch the wrong one, which costs more.
pub fn is_amd() -> bool {
    matches!(&__cpuid(0).ebx.to_le_bytes(), b"Auth" | b"Hygo")
}

pub fn hypercall(amd: bool, number: u64, a0: u64, a1: u64) {
    // SAFETY: KVM changes RAX only; RBX, which carries the first argument, is LLVM's own.
    unsafe {
        if amd {
            asm!("xchg rbx, {a0}", "vmmcall", "xchg rbx, {a0}", a0 = inout(reg) a0 => _,
                inout("rax") number => _, in("rcx") a1, in("rdx") 0, in("rsi") 0);
        } else {
            asm!("xchg rbx, {a0}", "vmcall", "xchg rbx, {a0}", a0 = inout(reg) a0 => _,
                inout("rax") number => _, in("rcx") a1, in("rdx") 0, in("rsi") 0);
        }
    }
}

pub fn out(port: u16, value: u8) {
    // SAFETY: the host's ports only; none touches the guest's memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value) }
}

pub fn mmio(at: u64, value: u32) {
    // SAFETY: there is no memory there, but the host or the LAPIC.
    unsafe { (at as *mut u32).write_volatile(value) }
}

pub fn write(at: u64) {
    // SAFETY: memory that the host has set aside for being written.
    unsafe { (at as *mut u64).write_volatile(1) }
}

pub fn read_byte(at: u64) -> u8 {
    // SAFETY: this vCPU's memory, or another's; KVM may change it at any time.
    unsafe { (at as *const u8).read_volatile() }
}

pub fn wrmsr(msr: u32, value: u64) {
    // SAFETY: only MSRs of the LAPIC and the base of GS, at addresses that are ours.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32);
    }
}

pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading changes nothing.
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high) };
    u64::from(high) << 32 | u64::from(low)
}

pub fn interrupts_on() {
    // SAFETY: the handlers keep all registers and have a stack of their own.
    unsafe { asm!("sti") }
}

pub fn interrupts_off() {
    // SAFETY: interrupts wait.
    unsafe { asm!("cli") }
}

/// With interrupts off: sleeps until one comes, also one that has come already.
pub fn halt() {
    // SAFETY: STI lets nothing in before HLT has begun.
    unsafe { asm!("sti", "hlt", "cli") }
}

/// Dependent multiply-adds, in registers: the same time each round, also under emulation, where
/// what memory costs depends on where it is. Ten to a branch: 2.2 instructions each, so that where
/// an instruction takes a nanosecond one is as long as on hardware (4 cycles) within a factor of 2.
pub fn compute(rounds: u64) {
    const TO_A_BRANCH: u64 = 10;
    let (whole, rest) = (rounds / TO_A_BRANCH, rounds % TO_A_BRANCH);
    let mut x = 1u64;
    if whole > 0 {
        // SAFETY: registers only.
        unsafe {
            asm!("2:", ".rept {ten}", "imul {x}, {x}, 1103515245", "add {x}, 12345", ".endr",
                "dec {n}", "jnz 2b", ten = const TO_A_BRANCH, x = inout(reg) x,
                n = inout(reg) whole => _, options(nomem, nostack));
        }
    }
    if rest > 0 {
        // SAFETY: registers only.
        unsafe {
            asm!("2: imul {x}, {x}, 1103515245", "add {x}, 12345", "dec {n}", "jnz 2b",
                x = inout(reg) x => _, n = inout(reg) rest => _, options(nomem, nostack));
        }
    }
}

pub fn spin_cycles(cycles: u64) {
    let start = tsc();
    while tsc() - start < cycles {}
}
