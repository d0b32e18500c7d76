// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim run`: one scenario.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use baton_output::interrupt::{self, Interrupted};
use baton_output::{Draft, OutFile, note, open_all, say};
use baton_sim::outcome::short;
use baton_sim::scenario::is_source;
use baton_sim::trace::UNWRITTEN;
use clap::Args;
use serde_json::json;

use super::apart::{self, Done, Job};
use super::output::Output;
use super::{Named, as_paths, plot, stopped, warn_of_ignored};

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
    let asked = run.named.read()?;
    let scenario = asked.scenario(&[])?;
    let inputs = asked.inputs(&[Vec::new()])?;
    let [json, csv, svg] = run.output.options();
    let [json, csv, svg, trace] =
        open_all([json, csv, svg, ("--trace", run.trace.as_deref())], &as_paths(&inputs))?;
    interrupt::install();
    let trace = trace.as_ref().map(OutFile::draft).transpose()?;
    let path = trace.as_ref().map(Draft::path_for_others);
    let done = if is_source(&scenario.scheduler) {
        note(&format!(
            "{} is compiled as C: nothing of it is verified as the kernel would",
            scenario.scheduler
        ));
        apart::simulate(&asked.text, &asked.base, path.as_deref()).map_err(|why| anyhow!(why))
    } else {
        apart::in_this_process(&Job::new(&asked.text, &asked.base, path.as_deref()))
    };
    if stopped() {
        // What has been traced is no whole trace: its draft goes.
        return Err(Interrupted.into());
    }
    // Of a simulation that failed as well: that is when one wants to see it.
    let whole = !matches!(&done, Err(why) if why.to_string().starts_with(UNWRITTEN));
    trace.filter(|_| whole).map_or(Ok(()), Draft::commit)?;
    let file = || run.trace.as_deref().unwrap_or(Path::new("")).display();
    let done = if whole { done } else { done.with_context(|| format!("--trace {}", file())) };
    let Done { outcome, speed, cut } = done?;
    if cut {
        note("the trace ends early, it would be too large: simulate less (--set seconds=0.1)");
    }
    warn_of_ignored([&outcome].into_iter());
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
    let shown = say(&text);
    let mut all = json!(outcome);
    // Apart from the rest, which is the same every time.
    all["speed"] = json!(speed);
    let picture = plot::times(&outcome);
    let files = Output::files(json, csv, svg);
    files.save(&all, &[Vec::new()], &[Some(Ok(outcome))], || picture)?;
    shown
}
