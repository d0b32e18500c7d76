// SPDX-License-Identifier: GPL-2.0-only
//! What the project promises of its own text and source, file by file. Each rule is a function of a
//! text, with an example that breaks it.

mod modules;
mod names;
mod prose;
mod sizes;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files of the repository below `dir` that end so.
fn files(dir: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        // Cargo marks what it builds into, whatever its name.
        let ours = || !entry.is_symlink() && !entry.join("CACHEDIR.TAG").exists();
        if entry.is_dir() && !name.starts_with('.') && ours() {
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

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a rule finds in all files that end so, each with its file in front.
fn in_all(end: &str, rule: impl Fn(&Path, &str) -> Vec<String>) -> Vec<String> {
    let found = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        let broken = rule(&path, &read(&path));
        broken.into_iter().map(move |what| format!("{name}: {what}"))
    };
    all(end).into_iter().flat_map(found).collect()
}
