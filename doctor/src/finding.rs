// SPDX-License-Identifier: GPL-2.0-only
//! What doctor knows to look for.

use crate::fix::Fix;
use crate::scene::Scene;
use crate::text::plain;
use crate::{cgroups, kernel, kvm, machine, memory, rivals, vcpus, vmms};

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// scx_baton does not start, or would harm the host.
    Blocker,
    /// VMs get less, with Baton or without it.
    Cost,
    /// Worth knowing when figures are read.
    Note,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Blocker => "blocker",
            Level::Cost => "cost",
            Level::Note => "note",
        }
    }
}

/// One thing to look for.
#[derive(Debug)]
pub struct Finding {
    pub id: &'static str,
    pub level: Level,
    pub title: &'static str,
    /// A sentence; what it costs where that was measured, with the file that says so.
    pub cost: &'static str,
    /// What mends it: a command where there is one.
    pub mend: &'static str,
    /// What it is, and how it is seen.
    pub explain: &'static str,
    /// A line of evidence for each thing seen; none: not found.
    pub look: fn(&Scene) -> Vec<String>,
    /// For what a few writes to files of the kernel mend.
    pub fix: Option<Fix>,
}

/// A finding that a host shows.
#[derive(Clone, Debug)]
pub struct Found {
    pub finding: &'static Finding,
    pub evidence: Vec<String>,
}

/// All, blockers first, then what costs, then notes.
pub fn findings() -> Vec<&'static Finding> {
    let mut all: Vec<&Finding> = [
        kernel::FINDINGS,
        rivals::FINDINGS,
        cgroups::FINDINGS,
        vcpus::FINDINGS,
        vmms::FINDINGS,
        kvm::FINDINGS,
        machine::FINDINGS,
        memory::FINDINGS,
    ]
    .into_iter()
    .flatten()
    .collect();
    all.sort_by_key(|finding| finding.level);
    all
}

pub fn find(id: &str) -> Option<&'static Finding> {
    findings().into_iter().find(|finding| finding.id == id)
}

/// What is found, in the order of [`findings`].
pub fn examine(scene: &Scene) -> Vec<Found> {
    look(scene, |_| true)
}

/// What keeps scx_baton from starting here; nothing else is looked at.
pub fn blockers(scene: &Scene) -> Vec<Found> {
    look(scene, |finding| finding.level == Level::Blocker)
}

fn look(scene: &Scene, wanted: impl Fn(&Finding) -> bool) -> Vec<Found> {
    let found = |finding: &'static Finding| {
        let evidence: Vec<String> = (finding.look)(scene).iter().map(|line| plain(line)).collect();
        (!evidence.is_empty()).then_some(Found { finding, evidence })
    };
    findings().into_iter().filter(|finding| wanted(finding)).filter_map(found).collect()
}
