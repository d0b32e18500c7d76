// SPDX-License-Identifier: GPL-2.0-only
//! What doctor says.

use baton_hostinfo::Unreadable;
use serde_json::{Value, json};

use crate::catalogue::{examine, findings};
use crate::finding::{Finding, Found, Level};
use crate::fix;
use crate::scene::Scene;
use crate::text::{and, count, plain};

/// All that was found on a host.
#[derive(Debug)]
pub struct Report {
    pub found: Vec<Found>,
    pub unreadable: Vec<Unreadable>,
    release: String,
    cpus: u64,
    vms: u64,
    vcpus: u64,
    baton_runs: bool,
    fixed: bool,
    polling_changed: bool,
    by_root: bool,
}

/// Lines of evidence and of what could not be read.
const MOST: usize = 5;

impl Report {
    pub fn of(scene: &Scene) -> Report {
        let found = examine(scene);
        Report {
            found,
            release: plain(if scene.release.is_empty() { "(unknown)" } else { &scene.release }),
            cpus: scene.online.len() as u64,
            vms: scene.vms.len() as u64,
            vcpus: scene.vms.iter().map(|vm| vm.vcpus.len() as u64).sum(),
            baton_runs: scene.baton_runs(),
            fixed: fix::is_applied(&scene.host),
            polling_changed: scene.host.exists(baton_haltpoll::STATE),
            by_root: by_root(scene),
            unreadable: scene.unreadable(),
        }
    }

    /// 2: there are blockers; 1: something costs; 74: nothing that is worse, but not all could be
    /// read; 0.
    pub fn status(&self) -> i32 {
        match self.found.iter().map(|found| found.finding.level).min() {
            Some(Level::Blocker) => 2,
            Some(Level::Cost) => 1,
            _ if !self.unreadable.is_empty() => 74,
            _ => 0,
        }
    }

    fn head(&self) -> String {
        let mut words = vec![format!("Linux {}", self.release)];
        if self.cpus > 0 {
            words.push(count(self.cpus, "CPU"));
        }
        match self.vms {
            0 => words.push("no VMs".into()),
            vms => words.extend([count(vms, "VM"), count(self.vcpus, "vCPU")]),
        }
        words.join(", ")
    }

    /// Lines end before `width` columns, where there is one.
    pub fn text(&self, width: Option<usize>) -> String {
        let mut out = Lines { width, text: String::new() };
        match self.found.is_empty() {
            true => {
                let all = findings().len();
                out.line(0, &format!("{}: nothing found ({all} checks)", self.head()));
            }
            false => out.line(0, &self.head()),
        }
        if self.baton_runs {
            out.line(
                0,
                match self.polling_changed {
                    true => "scx_baton runs, and is in charge of KVM's polling at HLT",
                    false => "scx_baton runs; KVM's parameters are as it found them",
                },
            );
        }
        if self.fixed {
            out.line(0, "values that --fix has changed are in force; --restore puts them back");
        }
        for found in &self.found {
            out.text.push('\n');
            out.found(found);
        }
        if !self.found.is_empty() {
            out.text.push('\n');
            out.line(0, &self.summary());
        }
        self.not_read(&mut out);
        out.text
    }

    fn summary(&self) -> String {
        let of = |level| self.found.iter().filter(move |found| found.finding.level == level);
        let levels = [Level::Blocker, Level::Cost, Level::Note];
        let counts = levels.map(|level| (level, of(level).count() as u64));
        let counts = counts.into_iter().filter(|(_, number)| *number > 0);
        let counts: Vec<String> = counts.map(|(level, n)| count(n, level.word())).collect();
        let mut text = format!("{}.", and(&counts));
        if of(Level::Blocker).next().is_some() {
            text += " scx_baton does not start here.";
        }
        if let Some(first) = self.found.first() {
            text += &format!(" More: baton doctor --explain {}", first.finding.id);
        }
        let fixable = self.found.iter().filter(|found| found.fixable);
        let fixable: Vec<String> = fixable.map(|found| found.finding.id.to_owned()).collect();
        if !fixable.is_empty() {
            text += &format!("; --fix ID mends {}, --restore takes it back", and(&fixable));
        }
        text
    }

