// SPDX-License-Identifier: GPL-2.0-only
//! What was measured, for people.

use std::fmt::Write;

use baton_report::columns::aligned;
use baton_report::stats::median;

use super::{Report, half_range, number, percent};
use crate::measurements::Gives;
use crate::record::Measured;

/// Runs that differ by more than this from their median are said to.
const UNSTEADY: f64 = 0.1;

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut out = self.warning.as_ref().map_or(String::new(), |why| format!("{why}\n\n"));
        let head = |names: [&str; 9]| vec![names.map(String::from).to_vec()];
        let mut latencies =
            head(["latency, ns", "median", "±", "p99", "p99.9", "max", "rel.", "runs", ""]);
        let mut rates =
            head(["throughput", "total", "±", "of ideal", "Jain", "exits/s", "", "runs", ""]);
        for measured in self.measured.iter().filter(|measured| measured.runs() > 0) {
            let runs = measured.runs().to_string();
            let calibration = median(&measured.calibration_ns);
            match measured.test.gives {
                Gives::Latencies(series) => {
                    for (place, name) in series.iter().enumerate() {
                        let (Some(all), medians) = measured.series(place) else { continue };
                        let middle = median(&medians);
                        let relative = middle.zip(calibration).map(|(ns, unit)| ns / unit);
                        latencies.push(vec![
                            format!("{} {name}", measured.test.name),
                            number(middle),
                            percent(half_range(&medians)),
                            number(Some(all.p99)),
                            number(Some(all.p999)),
                            number(Some(all.max)),
                            number(relative),
                            runs.clone(),
                            self.remarks(measured, &medians),
                        ]);
                    }
                }
                Gives::Rate(unit) => {
                    let totals = measured.totals();
                    rates.push(vec![
                        format!("{}, {unit}", measured.test.name),
                        number(median(&totals)),
                        percent(half_range(&totals)),
                        percent(measured.of_ideal()),
                        measured
                            .jain(&self.options.weights)
                            .filter(|_| self.options.vms > 1)
                            .map_or("–".into(), |jain| format!("{jain:.3}")),
                        number(measured.exits()),
                        String::new(),
                        runs,
                        measured.remarks(&totals),
                    ]);
                }
            }
        }
        for rows in [latencies, rates].into_iter().filter(|rows| rows.len() > 1) {
            out += &aligned(&rows, true);
            out.push('\n');
        }
        if self.measured.iter().any(|measured| !measured.latencies.is_empty()) {
            out += "rel.: the median in multiply-adds of the same vCPU meanwhile, for hosts whose speed \
                    drifts\n";
        }
        for measured in &self.measured {
            if let Some(error) = measured.errors.first() {
                let _ = writeln!(out, "{} failed: {error}", measured.test.name);
            }
        }
        for (name, why) in &self.skipped {
            let _ = writeln!(out, "{name} skipped: {why}");
        }
        for note in self.failures.iter().chain(&self.notes) {
            let _ = writeln!(out, "{note}");
        }
        if !self.stolen.is_zero() {
            let _ = writeln!(out, "disturbed: this machine's hypervisor took {:?}", self.stolen);
        }
        if self.interrupted {
            let _ = writeln!(out, "interrupted: what was measured until then");
        }
        out
    }

    fn remarks(&self, measured: &Measured, medians: &[f64]) -> String {
        let remarks = [measured.remarks(medians), self.of_reference(measured)];
        remarks.into_iter().filter(|remark| !remark.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// What a test reaches of another that shows what could be: its rate is one over its time.
    fn of_reference(&self, measured: &Measured) -> String {
        let middle = |measured: &Measured| median(&measured.series(0).1);
        let reference = |name: &&str| self.measured.iter().find(|other| other.test.name == *name);
        let share = || {
            let name = measured.test.reference?;
            let of = middle(reference(&name)?)? / middle(measured)?;
            Some(format!("{} of {name}'s rate", percent(Some(of))))
        };
        share().unwrap_or_default()
    }
}

impl Measured {
    /// What was wrong, in a few words.
    fn remarks(&self, runs: &[f64]) -> String {
        let mut remarks: Vec<String> = self.path.iter().map(|path| path.to_string()).collect();
        if half_range(runs).is_some_and(|half| half > UNSTEADY) {
            remarks.push("unsteady".to_string());
        }
        if self.preempted > 0 && !self.latencies.is_empty() {
            remarks.push(format!("preempted {}×", self.preempted));
        }
        if let Some(polled) = median(&self.polled()).filter(|polled| *polled >= 0.005) {
            remarks.push(format!("polls {polled:.2} CPUs"));
        }
        if let Some(used) = median(&self.used()) {
            remarks.push(format!("uses {} ms/s", number(Some(used))));
        }
        if let Some(others) = median(&self.others()) {
            remarks.push(format!("others {}/s", number(Some(others))));
        }
        if let Some(exits) = self.exits().filter(|_| self.test.name == "pause") {
            let pauses = median(&self.totals()).map(|total| total / exits);
            remarks.push(format!("{} PAUSEs an exit", number(pauses)));
        }
        if !self.errors.is_empty() {
            remarks.push(format!("{} failed", self.errors.len()));
        }
        remarks.join(", ")
    }
}
