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
    let of = |table, claim: &str, theirs: f64, ours: f64, note: &str| {
        row(PAPER, table, claim, theirs, ours, note)
    };
    let walk = "measured, with the paper's walk";
    let last = "the slot that a walk finds last, with cold caches";
    let first = saved(boot.linear, boot.linear_last);
    let [of_large, of_small] = [&large, &small].map(|t| saved(t.linear_last, t.ours));
    let [of_hit, of_boot] = [&hit, &boot].map(|t| saved(t.linear_last, t.ours));
    // An exit of 1,200 cycles: 480 ns on the machine xeon-2014.
    let (theirs, ours) = (35.0 / 1200.0, hit.ours / 480.0);
    let newer = "measured on a newer CPU than the paper's";
    let exit = "117 slots, boot: a look-up as share of an exit";
    Ok(vec![
        of("boot", "boot: time saved by the last-used slot", saved(46.0, 28.0), first, walk),
        of("table", &search("117"), saved(460.0, 180.0), of_large, &note(&large)),
        of("table", &search("13"), saved(30.0, 40.0), of_small, &note(&small)),
        of("boot average", &average("13"), saved(28.0, 30.0), of_boot, &note(&boot)),
        of("boot average", &average("117"), saved(30.0, 35.0), of_hit, &note(&hit)),
        of("boot greatest", &greatest("13"), saved(1450.0, 1400.0), cold(13), last),
        of("boot greatest", &greatest("117"), saved(13000.0, 2000.0), cold(117), last),
        of("exit", exit, theirs, ours, newer).share(),
    ])
}
