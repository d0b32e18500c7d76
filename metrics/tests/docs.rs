// SPDX-License-Identifier: GPL-2.0-only
//! docs/metrics.md has each metric, and no other.

use baton_metrics::names;
use std::fs;
use std::path::Path;

#[test]
fn the_table_has_each_metric_in_order() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = fs::read_to_string(file).expect("docs/metrics.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `baton_"));
    let told = rows.filter_map(|row| row.split_once('`')).map(|(name, _)| format!("baton_{name}"));
    assert_eq!(told.collect::<Vec<_>>(), names());
}
