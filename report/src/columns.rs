// SPDX-License-Identifier: GPL-2.0-only
//! Tables of text.

/// The first column to the left, the others to the right, but for the last one if it is `prose`.
/// Columns without any content are left out. Each row ends with a line break.
pub fn aligned(rows: &[Vec<String>], prose: bool) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0))
        // A width of format!() has 16 bits.
        .map(|width| width.min(u16::MAX.into()))
        .collect();
    let mut out = String::new();
    for row in rows {
        let shown = (0..columns).filter(|column| widths[*column] > 0).map(|column| {
            let (cell, width) = (cell(row, column), widths[column]);
            match column {
                0 => format!("{cell:<width$}"),
                _ if prose && column == columns - 1 => cell,
                _ => format!("{cell:>width$}"),
            }
        });
        out += shown.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_to_the_left_figures_to_the_right() {
        let rows = [["a", "1", "", "x"], ["bcd", "×100", "", "yz"]]
            .map(|row| row.map(String::from).to_vec());
        assert_eq!(aligned(&rows, false), "a       1   x\nbcd  ×100  yz\n");
        assert_eq!(aligned(&rows, true), "a       1  x\nbcd  ×100  yz\n");
        assert_eq!(aligned(&[], true), "");
        let long = "x".repeat(70_000);
        assert_eq!(aligned(&[vec![long.clone()]], false), long + "\n");
    }
}
