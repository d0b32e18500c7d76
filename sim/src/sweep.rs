// SPDX-License-Identifier: GPL-2.0-only
//! A scenario with some keys varied: every combination, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::outcome::{Outcome, simulate};
use crate::scenario::Scenario;

/// Keys with their values, as on the command line.
pub type Point = Vec<(String, String)>;

/// `key=a,b,c`.
///
/// Errors: it is not of that form.
pub fn axis(text: &str) -> Result<(String, Vec<String>)> {
    let (key, values) =
        text.split_once('=').with_context(|| format!("\"{text}\" is not key=a,b,c"))?;
    let values: Vec<String> = split(values);
    ensure!(values.iter().all(|value| !value.is_empty()), "\"{text}\" has an empty value");
    Ok((key.trim().to_string(), values))
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

/// Simulates every point, `jobs` at a time. The order of the results is that of the points, whatever
/// ends first; one that fails has its reason there. `done` is called after each.
pub fn sweep(
    text: &str,
    base: &Point,
    points: &[Point],
    jobs: usize,
    done: impl Fn(usize) + Sync,
) -> Vec<Result<Outcome, String>> {
    let next = AtomicUsize::new(0);
    let finished = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Outcome, String>>>> =
        points.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Relaxed);
                    let Some(point) = points.get(place) else { return };
                    let changes: Point = base.iter().chain(point).cloned().collect();
                    let result = Scenario::parse(text, &changes)
                        .and_then(|scenario| simulate(&scenario))
                        .map(|(outcome, _)| outcome)
                        .map_err(|error| format!("{error:#}"));
                    if let Ok(mut slot) = results[place].lock() {
                        *slot = Some(result);
                    }
                    done(finished.fetch_add(1, Relaxed) + 1);
                }
            });
        }
    });
    let taken = |slot: Mutex<Option<_>>| slot.into_inner().ok().flatten();
    let never = || Err("the simulation ended without a result".to_string());
    results.into_iter().map(|slot| taken(slot).unwrap_or_else(never)).collect()
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
        let text = Scenario::text("two-barriers").unwrap();
        let base = vec![("seconds".to_string(), "0.01".to_string())];
        let points = points(&[axis("scheduler=eevdf,nonsense,cfs").unwrap()]);
        let results = sweep(&text, &base, &points, 2, |_| {});
        assert!(results[0].is_ok() && results[2].is_ok());
        assert!(results[1].as_ref().unwrap_err().contains("there is no scheduler \"nonsense\""));
        let again = sweep(&text, &base, &points, 1, |_| {});
        assert_eq!(results, again, "on any number of cores the same");
    }
}
