// SPDX-License-Identifier: GPL-2.0-only
//! Tables, handlers and the LAPIC of one vCPU.

use core::arch::{asm, naked_asm};
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::*;
use crate::{area, cpu, done, params};

const CODE: u16 = 0x08;
const TSS: u16 = 0x18;

const MSR_APIC_BASE: u32 = 0x1b;
const MSR_GS_BASE: u32 = 0xc000_0101;
pub const X2APIC: u32 = 0x800;

/// Registers of the LAPIC: offsets of its page; a sixteenth of them in x2APIC mode.
const APIC_LOGICAL: u32 = 0xd0;
const APIC_FORMAT: u32 = 0xe0;
const APIC_SPURIOUS: u32 = 0xf0;
const APIC_LVT_TIMER: u32 = 0x320;

/// Descriptor table register operand.
#[repr(C, packed)]
struct Table {
    limit: u16,
    base: u64,
}

/// GDT, TSS, IDT and GS of this vCPU. Every handler runs on a stack of its own: compiled code uses
/// what is below its stack pointer.
pub fn tables(index: u64) {
    let base = AREAS + index * AREA_SIZE;
    let tss = base + AREA_TSS;
    let gdt = (base + AREA_GDT) as *mut u64;
    let low = 0x0000_8900_0000_0000 | 0x67 | (tss & 0xff_ffff) << 16 | (tss >> 24 & 0xff) << 56;
    // Null, code, data, TSS (two entries).
    let descriptors = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, low, tss >> 32];
    let idt = base + AREA_IDT;
    // SAFETY: this vCPU's own memory, which nothing else uses; see the layout. The tables are
    // complete when they are loaded.
    unsafe {
        for (place, descriptor) in descriptors.into_iter().enumerate() {
            gdt.add(place).write(descriptor);
        }
        // The first interrupt stack is 36 bytes into the TSS.
        ((tss + 36) as *mut u64).write_unaligned(base + AREA_INTERRUPT_STACK);
        exceptions(idt);
        for vector in [IPI_VECTOR, TIMER_VECTOR, IO_VECTOR] {
            gate(idt, vector, interrupt as *const () as u64);
        }
        gate(idt, SPURIOUS_VECTOR, spurious as *const () as u64);
        let gdtr = Table { limit: 5 * 8 - 1, base: gdt as u64 };
        let idtr = Table { limit: 256 * 16 - 1, base: idt };
        asm!("lgdt [{}]", "lidt [{}]", "ltr {:x}", in(reg) &gdtr, in(reg) &idtr, in(reg) TSS);
    }
    cpu::wrmsr(MSR_GS_BASE, base);
}

/// A fault without a handler, nor one for that: a triple fault.
pub fn fault() {
    let none = Table { limit: 0, base: 0 };
    // SAFETY: this VM ends here, as it is meant to.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) &none) }
}

/// # Safety
///
/// `idt` is a table of this vCPU.
unsafe fn gate(idt: u64, vector: u8, handler: u64) {
    // Present, interrupt gate, interrupt stack 1.
    let low =
        handler & 0xffff | u64::from(CODE) << 16 | 0x8e01 << 32 | (handler >> 16 & 0xffff) << 48;
    let at = (idt + u64::from(vector) * 16) as *mut u64;
    // SAFETY: 256 entries of 16 bytes.
    unsafe {
        at.write(low);
        at.add(1).write(handler >> 32);
    }
}

/// Notes when it came, counts it, acknowledges it to whoever wants that, and to the LAPIC.
#[unsafe(naked)]
extern "C" fn interrupt() {
    naked_asm!(
        "push rax",
        "push rcx",
        "push rdx",
        "rdtsc",
        "shl rdx, 32",
        "or rax, rdx",
        "mov gs:[0], rax",
        "inc qword ptr gs:[8]",
        "mov rax, gs:[24]",
        "test rax, rax",
        "jz 2f",
        "lock inc qword ptr [rax]",
        "2: cmp qword ptr gs:[16], 0",
        "je 3f",
        "mov ecx, 0x80b",
        "xor eax, eax",
        "xor edx, edx",
        "wrmsr",
        "jmp 4f",
        "3: mov eax, 0xfee000b0",
        "mov dword ptr [rax], 0",
        "4: pop rdx",
        "pop rcx",
        "pop rax",
        "iretq",
    )
}

#[unsafe(naked)]
extern "C" fn spurious() {
    naked_asm!("iretq")
}

/// An exception is the end: where it was goes to the host.
#[unsafe(naked)]
extern "C" fn exception<const VECTOR: u64, const HAS_CODE: bool>() {
    naked_asm!(
        ".if {has_code} == 0",
        "push 0",
        ".endif",
        "mov rdi, {vector}",
        "mov rsi, rsp",
        "and rsp, -16",
        "call {report}",
        has_code = const HAS_CODE as u8,
        vector = const VECTOR,
        report = sym report,
    )
}

/// `frame`: error code, RIP, and so on.
extern "C" fn report(vector: u64, frame: *const u64) -> ! {
    let (address, base): (u64, u64);
    // SAFETY: reading registers; GS was set before anything could fail.
    unsafe { asm!("mov {}, cr2", out(reg) address) };
    base = cpu::rdmsr(MSR_GS_BASE);
    // SAFETY: the stack of this handler, and this vCPU's area.
    let (code, rip, area) = unsafe { (*frame, *frame.add(1), &*(base as *const Area)) };
    for (place, value) in area.exception.iter().zip([vector, code, rip, address]) {
        place.store(value, Relaxed);
    }
    done(DONE_EXCEPTION)
}

/// # Safety
///
/// As [`gate`].
unsafe fn exceptions(idt: u64) {
    macro_rules! gates {
        ($($vector:literal $has_code:literal,)*) => {
            // SAFETY: the caller's promise.
            $(unsafe { gate(idt, $vector, exception::<$vector, $has_code> as *const () as u64) };)*
        };
    }
    gates!(0 false, 1 false, 2 false, 3 false, 4 false, 5 false, 6 false, 7 false, 8 true,
        10 true, 11 true, 12 true, 13 true, 14 true, 16 false, 17 true, 18 false, 19 false,);
}

/// Software-enables the LAPIC, in the mode that the host wants, with the timer for deadlines.
pub fn apic(index: u64) {
    let mode = params().apic.load(Relaxed);
    area(index).apic.store(mode, Relaxed);
    if mode == APIC_X2 {
        cpu::wrmsr(MSR_APIC_BASE, cpu::rdmsr(MSR_APIC_BASE) | 3 << 10);
    } else {
        // Flat logical mode: one bit a vCPU, for the first eight.
        write(mode, APIC_FORMAT, !0);
        write(mode, APIC_LOGICAL, if index < 8 { 1 << (24 + index) } else { 0 });
    }
    write(mode, APIC_SPURIOUS, 0x100 | u32::from(SPURIOUS_VECTOR));
    write(mode, APIC_LVT_TIMER, 2 << 17 | u32::from(TIMER_VECTOR));
}

fn write(mode: u64, register: u32, value: u32) {
    if mode == APIC_X2 {
        cpu::wrmsr(X2APIC + (register >> 4), value.into());
    } else {
        cpu::mmio(LAPIC + u64::from(register), value);
    }
}
