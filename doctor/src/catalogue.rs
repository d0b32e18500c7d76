// SPDX-License-Identifier: GPL-2.0-only
//! All findings, and which of them a host shows.

use crate::finding::{Finding, Found, Level};
use crate::scene::Scene;
use crate::text::plain;
use crate::{cgroups, kernel, kvm, machine, memory, rivals, vcpus, vmms};

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
        if evidence.is_empty() {
            return None;
        }
        let fixable = finding.fix.is_some_and(|fix| !(fix.writes)(scene).is_empty());
        Some(Found { finding, evidence, fixable })
    };
    findings().into_iter().filter(|finding| wanted(finding)).filter_map(found).collect()
}
