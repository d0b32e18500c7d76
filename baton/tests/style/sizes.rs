// SPDX-License-Identifier: GPL-2.0-only
//! Files and functions are small enough to be read at once.

use super::*;

const MOST_LINES: usize = 500;
const MOST_OF_A_FUNCTION: usize = 80;

/// Larger ones, and why.
const LARGE_FILES: [(&str, &str); 1] =
    [("scx_baton/bpf/policy.h", "the rules stand together, each a few lines of code")];
const LARGE_FUNCTIONS: [(&str, &str); 2] = [
    ("bench/src/measurements.rs: all()", "the list of all measurements"),
    ("metrics/src/text.rs: vm()", "the list of a VM's series"),
];

fn too_long(text: &str) -> Vec<String> {
    let lines = text.lines().count();
    if lines > MOST_LINES { vec![format!("{lines} lines")] } else { Vec::new() }
}

/// The name of the function that begins on this line.
fn function(line: &str) -> Option<&str> {
    const BEFORE: [&str; 7] =
        ["pub", "pub(super)", "pub(crate)", "unsafe", "const", "extern", "\"C\""];
    let (before, after) = line.trim_start().split_once("fn ")?;
    let name = after.split(['(', '<']).next()?;
    before.split_whitespace().all(|word| BEFORE.contains(&word)).then_some(name)
}

/// Functions of Rust, by name; a function ends where its first line's indentation does.
fn long_functions(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
    let mut long = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let length = lines[at..].iter().position(|line| *line == end).map_or(1, |n| n + 1);
        if length > MOST_OF_A_FUNCTION {
            long.push(format!("{name}()"));
        }
    }
    long
}

#[test]
fn files_and_functions_are_small() {
    let mut files = Vec::new();
    for end in [".rs", ".h", ".c"] {
        files.extend(in_all(end, |_, text| too_long(text)));
    }
    files.retain(|file| !LARGE_FILES.iter().any(|(known, _)| file.starts_with(known)));
    assert!(files.is_empty(), "over {MOST_LINES} lines: {files:#?}");
    let mut functions = in_all(".rs", |path, text| {
        let within = path.strip_prefix(root()).unwrap_or(path);
        let of_tests = within.components().any(|part| part.as_os_str() == "tests");
        if of_tests { Vec::new() } else { long_functions(text) }
    });
    functions.retain(|name| !LARGE_FUNCTIONS.iter().any(|(known, _)| name == known));
    assert!(functions.is_empty(), "over {MOST_OF_A_FUNCTION} lines: {functions:#?}");
}

#[test]
fn the_readme_is_short() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines <= 150, "{lines} lines");
}

#[test]
fn large_ones_are_found() {
    assert_eq!(too_long(&"x\n".repeat(501)), ["501 lines"]);
    let body = "    x;\n".repeat(79);
    let text = format!("fn short() {{\n    x;\n}}\npub fn long<T>() {{\n{body}}}\n");
    assert_eq!(long_functions(&text), ["long()"]);
}
