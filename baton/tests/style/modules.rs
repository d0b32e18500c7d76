// SPDX-License-Identifier: GPL-2.0-only
//! The files of a crate do not use each other in a circle. A folder counts as one file.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// What a file takes from other files of its crate: `use crate::a`, `crate::b::c()`. Tests and
/// comments may name what they like.
fn taken(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = code.collect::<Vec<_>>().join("\n");
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut taken = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            // One list in another one is of one module.
            Some(list) => {
                let mut depth = 0;
                for part in list.split_inclusive(['{', '}', ',', ';']) {
                    let name: String = word(part.trim_start());
                    if depth == 0 && !name.is_empty() {
                        taken.insert(name);
                    }
                    depth += i32::from(part.ends_with('{')) - i32::from(part.ends_with('}'));
                    if depth < 0 || part.ends_with(';') {
                        break;
                    }
                }
            }
            None => drop(taken.insert(word(rest))),
        }
    }
    taken
}

/// A way from a module back to it, if there is one.
fn circle(uses: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn walk(
        at: &str,
        uses: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if let Some(place) = way.iter().position(|module| module == at) {
            way.drain(..place);
            return true;
        }
        if !done.insert(at.to_string()) {
            return false;
        }
        way.push(at.to_string());
        let next = uses.get(at).into_iter().flatten();
        if next.filter(|next| uses.contains_key(*next)).any(|next| walk(next, uses, way, done)) {
            return true;
        }
        way.pop();
        false
    }
    let mut done = BTreeSet::new();
    uses.keys().find_map(|module| {
        let mut way = Vec::new();
        walk(module, uses, &mut way, &mut done).then_some(way)
    })
}

#[test]
fn no_file_uses_another_in_a_circle() {
    let mut crates = all("Cargo.toml");
    crates.retain(|path| path.with_file_name("src").exists());
    assert!(crates.len() > 10);
    let mut circles = Vec::new();
    for manifest in crates {
        let src = manifest.with_file_name("src");
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut sources = Vec::new();
        files(&src, ".rs", &mut sources);
        for path in sources {
            let within = path.strip_prefix(&src).unwrap();
            let module = within.components().next().unwrap().as_os_str().to_string_lossy();
            let module = module.trim_end_matches(".rs").to_string();
            // Its own crate, or only told which modules there are.
            if ["bin", "lib", "main"].contains(&module.as_str()) {
                continue;
            }
            let mut taken = taken(&read(&path));
            taken.remove(&module);
            uses.entry(module).or_default().extend(taken);
        }
        circles.extend(circle(&uses).map(|way| format!("{}: {way:?}", src.display())));
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn circles_are_found() {
    let text = "use crate::{a::{B, C}, d};\nuse crate::e::F;\nfn x() { crate::g::h() }\n";
    assert_eq!(taken(text), ["a", "d", "e", "g"].map(String::from).into());
    let uses = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let uses = uses.map(|(from, to)| (from.to_string(), [to.to_string()].into()));
    assert_eq!(circle(&uses.into()), Some(vec!["b".to_string(), "c".to_string()]));
    assert_eq!(circle(&BTreeMap::new()), None);
}
