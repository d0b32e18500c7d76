// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim run`: one scenario.

use std::path::PathBuf;

use anyhow::Result;
use baton_sim::outcome::{short, simulate, simulate_traced};
use clap::Args;
use serde_json::json;

use super::output::Output;
use super::{Named, plot, show};

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    output: Output,
    /// Write everything that happens to this file, for ui.perfetto.dev; simulate a short time then
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub fn run(run: &Run) -> Result<()> {
    let scenario = run.named.scenario()?;
    run.output.check()?;
    let (outcome, speed) = match &run.trace {
        None => simulate(&scenario)?,
        Some(file) => {
            let (outcome, speed, cut) = simulate_traced(&scenario, file)?;
            if cut {
                eprintln!(
                    "the trace ends early, it would be too large: simulate less (--set seconds=0.1)"
                );
            }
            (outcome, speed)
        }
    };
    let mut text = outcome.table();
    for (name, count) in &outcome.scheduler_counters {
        text += &format!("{name} {count}  ");
    }
    text += &format!(
        "\n{} events, {:.2} simulated seconds in {:.2} s: {} events/s, {:.0} MiB\n",
        outcome.events,
        outcome.sim_s,
        speed.wall_s,
        short(speed.events_per_s),
        speed.peak_rss_mib
    );
    show(&text);
    let mut json = json!(outcome);
    for (key, value) in json!(speed).as_object().into_iter().flatten() {
        json[key] = value.clone();
    }
    let picture = plot::times(&outcome);
    run.output.save_as(&json, &[Vec::new()], &[Ok(outcome)], || picture)
}
