// SPDX-License-Identifier: GPL-2.0-only
//! What makes one repetition on an exact host differ from another: without it each would be the
//! same run.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The kernel's longest tick: a start may fall anywhere in it.
const PHASE: Duration = Duration::from_millis(10);

/// `RNDRESEEDCRNG` of linux/random.h.
const RESEED: libc::Ioctl = 0x5207;

/// Makes what the kernel draws at random from now on (addresses, hashes) another for each seed, and
/// waits for a part of a tick. Best effort: without it a repetition is less of another.
pub fn stir(seed: u64) {
    if let Ok(mut random) = File::options().write(true).open("/dev/urandom") {
        let _ = random.write_all(&seed.to_le_bytes());
        // SAFETY: this request has no argument.
        let _ = unsafe { libc::ioctl(random.as_raw_fd(), RESEED) };
    }
    // The upper half of a multiplication by 2^64 / golden ratio spreads neighbouring seeds.
    let spread = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    std::thread::sleep(PHASE * (spread >> 16) as u32 / (1 << 16));
}
