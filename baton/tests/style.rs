// SPDX-License-Identifier: GPL-2.0-only
//! What prose promises: lines that fit, and names of files and functions that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of a line of prose. Tables and code blocks are as wide as they must be.
const WIDTH: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files of the repository below `dir` that end so.
fn files(dir: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && !name.starts_with('.') && name != "target" {
            files(&entry, end, found);
        } else if name.ends_with(end) {
            found.push(entry);
        }
    }
}

fn all(end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), end, &mut found);
    assert!(!found.is_empty(), "no *{end}");
    found
}

#[test]
fn prose_fits_into_its_width() {
    let mut wide = Vec::new();
    for path in all(".md") {
        let text = fs::read_to_string(&path).unwrap();
        let mut code = false;
        for (number, line) in text.lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            let free = code || line.starts_with('|') || line.contains("](http");
            if !free && line.chars().count() > WIDTH {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "over {WIDTH} columns: {wide:#?}");
}

/// The names of the scheduler's files in the text, such as policy.h and lend.bpf.h.
fn bpf_files(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)))
        .filter(|word| word.ends_with(".bpf.h") || word.ends_with(".bpf.c"))
        .filter(|word| !word.starts_with('.'))
}

#[test]
fn files_of_the_scheduler_that_are_named_exist() {
    let bpf = root().join("scx_baton/bpf");
    let mut sources = all(".bpf.h");
    sources.extend([bpf.join("main.bpf.c"), bpf.join("kvm.bpf.c"), bpf.join("policy.h")]);
    sources.extend(
        ["docs/ARCHITECTURE.md", "docs/design.md", "docs/policy.md"].map(|f| root().join(f)),
    );
    let mut missing = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        for name in bpf_files(&text) {
            // sched_ext's own headers are not ours; a user's copy has this name.
            let foreign = ["common.bpf.h", "baton.bpf.c", "long.bpf.c"].contains(&name);
            if !foreign && !bpf.join(name).exists() {
                missing.insert(format!("{name}, in {}", source.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn functions_that_the_architecture_names_exist() {
    let text = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let mut sources = String::new();
    for path in all(".bpf.h").into_iter().chain(all(".bpf.c")).chain(all("policy.h")) {
        sources += &fs::read_to_string(path).unwrap();
    }
    let named: BTreeSet<&str> =
        text.split('`').filter_map(|word| word.strip_suffix("()")).collect();
    assert!(named.len() > 20, "{named:?}");
    let missing: Vec<_> = named
        .iter()
        // KVM's own.
        .filter(|name| !["kvm_vcpu_on_spin", "yield_to"].contains(name))
        .filter(|name| !sources.contains(&format!("{name}(")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
