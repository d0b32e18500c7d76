// SPDX-License-Identifier: GPL-2.0-only
//! What is to be measured, and what runs gave.

use std::iter;
use std::time::Duration;

use baton_report::stats::{jain, median, range};
use hdrhistogram::Histogram;

use crate::figures::{Distribution, histogram};
use crate::measurements::{Gives, Test};

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// VMs at once. Of tests of latency the first one measures, the others compute.
    pub vms: u32,
    /// Of each VM, where the test leaves a choice: one after the other.
    pub vcpus: Vec<u32>,
    /// `cpu.weight` of each VM's cgroup; empty: no cgroups. Where the list ends, 100.
    pub weights: Vec<u32>,
    /// vCPU i of every VM runs on CPU i alone, counted round.
    pub pin: bool,
    /// Latencies of one run.
    pub samples: u64,
    /// Of one run that measures a rate.
    pub time: Duration,
    /// What one run of a latency may take.
    pub deadline: Duration,
}

/// What a cgroup weighs if nobody says (Documentation/admin-guide/cgroup-v2.rst).
pub(crate) const WEIGHT_DEFAULT: u32 = 100;

/// What happened beside a run that measures latencies.
#[derive(Clone, Copy, Default)]
pub(crate) struct Aside {
    /// How much of a CPU KVM polled away at the HLTs of the VM that measures; `None` if it does not
    /// tell.
    pub(crate) polled: Option<f64>,
    /// CPU time that vCPU 0 of the VM that measures used, ms a second.
    pub(crate) used: f64,
    /// Turns a second of the VMs that compute meanwhile, if there are any.
    pub(crate) others: Option<f64>,
}

/// What the VMs did together.
pub(crate) struct Rate {
    /// Rounds, or turns of all vCPUs, a second.
    pub(crate) per_vm: Vec<f64>,
    /// A second, of all vCPUs; `None` if KVM does not tell.
    pub(crate) exits: Option<f64>,
    pub(crate) calibration_ns: f64,
    pub(crate) preempted: u64,
}

/// One test.
#[derive(Clone)]
pub struct Measured {
    pub test: Test,
    /// Of each run, each series.
    pub(crate) latencies: Vec<Vec<Histogram<u64>>>,
    /// Of each of these runs.
    pub(crate) asides: Vec<Aside>,
    pub(crate) rates: Vec<Rates>,
    /// Of each run, which repetition it belongs to: one that failed has no run.
    pub(crate) repetitions: Vec<u32>,
    /// One multiply-add of the payload, ns; of each run.
    pub(crate) calibration_ns: Vec<f64>,
    /// How often the measuring vCPU was preempted; of all runs.
    pub(crate) preempted: u64,
    /// Which way KVM took for its IPIs, if KVM's events could be read.
    pub(crate) path: Option<&'static str>,
    /// Runs that gave no figure, or not all.
    pub errors: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Rates {
    pub(crate) per_vm: Vec<f64>,
    pub(crate) exits: Option<f64>,
    pub(crate) ideal: Option<f64>,
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
    pub(crate) fn series(&self, place: usize) -> (Option<Distribution>, Vec<f64>) {
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

    pub(crate) fn totals(&self) -> Vec<f64> {
        self.rates.iter().map(|run| run.per_vm.iter().sum()).collect()
    }

    pub(crate) fn of_ideal(&self) -> Option<f64> {
        let shares: Vec<f64> = self
            .rates
            .iter()
            .filter_map(|run| Some(run.per_vm.iter().sum::<f64>() / run.ideal?))
            .collect();
        median(&shares)
    }

    /// Of what the VMs reach for each unit of their weights; without any, all are equal.
    pub(crate) fn jain(&self, weights: &[u32]) -> Option<f64> {
        let fair = |run: &Rates| {
            let weights = weights.iter().chain(iter::repeat(&WEIGHT_DEFAULT));
            let rates = run.per_vm.iter().zip(weights);
            jain(&rates.map(|(rate, weight)| rate / f64::from(*weight)).collect::<Vec<_>>())
        };
        median(&self.rates.iter().filter_map(fair).collect::<Vec<_>>())
    }

    /// A second, of all vCPUs.
    pub(crate) fn exits(&self) -> Option<f64> {
        median(&self.rates.iter().filter_map(|run| run.exits).collect::<Vec<_>>())
    }

    /// Of each run, in CPUs.
    pub(crate) fn polled(&self) -> Vec<f64> {
        self.asides.iter().filter_map(|aside| aside.polled).collect()
    }

    /// CPU time, ms a second, of each run of a test of which it is the cost.
    pub(crate) fn used(&self) -> Vec<f64> {
        let asides = self.asides.iter().filter(|_| self.test.idles);
        asides.map(|aside| aside.used).collect()
    }

    /// What the VMs did that computed meanwhile, turns a second, of each run; of none, if one was
    /// too short to tell.
    pub(crate) fn others(&self) -> Vec<f64> {
        let others: Option<Vec<f64>> = self.asides.iter().map(|aside| aside.others).collect();
        others.unwrap_or_default()
    }

    /// For each series a name, and a figure for each run: the median of its latencies, or the
    /// total; and what it used, and the others did meanwhile.
    pub(crate) fn figures(&self) -> Vec<(String, Vec<f64>)> {
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

    pub(crate) fn runs(&self) -> usize {
        self.latencies.len() + self.rates.len()
    }
}
