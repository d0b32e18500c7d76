// SPDX-License-Identifier: GPL-2.0-only
//! Two runs of the bench on one host: do they agree? Both as JSON, so that one may be of yesterday.

use std::fmt::Write;

use baton_report::stats::{median, paired_ratio};
use serde_json::Value;

/// Latencies that differ by more than this disagree.
const AGREE: f64 = 0.1;

/// What differs between two reports of one scheduler: medians in units of the calibration loop.
pub fn latencies(now: &Value, then: &Value) -> String {
    let (mut agree, mut all, mut out) = (0, 0, String::new());
    for measured in list(now) {
        let Some(earlier) = named(then, &measured["name"]) else { continue };
        for series in measured["series"].as_object().into_iter().flat_map(|all| all.keys()) {
            let (now, then) = (relative(measured, series), relative(earlier, series));
            let Some((now, then)) = now.zip(then) else { continue };
            all += 1;
            if (now / then - 1.0).abs() <= AGREE {
                agree += 1;
            } else {
                let name = measured["name"].as_str().unwrap_or_default();
                let _ = writeln!(out, "  {name} {series}: {:.2} times the earlier", now / then);
            }
        }
    }
    if all == 0 {
        return "no latency was measured in both runs\n".into();
    }
    format!("{agree} of {all} latencies (rel.) agree within 10 % with the earlier run\n{out}")
}

/// Of what throughput the 95 % intervals of the ratio to the first scheduler do not overlap.
pub fn ratios(name: &str, now: [&Value; 2], then: [&Value; 2]) -> String {
    let mut out = String::new();
    for measured in list(now[1]).iter().filter(|measured| measured["totals"].is_array()) {
        let interval = |[base, of]: [&Value; 2]| {
            let base = named(base, &measured["name"])?;
            let pairs = pairs(named(of, &measured["name"])?, base);
            paired_ratio(&pairs, 0.95)?.interval
        };
        let Some((now, then)) = interval(now).zip(interval(then)) else { continue };
        if now.0 > then.1 || then.0 > now.1 {
            let test = measured["name"].as_str().unwrap_or_default();
            let _ = writeln!(
                out,
                "  {name}, {test}: [{:.2}, {:.2}] now, [{:.2}, {:.2}] earlier do not overlap",
                now.0, now.1, then.0, then.1
            );
        }
    }
    out
}

fn list(report: &Value) -> &[Value] {
    report["measurements"].as_array().map_or(&[], Vec::as_slice)
}

fn named<'a>(report: &'a Value, name: &Value) -> Option<&'a Value> {
    list(report).iter().find(|measured| measured["name"] == *name)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn relative(measured: &Value, series: &str) -> Option<f64> {
    let ns = median(&numbers(&measured["series"][series]["medians"]))?;
    Some(ns / median(&numbers(&measured["calibration_ns"]))?)
}

/// The totals of those repetitions that have both.
fn pairs(of: &Value, base: &Value) -> Vec<(f64, f64)> {
    let runs = |measured: &Value| -> Vec<(f64, f64)> {
        numbers(&measured["repetitions"]).into_iter().zip(numbers(&measured["totals"])).collect()
    };
    let base = runs(base);
    let same = |repetition: f64| base.iter().find(|run| run.0 == repetition).map(|run| run.1);
    runs(of).into_iter().filter_map(|(repetition, run)| Some((run, same(repetition)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(cost: f64, totals: [f64; 3]) -> Value {
        json!({"measurements": [
            {"name": "exit", "calibration_ns": [2.0, 2.0], "series": {"cost": {"medians": [cost, cost]}}},
            {"name": "barrier", "repetitions": [0, 1, 2], "totals": totals},
        ]})
    }

    #[test]
    fn what_differs_is_named() {
        let (now, then) = (report(100.0, [1.0; 3]), report(120.0, [1.0; 3]));
        assert!(latencies(&now, &now).starts_with("1 of 1"));
        let text = latencies(&now, &then);
        assert!(text.starts_with("0 of 1") && text.contains("exit cost: 0.83 times"), "{text}");
        assert_eq!(latencies(&now, &json!({})), "no latency was measured in both runs\n");
    }

    #[test]
    fn intervals_that_do_not_overlap_are_named() {
        let base = report(1.0, [100.0, 101.0, 99.0]);
        let (fast, slow) = (report(1.0, [150.0, 151.0, 149.0]), report(1.0, [80.0, 81.0, 79.0]));
        assert_eq!(ratios("scx_baton", [&base, &fast], [&base, &fast]), "");
        let text = ratios("scx_baton", [&base, &fast], [&base, &slow]);
        assert!(text.contains("scx_baton, barrier: [1.4"), "{text}");
        assert_eq!(ratios("scx_baton", [&base, &fast], [&base, &json!(null)]), "");
    }
}
