// SPDX-License-Identifier: GPL-2.0-only
//! Lines of prose fit.

use super::*;

/// Columns of a line of prose. Tables and code blocks are as wide as they must be.
const WIDTH: usize = 100;

fn wide_markdown(text: &str) -> Vec<String> {
    let mut code = false;
    let mut wide = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        code ^= line.trim_start().starts_with("```");
        let free = code || line.starts_with('|') || line.contains("](http");
        if !free && line.chars().count() > WIDTH {
            wide.push(format!("line {number}"));
        }
    }
    wide
}

/// Of comments; what is behind code on its line is not looked at. Tabs are eight wide.
fn wide_comments(text: &str) -> Vec<String> {
    let comment = |line: &str| ["//", "/*", "* "].iter().any(|mark| line.starts_with(mark));
    let width = |line: &str| line.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum::<usize>();
    let wide = |line: &str| comment(line.trim_start()) && width(line) > WIDTH;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| wide(line));
    lines.map(|(number, _)| format!("line {number}")).collect()
}

#[test]
fn lines_fit() {
    let mut wide = in_all(".md", |_, text| wide_markdown(text));
    for end in [".rs", ".h", ".c"] {
        wide.extend(in_all(end, |_, text| wide_comments(text)));
    }
    assert!(wide.is_empty(), "over {WIDTH} columns: {wide:#?}");
}

#[test]
fn wide_lines_are_found() {
    let long = "x ".repeat(60);
    assert_eq!(wide_markdown(&format!("short\n{long}\n| {long}\n```\n{long}\n```\n")), ["line 2"]);
    assert_eq!(wide_comments(&format!("// short\n  // {long}\nlet x = {long};\n")), ["line 2"]);
    assert_eq!(wide_comments(&format!("\t\t/* {}", "x ".repeat(45))), ["line 1"]);
}
