// SPDX-License-Identifier: GPL-2.0-only
//! The rules of the policy that can be left out, each by one edit of its source.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub name: String,
    /// What it does, as a row of a table.
    pub says: String,
    pub file: String,
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    rule: Vec<Rule>,
}

pub fn rules() -> Result<Vec<Rule>> {
    let all: Rules = toml::from_str(include_str!("rules.toml")).context("rules.toml")?;
    Ok(all.rule)
}

impl Rule {
    /// The text of its file without the rule.
    ///
    /// Errors: what is to be edited is not there exactly once, as the policy has changed.
    pub fn without(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.from).count();
        ensure!(
            found == 1,
            "the rule \"{}\" is {found} times in {}: say in rules.toml what is to be edited there",
            self.name,
            self.file
        );
        Ok(text.replace(&self.from, &self.to))
    }
}
