// SPDX-License-Identifier: GPL-2.0-only
//! From runs to figures: what an experiment's report says, as far as it has got.

use baton_report::stats::{jain, median, paired_ratio, range, spread};
use baton_testbed::ab::{Reached, Record};
use baton_testbed::exact::Inputs;
use baton_testbed::experiment::Experiment;
use baton_testbed::plan::KERNEL_SCHEDULER;
use serde::{Serialize, Serializer};

#[derive(Debug, Serialize)]
pub struct Report {
    /// Release of the host's kernel; empty until a host was up.
    pub kernel: String,
    /// What the figures depend on, where they are from exact hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Inputs>,
    /// All figures are from software emulation: compare them with each other only. `false`: the
    /// host ran nested under KVM.
    pub emulated: bool,
    pub pcpus: u32,
    pub vms: u32,
    pub vcpus_per_vm: u32,
    /// Those with an outcome for every run.
    pub repetitions: u32,
    /// Length of one run.
    pub seconds: f64,
    /// Whether every run of the experiment has its outcome.
    pub complete: bool,
    pub workloads: Vec<Row>,
}

/// A workload in certain guests.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub unit: String,
    /// VMs that were up; 0: it ran on the host itself.
    pub vms: u32,
    pub active_vms: u32,
    /// Sum of rates if each guest had the host alone for its fair share of the time: the median of
    /// what one reached alone. Absent where only one works.
    pub ideal: Option<f64>,
    /// Rate of one guest alone, by repetition.
    pub alone: Vec<f64>,
    #[serde(serialize_with = "as_map")]
    pub schedulers: Vec<(String, Cell)>,
}

/// A workload under a scheduler.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Cell {
    Figures(Box<Figures>),
    /// No run gave a figure.
    Failed {
        error: String,
        runs: Vec<Outcome>,
    },
}

#[derive(Debug, Serialize)]
pub struct Figures {
    /// Median rate of each guest.
    pub per_vm: Vec<f64>,
    /// Median of the sums over the guests.
    pub total: f64,
    /// Interquartile range of the sums as a share of their median.
    pub spread: f64,
    pub min: f64,
    pub max: f64,
    /// Median of the runs' shares, each of the alone run of the same repetition.
    pub of_ideal: Option<f64>,
    pub of_ideal_spread: Option<f64>,
    pub of_ideal_min: Option<f64>,
    pub of_ideal_max: Option<f64>,
    /// Median and least of the runs' fairness between the guests; absent where only one works.
    pub jain: Option<f64>,
    pub jain_min: Option<f64>,
    /// Median of the PAUSE-loop exits of a run.
    pub ple_exits: Option<f64>,
    /// How many times the kernel's own scheduler, in the same repetitions.
    pub vs_eevdf: Option<Versus>,
    pub failed_runs: usize,
    pub runs: Vec<Outcome>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Versus {
    pub ratio: f64,
    /// Bounds of the 95 % interval; absent with a single pair.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub pairs: usize,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    Done {
        repetition: u32,
        per_vm: Vec<f64>,
        total: f64,
        of_ideal: Option<f64>,
        jain: Option<f64>,
        ple_exits: Option<u64>,
    },
    Failed {
        repetition: u32,
        error: String,
    },
}

