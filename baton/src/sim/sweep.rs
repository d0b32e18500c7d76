// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim sweep`: all combinations of several keys.

use anyhow::{Result, ensure};
use baton_sim::outcome::short;
use baton_sim::sweep::{axis, points, sweep};
use baton_testbed::columns::aligned;
use clap::Args;

use super::output::Output;
use super::{Jobs, Named, failed, plot, progress, ray, show};

#[derive(Args)]
pub struct Sweep {
    #[command(flatten)]
    named: Named,
    /// What to vary, and its values; several times for all combinations
    #[arg(long, value_name = "KEY=A,B,…", required = true)]
    vary: Vec<String>,
    #[command(flatten)]
    jobs: Jobs,
    /// On a Ray cluster: its address, "auto" for the one that this machine belongs to, "local" for one
    /// of this machine alone. Needs the Python package ray ($PYTHON, else python3)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "jobs")]
    ray: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub fn sweep_all(options: &Sweep) -> Result<()> {
    let axes = options.vary.iter().map(|text| axis(text)).collect::<Result<Vec<_>>>()?;
    let (text, base) = (options.named.text()?, options.named.changes()?);
    options.output.check()?;
    let n = axes.iter().map(|(_, values)| values.len()).fold(1usize, usize::saturating_mul);
    ensure!(n <= 1_000_000, "{n} points are too many; at most a million");
    let all = points(&axes);
    let done = |done| progress(done, all.len());
    let results = match &options.ray {
        None => sweep(&text, &base, &all, options.jobs.number(), done),
        Some(address) => ray::sweep(address, &text, &base, &all, done)?,
    };
    let mut rows: Vec<Vec<String>> = vec![axes.iter().map(|(key, _)| key.clone()).collect()];
    rows[0].extend(["work/s", "Jain", "PLE/s", "longest wait ms"].map(String::from));
    let mut failures = Vec::new();
    for (point, result) in all.iter().zip(&results) {
        let mut row: Vec<String> = point.iter().map(|(_, value)| value.clone()).collect();
        match result {
            Ok(o) => row.extend([
                short(o.rate()),
                o.jain.map_or("–".into(), |jain| format!("{jain:.3}")),
                short(o.vms.iter().map(|vm| vm.ple_exits_per_s).sum()),
                short(o.longest_wait_ms),
            ]),
            Err(why) => {
                let point: Vec<String> =
                    point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                failures.push(format!("{}: {why}", point.join(", ")));
                row.extend(["failed", "–", "–", "–"].map(String::from));
            }
        }
        rows.push(row);
    }
    show(&aligned(&rows, false));
    options.output.save(&all, &results, || plot::points(&all, &results))?;
    failed(&failures, results.len())
}
