// SPDX-License-Identifier: GPL-2.0-only
//! Slot beside slot: what the verdict is made of.

use maud::{Markup, html};

use super::View;
use super::parts::{self, Mark, cell, key, mark, percent};
use super::scale::Log;
use crate::plan::Measure;
use crate::verdict::{Interval, Pair};

/// Rows; a trial of an hour has 60 pairs.
const MOST_ROWS: usize = 60;

fn ratio(pair: &Pair) -> Option<f64> {
    let ratio = pair.baton? / pair.kernel?;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// Its ends, or twice itself.
fn ends(interval: &Interval) -> [f64; 3] {
    let or = |bound: Option<f64>| bound.unwrap_or(interval.ratio);
    [or(interval.low), interval.ratio, or(interval.high)]
}

pub fn section(view: &View) -> Markup {
    let verdict = &view.verdict;
    let pairs = &verdict.pairs[..verdict.pairs.len().min(MOST_ROWS)];
    if pairs.is_empty() {
        return html! {
            section {
                h2 { "Pairs of slots" }
                p { "No two slots, one after the other, were whole: nothing can be compared." }
            }
        };
    }
    let intervals = [verdict.ratio, verdict.control];
    let drawn = intervals.iter().flatten().flat_map(ends);
    let log = Log::of(pairs.iter().filter_map(ratio).chain(drawn));
    let left = verdict.pairs.len() - pairs.len();
    html! {
        section {
            h2 { "Pairs of slots" }
            p {
                "Two slots, one after the other: " (what(view)) ". Ratio: "
                @if view.plan.control { "the kernel's other slot" } @else { "Baton's slot" }
                " beside the kernel's, on a logarithmic axis; at 1.0 they are alike."
            }
            p.keys {
                (key(Mark::Baton, "a pair"))
                (key(Mark::All, "all pairs, their 99 % interval"))
                (key(Mark::Kernel, "control"))
            }
            div.box tabindex="0" {
                table.plot {
                    thead {
                        tr {
                            th scope="col" { "slots" }
                            th.n scope="col" { "kernel" }
                            th.n scope="col" { (view.other()) }
                            th.n scope="col" { "ratio" }
                            td.picture { (labels(&log)) }
                        }
                    }
                    tbody {
                        @for pair in pairs { (row(&log, pair)) }
                        @if left > 0 { tr { td colspan="5" { "and " (left) " more pairs" } } }
                    }
                    tbody.sums {
                        (sum("all pairs", &log, verdict.ratio.as_ref(), Mark::All))
                        (sum("control", &log, verdict.control.as_ref(), Mark::Kernel))
                    }
                    @if !view.plan.control { tfoot { (sides(view)) } }
                }
            }
            p.note {
                "Control: the kernel's later slot of a block beside its earlier one. As long as "
                "its interval holds 1.0, the load was about the same in them."
            }
        }
    }
}

fn what(view: &View) -> &'static str {
    match view.plan.measure {
        Measure::Ready => "the time for which vCPUs waited for a CPU, in % (%RDY)",
        Measure::Probe { .. } => "the median of what the probe printed",
        Measure::Work { .. } => "what the synthetic VMs did in a second",
    }
}

fn row(log: &Log, pair: &Pair) -> Markup {
    let ratio = ratio(pair);
    let first = u64::from(pair.slot) + 1;
    html! {
        tr {
            th scope="row" { (first) ", " (first + 1) }
            td.n { (cell(pair.kernel)) }
            td.n { (cell(pair.baton)) }
            td.n { (cell(ratio)) }
            td.picture {
                svg width="100%" height="24" aria-hidden="true" {
                    (grid(log))
                    @if let Some(ratio) = ratio {
                        line.stem x1=(percent(log.at(1.0))) x2=(percent(log.at(ratio)))
                            y1="12" y2="12" {}
                        (mark(Mark::Baton, log.at(ratio)))
                    }
                }
            }
        }
    }
}

fn sum(name: &str, log: &Log, interval: Option<&Interval>, of: Mark) -> Markup {
    let bounds = interval.and_then(|interval| interval.low.zip(interval.high));
    html! {
        tr {
            th scope="row" { (name) }
            td.n colspan="2" {
                @match bounds {
                    Some((low, high)) => { (parts::ratio(low)) " to " (parts::ratio(high)) },
                    None => "no interval",
                }
            }
            td.n { strong { (interval.map_or("–".into(), |all| parts::ratio(all.ratio))) } }
            td.picture {
                svg width="100%" height="24" aria-hidden="true" {
                    (grid(log))
                    @if let Some(interval) = interval {
                        @if let Some((low, high)) = bounds {
                            line class=(if of == Mark::All { "bar" } else { "bar control" })
                                x1=(percent(log.at(low))) x2=(percent(log.at(high)))
                                y1="12" y2="12" {}
                        }
                        (mark(of, log.at(interval.ratio)))
                    }
                }
            }
        }
    }
}

fn grid(log: &Log) -> Markup {
    html! {
        @for tick in log.ticks() {
            line class=(if tick == 1.0 { "one" } else { "grid" })
                x1=(percent(log.at(tick))) x2=(percent(log.at(tick))) y1="0" y2="100%" {}
        }
    }
}

fn labels(log: &Log) -> Markup {
    html! {
        svg width="100%" height="22" role="img" aria-label="ratios, on a logarithmic axis" {
            @for tick in log.ticks() {
                text class=(if tick == 1.0 { "one" } else { "tick" })
                    x=(percent(log.at(tick))) y="15" text-anchor="middle" {
                    @if tick == 1.0 { "1.0" } @else { (tick) }
                }
            }
        }
    }
}

fn sides(view: &View) -> Markup {
    let (left, right) = match view.plan.measure.lower_is_better() {
        true => ("better", "worse"),
        false => ("worse", "better"),
    };
    html! {
        tr {
            td colspan="4" {}
            td.picture {
                svg width="100%" height="22" role="img"
                    aria-label=(format!("left: {left} with Baton, right: {right}")) {
                    text.tick x="0" y="15" { "← " (left) }
                    text.tick x="100%" y="15" text-anchor="end" { (right) " →" }
                }
            }
        }
    }
}
