// SPDX-License-Identifier: GPL-2.0-only
//! Second by second: what was measured, and who scheduled.

use baton_report::stats::median;
use maud::{Markup, html};

use super::View;
use super::parts::{percent, share, short};
use super::scale::Linear;
use crate::bundle::{Sample, Slot, ready_percent};
use crate::plan::{BLOCK, Measure, Plan, Who};

/// Slots beside each other: on a telephone, more would be too narrow for their numbers.
const ROW: usize = 3 * BLOCK;

/// Two hours of slots of 30 s.
const MOST_ROWS: usize = 20;

/// Bars of a slot; of more samples, several make one.
const MOST_BARS: usize = 60;

/// Of the picture, in pixels: its bars begin and end there, and its labels are below.
const TOP: f64 = 8.0;
const BOTTOM: f64 = 128.0;
const HEIGHT: f64 = 168.0;

/// Bars overlap by this share of the picture: edges are rounded to pixels, and gaps would show.
const SEAM: f64 = 3e-4;

/// Where, as a share of the slot, and how much.
struct Bar {
    from: f64,
    to: f64,
    value: f64,
    dropped: bool,
}

/// Of a slot.
type Bars = fn(&Plan, &Slot) -> Vec<Bar>;

pub fn section(view: &View) -> Markup {
    let (unit, bars): (&str, Bars) = match view.plan.measure {
        Measure::Ready => ("The mean of what all vCPUs waited, in % of each second", ready),
        Measure::Probe { .. } => ("What the probe printed, as long as each run of it took", probed),
        Measure::Work { .. } => ("What the synthetic VMs did, each second", work),
    };
    html! {
        section {
            h2 { "Slot after slot" }
            p {
                (unit) ". Below: the slot's number and who scheduled, K for the kernel, "
                @if view.plan.control { "k for the kernel again" } @else { "B for Baton" }
                @if view.bundle.slots.len() < view.plan.order.len() { ", – where it was not run" }
                ". The line is what counts of a slot."
            }
            p.keys {
                (swatch("kernel", "kernel")) (swatch(class(view, Who::Baton), view.other()))
                (swatch("hatched", "dropped"))
            }
            (rows(view, bars, true))
            @if view.plan.measure != Measure::Ready {
                h3 { "Waiting (an aside)" }
                p { "The mean of what all vCPUs waited, in % of each second." }
                (rows(view, ready, false))
            }
        }
    }
}

fn class(view: &View, who: Who) -> &'static str {
    match (who, view.plan.control) {
        (Who::Kernel, _) => "kernel",
        (Who::Baton, false) => "baton",
        (Who::Baton, true) => "again",
    }
}

fn swatch(class: &str, words: &str) -> Markup {
    html! {
        span.key {
            svg width="16" height="14" aria-hidden="true" {
                rect class=(class) y="1" width="14" height="12" {}
            }
            (words)
        }
    }
}

fn rows(view: &View, bars: Bars, values: bool) -> Markup {
    let plan = view.plan;
    let planned = plan.order.len().max(view.bundle.slots.len());
    let shown = planned.min(ROW * MOST_ROWS);
    let slots = &view.bundle.slots[..view.bundle.slots.len().min(shown)];
    let drawn: Vec<Vec<Bar>> = slots.iter().map(|slot| bars(plan, slot)).collect();
    // What is dropped may be cut off: a scheduler that starts lets tasks wait for a moment.
    let kept = drawn.iter().flatten().filter(|bar| !bar.dropped).map(|bar| bar.value);
    let scale = Linear::of(kept);
    let row = |first: usize| {
        let last = (first + ROW).min(shown);
        html! {
            div.time {
                (axis(&scale))
                svg width="100%" height=(HEIGHT) role="img"
                    aria-label=(format!("slots {} to {last}", first + 1)) {
                    (grid())
                    @for place in first..last {
                        (slot(view, &scale, place - first, place, drawn.get(place), values))
                    }
                }
            }
        }
    };
    html! {
        @for first in (0..shown).step_by(ROW) { (row(first)) }
        @if planned > shown {
            p.note { "and " (planned - shown) " more slots, which are in the bundle." }
        }
    }
}

/// The left end of a picture: its labels keep their size however wide the rest is.
fn axis(scale: &Linear) -> Markup {
    html! {
        svg.axis width="46" height=(HEIGHT) aria-hidden="true" {
            @for part in [0.0, 0.5, 1.0] {
                text.tick x="42" y=(y(part) + 4.0) text-anchor="end" { (short(part * scale.top)) }
            }
        }
    }
}