    fn not_read(&self, out: &mut Lines) {
        if self.unreadable.is_empty() {
            return;
        }
        out.text.push('\n');
        out.line(0, "Not read:");
        for Unreadable { path, why } in self.unreadable.iter().take(MOST) {
            out.indented(2, &plain(&format!("{}: {why}", path.display())));
        }
        if self.unreadable.len() > MOST {
            out.indented(2, &format!("and {} more", self.unreadable.len() - MOST));
        }
        let denied = |unreadable: &Unreadable| {
            ["ermission denied", "not permitted"].iter().any(|words| unreadable.why.contains(words))
        };
        if !self.by_root && self.unreadable.iter().any(denied) {
            out.line(0, "Run it as root to see all: sudo baton doctor");
        }
    }

    pub fn json(&self) -> Value {
        let found = self.found.iter().map(|found| {
            json!({
                "id": found.finding.id,
                "level": found.finding.level.word(),
                "title": found.finding.title,
                "evidence": found.evidence,
                "cost": found.finding.cost,
                "mend": found.finding.mend,
            })
        });
        let unreadable = self.unreadable.iter().map(
            |unreadable| json!({"path": unreadable.path.to_string_lossy(), "why": unreadable.why}),
        );
        json!({
            "version": 1,
            "kernel": self.release,
            "findings": found.collect::<Vec<_>>(),
            "unreadable": unreadable.collect::<Vec<_>>(),
        })
    }
}

/// Root is refused, too, in a container, or when the kernel is locked down.
fn by_root(scene: &Scene) -> bool {
    let status = scene.read("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    // Real, effective, saved, of the file system.
    uids.split_whitespace().nth(1) == Some("0")
}

/// All ids.
pub fn list() -> String {
    let line = |finding: &Finding| {
        format!("{:<13}{:<9}{}\n", finding.id, finding.level.word(), finding.title)
    };
    findings().into_iter().map(line).collect()
}

pub fn explain(finding: &Finding, width: Option<usize>) -> String {
    let mut out = Lines { width, text: String::new() };
    out.line(0, &format!("{} ({}): {}", finding.id, finding.level.word(), finding.title));
    out.text.push('\n');
    out.line(0, finding.explain);
    out.text.push('\n');
    out.line(0, &format!("Cost: {}", finding.cost));
    out.line(0, &format!("Mend: {}", finding.mend));
    out.line(
        0,
        &match finding.fix {
            Some(_) => {
                format!("'baton doctor --fix {}' does that, --restore takes it back", finding.id)
            }
            None => "--fix cannot do that: it is no write to a file of the kernel".into(),
        },
    );
    out.text
}

struct Lines {
    width: Option<usize>,
    text: String,
}

impl Lines {
    fn found(&mut self, found: &Found) {
        const INDENT: usize = 9;
        let Finding { id, level, title, cost, mend, .. } = found.finding;
        self.line(INDENT, &format!("{:<9}{id}: {title}", level.word()));
        for line in found.evidence.iter().take(MOST) {
            self.indented(INDENT, line);
        }
        if found.evidence.len() > MOST {
            self.indented(INDENT, &format!("and {} more", found.evidence.len() - MOST));
        }
        self.indented(INDENT, &format!("cost: {cost}"));
        self.indented(INDENT, &format!("mend: {mend}"));
    }

    /// A whole paragraph at one depth.
    fn indented(&mut self, indent: usize, text: &str) {
        self.line(indent, &format!("{:indent$}{text}", ""));
    }

    /// A paragraph; its second line and those after it are indented.
    fn line(&mut self, indent: usize, text: &str) {
        let width = self.width.map_or(usize::MAX, |width| width.max(indent + 20));
        let lead = text.len() - text.trim_start().len();
        self.text.push_str(&text[..lead]);
        let (mut column, mut first) = (lead, true);
        for word in text[lead..].split_inclusive(' ') {
            let letters = word.trim_end().chars().count();
            if !first && column + letters > width {
                self.text.truncate(self.text.trim_end_matches(' ').len());
                self.text.push('\n');
                self.text.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            }
            self.text.push_str(word);
            column += word.chars().count();
            first = false;
        }
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_before_the_width_and_words_stay_whole() {
        let all = findings();
        for finding in all.iter().copied() {
            let found = Found { finding, evidence: vec!["x y".repeat(60)], fixable: false };
            let mut out = Lines { width: Some(80), text: String::new() };
            out.found(&found);
            let long = out.text.lines().filter(|line| line.chars().count() > 80);
            for line in long {
                assert!(!line.trim().contains(' '), "{line}");
            }
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&out.text).contains(&words(finding.mend)), "{}", out.text);
            assert!(out.text.lines().all(|line| line == line.trim_end()), "{}", out.text);
        }
    }
}
