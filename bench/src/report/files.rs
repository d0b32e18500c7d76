// SPDX-License-Identifier: GPL-2.0-only
//! What was measured, for programs: JSON and CSV.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Report;
use crate::figures::Distribution;
use crate::host;
use crate::measurements::Gives;
use crate::record::Measured;

impl Report {
    /// For programs. Latencies in ns.
    pub fn json(&self) -> Value {
        let measured: Vec<Value> = self.measured.iter().map(|m| self.json_of(m)).collect();
        let skipped: Vec<Value> =
            self.skipped.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
        json!({
            "kernel": host::kernel(),
            "pcpus": host::pcpus(),
            "tsc_khz": self.tsc_khz,
            "vms": self.options.vms,
            "vcpus": self.options.vcpus,
            "weights": self.options.weights,
            "measurements": measured,
            "skipped": skipped,
            "failures": self.failures,
            "warning": self.warning,
            "notes": self.notes,
            "stolen_s": self.stolen.as_secs_f64(),
            "interrupted": self.interrupted,
        })
    }

    fn json_of(&self, measured: &Measured) -> Value {
        let mut json = json!({
            "name": measured.test.name,
            "what": measured.test.what,
            "runs": measured.runs(),
            "repetitions": measured.repetitions,
            "calibration_ns": measured.calibration_ns,
            "preempted": measured.preempted,
            "path": measured.path,
            "polled_cpus": measured.polled(),
            "used_ms_per_s": measured.used(),
            "others_per_s": measured.others(),
            "errors": measured.errors,
        });
        match measured.test.gives {
            Gives::Latencies(series) => {
                for (place, name) in series.iter().enumerate() {
                    let (all, medians) = measured.series(place);
                    json["series"][*name] = json!({"all": all, "medians": medians});
                }
            }
            Gives::Rate(unit) => {
                let per_vm: Vec<&Vec<f64>> = measured.rates.iter().map(|run| &run.per_vm).collect();
                json["unit"] = json!(unit);
                json["totals"] = json!(measured.totals());
                json["per_vm"] = json!(per_vm);
                json["of_ideal"] = json!(measured.of_ideal());
                json["jain"] = json!(measured.jain(&self.options.weights));
                json["exits_per_s"] = json!(measured.exits());
            }
        }
        json
    }

    /// One line for each run and series.
    pub fn csv(&self) -> String {
        let mut out = "name,series,unit,run,count,median,p99,p999,max\n".to_string();
        for measured in &self.measured {
            let name = &measured.test.name;
            match measured.test.gives {
                Gives::Latencies(series) => {
                    for (run, histograms) in measured.repetitions.iter().zip(&measured.latencies) {
                        for (series, histogram) in series.iter().zip(histograms) {
                            let Some(d) = Distribution::of(histogram) else { continue };
                            let Distribution { count, p50, p99, p999, max, .. } = d;
                            let _ = writeln!(
                                out,
                                "{name},{series},ns,{run},{count},{p50},{p99},{p999},{max}"
                            );
                        }
                    }
                }
                Gives::Rate(unit) => {
                    for (run, total) in measured.repetitions.iter().zip(measured.totals()) {
                        let _ = writeln!(out, "{name},total,{unit},{run},,{total},,,");
                    }
                }
            }
        }
        out
    }
}
