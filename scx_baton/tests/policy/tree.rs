// SPDX-License-Identifier: GPL-2.0-only
//! The tree of cgroups.

use super::*;

/// TREE_ALL: the whole CPU.
const ALL: u64 = 1 << 40;

proptest! {
    /// Children get the whole of what is divided, by weight, up to what rounding takes.
    #[test]
    fn children_share_by_weight(
        share in 1u64 << 24..=ALL,
        weights in prop::collection::vec(1u32..10_000, 1..20),
    ) {
        let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut sum = 0;
        for weight in &weights {
            let part = unsafe { t_tree_share(share, *weight, all) };
            let naive = share as f64 * f64::from(*weight) / all as f64;
            prop_assert!((part as f64 - naive).abs() <= 2.0 * 65_536.0, "{part}, not {naive}");
            sum += part;
        }
        prop_assert!(sum <= share, "{sum} of {share} given away");
    }

    /// One that has not been counted yet, or nobody, takes no more than all.
    #[test]
    fn a_child_never_gets_more_than_there_is(
        share in 0u64..=ALL,
        weight in 0u32..10_000,
        all in 0u64..20_000,
    ) {
        let part = unsafe { t_tree_share(share, weight, all) };
        prop_assert!(part <= share, "{part}");
    }

    /// An n-th of all weighs as much as an average one of n; nobody weighs nothing.
    #[test]
    fn a_share_is_a_weight(part in 0.0f64..=1.0, n in 0u64..256 * 10_000) {
        let share = (ALL as f64 * part) as u64;
        let weight = unsafe { t_tree_weight(share, n) };
        let naive = part * f64::from(ONE) * (n as f64 / 256.0).max(1.0);
        let naive = naive.clamp(1.0, f64::from(1u32 << 28));
        let off = 2.0 + naive * 1e-4 + (n as f64 / 256.0).max(1.0);
        prop_assert!((f64::from(weight) - naive).abs() <= off, "{weight}, not {naive}");
    }
}
