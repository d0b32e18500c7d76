// SPDX-License-Identifier: GPL-2.0-only

use anyhow::Result;
use scraper::{Html, Selector};
use serde_json::{Value, json};

use super::*;
use crate::bundle::Abort;
use crate::hosts::{Busy, Noise, cut};
use crate::plan::Who;
use crate::tests::bundle as steady;

/// Errors of the parser, if a browser would have to guess.
fn parsed(page: &str) -> Html {
    let html = Html::parse_document(page);
    assert!(html.errors.is_empty(), "{:?}", html.errors);
    html
}

fn count(html: &Html, selector: &str) -> usize {
    html.select(&Selector::parse(selector).expect("a selector")).count()
}

/// What one reads, without what a style sheet has.
fn text(html: &Html) -> String {
    let main = Selector::parse("main").expect("a selector");
    let words = html.select(&main).flat_map(|main| main.text()).collect::<String>();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn measures() -> [Measure; 4] {
    [
        Measure::Ready,
        Measure::Probe { lower_is_better: true },
        Measure::Probe { lower_is_better: false },
        Measure::Work { test: "barrier".into(), vms: 2, vcpus: 2 },
    ]
}

#[test]
fn each_page_is_whole_and_needs_nothing_else() -> Result<()> {
    for measure in measures() {
        for control in [false, true] {
            for (vms, blocks) in [(0, 1), (1, 1), (24, 3), (300, 2)] {
                let busy = Busy { vms, blocks, measure: measure.clone(), control, gain: 0.5 };
                let bundle = busy.bundle()?;
                let page = html(&bundle)?;
                let page_there = parsed(&page);
                let words = text(&page_there);
                let verdict = bundle.end.as_ref().expect("it ended").verdict.words(&bundle.plan);
                assert!(words.contains(&verdict.replace(". ", ".")) || words.contains(&verdict));
                assert!(!words.contains("NaN") && !words.contains("inf "), "{words}");
                assert_eq!(count(&page_there, "script, link, img, iframe, object, embed, a"), 0);
                for outside in ["http:", "https:", "src=", "href=", "@import", "//"] {
                    assert!(!page.contains(outside), "{outside}");
                }
                assert!(words.contains(&bundle.seal()?.expect("it ended")));
                assert!(!words.contains("not as a trial wrote it"));
            }
        }
    }
    Ok(())
}

/// All that is told by a colour is told by a word too.
#[test]
fn each_verdict_has_its_word() -> Result<()> {
    let page = |gain: f64, blocks, drift: f64| -> Result<Html> {
        let bundle = steady(Measure::Ready, blocks, |who, place| {
            // As a job does that begins in the middle of each block.
            let load = if place % 4 < 2 { 20.0 } else { 20.0 * drift } + place as f64 * 0.01;
            if who == Who::Baton { load * gain } else { load }
        })?;
        Ok(parsed(&html(&bundle)?))
    };
    for (gain, blocks, drift, class, word) in [
        (0.5, 3, 1.0, "better", "Better: "),
        (2.0, 3, 1.0, "worse", "Worse: "),
        (1.0, 3, 1.0, "none", "No difference shown: "),
        (0.5, 1, 1.0, "none", "No claim, since that takes "),
        (0.5, 3, 2.0, "none", "No claim, since the kernel's own slots differ"),
    ] {
        let page = page(gain, blocks, drift)?;
        assert_eq!(count(&page, &format!(".verdict.{class}")), 1, "{word}");
        let heading = Selector::parse("h1").expect("a selector");
        let told: String = page.select(&heading).flat_map(|h1| h1.text()).collect();
        assert!(told.starts_with(word) && told.ends_with('.'), "{told}");
    }
    Ok(())
}

#[test]
fn what_was_aborted_or_killed_has_a_page_that_says_so() -> Result<()> {
    let whole = Busy::default().bundle()?;
    let aborted = cut(whole.clone(), 8, 12, Some(Abort::Ready))?;
    let page = parsed(&html(&aborted)?);
    // A slot's width, a twelfth: slot 8, and slot 7, which has nothing beside it.
    assert_eq!(count(&page, ".time rect.hatched[width='8.33%']"), 2);
    let words = text(&page);
    for told in [
        "No claim, since the trial ended early",
        "It ended before its plan did: a VM waited too long for CPUs.",
        "Slot 8 (Baton), which ended after 12 of 30 s.",
        "Slot 7: its neighbour was not whole.",
        "4 slots of the plan that were not run.",
        "VM 5 (1 pair)",
    ] {
        assert!(words.contains(told), "{told}: {words}");
    }
    for slots in 0..4 {
        let killed = cut(whole.clone(), slots, 30, None)?;
        let words = text(&parsed(&html(&killed)?));
        let told = format!("No verdict: the trial was killed after {slots} whole slots.");
        assert!(words.contains(&told), "{words}");
        assert!(words.contains("It has no hash") && !words.contains("Better"), "{words}");
        // The loss of one slot leaves the pairs before it.
        assert_eq!(words.contains("nothing can be compared"), slots < 2, "{words}");
    }
    Ok(())
}

/// The table has the pairs' values and a mark for each, the timeline a bar for each second.
#[test]
fn values_are_where_they_belong() -> Result<()> {
    let bundle = steady(Measure::Ready, 3, |who, _| if who == Who::Kernel { 20.0 } else { 10.0 })?;
    let page = parsed(&html(&bundle)?);
    let words = text(&page);
    assert!(words.contains("1, 220.010.00.500"), "{words}");
    assert!(words.contains("VM 1220.010.0"), "{words}");
    assert_eq!(count(&page, "table .diamond"), 6 + 1);
    assert_eq!(count(&page, ".time rect.kernel:not(.ground)"), 6 * 30);
    assert_eq!(count(&page, ".time rect.baton:not(.ground)"), 6 * 30);
    assert_eq!(count(&page, ".time rect.hatched"), 12);
    assert_eq!(count(&page, ".time line.value"), 12);
    let bar = Selector::parse(".time rect.baton:not(.ground)").expect("a selector");
    let first = page.select(&bar).next().expect("a bar");
    // Half of a scale to 20, in the second slot.
    assert_eq!((first.attr("y"), first.attr("height")), (Some("68"), Some("60")));
    assert_eq!(first.attr("x"), Some("8.33%"));
    Ok(())
}

#[test]
fn vms_are_sorted_and_many_are_counted() -> Result<()> {
    let bundle = Busy { vms: 300, ..Busy::default() }.bundle()?;
    let vms = vms::of_pairs(&View::of(&bundle));
    let most = |vm: &vms::Vm| vm.kernel.unwrap_or(0.0).max(vm.baton.unwrap_or(0.0));
    assert!(vms.len() == 300 && vms.is_sorted_by(|a, b| most(a) >= most(b)));
    let words = text(&parsed(&html(&bundle)?));
    assert!(words.contains("and 260 more, which waited for"), "{words}");
    Ok(())
}

/// What a hand or a program may do to a bundle: each place of it at random, mostly with what is
/// still read.
fn edit(value: &mut Value, noise: &mut Noise, often: f64) {
    const TEXT: &str = "</style><script>alert(1)</script>\u{0}\u{fffe}\u{202e}&amp;\"'";
    if noise.next() < often {
        let mut one_of = |all: &[Value]| all[(noise.next() * all.len() as f64) as usize].clone();
        match value {
            Value::Number(number) if number.is_f64() => {
                *value = one_of(&[json!(0), json!(-1.5e308), json!(1.7e308), json!(5e-324)]);
            }
            Value::Number(_) => *value = one_of(&[json!(0), json!(1), json!(4294967295u32)]),
            Value::String(text) if text == "kernel" || text == "baton" => {
                *value = one_of(&[json!("kernel"), json!("baton")]);
            }
            Value::String(_) => *value = one_of(&[json!(TEXT), json!("x".repeat(5000)), json!("")]),
            Value::Array(all) if !all.iter().any(Value::is_number) => {
                match one_of(&[json!(0), json!(1), json!(2), json!(3)]).as_u64() {
                    Some(0) => all.clear(),
                    Some(1) => all.truncate(all.len() / 2),
                    Some(2) => all.reverse(),
                    _ => all.extend(all.clone()),
                }
            }
            _ => {}
        }
    }
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| edit(one, noise, often)),
        Value::Object(all) => {
            let kept = |key: &str| key == "format" || key == "measure" || key == "claim";
            for (_, one) in all.iter_mut().filter(|(key, _)| !kept(key)) {
                edit(one, noise, often);
            }
        }
        _ => {}
    }
}

