// SPDX-License-Identifier: GPL-2.0-only
//! Figures of simulations as files.

use std::path::PathBuf;

use anyhow::Result;
use baton_sim::outcome::{Lateness, Outcome};
use baton_sim::sweep::Point;
use clap::Args;
use serde_json::{Value, json};

use crate::files::{replace, writable};

/// Outcomes, or why there is none.
pub type Results = [Result<Outcome, String>];

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

impl Output {
    /// Whether all files can be written, as far as that can be known.
    pub fn check(&self) -> Result<()> {
        [&self.json, &self.csv, &self.svg].into_iter().flatten().try_for_each(|file| writable(file))
    }

    pub fn save(
        &self,
        points: &[Point],
        results: &Results,
        picture: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        self.save_as(&all(points, results), points, results, picture)
    }

    /// The same, with other JSON.
    pub fn save_as(
        &self,
        json: &Value,
        points: &[Point],
        results: &Results,
        picture: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        if let Some(file) = &self.json {
            replace(file, &format!("{json:#}\n"))?;
        }
        if let Some(file) = &self.csv {
            replace(file, &csv(points, results))?;
        }
        if let Some(file) = &self.svg {
            replace(file, &picture()?)?;
        }
        Ok(())
    }
}

fn all(points: &[Point], results: &Results) -> Value {
    let entry = |(point, result): (&Point, &Result<Outcome, String>)| {
        let point: serde_json::Map<String, Value> =
            point.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        match result {
            Ok(outcome) => json!({"point": point, "outcome": outcome}),
            Err(why) => json!({"point": point, "error": why}),
        }
    };
    points.iter().zip(results).map(entry).collect()
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
        let Ok(outcome) = result else { continue };
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
        let text = csv(&points, &[Ok(outcome), Err("no".into())]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("kvm.halt-poll,vm,vcpus,"));
        assert!(lines[2].starts_with("\"{ fixed = 1, a = \"\"b\"\" }\",1,8,"), "{text}");
        let columns = |line: &str| line.matches(',').count();
        // One comma is inside of the quotes.
        assert_eq!(columns(lines[0]) + 1, columns(lines[1]));
    }
}
