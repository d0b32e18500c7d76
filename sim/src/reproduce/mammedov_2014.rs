// SPDX-License-Identifier: GPL-2.0-only
//! I. Mammedov, faster look-up of memory slots, kernel mailing list, 2014 (Linux 3.19).

use anyhow::Result;

use super::{Row, row};
use crate::lookups;

const PAPER: &str = "Mammedov 2014";

/// Measured: the paper's walks and its search as they were, and the memslots crate beside them.
pub fn claims(_: usize) -> Result<Vec<Row>> {
    let [boot, small, large] =
        [(13, false), (13, true), (117, true)].map(|(n, random)| lookups::time(n, random));
    let hit = lookups::time(117, false);
    let cold = |slots: usize| {
        let cold = lookups::cold(slots);
        1.0 - cold.ours / cold.linear
    };
    let average =
        |slots: &str| format!("{slots} slots, boot: time saved by the search, on average");
    let greatest = |slots: &str| format!("{slots} slots, boot: time saved by the search, at most");
    let saved = |before: f64, after: f64| 1.0 - after / before;
    let note = |times: &lookups::Times| {
        let theirs = saved(times.linear_last, times.binary_last) * 100.0;
        format!("measured with the memslots crate; the paper's own search saves {theirs:.0} % here")
    };
    let search = |slots: &str| format!("{slots} slots, randomized: time saved by the search");
    Ok(vec![
        row(
            PAPER,
            "boot",
            "boot: time saved by the last-used slot",
            saved(46.0, 28.0),
            saved(boot.linear, boot.linear_last),
            "measured, with the paper's walk",
        ),
        row(
            PAPER,
            "table",
            &search("117"),
            saved(460.0, 180.0),
            saved(large.linear_last, large.ours),
            &note(&large),
        ),
        row(
            PAPER,
            "table",
            &search("13"),
            saved(30.0, 40.0),
            saved(small.linear_last, small.ours),
            &note(&small),
        ),
        row(
            PAPER,
            "boot average",
            &average("13"),
            saved(28.0, 30.0),
            saved(boot.linear_last, boot.ours),
            &note(&boot),
        ),
        row(
            PAPER,
            "boot average",
            &average("117"),
            saved(30.0, 35.0),
            saved(hit.linear_last, hit.ours),
            &note(&hit),
        ),
        row(
            PAPER,
            "boot greatest",
            &greatest("13"),
            saved(1450.0, 1400.0),
            cold(13),
            "the slot that a walk finds last, with cold caches",
        ),
        row(
            PAPER,
            "boot greatest",
            &greatest("117"),
            saved(13000.0, 2000.0),
            cold(117),
            "the slot that a walk finds last, with cold caches",
        ),
        // An exit of 1,200 cycles: 480 ns on the machine xeon-2014.
        row(
            PAPER,
            "exit",
            "117 slots, boot: a look-up as share of an exit",
            35.0 / 1200.0,
            hit.ours / 480.0,
            "measured on a newer CPU than the paper's",
        )
        .share(),
    ])
}
