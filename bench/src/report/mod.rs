// SPDX-License-Identifier: GPL-2.0-only
//! What was measured: kept, shown as a table, saved as JSON and CSV.

mod compare;
mod files;
mod table;

use std::time::Duration;

use baton_report::stats::{median, range};
use baton_testbed::plan;

pub use self::compare::comparison;
use crate::measurements::Gives;
use crate::record::{Measured, Options};

/// Everything that `run` found out.
#[derive(Clone)]
pub struct Report {
    pub tsc_khz: u64,
    pub measured: Vec<Measured>,
    /// Tests that this KVM cannot run, and why.
    pub skipped: Vec<(String, String)>,
    /// What a reader should know before all of it.
    pub warning: Option<String>,
    /// What a reader should know about all of it.
    pub notes: Vec<String>,
    /// What went wrong apart from the tests themselves, such as a scheduler that does not start.
    pub failures: Vec<String>,
    /// What this machine's own hypervisor took of its CPUs meanwhile.
    pub stolen: Duration,
    /// The user has had enough before all was measured.
    pub interrupted: bool,
    options: Options,
}

impl Report {
    pub(crate) fn new(options: &Options, tsc_khz: u64) -> Self {
        Report {
            tsc_khz,
            measured: Vec::new(),
            skipped: Vec::new(),
            warning: None,
            notes: Vec::new(),
            failures: Vec::new(),
            stolen: Duration::ZERO,
            interrupted: false,
            options: options.clone(),
        }
    }

    /// Whether anything failed, a single run or all.
    pub fn failed(&self) -> bool {
        !self.failures.is_empty() || self.measured.iter().any(|m| !m.errors.is_empty())
    }

    /// Whether there is any figure at all.
    pub fn is_empty(&self) -> bool {
        self.measured.iter().all(|measured| measured.runs() == 0)
    }

    /// The figures of one repetition, in a line: what there is if the host goes before the end.
    pub fn of_repetition(&self, repetition: u32) -> String {
        let mut words = Vec::new();
        for measured in &self.measured {
            let run = measured.repetitions.iter().position(|number| *number == repetition);
            for (name, figures) in measured.figures() {
                let figure = run.and_then(|run| figures.get(run).copied());
                words.extend(figure.map(|figure| format!("{name} {}", number(Some(figure)))));
            }
        }
        words.join("; ")
    }

    /// What the VMs did together, of the first measurement here. A latency counts as the number of
    /// them that fit into a second, at the median of its last series: that is the whole of it.
    pub fn measured(&self) -> Option<plan::Measured> {
        let measured = self.measured.first()?;
        let seconds = self.options.time.as_secs_f64();
        Some(match measured.test.gives {
            Gives::Rate(unit) => {
                let rate = measured.total()?;
                let run = measured.rates.first()?;
                plan::Measured {
                    rate,
                    per_vm: run.per_vm.clone(),
                    ideal: run.ideal,
                    ..plan::Measured::new((rate * seconds) as u64, seconds, unit)
                }
            }
            Gives::Latencies(series) => {
                const NS_A_SECOND: f64 = 1e9;
                let (_, medians) = measured.series(series.len() - 1);
                let rate = NS_A_SECOND / median(&medians)?;
                let unit = format!("{}s/s", measured.test.name);
                plan::Measured {
                    rate,
                    ..plan::Measured::new((rate * seconds) as u64, seconds, &unit)
                }
            }
        })
    }
}

/// Half of the distance between the least and the most, as share of the median; `None` of one.
fn half_range(values: &[f64]) -> Option<f64> {
    let (low, high) = range(values).filter(|_| values.len() > 1)?;
    median(values).map(|middle| (high - low) / 2.0 / middle)
}

