// SPDX-License-Identifier: GPL-2.0-only
//! What does not count, and why: nothing is left out without a word.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::View;
use super::parts::{count, short};
use crate::bundle::Slot;
use crate::plan::{Measure, Who};
use crate::verdict::{FLOOR_READY, waits};

/// Of a list.
const MOST: usize = 40;

pub fn section(view: &View) -> Markup {
    let plan = view.plan;
    let slots = &view.bundle.slots;
    let not_run = plan.order.len().saturating_sub(slots.len());
    let behind = slots.len().saturating_sub(view.whole.len() + 1);
    let vms = not_compared(view);
    html! {
        section {
            h2 { "What was dropped, and why" }
            ul {
                li {
                    "The first " (short(plan.dropped_s)) " s of each slot, while tasks settle on "
                    "their queues: " (count(dropped_samples(slots, plan.dropped_s), "sample")) "."
                }
                @match view.bundle.end.as_ref().map(|end| end.aborted) {
                    None => li {
                        "The end: the trial was killed before it wrote one."
                    },
                    Some(Some(abort)) => li {
                        "What the plan had after its early end: " (abort.words()) "."
                    },
                    Some(None) => {},
                }
                @if let Some(slot) = slots.get(view.whole.len()) {
                    li {
                        "Slot " (view.whole.len() + 1) " (" (who(view, slot.who)) "), which ended "
                        "after " (short(lasted(slot))) " of " (short(plan.slot_s)) " s"
                        @if behind > 0 { ", and " (count(behind, "slot")) " after it" } "."
                    }
                }
                @if !view.whole.len().is_multiple_of(2) {
                    li { "Slot " (view.whole.len()) ": its neighbour was not whole." }
                }
                @if not_run > 0 {
                    li { (count(not_run, "slot")) " of the plan that " (were(not_run)) " not run." }
                }
                @let early = early_runs(view);
                @if early > 0 {
                    li { (count(early, "run")) " of the probe that began in the first seconds." }
                }
                @if !vms.is_empty() {
                    li {
                        (count(vms.len(), "VM")) " that " (were(vms.len())) " not there in both "
                        "slots of a pair, in that pair: " (listed(&vms)) "."
                    }
                } @else if view.whole.len() >= 2 {
                    li { "No VM: each was there in both slots of all pairs." }
                }
                @if plan.measure == Measure::Ready {
                    li {
                        "Nothing else; but a slot in which vCPUs waited for less than "
                        (FLOOR_READY) "\u{a0}% counts as " (FLOOR_READY) "\u{a0}%, since a ratio "
                        "takes two values above 0."
                    }
                }
            }
        }
    }
}

fn were(number: usize) -> &'static str {
    if number == 1 { "was" } else { "were" }
}

fn who(view: &View, who: Who) -> &'static str {
    if who == Who::Kernel { "kernel" } else { view.other() }
}

fn lasted(slot: &Slot) -> f64 {
    slot.samples.last().map_or(0.0, |last| last.at_s)
}

fn dropped_samples(slots: &[Slot], dropped_s: f64) -> usize {
    slots.iter().map(|slot| slot.samples.iter().filter(|s| s.at_s < dropped_s).count()).sum()
}

fn early_runs(view: &View) -> usize {
    let runs = view.bundle.slots.iter().flat_map(|slot| &slot.probe);
    runs.filter(|run| run.from_s < view.plan.dropped_s).count()
}

/// VMs, and in how many pairs they were seen but not compared.
pub fn not_compared(view: &View) -> BTreeMap<u32, usize> {
    let mut vms = BTreeMap::new();
    for pair in view.whole.chunks_exact(2) {
        let seen = |slot: &Slot| -> BTreeSet<u32> {
            let kept = slot.kept(view.plan).iter();
            kept.flat_map(|sample| sample.vms.iter().map(|vm| vm.0)).collect()
        };
        let (a, b) = (waits(view.plan, &pair[0]), waits(view.plan, &pair[1]));
        let seen = seen(&pair[0]).union(&seen(&pair[1])).copied().collect::<BTreeSet<u32>>();
        for vm in seen.into_iter().filter(|vm| !a.contains_key(vm) || !b.contains_key(vm)) {
            *vms.entry(vm).or_default() += 1;
        }
    }
    vms
}

fn listed(vms: &BTreeMap<u32, usize>) -> String {
    let shown: Vec<String> = vms
        .iter()
        .take(MOST)
        .map(|(vm, pairs)| format!("VM {vm} ({})", count(*pairs, "pair")))
        .collect();
    match vms.len().saturating_sub(MOST) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
