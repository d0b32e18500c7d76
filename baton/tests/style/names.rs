// SPDX-License-Identifier: GPL-2.0-only
//! What is named exists: files, functions, tests, make's targets, links.

use std::collections::BTreeSet;

use super::*;

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The names of the scheduler's files in the text, such as lend.bpf.h.
fn bpf_files(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(is_word(c) || c == '.'))
        .filter(|word| word.ends_with(".bpf.h") || word.ends_with(".bpf.c"))
        .filter(|word| !word.starts_with('.'))
}

/// What stands between backticks, outside of code blocks.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Tests that a document names: their names are sentences.
fn tests_named(text: &str) -> Vec<&str> {
    let sentence = |word: &&str| word.matches('_').count() >= 3 && word.chars().all(is_word);
    let lower = |word: &&str| !word.chars().any(|c| c.is_ascii_uppercase());
    // Series of metrics have such names, too, and functions of the kernel.
    const OTHERS: [&str; 5] = ["baton_", "kubevirt_", "kvm_", "svm_", "cpu_"];
    let series = |word: &&str| OTHERS.iter().any(|start| word.starts_with(start));
    text.split(|c: char| !is_word(c))
        .filter(sentence)
        .filter(lower)
        .filter(|word| !series(word))
        .collect()
}

/// Targets of `make` that a document names.
fn targets_named(text: &str) -> Vec<&str> {
    let target = |c: char| c.is_ascii_lowercase() || c == '-';
    let named = quoted(text).into_iter().filter_map(|quoted| quoted.strip_prefix("make "));
    named
        .filter_map(|rest| rest.split(|c| !target(c)).next())
        .filter(|t| t.starts_with(char::is_alphabetic))
        .collect()
}

/// Relative links that lead nowhere.
fn dead_links(path: &Path, text: &str) -> Vec<String> {
    let here = path.parent().unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = links.filter(|link| !link.contains("://") && !link.starts_with('#'));
    let dead = files.filter(|link| !here.join(link.split('#').next().unwrap_or("")).exists());
    dead.map(|link| format!("no {link}")).collect()
}

#[test]
fn files_of_the_scheduler_exist() {
    let bpf = root().join("scx_baton/bpf");
    let mut sources = all(".bpf.h");
    sources.extend(["main.bpf.c", "kvm.bpf.c", "policy.h"].map(|name| bpf.join(name)));
    sources.extend(["docs/ARCHITECTURE.md", "docs/design.md"].map(|f| root().join(f)));
    sources.extend(all(".md").into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("policy"))
    }));
    let mut missing = BTreeSet::new();
    for source in sources {
        let text = read(&source);
        for name in bpf_files(&text) {
            // sched_ext's own headers are not ours; a user's copy has this name.
            let foreign = ["common.bpf.h", "baton.bpf.c", "long.bpf.c"].contains(&name);
            if !foreign && !bpf.join(name).exists() {
                missing.insert(format!("{name}, in {}", source.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert_eq!(bpf_files("see lend.bpf.h, not .bpf.h").collect::<Vec<_>>(), ["lend.bpf.h"]);
}

#[test]
fn functions_that_the_architecture_names_exist() {
    let text = read(&root().join("docs/ARCHITECTURE.md"));
    let mut sources = String::new();
    for path in all(".bpf.h").into_iter().chain(all(".bpf.c")).chain(all("policy.h")) {
        sources += &read(&path);
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

#[test]
fn tests_and_targets_that_documents_name_exist() {
    let mut sources = String::new();
    all(".rs").iter().for_each(|path| sources += &read(path));
    let makefile = read(&root().join("Makefile"));
    let missing = in_all(".md", |path, text| {
        let tests = tests_named(text).into_iter();
        let tests = tests.filter(|name| !sources.contains(name));
        let targets = targets_named(text).into_iter();
        let old = path.ends_with("CHANGELOG.md");
        let targets = targets.filter(|name| !old && !makefile.contains(&format!("\n{name}:")));
        tests.chain(targets).map(String::from).collect()
    });
    assert!(missing.is_empty(), "{missing:#?}");
    assert_eq!(
        tests_named("see `a_boost_for_an_ipi_ends` and kvm_vcpu_on_spin"),
        ["a_boost_for_an_ipi_ends"]
    );
    assert_eq!(targets_named("`make test-x JSON=f`, make no; `makes`"), ["test-x"]);
}

#[test]
fn links_lead_somewhere() {
    let dead = in_all(".md", dead_links);
    assert!(dead.is_empty(), "{dead:#?}");
    let text = "[a](nowhere.md#x) [b](https://x.y/z) [c](#here) [d](Cargo.toml)";
    assert_eq!(dead_links(&root().join("x.md"), text), ["no nowhere.md#x"]);
}

/// The crates of ours that a manifest depends on, without what its tests do.
fn depends_on(manifest: &str) -> BTreeSet<String> {
    let part = manifest.split("\n[dependencies]").nth(1).unwrap_or("");
    let part = part.split("\n[").next().unwrap_or("");
    let ours = part.lines().filter(|line| line.contains("path = "));
    let names = ours.filter_map(|line| line.split(' ').next());
    names.map(|name| name.trim_start_matches("baton-").to_string()).collect()
}

#[test]
fn the_architecture_has_every_crate_and_what_it_depends_on() {
    let text = read(&root().join("docs/ARCHITECTURE.md"));
    let row = |name: &str| {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let last = row?.trim_end_matches(" |").rsplit(" | ").next()?;
        Some(last.split('`').skip(1).step_by(2).map(String::from).collect::<BTreeSet<_>>())
    };
    let mut wrong = Vec::new();
    for manifest in all("Cargo.toml") {
        let within = manifest.strip_prefix(root()).unwrap().parent().unwrap();
        let name = within.display().to_string();
        // The workspace itself, and folders of a crate.
        if name.is_empty() || within.components().count() > 1 {
            continue;
        }
        let depends = depends_on(&read(&manifest));
        if row(&name).as_ref() != Some(&depends) {
            wrong.push(format!("{name}: {:?}, not {depends:?}", row(&name)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let manifest = "[package]\n\n[dependencies]\nbaton-a = { path = \"../a\" }\nb = \"1\"\n\n[x]\n";
    assert_eq!(depends_on(manifest), ["a".to_string()].into());
}
