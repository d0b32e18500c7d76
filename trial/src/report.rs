// SPDX-License-Identifier: GPL-2.0-only
//! A bundle as one page for a browser, for those who would rather look than read numbers.
//!
//! Everything in it is computed from the bundle again. It loads nothing and runs nothing, and a
//! bundle that somebody has edited can at most look odd: what comes from it is escaped, clipped and
//! counted.

mod dropped;
mod facts;
mod pairs;
mod parts;
mod scale;
mod timeline;
mod vms;

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html as template};

use crate::bundle::{Bundle, Slot};
use crate::plan::{Measure, Plan};
use crate::verdict::{Claim, Verdict};

/// What all parts of the page look at.
struct View<'a> {
    plan: &'a Plan,
    bundle: &'a Bundle,
    verdict: Verdict,
    /// Whole slots in a row: those that count.
    whole: &'a [Slot],
}

impl<'a> View<'a> {
    fn of(bundle: &'a Bundle) -> View<'a> {
        let plan = &bundle.plan;
        let whole = bundle.slots.iter().take_while(|slot| slot.is_whole(plan)).count();
        let aborted = bundle.end.as_ref().and_then(|end| end.aborted);
        let verdict = Verdict::of(bundle, aborted);
        View { plan, bundle, verdict, whole: &bundle.slots[..whole] }
    }

    /// What is called Baton's slots.
    fn other(&self) -> &'static str {
        if self.plan.control { "kernel again" } else { "Baton" }
    }
}

/// The page. A killed trial has one as well, without a verdict.
///
/// Errors: the bundle has no JSON to hash.
pub fn html(bundle: &Bundle) -> Result<String> {
    let view = View::of(bundle);
    let seal = bundle.seal()?;
    let page = template! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                // Whatever got in here could load and run nothing.
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "baton trial: " (short(&view)) }
                style { (PreEscaped(include_str!("report/page.css"))) }
            }
            body {
                (parts::patterns())
                main class=[bundle.plan.control.then_some("same")] {
                    (head(&view))
                    (pairs::section(&view))
                    (vms::section(&view))
                    (timeline::section(&view))
                    (dropped::section(&view))
                    (facts::host(&view))
                    (facts::plan(&view))
                    (facts::seal(seal.as_deref()))
                    (facts::unsaid(&view))
                }
            }
        }
    };
    Ok(page.into_string())
}

/// For a tab of the browser.
fn short(view: &View) -> &'static str {
    match (&view.bundle.end, view.verdict.claim) {
        (None, _) => "killed, no verdict",
        (_, Claim::Better) => "better",
        (_, Claim::Worse) => "worse",
        (_, Claim::NotShown) => "no difference shown",
        _ => "no claim",
    }
}

fn head(view: &View) -> Markup {
    let plan = view.plan;
    let words = match view.bundle.end {
        Some(_) => view.verdict.words(plan),
        None => {
            let slots = view.bundle.slots.iter().filter(|slot| slot.is_whole(plan)).count();
            format!("No verdict: the trial was killed after {slots} whole slots.")
        }
    };
    // What it is about, and what not, is the second sentence.
    let (first, rest) = match words.split_once(". ") {
        Some((first, rest)) => (format!("{first}."), rest.to_owned()),
        None => (words, String::new()),
    };
    let (class, sign) = match (&view.bundle.end, view.verdict.claim) {
        (Some(_), Claim::Better) => ("better", "M4 11 L9 16 L17 5"),
        (Some(_), Claim::Worse) => ("worse", "M5 5 L16 16 M16 5 L5 16"),
        _ => ("none", "M4 10.5 H17"),
    };
    let aborted = view.bundle.end.as_ref().and_then(|end| end.aborted);
    template! {
        header {
            p.kicker { "baton trial · " (kind(plan)) }
            div class=(format!("verdict {class}")) {
                svg.sign width="21" height="21" viewBox="0 0 21 21" aria-hidden="true" {
                    path d=(sign) {}
                }
                h1 { (first) }
            }
            @if !rest.is_empty() { p { (rest) } }
            @if let Some(abort) = aborted {
                p { "It ended before its plan did: " (abort.words()) "." }
            }
            @if let Err(error) = view.bundle.verify() {
                p.warning {
                    strong { "This bundle is not as a trial wrote it: " }
                    (parts::clean(&format!("{error:#}"))) "."
                }
            }
        }
    }
}

fn kind(plan: &Plan) -> &'static str {
    match (&plan.measure, plan.control) {
        (_, true) => "the kernel's scheduler against itself",
        (Measure::Ready, _) => "waiting for CPUs, the kernel's scheduler and Baton in turns",
        (Measure::Probe { .. }, _) => "a probe, the kernel's scheduler and Baton in turns",
        (Measure::Work { .. }, _) => "synthetic VMs, the kernel's scheduler and Baton in turns",
    }
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
