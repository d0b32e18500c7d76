// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim reproduce`: tables and claims of papers, talks and patches.

use std::path::PathBuf;

use anyhow::Result;
use baton_output::interrupt;
use baton_output::{open_all, say};
use baton_report::columns::aligned;
use baton_sim::reproduce::{reproduce, verdict};
use clap::Args;
use serde_json::json;

use super::{Jobs, line};

#[derive(Args)]
pub struct Reproduce {
    #[command(flatten)]
    jobs: Jobs,
    /// Write all rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn reproduce_all(options: &Reproduce) -> Result<()> {
    let [json] = open_all([("--json", options.json.as_deref())], &[])?;
    interrupt::install();
    let jobs = options.jobs.number();
    let (rows, ended) = reproduce(jobs, |part| line(format_args!("{part}")));
    line(format_args!(""));
    let mut table = vec![
        ["claim", "paper", "theirs", "ours", "ratio", "sign", "rank", "within 1.5", ""]
            .map(String::from)
            .to_vec(),
    ];
    let percent = |value: f64| format!("{:+.1} %", value * 100.0);
    let tick = |fine: bool| if fine { "yes" } else { "no" }.to_string();
    for row in &rows {
        table.push(vec![
            row.claim.clone(),
            row.paper.into(),
            row.theirs.map_or("–".into(), percent),
            percent(row.ours),
            row.ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")),
            tick(row.sign_ok),
            tick(row.rank_ok),
            row.within_1_5.map_or("–".into(), tick),
            if row.emergent { "" } else { "input" }.into(),
        ]);
    }
    let told = say(&aligned(&table, false));
    let (emergent, agree, near) = verdict(&rows);
    let mut text = format!(
        "\nOf {emergent} rows that come out of the interplay {agree} agree in sign and rank, {near} are \
         within a factor of 1.5.\n"
    );
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        text += &format!("{}: {}\n", row.claim, row.note);
    }
    let told = told.and_then(|()| say(&text));
    if let Some(file) = &json {
        file.finish(&format!("{:#}\n", json!(rows)))?;
    }
    told.and(ended)
}
