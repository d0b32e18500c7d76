// SPDX-License-Identifier: GPL-2.0-only
//! The bench that leaves out each rule of the policy knows the policy as it is.

#[path = "../../benches/rules/edits.rs"]
mod edits;

use std::collections::BTreeSet;
use std::fs;

use edits::rules;

#[test]
fn each_rule_can_be_left_out() {
    let mut names = BTreeSet::new();
    for rule in rules().expect("rules.toml") {
        let path = format!("{}/../scx_baton/bpf/{}", env!("CARGO_MANIFEST_DIR"), rule.file);
        let text = fs::read_to_string(&path).expect(&path);
        let without = rule.without(&text).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(without != text && !rule.says.is_empty(), "{}", rule.name);
        assert!(names.insert(rule.name.clone()), "{} is there twice", rule.name);
    }
    assert!(names.len() > 50, "{}", names.len());
}