fn as_map<S: Serializer>(cells: &[(String, Cell)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(cells.iter().map(|(name, cell)| (name, cell)))
}

impl Report {
    /// The report on the runs so far.
    pub fn new(
        experiment: &Experiment,
        kernel: &str,
        inputs: Option<&Inputs>,
        records: &[Record],
    ) -> Report {
        let row = |index| Row::new(experiment, index, records);
        Report {
            kernel: kernel.to_string(),
            inputs: inputs.cloned(),
            emulated: true,
            pcpus: experiment.pcpus,
            vms: experiment.vms,
            vcpus_per_vm: experiment.vcpus_per_vm(),
            repetitions: finished_repetitions(experiment, records),
            seconds: experiment.seconds,
            complete: records.len() == experiment.runs().len(),
            workloads: (0..experiment.workloads.len()).filter_map(row).collect(),
        }
    }

    /// What stands beside a workload's name where several numbers of guests are compared.
    pub fn place(&self, row: &Row) -> String {
        match (row.vms, row.active_vms) {
            (0, _) => "on the host".to_string(),
            (1, _) => "1 VM".to_string(),
            (vms, active) if vms == active => format!("{vms} VMs"),
            (vms, active) => format!("{active} of {vms} VMs"),
        }
    }
}

impl Row {
    /// `None` as long as nothing is known about the workload.
    fn new(experiment: &Experiment, index: usize, records: &[Record]) -> Option<Row> {
        let (vms, active_vms) = experiment.vms(&experiment.workloads[index]);
        let records: Vec<&Record> = records.iter().filter(|r| r.run.row == index).collect();
        let workload = &records.first()?.run.workload;

        // One guest cannot fill a host that is wider than it: the ideal is as many guests as fit
        // side by side, and no more than there are.
        let wide = f64::from(experiment.pcpus) / f64::from(experiment.vcpus_per_vm());
        let scale = wide.max(1.0).min(f64::from(active_vms));
        let alone: Vec<(u32, f64)> = records
            .iter()
            .filter(|record| record.run.alone)
            .filter_map(|r| Some((r.run.repetition, total(r.outcome.as_ref().ok()?))))
            .collect();
        let ideal_of = |repetition: u32| {
            alone.iter().find(|(of, _)| *of == repetition).map(|(_, rate)| rate * scale)
        };
        let rates: Vec<f64> = alone.iter().map(|(_, rate)| *rate).collect();
        let own: Vec<f64> =
            (0..experiment.repetitions).filter_map(|n| own_ideal(&records, n)).collect();

        let runs_of = |name: &str| -> Vec<Outcome> {
            let of = |r: &&&Record| !r.run.alone && r.run.scheduler.name == name;
            records
                .iter()
                .filter(of)
                .map(|record| {
                    let repetition = record.run.repetition;
                    let own = own_ideal(&records, repetition);
                    Outcome::new(record, own.or_else(|| ideal_of(repetition)))
                })
                .collect()
        };
        let kernel = runs_of(KERNEL_SCHEDULER);
        let cells = experiment.schedulers.iter().filter_map(|scheduler| {
            let name = scheduler.name();
            let cell = Cell::new(runs_of(name), (name != KERNEL_SCHEDULER).then_some(&kernel))?;
            Some((name.to_string(), cell))
        });
        Some(Row {
            name: workload.name.clone(),
            unit: unit(&records).unwrap_or_else(|| workload.unit.clone()),
            vms,
            active_vms,
            ideal: median(&own).or_else(|| median(&rates).map(|rate| rate * scale)),
            schedulers: cells.collect(),
            alone: rates,
        })
    }
}

/// The bench knows what it counts, the experiment does not.
fn unit(records: &[&Record]) -> Option<String> {
    let reached = records.iter().find_map(|record| record.outcome.as_ref().ok())?;
    Some(reached.vms.first()?.unit.clone())
}

/// Repetitions of which every run has an outcome.
fn finished_repetitions(experiment: &Experiment, records: &[Record]) -> u32 {
    let runs = experiment.runs().len() / experiment.repetitions as usize;
    let outcomes = |n: u32| records.iter().filter(|r| r.run.repetition == n).count();
    (0..experiment.repetitions).filter(|n| outcomes(*n) == runs).count() as u32
}

fn total(reached: &Reached) -> f64 {
    reached.vms.iter().map(|vm| vm.rate).sum()
}

/// A workload on the host may have VMs of its own.
fn per_vm(reached: &Reached) -> Vec<f64> {
    match &reached.vms[..] {
        [one] if !one.per_vm.is_empty() => one.per_vm.clone(),
        vms => vms.iter().map(|vm| vm.rate).collect(),
    }
}

/// What workloads that run VMs themselves say would be ideal in a repetition: the best that a VM
/// alone reached, under whichever scheduler. One under which even that is slow is not nearer to the
/// ideal for it.
fn own_ideal(records: &[&Record], repetition: u32) -> Option<f64> {
    records
        .iter()
        .filter(|record| record.run.repetition == repetition)
        .filter_map(|record| record.outcome.as_ref().ok()?.vms.first()?.ideal)
        .max_by(f64::total_cmp)
}

impl Outcome {
    fn new(record: &Record, ideal: Option<f64>) -> Outcome {
        let repetition = record.run.repetition;
        match &record.outcome {
            Err(error) => Outcome::Failed { repetition, error: error.clone() },
            Ok(reached) => {
                let per_vm = per_vm(reached);
                let total = total(reached);
                Outcome::Done {
                    repetition,
                    total,
                    of_ideal: ideal.map(|ideal| total / ideal),
                    jain: if per_vm.len() > 1 { jain(&per_vm) } else { None },
                    ple_exits: reached.ple_exits,
                    per_vm,
                }
            }
        }
    }

    fn reached(&self) -> Option<(u32, f64)> {
        match self {
            Outcome::Done { repetition, total, .. } => Some((*repetition, *total)),
            Outcome::Failed { .. } => None,
        }
    }
}

impl Cell {
    /// `None` without runs. `kernel`: the runs to compare with.
    fn new(runs: Vec<Outcome>, kernel: Option<&Vec<Outcome>>) -> Option<Cell> {
        let totals: Vec<f64> = runs.iter().filter_map(|run| Some(run.reached()?.1)).collect();
        let Some((min, max)) = range(&totals) else {
            let error = runs.iter().find_map(|run| match run {
                Outcome::Failed { error, .. } => Some(error.clone()),
                Outcome::Done { .. } => None,
            })?;
            return Some(Cell::Failed { error, runs });
        };
        let (mut shares, mut jains, mut exits, mut vms) = (vec![], vec![], vec![], vec![]);
        for run in &runs {
            if let Outcome::Done { of_ideal, jain, ple_exits, per_vm, .. } = run {
                shares.extend(of_ideal);
                jains.extend(jain);
                exits.extend(ple_exits.map(|n| n as f64));
                vms.push(per_vm);
            }
        }
        let of_vm = |vm: usize| -> Option<f64> {
            median(&vms.iter().filter_map(|per_vm| per_vm.get(vm).copied()).collect::<Vec<_>>())
        };
        Some(Cell::Figures(Box::new(Figures {
            per_vm: (0..vms[0].len()).filter_map(of_vm).collect(),
            total: median(&totals)?,
            spread: spread(&totals).unwrap_or(0.0),
            min,
            max,
            of_ideal: median(&shares),
            of_ideal_spread: spread(&shares),
            of_ideal_min: range(&shares).map(|(low, _)| low),
            of_ideal_max: range(&shares).map(|(_, high)| high),
            jain: median(&jains),
            jain_min: range(&jains).map(|(low, _)| low),
            ple_exits: median(&exits),
            vs_eevdf: kernel.and_then(|kernel| versus(&runs, kernel)),
            failed_runs: runs.len() - totals.len(),
            runs,
        })))
    }
}

/// The paired ratio over the repetitions in which both gave a figure.
fn versus(runs: &[Outcome], kernel: &[Outcome]) -> Option<Versus> {
    let pairs: Vec<(f64, f64)> = runs
        .iter()
        .filter_map(Outcome::reached)
        .filter_map(|(repetition, total)| {
            let of_kernel = kernel.iter().filter_map(Outcome::reached);
            Some((total, of_kernel.into_iter().find(|(of, _)| *of == repetition)?.1))
        })
        .collect();
    let found = paired_ratio(&pairs, 0.95)?;
    Some(Versus {
        ratio: found.ratio,
        low: found.interval.map(|(low, _)| low),
        high: found.interval.map(|(_, high)| high),
        pairs: found.pairs,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use baton_testbed::plan::Measured;

    const EXPERIMENT: &str = r#"
        repetitions = 2
        seconds = 1
        schedulers = ["eevdf", "scx_baton", "scx_bad"]
        [[workload]]
        name = "barrier"
        [[workload]]
        name = "pbzip2"
        host = true
    "#;

    /// A report with all that occurs: two guests, the host, a scheduler that hangs.
    pub fn sample() -> Report {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let records: Vec<Record> = experiment
            .runs()
            .into_iter()
            .map(|run| {
                let drift = 1.0 + f64::from(run.repetition);
                let rate = match run.scheduler.name.as_str() {
                    _ if run.alone => 1000.0,
                    "eevdf" => 200.0,
                    _ => 450.0,
                };
                let measured = || Measured::new((rate * drift) as u64, 1.0, &run.workload.unit);
                let vms = (0..run.active.len().max(1)).map(|_| measured()).collect();
                let outcome = match run.scheduler.name.as_str() {
                    "scx_bad" => Err("hung: RCU stall".to_string()),
                    _ => Ok(Reached { vms, ple_exits: Some(7), seconds: 1.0 }),
                };
                Record { run, outcome }
            })
            .collect();
        Report::new(&experiment, "7.3.4-test", None, &records)
    }

    #[test]
    fn shares_and_ratios_are_of_neighbours() {
        let report = sample();
        assert!(report.complete);
        let barrier = &report.workloads[0];
        assert_eq!((barrier.alone.len(), barrier.ideal), (2, Some(1500.0)));
        let Cell::Figures(baton) = &barrier.schedulers[1].1 else { panic!("no figures") };
        // 900 of 1,000, then, twice as fast, 1,800 of 2,000.
        assert_eq!(baton.of_ideal, Some(0.9));
        assert_eq!(baton.per_vm, [675.0, 675.0]);
        assert_eq!(baton.jain, Some(1.0));
        let versus = baton.vs_eevdf.unwrap();
        assert!((versus.ratio - 2.25).abs() < 1e-9 && versus.pairs == 2);
        let pbzip2 = &report.workloads[1];
        assert_eq!((pbzip2.vms, pbzip2.ideal), (0, None));
        let Cell::Figures(host) = &pbzip2.schedulers[1].1 else { panic!("no figures") };
        assert_eq!((host.of_ideal, host.jain, host.total), (None, None, 675.0));
    }

    #[test]
    fn hung_runs_say_so_instead_of_figures() {
        let json = serde_json::to_value(sample()).unwrap();
        let bad = &json["workloads"][0]["schedulers"]["scx_bad"];
        assert_eq!(bad["error"], "hung: RCU stall");
        assert_eq!(bad["runs"][0]["error"], "hung: RCU stall");
        assert!(bad["total"].is_null());
        assert_eq!(json["workloads"][0]["schedulers"]["eevdf"]["total"], 600.0);
    }

    #[test]
    fn an_empty_report_is_a_report() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let report = Report::new(&experiment, "", None, &[]);
        assert!(!report.complete && report.workloads.is_empty());
    }

    #[test]
    fn the_ideal_of_the_bench_is_the_best_vm_alone() {
        const BENCH: &str = r#"
            repetitions = 1
            seconds = 1
            schedulers = ["eevdf", "scx_good"]
            [[workload]]
            name = "bench-barrier"
        "#;
        let experiment = Experiment::parse(BENCH).unwrap();
        let records: Vec<Record> = experiment
            .runs()
            .into_iter()
            .map(|run| {
                let ideal = Some(if run.scheduler.name == "eevdf" { 500.0 } else { 1000.0 });
                let per_vm = vec![150.0, 250.0];
                let vms = vec![Measured { per_vm, ideal, ..Measured::new(400, 1.0, "rounds/s") }];
                Record { run, outcome: Ok(Reached { vms, ple_exits: None, seconds: 1.0 }) }
            })
            .collect();
        let report = Report::new(&experiment, "", None, &records);
        let row = &report.workloads[0];
        assert_eq!((row.ideal, row.unit.as_str()), (Some(1000.0), "rounds/s"));
        assert_eq!((row.vms, row.active_vms), (2, 2), "they are VMs, though no guests");
        for (name, cell) in &row.schedulers {
            let Cell::Figures(figures) = cell else { panic!("no figures") };
            assert_eq!(figures.of_ideal, Some(0.4), "{name}");
            assert_eq!(figures.per_vm, [150.0, 250.0]);
        }
    }

    #[test]
    fn a_wide_host_raises_the_ideal() {
        let text = EXPERIMENT.replace("repetitions", "pcpus = 8\nvcpus_per_vm = 2\nrepetitions");
        let experiment = Experiment::parse(&text).unwrap();
        let run = experiment.runs().into_iter().find(|run| run.alone).unwrap();
        let vms = vec![Measured::new(1000, 1.0, "x/s")];
        let outcome = Ok(Reached { vms, ple_exits: None, seconds: 1.0 });
        let report = Report::new(&experiment, "", None, &[Record { run, outcome }]);
        // Room for four guests, but there are two.
        assert_eq!(report.workloads[0].ideal, Some(2000.0));
    }
}
