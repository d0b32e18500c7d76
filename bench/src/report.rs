// SPDX-License-Identifier: GPL-2.0-only
//! What was measured: kept, shown as a table, saved as JSON and CSV.

use std::fmt::Write;
use std::iter;
use std::time::Duration;

use baton_report::columns::aligned;
use baton_report::stats::{Ratio, jain, median, paired_ratio, range};
use baton_testbed::plan;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::figures::{Distribution, histogram};
use crate::host;
use crate::measurements::{Gives, Test};
use crate::run::{Aside, Options, Rate, WEIGHT_DEFAULT};

/// Runs that differ by more than this from their median are said to.
const UNSTEADY: f64 = 0.1;

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

/// One test.
#[derive(Clone)]
pub struct Measured {
    pub test: Test,
    /// Of each run, each series.
    latencies: Vec<Vec<Histogram<u64>>>,
    /// Of each of these runs.
    asides: Vec<Aside>,
    rates: Vec<Rates>,
    /// Of each run, which repetition it belongs to: one that failed has no run.
    repetitions: Vec<u32>,
    /// One multiply-add of the payload, ns; of each run.
    calibration_ns: Vec<f64>,
    /// How often the measuring vCPU was preempted; of all runs.
    preempted: u64,
    /// Which way KVM took for its IPIs, if KVM's events could be read.
    pub(crate) path: Option<&'static str>,
    /// Runs that gave no figure, or not all.
    pub errors: Vec<String>,
}

#[derive(Clone)]
struct Rates {
    per_vm: Vec<f64>,
    exits: Option<f64>,
    ideal: Option<f64>,
}

impl Measured {
    pub(crate) fn new(test: &Test) -> Self {
        Measured {
            test: test.clone(),
            latencies: Vec::new(),
            asides: Vec::new(),
            rates: Vec::new(),
            repetitions: Vec::new(),
            calibration_ns: Vec::new(),
            preempted: 0,
            path: None,
            errors: Vec::new(),
        }
    }

    pub(crate) fn add_latencies(
        &mut self,
        repetition: u32,
        series: Vec<Histogram<u64>>,
        aside: Aside,
        calibration_ns: f64,
        preempted: u64,
    ) {
        self.repetitions.push(repetition);
        self.latencies.push(series);
        self.asides.push(aside);
        self.calibration_ns.push(calibration_ns);
        self.preempted += preempted;
    }

    pub(crate) fn add_rates(&mut self, repetition: u32, rate: Rate, ideal: Option<f64>) {
        self.repetitions.push(repetition);
        self.rates.push(Rates { per_vm: rate.per_vm, exits: rate.exits, ideal });
        self.calibration_ns.push(rate.calibration_ns);
        self.preempted += rate.preempted;
    }

    /// All runs of a series together.
    pub(crate) fn all(&self, place: usize) -> Histogram<u64> {
        let mut all = histogram();
        for run in self.latencies.iter().filter_map(|run| run.get(place)) {
            all.add(run).expect("all histograms have the same bounds");
        }
        all
    }

    /// All runs of a series together, and the median of each run.
    fn series(&self, place: usize) -> (Option<Distribution>, Vec<f64>) {
        let runs = self.latencies.iter().filter_map(|run| run.get(place));
        let medians = runs.map(|run| run.value_at_quantile(0.5) as f64).collect();
        (Distribution::of(&self.all(place)), medians)
    }

    pub(crate) fn is_rate(&self) -> bool {
        !self.rates.is_empty()
    }

    /// Median, least and most of what the runs reached: of their ideals, else of the median of
    /// `base`.
    pub(crate) fn shares(&self, base: &Measured) -> Option<(f64, f64, f64)> {
        let unit = median(&base.totals())?;
        let share = |run: &Rates| run.per_vm.iter().sum::<f64>() / run.ideal.unwrap_or(unit);
        let shares: Vec<f64> = self.rates.iter().map(share).collect();
        let (low, high) = range(&shares)?;
        Some((median(&shares)?, low, high))
    }

    /// The median of the runs.
    pub(crate) fn total(&self) -> Option<f64> {
        median(&self.totals())
    }

    fn totals(&self) -> Vec<f64> {
        self.rates.iter().map(|run| run.per_vm.iter().sum()).collect()
    }

    fn of_ideal(&self) -> Option<f64> {
        let shares: Vec<f64> = self
            .rates
            .iter()
            .filter_map(|run| Some(run.per_vm.iter().sum::<f64>() / run.ideal?))
            .collect();
        median(&shares)
    }