#[test]
fn an_edited_bundle_gives_a_page_that_is_whole() -> Result<()> {
    let mut read = 0;
    for seed in 0..400 {
        let mut noise = Noise(seed * 7919 + 1);
        let measure = measures()[seed as usize % 4].clone();
        let (blocks, control) = (1 + seed as u32 % 3, seed % 5 == 0);
        let busy = Busy { vms: 3, blocks, measure, control, gain: 0.5 };
        let mut value = serde_json::to_value(busy.bundle()?)?;
        edit(&mut value, &mut noise, [0.0005, 0.003, 0.02, 0.3][seed as usize / 4 % 4]);
        let Ok(bundle) = Bundle::parse(&value.to_string()) else { continue };
        read += 1;
        let page = html(&bundle)?;
        let there = parsed(&page);
        assert_eq!(count(&there, "script"), 0, "{seed}");
        let words = text(&there);
        assert!(!words.contains("NaN"), "{seed}: {words}");
        assert!(page.len() < 2_000_000, "{seed}: {}", page.len());
        // Places in pictures.
        for place in page.split('"').filter_map(|quoted| quoted.strip_suffix('%')) {
            assert!(place.parse().is_ok_and(|n| (0.0..=100.1).contains(&n)), "{seed}: {place}");
        }
        if bundle.verify().is_err() {
            assert!(text(&there).contains("This bundle is not as a trial wrote it"), "{seed}");
        }
    }
    assert!(read > 300, "{read} were bundles");
    Ok(())
}

#[test]
fn what_a_host_is_called_is_escaped() -> Result<()> {
    let mut bundle = Busy::default().bundle()?;
    bundle.host.cpu = "<script>alert('x')</script>\u{0}\u{202e}\n&lt;".into();
    bundle.host.findings = vec!["</style><img src=x onerror=y>".into(); 100];
    bundle.host.kernel = "\"".repeat(1_000_000);
    let page = html(&bundle)?;
    let there = parsed(&page);
    assert_eq!(count(&there, "script, img"), 0);
    let words = text(&there);
    assert!(words.contains("<script>alert('x')</script>\u{fffd}\u{fffd}\u{fffd}&lt;"), "{words}");
    assert!(words.contains("and 40 more") && page.len() < 200_000);
    Ok(())
}

/// However long it was, a browser opens it.
#[test]
fn a_day_has_a_page() -> Result<()> {
    let bundle = Busy { vms: 1, blocks: 720, ..Busy::default() }.bundle()?;
    let page = html(&bundle)?;
    let words = text(&parsed(&page));
    assert!(words.contains("and 1380 more pairs") && words.contains("and 2640 more slots"));
    assert!(page.len() < 2_000_000, "{}", page.len());
    Ok(())
}
