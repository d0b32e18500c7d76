// SPDX-License-Identifier: GPL-2.0-only
//! What one has to know to read the figures, and to check them.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::View;
use super::parts::{clean, count, short};
use crate::plan::{BLOCK, Measure, Who};

/// Findings, and blocks of the order, that are shown.
const MOST: usize = 60;

pub fn host(view: &View) -> Markup {
    let host = &view.bundle.host;
    let samples = view.bundle.slots.iter().flat_map(|slot| &slot.samples);
    let vms: BTreeSet<u32> = samples.flat_map(|s| s.vms.iter().map(|vm| vm.0)).collect();
    let left = host.findings.len().saturating_sub(MOST);
    html! {
        section {
            h2 { "The host" }
            dl {
                dt { "Kernel" } dd { "Linux " (or_unknown(&host.kernel)) }
                dt { "CPU" } dd { (or_unknown(&host.cpu)) }
                dt { "CPUs" } dd { (host.cpus) }
                dt { "VMs" } dd { (vms.len()) " seen" }
                dt { "Baton" } dd { (or_unknown(&host.baton)) }
                dt { "Findings" }
                dd {
                    @if host.findings.is_empty() { "none of 'baton doctor'" }
                    @for (place, finding) in host.findings.iter().take(MOST).enumerate() {
                        @if place > 0 { ", " }
                        code { (clean(finding)) }
                    }
                    @if left > 0 { " and " (left) " more" }
                    @if !host.findings.is_empty() { ": 'baton doctor' explains them" }
                }
            }
        }
    }
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() { "unknown".into() } else { clean(text) }
}

pub fn plan(view: &View) -> Markup {
    let plan = view.plan;
    let letter = |who: &Who| match (who, plan.control) {
        (Who::Kernel, _) => "K",
        (Who::Baton, false) => "B",
        (Who::Baton, true) => "k",
    };
    let block = |block: &[Who]| block.iter().map(letter).collect::<Vec<_>>().join(" ");
    let blocks = plan.order.chunks(BLOCK);
    let left = blocks.len().saturating_sub(MOST);
    html! {
        section {
            h2 { "The plan, fixed before it began" }
            dl {
                dt { "Slots" }
                dd {
                    (count(plan.order.len(), "slot")) " of " (short(plan.slot_s)) " s in blocks "
                    "of " (BLOCK)
                }
                dt { "Order" }
                dd {
                    @for of_block in blocks.take(MOST) { span.block { (block(of_block)) } " " }
                    @if left > 0 { "and " (left) " more blocks" }
                }
                dt { "Seed" } dd { (plan.seed) ": the order follows from it" }
                dt { "Measure" } dd { (clean(&plan.measure.words())) }
                @if plan.control {
                    dt { "Control" } dd { "the kernel's scheduler in all slots: what noise gives" }
                }
            }
        }
    }
}

/// `None`: the trial was killed.
pub fn seal(seal: Option<&str>) -> Markup {
    html! {
        section {
            h2 { "How to check it" }
            p {
                "This page is computed from a bundle, a file that has each sample. "
                code { "baton trial verify FILE" }
                " computes the verdict from the samples again and tells whether the file is as a "
                "trial wrote it; "
                code { "baton trial verify FILE --report PAGE" }
                " writes this page again."
            }
            @match seal {
                Some(seal) => {
                    p {
                        "The hash of the bundle, which the trial printed at its end and "
                        code { "verify" } " prints again:"
                    }
                    p { code { (seal) } }
                    p.note {
                        "Whoever edits a bundle can write all its hashes again, but this one is "
                        "another one then."
                    }
                },
                None => p {
                    "It has no hash to compare: the trial was killed before its end. "
                    code { "verify" } " tells whether the slots that it has are as they were "
                    "written."
                },
            }
        }
    }
}

pub fn unsaid(view: &View) -> Markup {
    html! {
        section {
            h2 { "What it does not say" }
            ul {
                @if view.plan.measure == Measure::Ready {
                    li {
                        "Waiting is not work: a guest that gets more done may wait longer, and one "
                        "that waits less need not get more done. " code { "--probe" }
                        " measures work."
                    }
                }
                @if matches!(view.plan.measure, Measure::Work { .. }) {
                    li { "Synthetic VMs are not yours: what they gain, others need not." }
                }
                li { "It is about this host, its VMs and these minutes, not about others." }
                li {
                    "Baton's authors have no figures from KVM hardware to compare it with: theirs "
                    "are from an emulated host."
                }
                li {
                    "An interval of 99 % misses the true ratio in one of a hundred trials."
                }
            }
        }
    }
}
