// SPDX-License-Identifier: GPL-2.0-only
//! A scenario with some keys varied: every combination, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::keys::Change;
use crate::outcome::{Outcome, simulate};
use crate::scenario::{Scenario, Text};

/// Keys with their values, as on the command line.
pub type Point = Vec<Change>;

/// `key=a,b,c`.
///
/// Errors: it is not of that form.
pub fn axis(text: &str) -> Result<(String, Vec<String>)> {
    let (key, values) =
        text.split_once('=').with_context(|| format!("\"{text}\" is not key=a,b,c"))?;
    let (key, values) = (key.trim(), split(values));
    ensure!(!key.is_empty(), "\"{text}\" is not key=a,b,c");
    ensure!(values.iter().all(|value| !value.is_empty()), "\"{text}\" has an empty value");
    Ok((key.to_string(), values))
}

/// At commas outside of braces and brackets, for values such as `{ fixed = 1000 }`.
fn split(values: &str) -> Vec<String> {
    let (mut all, mut depth) = (vec![String::new()], 0);
    for c in values.chars() {
        match c {
            ',' if depth == 0 => {
                all.push(String::new());
                continue;
            }
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    all.into_iter().map(|value| value.trim().to_string()).collect()
}

/// All combinations; the last axis changes fastest.
pub fn points(axes: &[(String, Vec<String>)]) -> Vec<Point> {
    let mut all = vec![Vec::new()];
    for (key, values) in axes {
        all = all
            .into_iter()
            .flat_map(|point| {
                values.iter().map(move |value| {
                    let mut point = point.clone();
                    point.push((key.clone(), value.clone()));
                    point
                })
            })
            .collect();
    }
    all
}

/// Calls `work` for 0 to `n` - 1, `jobs` at a time, until `stop` says so. The results are in order,
/// whatever ends first.
pub fn each<T: Send>(
    n: usize,
    jobs: usize,
    stop: impl Fn() -> bool + Sync,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<Option<T>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<T>>> = (0..n).map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, n.max(1)) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Relaxed);
                    if place >= n || stop() {
                        return;
                    }
                    let result = work(place);
                    if let Ok(mut slot) = results[place].lock() {
                        *slot = Some(result);
                    }
                }
            });
        }
    });
    results.into_iter().map(|slot| slot.into_inner().ok().flatten()).collect()
}

/// The changes that lead from a text to a point.
pub fn changes(base: &[Change], point: &[Change]) -> Vec<Change> {
    base.iter().chain(point).cloned().collect()
}

/// The scenario of every point, before any is simulated.
///
/// Errors: what is wrong with some of them, each said once.
pub fn check(text: &Text, base: &[Change], points: &[Point], jobs: usize) -> Result<()> {
    let read = |place: usize| {
        let point = &points[place];
        let scenario = Scenario::read(text, &changes(base, point));
        scenario.err().map(|error| format!("{error:#}"))
    };
    let mut wrong: Vec<String> = Vec::new();
    for why in each(points.len(), jobs, || false, read).into_iter().flatten().flatten() {
        if !wrong.contains(&why) {
            wrong.push(why);
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// Simulates a point in this process.
///
/// Errors: why there is no outcome.
pub fn here(text: &Text, base: &[Change], point: &[Change]) -> Result<Outcome, String> {
    let simulated = Scenario::read(text, &changes(base, point)).and_then(|s| simulate(&s));
    simulated.map(|(outcome, _)| outcome).map_err(|error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_points() {
        let (key, values) = axis("kvm.halt-poll=off, { fixed = 1, x = [1,2] },adaptive").unwrap();
        assert_eq!((key.as_str(), values.len()), ("kvm.halt-poll", 3));
        assert_eq!(values[1], "{ fixed = 1, x = [1,2] }");
        assert!(axis("kvm").is_err() && axis("a=1,,2").is_err());
        let axes = [axis("a=1,2").unwrap(), axis("b=x,y,z").unwrap()];
        let all = points(&axes);
        assert_eq!(all.len(), 6);
        assert_eq!(all[1], [("a".into(), "1".into()), ("b".into(), "y".into())]);
        assert_eq!(points(&[]), [Vec::new()]);
    }

    #[test]
    fn one_point_that_fails_keeps_the_others() {
        let text = Text::named("two-barriers").unwrap();
        let base = vec![("seconds".to_string(), "0.01".to_string())];
        let points = points(&[axis("starvation-s=30,0.000001,20").unwrap()]);
        let sweep =
            |jobs| each(points.len(), jobs, || false, |place| here(&text, &base, &points[place]));
        let results = sweep(2);
        let failed = |place: usize| results[place].as_ref().unwrap().is_err();
        assert!(!failed(0) && failed(1) && !failed(2), "{results:?}");
        assert_eq!(results, sweep(1), "on any number of cores the same");
    }

    #[test]
    fn all_points_are_checked_before_any_is_simulated() {
        let text = Text::named("two-barriers").unwrap();
        let all = points(&[axis("scheduler=eevdf,nonsense").unwrap(), axis("seed=1,2").unwrap()]);
        let error = check(&text, &[], &all, 2).unwrap_err().to_string();
        assert!(error.starts_with("--set scheduler=nonsense: there is no scheduler"), "{error}");
        assert_eq!(error.matches("nonsense\"").count(), 1, "said once: {error}");
        check(&text, &[], &all[..2], 2).unwrap();
    }

    #[test]
    fn an_interrupted_sweep_keeps_what_is_done() {
        let done = AtomicUsize::new(0);
        let work = |place| (done.fetch_add(1, Relaxed), place).1;
        let results = each(10, 1, || done.load(Relaxed) >= 3, work);
        assert_eq!(results.iter().flatten().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(results.len(), 10);
    }
}
