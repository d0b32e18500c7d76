// SPDX-License-Identifier: GPL-2.0-only
//! A storm on one address space: every thread maps, touches, discards and unmaps memory. The kernel
//! takes the lock of the address space and flushes the TLB of every CPU that uses it, by IPI, and
//! waits for the answer. A preempted vCPU holds the lock or owes the answer.

use std::io::Error;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use baton_testbed::plan::Measured;

use super::on_every_cpu;

/// 16 pages: more than one, so that a discard flushes a range, and fewer than the 33 from which x86
/// Linux flushes everything (`tlb_single_page_flush_ceiling`).
const LEN: usize = 64 << 10;
const PAGE: usize = 4 << 10;

pub fn run(time: Duration) -> Result<Measured> {
    let reached = on_every_cpu(|_, _| {
        let start = Instant::now();
        let mut ops = 0u64;
        while start.elapsed() < time {
            map_and_unmap()?;
            ops += 1;
        }
        Ok((ops, start.elapsed().as_secs_f64()))
    })?;
    let seconds = reached.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    Ok(Measured::new(reached.iter().map(|(ops, _)| ops).sum(), seconds, "ops/s"))
}

/// One operation: map, touch, discard, touch again, unmap.
fn map_and_unmap() -> Result<()> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
    touch(at.cast());
    // SAFETY: `at` is our mapping of LEN bytes and nobody else knows it.
    let discarded = unsafe { libc::madvise(at, LEN, libc::MADV_DONTNEED) };
    ensure!(discarded == 0, "madvise: {}", Error::last_os_error());
    touch(at.cast());
    // SAFETY: as above; it is not used after this.
    let unmapped = unsafe { libc::munmap(at, LEN) };
    ensure!(unmapped == 0, "munmap: {}", Error::last_os_error());
    Ok(())
}

/// Writes to each page of the mapping of LEN bytes at `at`.
fn touch(at: *mut u8) {
    for offset in (0..LEN).step_by(PAGE) {
        // SAFETY: the caller mapped LEN writable bytes at `at`.
        unsafe { at.add(offset).write_volatile(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_operations() {
        assert!(run(Duration::from_millis(20)).unwrap().ops > 0);
    }
}
