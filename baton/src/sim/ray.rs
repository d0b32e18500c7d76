// SPDX-License-Identifier: GPL-2.0-only
//! A sweep on the machines of a Ray cluster: ray.py hands the points out, to this same program
//! there.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use baton_output::note;
use baton_sim::outcome::Outcome;
use baton_sim::scenario::Text;
use baton_sim::sweep::{Point, changes};
use serde::Deserialize;
use serde_json::json;

use super::apart::{self, Job};
use super::stopped;

const SCRIPT: &str = include_str!("ray.py");

/// What the script writes for a point.
#[derive(Deserialize)]
struct Line {
    place: usize,
    /// What `baton sim apart` has written.
    answer: String,
}

/// Simulates all points, and calls `done` with each as it ends.
///
/// Errors: there is no Python with Ray, or no cluster at this address.
pub fn sweep(
    address: &str,
    text: &Text,
    base: &Point,
    points: &[Point],
    done: impl Fn(usize, Result<Outcome, String>),
) -> Result<()> {
    let python = env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let program = env::current_exe().context("cannot find this program's own file")?;
    let jobs: Vec<Job> =
        points.iter().map(|point| Job::new(text, &changes(base, point), None)).collect();
    let mut ray = Command::new(&python)
        .args(["-c", SCRIPT, address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {python}, which --ray needs"))?;
    let job = json!({"program": program, "jobs": jobs}).to_string();
    if let Some(mut input) = ray.stdin.take() {
        // A script that ends early says why itself.
        let _ = input.write_all(job.as_bytes());
    }
    let mut missing = vec![true; points.len()];
    for line in ray.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        if stopped() {
            let _ = ray.kill();
            break;
        }
        let line = line.context("cannot read what Ray's script writes")?;
        let Ok(line) = serde_json::from_str::<Line>(&line) else {
            note(&line);
            continue;
        };
        let Some(missing) = missing.get_mut(line.place) else {
            bail!("Ray's script names a point that is not there")
        };
        *missing = false;
        done(line.place, apart::answer(line.answer.as_bytes()));
    }
    let status = ray.wait().context("cannot wait for Ray's script")?;
    if stopped() {
        return Ok(());
    }
    // With some results, those that are missing are reported one by one.
    let some = missing.iter().any(|missing| !missing);
    ensure!(status.success() || some, "Ray did not simulate anything, see above");
    for place in (0..points.len()).filter(|place| missing[*place]) {
        done(place, Err("Ray gave no result".into()));
    }
    Ok(())
}