fn grid() -> Markup {
    html! {
        @for part in [0.0, 0.5, 1.0] {
            line.grid x1="0" x2="100%" y1=(y(part)) y2=(y(part)) {}
        }
    }
}

/// Rounded to what one can see.
fn y(part: f64) -> f64 {
    ((BOTTOM - (BOTTOM - TOP) * part) * 10.0).round() / 10.0
}

fn slot(
    view: &View,
    scale: &Linear,
    column: usize,
    place: usize,
    bars: Option<&Vec<Bar>>,
    values: bool,
) -> Markup {
    let plan = view.plan;
    // One that is not in the plan is in an edited bundle.
    let was = view.bundle.slots.get(place).map(|slot| slot.who);
    let who = was.or(plan.order.get(place).copied()).unwrap_or(Who::Kernel);
    let width = 1.0 / ROW as f64;
    let x = |part: f64| (column as f64 + part) * width;
    let letter = match class(view, who) {
        "kernel" => "K",
        "baton" => "B",
        _ => "k",
    };
    // A slot that was not whole does not count, nor its neighbour, nor whatever comes after it.
    let counts = place / 2 < view.whole.len() / 2;
    let dropped = match was {
        Some(_) if counts => share(plan.dropped_s, plan.slot_s),
        Some(_) => 1.0,
        None => 0.0,
    };
    let value = view.verdict.pairs.get(place / 2).filter(|_| values).and_then(|pair| match who {
        Who::Kernel => pair.kernel,
        Who::Baton => pair.baton,
    });
    html! {
        rect class=(format!("ground {}", class(view, who))) x=(percent(x(0.0))) y=(TOP)
            width=(percent(width)) height=(BOTTOM - TOP) {}
        @for bar in bars.into_iter().flatten() {
            @let top = y(scale.at(bar.value));
            rect class=(class(view, who)) x=(percent(x(bar.from))) y=(top)
                width=(percent((bar.to - bar.from) * width + SEAM))
                height=(((BOTTOM - top) * 10.0).round() / 10.0) {}
        }
        rect.hatched x=(percent(x(0.0))) y=(TOP) width=(percent(dropped * width))
            height=(BOTTOM - TOP) {}
        @if let (Some(value), true) = (value, counts) {
            line.value x1=(percent(x(dropped))) x2=(percent(x(1.0)))
                y1=(y(scale.at(value))) y2=(y(scale.at(value))) {}
        }
        line class=(if place.is_multiple_of(BLOCK) { "block" } else { "grid" })
            x1=(percent(x(0.0))) x2=(percent(x(0.0))) y1=(TOP) y2=(BOTTOM + 6.0) {}
        text.tick x=(percent(x(0.5))) y=(BOTTOM + 16.0) text-anchor="middle" { (place + 1) }
        text.who x=(percent(x(0.5))) y=(BOTTOM + 33.0) text-anchor="middle" {
            @if was.is_some() { (letter) } @else { "–" }
        }
    }
}

/// Of two samples each, with as many seconds between them as leave few enough.
fn between(plan: &Plan, slot: &Slot, value: impl Fn(&Sample, &Sample) -> Option<f64>) -> Vec<Bar> {
    let step = slot.samples.len().div_ceil(MOST_BARS).max(1);
    let some: Vec<&Sample> = slot.samples.iter().step_by(step).collect();
    let bar = |pair: &[&Sample]| {
        let (before, now) = (pair[0], pair[1]);
        let dropped = before.at_s < plan.dropped_s;
        let [from, to] = [before.at_s, now.at_s].map(|at| share(at, plan.slot_s));
        let value = value(before, now).filter(|value| value.is_finite())?;
        (to > from).then_some(Bar { from, to, value, dropped })
    };
    some.windows(2).filter_map(bar).collect()
}

fn ready(plan: &Plan, slot: &Slot) -> Vec<Bar> {
    between(plan, slot, ready_percent)
}

fn work(plan: &Plan, slot: &Slot) -> Vec<Bar> {
    between(plan, slot, |before, now| Some((now.work? - before.work?) / (now.at_s - before.at_s)))
}

/// Of many runs, several make one with their median.
fn probed(plan: &Plan, slot: &Slot) -> Vec<Bar> {
    let step = slot.probe.len().div_ceil(MOST_BARS).max(1);
    let bar = |runs: &[crate::bundle::Probed]| {
        let (first, last) = (runs.first()?, runs.last()?);
        let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
        let value = median(&values).filter(|value| value.is_finite())?;
        let [from, to] = [first.from_s, last.to_s].map(|at| share(at, plan.slot_s));
        (to > from).then_some(Bar { from, to, value, dropped: first.from_s < plan.dropped_s })
    };
    slot.probe.chunks(step).filter_map(bar).collect()
}
