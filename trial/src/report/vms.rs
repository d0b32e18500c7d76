// SPDX-License-Identifier: GPL-2.0-only
//! For how long each VM waited. VMs are numbers, as in the bundle.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::View;
use super::parts::{Mark, cell, key, mark, number, percent, short};
use super::scale::Linear;
use crate::plan::{Measure, Who};
use crate::verdict::waits;

const MOST_ROWS: usize = 40;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vm {
    pub number: u32,
    pub vcpus: u32,
    /// In % of its vCPUs' time, in the kernel's slots and in Baton's.
    pub kernel: Option<f64>,
    pub baton: Option<f64>,
}

impl Vm {
    fn most(&self) -> f64 {
        self.kernel.unwrap_or(0.0).max(self.baton.unwrap_or(0.0))
    }
}

/// As the verdict has it: of pairs of whole slots, those VMs that were there in both. Those that
/// waited longest come first.
pub fn of_pairs(view: &View) -> Vec<Vm> {
    let mut times: BTreeMap<u32, [(f64, f64); 2]> = BTreeMap::new();
    let mut vcpus = BTreeMap::new();
    for pair in view.whole.chunks_exact(2) {
        let of_pair = [waits(view.plan, &pair[0]), waits(view.plan, &pair[1])];
        for (slot, (of_slot, other)) in
            pair.iter().zip([(&of_pair[0], &of_pair[1]), (&of_pair[1], &of_pair[0])])
        {
            for (vm, wait) in of_slot.iter().filter(|(vm, _)| other.contains_key(vm)) {
                let time = &mut times.entry(*vm).or_default()[usize::from(slot.who == Who::Baton)];
                *time = (time.0 + wait.ready_ms, time.1 + wait.vcpu_ms);
            }
            let last = slot.samples.last().into_iter().flat_map(|last| &last.vms);
            vcpus.extend(last.map(|vm| (vm.0, vm.1)));
        }
    }
    let percent = |(ready, time): (f64, f64)| {
        let percent = 100.0 * ready / time;
        (time > 0.0 && percent.is_finite()).then_some(percent)
    };
    let vm = |(vm, [kernel, baton]): (u32, [(f64, f64); 2])| Vm {
        number: vm,
        vcpus: vcpus.get(&vm).copied().unwrap_or(0),
        kernel: percent(kernel),
        baton: percent(baton),
    };
    let mut vms: Vec<Vm> = times.into_iter().map(vm).collect();
    vms.sort_by(|a, b| b.most().total_cmp(&a.most()).then(a.number.cmp(&b.number)));
    vms
}

pub fn section(view: &View) -> Markup {
    let all = of_pairs(view);
    let (shown, rest) = all.split_at(all.len().min(MOST_ROWS));
    let scale = Linear::of(shown.iter().map(Vm::most));
    let aside = view.plan.measure != Measure::Ready;
    html! {
        section {
            h2 { "Waiting, by VM" @if aside { " (an aside)" } }
            @if aside {
                p {
                    "The verdict is not made of this: a guest that gets more done may wait longer."
                }
            }
            @if all.is_empty() {
                p { "No VM was there in both slots of a pair." }
            } @else {
                p {
                    "For which share of its vCPUs' time a VM waited for CPUs (%RDY), in the "
                    "kernel's slots and in " @if view.plan.control { "its others" } @else {
                        "Baton's"
                    } ". Those that waited longest come first."
                }
                p.keys {
                    (key(Mark::Kernel, "kernel"))
                    (key(Mark::Baton, view.other()))
                }
                div.box tabindex="0" {
                    table.plot {
                        thead {
                            tr {
                                th scope="col" { "VM" }
                                th.n scope="col" { "vCPUs" }
                                th.n scope="col" { "kernel" }
                                th.n scope="col" { (view.other()) }
                                td.picture { (labels(&scale)) }
                            }
                        }
                        tbody { @for vm in shown { (row(vm, &scale)) } }
                    }
                }
                @if let Some(next) = rest.first() {
                    p.note {
                        "and " (rest.len()) " more, which waited for " (number(next.most()))
                        " % of their time at most."
                    }
                }
            }
        }
    }
}

fn row(vm: &Vm, scale: &Linear) -> Markup {
    html! {
        tr {
            th scope="row" { "VM " (vm.number) }
            td.n { (vm.vcpus) }
            td.n { (cell(vm.kernel)) }
            td.n { (cell(vm.baton)) }
            td.picture {
                svg width="100%" height="24" aria-hidden="true" {
                    (grid(scale))
                    @if let (Some(kernel), Some(baton)) = (vm.kernel, vm.baton) {
                        line.stem x1=(percent(scale.inset(kernel)))
                            x2=(percent(scale.inset(baton))) y1="12" y2="12" {}
                    }
                    @if let Some(kernel) = vm.kernel { (mark(Mark::Kernel, scale.inset(kernel))) }
                    @if let Some(baton) = vm.baton { (mark(Mark::Baton, scale.inset(baton))) }
                }
            }
        }
    }
}

fn ticks(scale: &Linear) -> [f64; 3] {
    [0.0, scale.top / 2.0, scale.top]
}

fn grid(scale: &Linear) -> Markup {
    html! {
        @for tick in ticks(scale) {
            line.grid x1=(percent(scale.inset(tick))) x2=(percent(scale.inset(tick)))
                y1="0" y2="100%" {}
        }
    }
}

fn labels(scale: &Linear) -> Markup {
    html! {
        svg width="100%" height="22" role="img" aria-label="%RDY, on an axis from 0" {
            @for tick in ticks(scale) {
                text.tick x=(percent(scale.inset(tick))) y="15" text-anchor="middle" {
                    (short(tick))
                }
            }
        }
    }
}
