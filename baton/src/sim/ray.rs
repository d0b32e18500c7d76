// SPDX-License-Identifier: GPL-2.0-only
//! A sweep on the machines of a Ray cluster: ray.py hands the points out, to this same program there.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use baton_sim::outcome::Outcome;
use baton_sim::sweep::Point;
use serde::Deserialize;
use serde_json::json;

const SCRIPT: &str = include_str!("ray.py");

/// What the script writes for a point.
#[derive(Deserialize)]
struct Line {
    place: usize,
    /// The file that `baton sim run --json` has written.
    outcome: Option<String>,
    error: Option<String>,
}

/// As [`baton_sim::sweep::sweep`].
///
/// Errors: there is no Python with Ray, or no cluster at this address.
pub fn sweep(
    address: &str,
    text: &str,
    base: &Point,
    points: &[Point],
    done: impl Fn(usize),
) -> Result<Vec<Result<Outcome, String>>> {
    let python = env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let program = env::current_exe().context("cannot find this program's own file")?;
    let changes: Vec<Point> =
        points.iter().map(|point| base.iter().chain(point).cloned().collect()).collect();
    let mut ray = Command::new(&python)
        .args(["-c", SCRIPT, address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {python}, which --ray needs"))?;
    let job = json!({"program": program, "scenario": text, "points": changes}).to_string();
    if let Some(mut input) = ray.stdin.take() {
        // A script that ends early says why itself.
        let _ = input.write_all(job.as_bytes());
    }
    let mut results: Vec<Result<Outcome, String>> =
        points.iter().map(|_| Err("Ray gave no result".into())).collect();
    let mut n = 0;
    for line in ray.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line.context("cannot read what Ray's script writes")?;
        let Ok(line) = serde_json::from_str::<Line>(&line) else {
            eprintln!("{line}");
            continue;
        };
        let Some(slot) = results.get_mut(line.place) else {
            bail!("Ray's script names a point that is not there")
        };
        *slot = match (line.outcome, line.error) {
            (Some(text), _) => {
                serde_json::from_str(&text).map_err(|why| format!("Ray brought no outcome: {why}"))
            }
            (None, why) => Err(why.unwrap_or_else(|| "Ray gave no reason".into())),
        };
        n += 1;
        done(n);
    }
    let status = ray.wait().context("cannot wait for Ray's script")?;
    // With some results, those that are missing are reported one by one.
    ensure!(status.success() || n > 0, "Ray did not simulate anything, see above");
    Ok(results)
}
