// SPDX-License-Identifier: GPL-2.0-only
//! docs/doctor.md has each finding as it is.

use std::fs;
use std::path::Path;

use baton_doctor::findings;

#[test]
fn the_table_has_each_finding_in_order() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/doctor.md");
    let text = fs::read_to_string(&file).expect("docs/doctor.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let is_row = |line: &&str| line.starts_with("| `") && !line.starts_with("| `--");
    let rows: Vec<_> = text.lines().filter(is_row).map(cells).collect();
    let told = rows.iter().map(|row| (row[0].clone(), row[1].clone(), row[4].clone()));
    let told: Vec<_> = told.collect();
    let row = |finding: &baton_doctor::Finding| {
        let fix = if finding.fix.is_some() { "yes" } else { "" };
        (format!("`{}`", finding.id), finding.level.word().to_owned(), fix.to_owned())
    };
    let all: Vec<_> = findings().into_iter().map(row).collect();
    assert_eq!(told, all);
    assert!(rows.iter().all(|row| row.len() == 5 && !row[2].is_empty() && !row[3].is_empty()));
    assert!(text.lines().all(|line| line.starts_with('|') || line.chars().count() <= 100));
}
