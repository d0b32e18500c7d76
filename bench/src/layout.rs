// SPDX-License-Identifier: GPL-2.0-only
// What host and guest agree on; the guest includes this file, too.

use core::sync::atomic::AtomicU64;

/// Guest-physical addresses. Page tables map all of the first 4 GiB to themselves.
pub const PAGE_TABLES: u64 = 0x1000;
/// [`Params`].
pub const PARAMS: u64 = 0x8000;
/// Where `payload.ld` links the payload; it ends below [`AREAS`].
pub const PAYLOAD: u64 = 0x10_0000;
/// One [`Area`] for each vCPU, with its stacks.
pub const AREAS: u64 = 0x20_0000;
pub const AREA_SIZE: u64 = 0x8000;
/// Writes here go to user space, or to an eventfd in the kernel at the second address.
pub const MMIO_USER: u64 = 0xd000_0000;
pub const MMIO_KERNEL: u64 = 0xd000_1000;
pub const LAPIC: u64 = 0xfee0_0000;

/// The payload has done what it should: a byte is written here.
pub const PORT_DONE: u16 = 0x500;
/// Goes to user space, which does nothing.
pub const PORT_USER: u16 = 0x501;
/// Goes to an eventfd in the kernel.
pub const PORT_KERNEL: u16 = 0x502;
/// Asks for [`IO_VECTOR`] after a while: goes to an eventfd that another thread of the host reads.
pub const PORT_IO: u16 = 0x504;

/// Vectors of the guest.
pub const IPI_VECTOR: u8 = 0x40;
pub const TIMER_VECTOR: u8 = 0x41;
pub const IO_VECTOR: u8 = 0x42;
pub const SPURIOUS_VECTOR: u8 = 0xff;

/// What is written to [`PORT_DONE`].
pub const DONE_OK: u8 = 0;
/// An exception; the area says which.
pub const DONE_EXCEPTION: u8 = 1;

/// Kinds of samples that a vCPU takes at once; see each measurement.
pub const SERIES: usize = 4;
/// The last kind: what the calibration loop took.
pub const CALIBRATION: usize = 3;
/// Samples of a kind at most.
pub const MAX_SAMPLES: usize = 8192;

/// What the host wants of the payload.
#[repr(C)]
pub struct Params {
    /// A `TEST_…`.
    pub test: AtomicU64,
    pub vcpus: AtomicU64,
    /// Of latencies, how many.
    pub samples: AtomicU64,
    /// Depends on the test.
    pub args: [AtomicU64; 4],
    /// Guest-physical address of the samples: [`SERIES`] times [`MAX_SAMPLES`] numbers, TSC cycles.
    pub samples_at: AtomicU64,
    /// [`APIC_X2`] or [`APIC_X`].
    pub apic: AtomicU64,
    /// Where the payload spins with PAUSE, it executes one every so many times around; it finds
    /// out itself how many.
    pub spins_per_pause: AtomicU64,
    /// vCPUs that have come up.
    pub up: AtomicU64,
    /// Shared by the vCPUs; each on a line of its own.
    pub shared: [Line; 4],
}

pub const APIC_X: u64 = 0;
pub const APIC_X2: u64 = 1;

#[repr(C, align(64))]
pub struct Line {
    pub value: AtomicU64,
}

/// What belongs to one vCPU. GS points here.
#[repr(C, align(64))]
pub struct Area {
    /// TSC when the last interrupt came; the handlers know this place as 0.
    pub interrupt_at: AtomicU64,
    /// Interrupts so far; the handlers know this place as 8.
    pub interrupts: AtomicU64,
    /// [`APIC_X2`] or [`APIC_X`]; the handlers know this place as 16.
    pub apic: AtomicU64,
    /// Where `call` counts acknowledgements, or 0; the handlers know this place as 24.
    pub acknowledge: AtomicU64,
    /// Work done.
    pub ops: AtomicU64,
    /// This vCPU halts, or is about to.
    pub halted: AtomicU64,
    /// Times that the calibration loop was run.
    pub calibrations: AtomicU64,
    /// Samples taken.
    pub samples: AtomicU64,
    /// Of an exception: vector, error code, RIP, address.
    pub exception: [AtomicU64; 4],
    /// Queued locks: the index of the vCPU behind this one, plus 1.
    pub next: AtomicU64,
    /// Queued locks: this vCPU must still wait.
    pub waits: AtomicU64,
}