/// Three digits, or all of the integer.
fn number(value: Option<f64>) -> String {
    match value {
        Some(v) if v >= 100.0 => format!("{v:.0}"),
        Some(v) if v >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
        None => "–".into(),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.0} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::figures::histogram;
    use crate::measurements::find;
    use crate::record::{Aside, Rate};

    fn report() -> Report {
        let options = Options {
            vms: 2,
            vcpus: vec![2],
            weights: Vec::new(),
            pin: false,
            samples: 100,
            time: Duration::from_secs(1),
            deadline: Duration::from_secs(60),
        };
        let mut report = Report::new(&options, 1_000_000);
        let tests = find(&["exit-cpuid".into(), "barrier".into()], false).unwrap();
        let mut cost = Measured::new(&tests[0]);
        for (repetition, ns) in [(0, 1000), (1, 1500)] {
            let mut histogram = histogram();
            (0..100).for_each(|i| histogram.record(ns + i).unwrap());
            let aside = Aside { polled: Some(0.25), others: Some(7.0), used: 0.5 };
            cost.add_latencies(repetition, vec![histogram], aside, 1.0, 1);
        }
        let mut barrier = Measured::new(&tests[1]);
        let rate =
            Rate { per_vm: vec![40.0, 60.0], exits: None, calibration_ns: 1.0, preempted: 7 };
        barrier.add_rates(0, rate, Some(200.0));
        report.measured = vec![cost, barrier];
        report.skipped.push(("timer-x".into(), "no timer".into()));
        report
    }

    #[test]
    fn the_table_says_what_was_measured_and_what_not() {
        let table = report().table();
        for word in [
            "exit-cpuid cost",
            "unsteady",
            "preempted 2×",
            "polls 0.25 CPUs",
            "others 7.00/s",
            "50 %",
            "0.962",
            "no timer",
        ] {
            assert!(table.contains(word), "{word} is not in\n{table}");
        }
    }

    #[test]
    fn a_call_ends_when_all_have_acknowledged() {
        let mut report = report();
        let mut call = Measured::new(&find(&["call".into()], true).unwrap()[0]);
        let series = [2_000, 10_000].map(|ns| {
            let mut histogram = histogram();
            histogram.record(ns).unwrap();
            histogram
        });
        let aside = Aside { polled: None, others: None, used: 0.5 };
        call.add_latencies(0, series.to_vec(), aside, 1.0, 1);
        report.measured = vec![call];
        let rate = report.measured().unwrap().rate;
        assert!((99_000.0..101_000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_repetition_is_a_line() {
        assert_eq!(
            report().of_repetition(0),
            "exit-cpuid cost 1049; exit-cpuid: what the others do 7.00; barrier, rounds/s 100"
        );
    }

    #[test]
    fn a_warning_stands_on_top_and_in_the_json() {
        let warned = Report { warning: Some("BEWARE".into()), ..report() };
        assert!(warned.table().starts_with("BEWARE\n\n") && warned.json()["warning"] == "BEWARE");
        assert!(!report().table().contains("BEWARE") && report().json()["warning"].is_null());
    }

    #[test]
    fn json_and_csv_have_every_run() {
        let json = report().json();
        let medians = &json["measurements"][0]["series"]["cost"]["medians"];
        assert_eq!(medians.as_array().unwrap().len(), 2);
        assert_eq!(json["measurements"][1]["totals"][0], 100.0);
        assert_eq!(report().csv().lines().count(), 1 + 2 + 1);
    }

    #[test]
    fn schedulers_are_compared_run_by_run() {
        let mut other = report();
        for run in &mut other.measured[1].rates {
            run.per_vm.iter_mut().for_each(|rate| *rate *= 1.5);
        }
        let text = comparison(&[("eevdf".into(), report()), ("scx_baton".into(), other)]);
        assert!(text.contains("× eevdf"), "{text}");
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("barrier, rounds/s").ends_with("1.50"), "{text}");
        assert!(line("exit-cpuid cost").ends_with("1.00 [1.00, 1.00]"), "{text}");
        assert_eq!(comparison(&[]), "");
    }

    /// A run that failed must not make the runs behind it neighbours of others.
    #[test]
    fn only_runs_of_one_repetition_are_neighbours() {
        let mut other = report();
        other.measured[0].latencies.remove(0);
        other.measured[0].repetitions.remove(0);
        let text = comparison(&[("eevdf".into(), report()), ("scx_baton".into(), other)]);
        let line = text.lines().find(|line| line.starts_with("exit-cpuid cost")).unwrap();
        assert!(line.ends_with(" 1.00"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_report() {
        let mut report = report();
        assert!(!report.is_empty());
        report.measured = vec![Measured::new(&find(&["barrier".into()], true).unwrap()[0])];
        assert!(report.is_empty());
        assert!(!report.table().contains("barrier"));
    }
}
