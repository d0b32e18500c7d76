// SPDX-License-Identifier: GPL-2.0-only
//! The I/O port of the exact host, which `testbed/bochs/port.cc` emulates.

use std::arch::asm;

/// What port.cc knows as well.
const DATA: u16 = 0xba70;
const CONTROL: u16 = 0xba74;
const LENGTH: u64 = 8;
const MAGIC: u32 = 0x6e74_6162;

const WAIT: u32 = 1;
const FLUSH: u32 = 2;
const POLL: u32 = 3;
const ASK_MAGIC: u32 = 4;
const SAVE: u32 = 5;

/// The port; this thread alone may use it (ioperm(2) is per thread).
pub struct IoPort(std::marker::PhantomData<*const ()>);

impl IoPort {
    /// The port, if this is an exact host.
    pub fn open() -> Option<IoPort> {
        // SAFETY: changes which ports this thread may use, nothing else.
        if unsafe { libc::ioperm(u64::from(DATA), LENGTH, 1) } != 0 {
            return None;
        }
        let port = IoPort(std::marker::PhantomData);
        port.command(ASK_MAGIC);
        // Elsewhere nothing is at this address, and a read gives ones.
        (port.control() == MAGIC).then_some(port)
    }

    /// Virtual time stands still until the outside has said something.
    pub fn wait(&self) {
        while self.control() == 0 {
            self.command(WAIT);
        }
    }

    /// Looks whether the outside has said something.
    pub fn poll(&self) {
        self.command(POLL);
    }

    /// The emulator saves the host and ends. The restored host goes on here and waits.
    pub fn save(&self) {
        self.command(SAVE);
        self.wait();
    }

    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        let length = bytes.len().min(self.control() as usize);
        // SAFETY: writes `length` bytes at the start of `bytes`, which has as many.
        unsafe {
            asm!("rep insb", in("dx") DATA, inout("rdi") bytes.as_mut_ptr() => _,
                inout("rcx") length => _, options(nostack, preserves_flags));
        }
        length
    }

    pub fn write(&mut self, bytes: &[u8]) {
        // SAFETY: reads the bytes of `bytes`.
        unsafe {
            asm!("rep outsb", in("dx") DATA, inout("rsi") bytes.as_ptr() => _,
                inout("rcx") bytes.len() => _, options(nostack, preserves_flags, readonly));
        }
        self.command(FLUSH);
    }

    fn command(&self, command: u32) {
        // SAFETY: this thread may use the port; nothing else is at this address.
        unsafe {
            asm!("out dx, eax", in("dx") CONTROL, in("eax") command,
                options(nostack, preserves_flags));
        }
    }

    /// How many bytes wait to be read.
    fn control(&self) -> u32 {
        let value: u32;
        // SAFETY: as for `command`.
        unsafe {
            asm!("in eax, dx", in("dx") CONTROL, out("eax") value,
                options(nostack, preserves_flags));
        }
        value
    }
}