/// Part of an area: `struct kvm_steal_time` (arch/x86/include/uapi/asm/kvm_para.h), where KVM says
/// whether the vCPU is preempted.
pub const AREA_STEAL: u64 = 0x780;
pub const STEAL_PREEMPTED: u64 = 16;

/// Parts of an area: tables, then stacks that grow down to what is before them.
pub const AREA_GDT: u64 = 0x800;
pub const AREA_TSS: u64 = 0x880;
pub const AREA_IDT: u64 = 0x1000;
pub const AREA_INTERRUPT_STACK: u64 = 0x4000;
pub const AREA_STACK: u64 = AREA_SIZE;

/// Rounds of the calibration loop: dependent multiply-adds.
pub const CALIBRATION_ROUNDS: u64 = 1000;

macro_rules! tests {
    ($($name:ident = $number:expr, $what:expr;)*) => {
        $(#[doc = $what] pub const $name: u64 = $number;)*
    };
}

tests! {
    TEST_CPUID = 1, "An exit that KVM handles: CPUID.";
    TEST_HYPERCALL = 2, "A hypercall that KVM does not know.";
    TEST_PIO_USER = 3, "A write to a port of user space.";
    TEST_PIO_KERNEL = 4, "A write to a port with an eventfd.";
    TEST_MMIO_USER = 5, "A write to memory-mapped I/O of user space.";
    TEST_MMIO_KERNEL = 6, "A write to memory-mapped I/O with an eventfd.";
    TEST_IPI = 10, "vCPU 0 interrupts others: args are mode, target state, and how many.";
    TEST_CALL = 11, "vCPU 0 interrupts all others and waits for their acknowledgements.";
    TEST_TIMER = 12, "TSC-deadline timer: args are cycles to the deadline, and target state.";
    TEST_PING_PONG = 13, "Two vCPUs wake each other: args are idle cycles before each, and before \
        the first few.";
    TEST_IO = 14, "A request to another host thread, waited for in HLT or by polling (args).";
    TEST_BARRIER = 20, "All compute, then spin: args are rounds of computing, and whether \
        they spin with PAUSE.";
    TEST_LOCK = 21, "All take a lock: args are kind, rounds inside, rounds outside.";
    TEST_PAUSE = 22, "PAUSE and nothing else.";
    TEST_TOUCH = 23, "The first write to each page of memory of its own (args: where it is).";
    TEST_PAUSES = 24, "PAUSE, over and over.";
    TEST_DIRTY = 25, "Writes to pages again and again: args are the first, the step, how many.";
    TEST_FAULT = 30, "An exception that nobody handles: what does the host say?";
    TEST_HANG = 31, "Nothing, for ever: what does the host say?";
}

/// How an IPI is sent.
pub const IPI_UNICAST: u64 = 0;
pub const IPI_LOGICAL: u64 = 1;
pub const IPI_SELF: u64 = 2;
/// One ICR write to all others.
pub const IPI_BROADCAST: u64 = 3;
/// One ICR write after the other, to as many as wanted.
pub const IPI_MULTICAST: u64 = 4;

/// What vCPUs do that wait for an interrupt.
pub const WAIT_SPIN: u64 = 0;
pub const WAIT_HALT: u64 = 1;
/// As the first, but interrupted only while the host has taken its CPU away.
pub const WAIT_PREEMPTED: u64 = 2;

pub const LOCK_TEST_AND_SET: u64 = 0;
pub const LOCK_TICKET: u64 = 1;
pub const LOCK_QUEUED: u64 = 2;
pub const LOCK_QUEUED_KICK: u64 = 3;
