// SPDX-License-Identifier: GPL-2.0-only
//! Figures of simulations as files.

use std::path::{Path, PathBuf};

use anyhow::Result;
use baton_output::OutFile;
use baton_sim::outcome::{Lateness, Outcome};
use baton_sim::sweep::Point;
use clap::Args;
use serde_json::{Value, json};

/// Outcomes, or why there is none; `None`: not simulated.
pub type Results = [Option<Result<Outcome, String>>];

#[derive(Args)]
pub struct Output {
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one line for each VM of each simulation to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw where the time of each VM's vCPUs goes (run), or the work done (compare, sweep)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// They are open.
pub struct Files {
    json: Option<OutFile>,
    csv: Option<OutFile>,
    svg: Option<OutFile>,
}

impl Output {
    /// For [`baton_output::open_all`].
    pub fn options(&self) -> [(&'static str, Option<&Path>); 3] {
        [
            ("--json", self.json.as_deref()),
            ("--csv", self.csv.as_deref()),
            ("--svg", self.svg.as_deref()),
        ]
    }

    pub fn files(json: Option<OutFile>, csv: Option<OutFile>, svg: Option<OutFile>) -> Files {
        Files { json, csv, svg }
    }
}

impl Files {
    /// What is known so far.
    pub fn keep(&self, points: &[Point], results: &Results, inputs: &[String]) -> Result<()> {
        match &self.json {
            Some(file) => file.keep(&format!("{:#}\n", all(points, results, inputs))),
            None => Ok(()),
        }
    }

    /// All of it; `inputs` are the points' (a sweep's), or none.
    pub fn save_all(
        &self,
        points: &[Point],
        results: &Results,
        inputs: &[String],
        picture: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        self.save(&all(points, results, inputs), points, results, picture)
    }

    /// The same, with other JSON.
    pub fn save(
        &self,
        json: &Value,
        points: &[Point],
        results: &Results,
        picture: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        if let Some(file) = &self.json {
            file.finish(&format!("{json:#}\n"))?;
        }
        if let Some(file) = &self.csv {
            file.finish(&csv(points, results))?;
        }
        if let Some(file) = &self.svg {
            file.finish(&picture()?)?;
        }
        Ok(())
    }
}

fn all(points: &[Point], results: &Results, inputs: &[String]) -> Value {
    let entry = |(point, result): (&Point, &Option<Result<Outcome, String>>)| {
        let point: serde_json::Map<String, Value> =
            point.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        match result {
            Some(Ok(outcome)) => json!({"point": point, "outcome": outcome}),
            Some(Err(why)) => json!({"point": point, "error": why}),
            None => json!({"point": point, "outcome": null}),
        }
    };
    let mut entries: Vec<Value> = points.iter().zip(results).map(entry).collect();
    for (entry, inputs) in entries.iter_mut().zip(inputs) {
        entry["inputs"] = json!(inputs);
    }
    entries.into()
}

/// RFC 4180.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

/// A line for each VM of each point that was simulated.
pub fn csv(points: &[Point], results: &Results) -> String {
    const FIGURES: &str = "vm,vcpus,work_per_s,used,ready,spinning,polling,ple_per_s,yields_per_s,\
         ipis_per_s,halts_per_s,polls_hit,late_mean_ns,late_stdev_ns,late_p50_ns,late_p99_ns,\
         late_p999_ns,late_max_ns,longest_wait_ms";
    let keys = points.first().into_iter().flatten().map(|(key, _)| cell(key) + ",");
    let mut out = keys.collect::<String>() + FIGURES + "\n";
    for (point, result) in points.iter().zip(results) {
        let Some(Ok(outcome)) = result else { continue };
        for (place, vm) in outcome.vms.iter().enumerate() {
            let late = |of: fn(&Lateness) -> f64| vm.lateness.as_ref().map(of);
            let figures = [
                Some(vm.rate),
                Some(vm.used),
                Some(vm.ready),
                Some(vm.spinning),
                Some(vm.polling),
                Some(vm.ple_exits_per_s),
                Some(vm.yields_per_s),
                Some(vm.ipis_per_s),
                Some(vm.halts_per_s),
                vm.polls_hit,
                late(|late| late.mean),
                late(|late| late.stdev),
                late(|late| late.p50 as f64),
                late(|late| late.p99 as f64),
                late(|late| late.p999 as f64),
                late(|late| late.max as f64),
                Some(outcome.longest_wait_ms),
            ];
            let mut cells: Vec<String> = point.iter().map(|(_, value)| cell(value)).collect();
            cells.extend([place.to_string(), vm.vcpus.to_string()]);
            cells.extend(figures.map(|figure| figure.map_or(String::new(), |f| f.to_string())));
            out += &cells.join(",");
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use baton_sim::outcome::simulate;
    use baton_sim::scenario::load;

    use super::*;

    #[test]
    fn a_line_for_each_vm_and_values_with_commas_in_quotes() {
        let scenario = load("two-barriers", &[("seconds".into(), "0.01".into())]).unwrap();
        let (outcome, _) = simulate(&scenario).unwrap();
        let point = |value: &str| vec![("kvm.halt-poll".to_string(), value.to_string())];
        let points = [point("{ fixed = 1, a = \"b\" }"), point("off")];
        let text = csv(&points, &[Some(Ok(outcome)), Some(Err("no".into()))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("kvm.halt-poll,vm,vcpus,"));
        assert!(lines[2].starts_with("\"{ fixed = 1, a = \"\"b\"\" }\",1,8,"), "{text}");
        let columns = |line: &str| line.matches(',').count();
        // One comma is inside of the quotes.
        assert_eq!(columns(lines[0]) + 1, columns(lines[1]));
    }
}