    /// Of what the VMs reach for each unit of their weights; without any, all are equal.
    fn jain(&self, weights: &[u32]) -> Option<f64> {
        let fair = |run: &Rates| {
            let weights = weights.iter().chain(iter::repeat(&WEIGHT_DEFAULT));
            let rates = run.per_vm.iter().zip(weights);
            jain(&rates.map(|(rate, weight)| rate / f64::from(*weight)).collect::<Vec<_>>())
        };
        median(&self.rates.iter().filter_map(fair).collect::<Vec<_>>())
    }

    /// A second, of all vCPUs.
    fn exits(&self) -> Option<f64> {
        median(&self.rates.iter().filter_map(|run| run.exits).collect::<Vec<_>>())
    }

    /// Of each run, in CPUs.
    fn polled(&self) -> Vec<f64> {
        self.asides.iter().filter_map(|aside| aside.polled).collect()
    }

    /// CPU time, ms a second, of each run of a test of which it is the cost.
    fn used(&self) -> Vec<f64> {
        let asides = self.asides.iter().filter(|_| self.test.idles);
        asides.map(|aside| aside.used).collect()
    }

    /// What the VMs did that computed meanwhile, turns a second, of each run; of none, if one was too short
    /// to tell.
    fn others(&self) -> Vec<f64> {
        let others: Option<Vec<f64>> = self.asides.iter().map(|aside| aside.others).collect();
        others.unwrap_or_default()
    }

    /// For each series a name, and a figure for each run: the median of its latencies, or the total; and
    /// what it used, and the others did meanwhile.
    fn figures(&self) -> Vec<(String, Vec<f64>)> {
        match self.test.gives {
            Gives::Latencies(series) => (0..)
                .zip(series)
                .map(|(place, name)| (format!("{} {name}", self.test.name), self.series(place).1))
                .chain([(format!("{}: CPU, ms/s", self.test.name), self.used())])
                .chain([(format!("{}: what the others do", self.test.name), self.others())])
                .collect(),
            Gives::Rate(unit) => vec![(format!("{}, {unit}", self.test.name), self.totals())],
        }
    }

    fn runs(&self) -> usize {
        self.latencies.len() + self.rates.len()
    }

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

/// How much of the first scheduler's time, or rate, the others need, or reach: a line for each
/// figure, from runs that were neighbours, with the 95 % interval.
pub fn comparison(reports: &[(String, Report)]) -> String {
    let Some(((base, first), others)) = reports.split_first() else { return String::new() };
    let mut rows = vec![vec![format!("× {base} [95 %]")]];
    rows[0].extend(others.iter().map(|(name, _)| name.clone()));
    rows[0].push(String::new());
    for (place, measured) in first.measured.iter().enumerate() {
        for (series, (name, runs)) in measured.figures().into_iter().enumerate() {
            // Nobody computes beside it.
            if runs.is_empty() && measured.runs() > 0 {
                continue;
            }
            let mut row = vec![name];
            for (_, report) in others {
                let pairs = report.measured.get(place).map(|other| pairs(other, measured, series));
                let pairs = pairs.unwrap_or_default();
                row.push(paired_ratio(&pairs, 0.95).map_or("–".into(), ratio));
            }
            row.push(String::new());
            rows.push(row);
        }
    }
    aligned(&rows, true)
}

/// The figures of those repetitions that have both.
fn pairs(of: &Measured, base: &Measured, series: usize) -> Vec<(f64, f64)> {
    let runs = |measured: &Measured| -> Vec<(u32, f64)> {
        let (_, figures) = measured.figures().swap_remove(series);
        measured.repetitions.iter().copied().zip(figures).collect()
    };
    let base = runs(base);
    let same = |repetition| base.iter().find(|run| run.0 == repetition).map(|run| run.1);
    runs(of).into_iter().filter_map(|(repetition, run)| Some((run, same(repetition)?))).collect()
}

fn ratio(ratio: Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", ratio.ratio),
        None => format!("{:.2}", ratio.ratio),
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
    use crate::measurements::find;

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
        let tests = find(&["exit-cpuid".into(), "barrier".into()]).unwrap();
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
        let mut call = Measured::new(&find(&["call".into()]).unwrap()[0]);
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
        report.measured = vec![Measured::new(&find(&["barrier".into()]).unwrap()[0])];
        assert!(report.is_empty());
        assert!(!report.table().contains("barrier"));
    }
}
