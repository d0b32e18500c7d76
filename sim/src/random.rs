// SPDX-License-Identifier: GPL-2.0-only
//! Random numbers. Each task of a guest and each thread of the host has its own, so that a seed
//! gives it the same work whoever runs when: schedulers are compared in pairs.

use rand_core::{RngCore, SeedableRng};
pub use rand_xoshiro::Xoshiro256PlusPlus as Random;

use crate::machine::Ns;

/// What one has that is not part of a simulation yet.
pub fn unseeded() -> Random {
    Random::seed_from_u64(0)
}

/// At random from 0 up to, but not, 1.
pub fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Uniform within the share `spread` on both sides of the mean.
pub fn around(random: &mut Random, mean: Ns, spread: f64) -> Ns {
    if spread == 0.0 || mean == 0 {
        return mean;
    }
    (mean as f64 * (1.0 + spread * (2.0 * unit(random) - 1.0))) as Ns
}
