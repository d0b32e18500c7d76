// SPDX-License-Identifier: GPL-2.0-only
//! Runs tests in VMs: all of them once, then, if wanted, all of them again, so that a host that
//! changes in between changes for all.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use baton_output::interrupt;
use baton_report::stats::median;
use hdrhistogram::Histogram;
use kvm_ioctls::Kvm;

use crate::cgroups::Cgroups;
use crate::figures::histogram;
use crate::host::{self, Rival};
use crate::layout::*;
use crate::measurements::{ALL_OTHERS, Args, Gives, Poll, Test, Vcpus};
use crate::path::Trace;
use crate::polling::FixedPolling;
use crate::record::{Aside, Measured, Options, Rate, WEIGHT_DEFAULT};
use crate::report::Report;
use crate::vcpu::Running;
use crate::vm::{Spec, Vm};

/// IPIs of a run that is traced.
const TRACED: u64 = 8;

/// Of VMs that compute beside a latency: what they did in a run with fewer turns is no figure.
const ENOUGH_TURNS: f64 = 50.0;

/// How long a VM's vCPUs may take to come up, all of them.
const UP: Duration = Duration::from_secs(30);

/// Measurements on a host whose KVM can be used.
pub struct Bench {
    pub(crate) kvm: Kvm,
    pub(crate) tests: Vec<Test>,
    pub(crate) options: Options,
    tsc_khz: u64,
    cgroups: Option<Cgroups>,
}

impl Bench {
    /// From now on Ctrl-C ends the measurement instead of the process.
    ///
    /// Errors: there is no usable KVM, or it takes fewer vCPUs than wanted.
    pub fn new(tests: Vec<Test>, options: Options) -> Result<Self> {
        let kvm = host::open_kvm()?;
        let most = kvm.get_max_vcpus();
        if let Some(vcpus) = options.vcpus.iter().find(|vcpus| **vcpus as usize > most) {
            bail!("this KVM takes at most {most} vCPUs a VM, not {vcpus}");
        }
        let tsc_khz = tsc_khz(&kvm)?;
        interrupt::install();
        host::raise_file_limit();
        let tests = match &options.vcpus[..] {
            [_] => tests,
            sizes => tests.iter().flat_map(|test| test.scaled(sizes)).collect(),
        };
        let mut weights = options.weights.clone();
        if !weights.is_empty() {
            weights.resize(options.vms as usize, WEIGHT_DEFAULT);
        }
        let cgroups = (!weights.is_empty()).then(|| Cgroups::new(&weights)).transpose()?;
        Ok(Bench { kvm, tests, options, tsc_khz, cgroups })
    }

    /// Without figures; with what cannot be measured here, and why.
    pub fn report(&self) -> Report {
        let mut report = Report::new(&self.options, self.tsc_khz);
        report.warning = host::no_hardware();
        report.notes.extend(host::clock_trouble());
        for test in &self.tests {
            match test.missing(&self.kvm) {
                Some(why) => report.skipped.push((test.name.clone(), why.into())),
                None => {
                    let mut measured = Measured::new(test);
                    measured.path = self.path(test);
                    report.measured.push(measured);
                }
            }
        }
        report
    }

    /// Which way KVM takes for this test's IPIs: a short run that is traced and not measured.
    fn path(&self, test: &Test) -> Option<&'static str> {
        if test.test != TEST_IPI {
            return None;
        }
        let trace = Trace::start()?;
        let spec = Spec { samples: TRACED, ..self.spec(test) };
        self.start(0, spec, None, false).ok()?.wait(Instant::now() + self.options.deadline).ok()?;
        trace.path()
    }

    /// Runs all tests once more, into the report, and calls `progress` before each. A test that
    /// fails is noted there; Ctrl-C ends it early, which the report then says. Reports are compared
    /// by the number of the repetition.
    pub fn repeat(&self, report: &mut Report, repetition: u32, mut progress: impl FnMut(&str)) {
        let stolen = host::stolen();
        for measured in &mut report.measured {
            if interrupt::asked() {
                break;
            }
            progress(&measured.test.name);
            let result = match measured.test.gives {
                Gives::Latencies(series) => self.latencies(series.len(), repetition, measured),
                Gives::Rate(_) => self.rates(repetition, measured),
            };
            // What failed then is what we stopped ourselves.
            if let Err(error) = result
                && !interrupt::asked()
            {
                measured.errors.push(format!("{error:#}"));
            }
        }
        report.interrupted = interrupt::asked();
        report.stolen += host::stolen() - stolen;
    }
}

fn tsc_khz(kvm: &Kvm) -> Result<u64> {
    let vm = kvm.create_vm().context("KVM makes no VM")?;
    let vcpu = vm.create_vcpu(0).context("KVM makes no vCPU")?;
    let khz = vcpu.get_tsc_khz().context("KVM does not know the frequency of the TSC")?;
    if khz == 0 {
        bail!("KVM does not know the frequency of the TSC");
    }
    Ok(khz.into())
}

impl Bench {
    pub(crate) fn spec(&self, test: &Test) -> Spec {
        let vcpus = match test.vcpus {
            Vcpus::Exactly(n) => n,
            Vcpus::Wanted(least) => self.options.vcpus[0].max(least),
        };
        let mut args = match test.args {
            Args::Plain(args) | Args::Times(_, args) => args,
            Args::Time(place, mut args) => {
                args[place] = args[place] * self.tsc_khz / 1_000_000;
                args
            }
        };
        if let Args::Times(first, _) = test.args {
            args[..first].iter_mut().for_each(|arg| *arg = *arg * self.tsc_khz / 1_000_000);
        }
        if test.test == TEST_IPI && args[2] == ALL_OTHERS {
            args[2] = u64::from(vcpus) - 1;
        }
        Spec {
            vcpus,
            test: test.test,
            args,
            samples: self.options.samples.min(test.most_samples),
            x2apic: test.x2apic,
            halt_poll_ns: match test.poll {
                Poll::Off => Some(0),
                Poll::Fixed(ns) => Some(ns),
                Poll::Adaptive => None,
            },
            more_slots: test.more_slots,
            log_dirty: test.log_dirty,
            touches: test.touches,
        }
    }

    /// A VM that takes CPU time from the others: vCPUs that compute, and wait for nobody.
    fn load(&self) -> Spec {
        Spec {
            vcpus: self.options.vcpus[0],
            test: TEST_LOCK,
            // Nobody holds the lock for long: 1 ms at 3 GHz is spent outside of it.
            args: [LOCK_TEST_AND_SET, 0, 750_000, 0],
            samples: 0,
            x2apic: true,
            halt_poll_ns: None,
            more_slots: 0,
            log_dirty: false,
            touches: false,
        }
    }

    /// The VM with this number.
    pub(crate) fn start(
        &self,
        vm: u32,
        spec: Spec,
        io: Option<Duration>,
        pin: bool,
    ) -> Result<Running> {
        // There may be hundreds, and those that run already compute.
        interrupt::check()?;
        if let Some(cgroups) = &self.cgroups {
            cgroups.enter(vm as usize)?;
        }
        let (vm, vcpus) = Vm::new(&self.kvm, spec)?;
        Running::start(vm, vcpus, io, pin)
    }

    fn latencies(&self, series: usize, repetition: u32, measured: &mut Measured) -> Result<()> {
        let test = &measured.test;
        let pin = self.options.pin;
        let others = (1..self.options.vms).map(|vm| self.start(vm, self.load(), None, pin));
        let others = others.collect::<Result<Vec<_>>>()?;
        self.wait_up(&others)?;
        let _fixed = match test.poll {
            Poll::Fixed(ns) => Some(FixedPolling::set(ns)?),
            _ => None,
        };
        let _rival = test.rival.then(|| Rival::start(1)).transpose()?;
        let running = self.start(0, self.spec(test), test.io_time, pin || test.rival)?;
        let deadline = Instant::now() + self.options.deadline;
        if test.log_dirty {
            let (passes, result) = self.dirty_passes(&running, deadline);
            let calibration_ns = self.calibration_ns(&running.vm)?;
            if !passes.is_empty() {
                let (passes, aside) = (vec![passes], Aside::default());
                let preempted = running.end().preempted;
                measured.add_latencies(repetition, passes, aside, calibration_ns, preempted);
            }
            return result;
        }
        let done_by_others = || others.iter().map(|other| done(&other.vm)).sum::<f64>();
        let (start, before) = (Instant::now(), done_by_others());
        let result = running.wait(deadline);
        let seconds = start.elapsed().as_secs_f64();
        let polled = running.polled_ns().map(|ns| ns as f64 / 1e9 / seconds);
        let others_did = Some(done_by_others() - before)
            .filter(|turns| *turns >= ENOUGH_TURNS)
            .map(|turns| turns / seconds);
        let vm = running.vm.clone();
        let usage = running.end();
        let used = usage.cpu_time.as_secs_f64() * 1000.0 / seconds;
        let aside = Aside { polled, others: others_did, used };
        drop(others);
        // Also of a run that failed half way.
        let samples = vm.samples()?;
        let ns = |cycles: u64| u128::from(cycles) * 1_000_000 / u128::from(self.tsc_khz);
        let histograms: Vec<Histogram<u64>> = samples
            .iter()
            .take(series)
            .map(|samples| {
                let mut histogram = histogram();
                samples.iter().for_each(|cycles| histogram.saturating_record(ns(*cycles) as u64));
                histogram
            })
            .collect();
        if !histograms[0].is_empty() {
            let calibration_ns = self.calibration_ns(&vm)?;
            let preempted = usage.preempted;
            measured.add_latencies(repetition, histograms, aside, calibration_ns, preempted);
        }
        result
    }

    /// How long each pass over the logs of written pages takes; before each, all are written.
    fn dirty_passes(&self, running: &Running, deadline: Instant) -> (Histogram<u64>, Result<()>) {
        let mut passes = histogram();
        let mut pass = || -> Result<()> {
            let rounds = || running.vm.area(0).ops.load(SeqCst);
            let before = rounds();
            // The first to end may have begun before the last pass.
            while rounds() < before + 2 {
                if let Some(why) = running.failure() {
                    bail!(why);
                }
                if interrupt::asked() {
                    bail!("interrupted");
                }
                if Instant::now() > deadline {
                    bail!("the guest hangs: no result before the deadline");
                }
                thread::sleep(Duration::from_micros(100));
            }
            let start = Instant::now();
            let pages = running.vm.dirty_pages()?;
            let ns = start.elapsed().as_nanos() as u64;
            let all = u64::from(running.vm.spec.more_slots);
            ensure!(pages == all, "KVM logged {pages} of {all} written pages");
            passes.saturating_record(ns);
            Ok(())
        };
        let result = (0..running.vm.spec.samples).try_for_each(|_| pass());
        (passes, result)
    }

    /// One multiply-add of the payload, ns; NaN if there was no time for any.
    fn calibration_ns(&self, vm: &Vm) -> Result<f64> {
        let cycles: Vec<f64> = vm.calibrations()?.into_iter().map(|cycles| cycles as f64).collect();
        let cycles = median(&cycles).unwrap_or(f64::NAN);
        Ok(cycles * 1e6 / self.tsc_khz as f64 / CALIBRATION_ROUNDS as f64)
    }

    /// All VMs together, and, if there are several, one alone before that: the ideal.
    fn rates(&self, repetition: u32, measured: &mut Measured) -> Result<()> {
        let (spec, vms) = (self.spec(&measured.test), self.options.vms);
        let alone = match vms {
            1 => None,
            _ => Some(self.rate(&spec, 1)?.per_vm[0]),
        };
        let together = self.rate(&spec, vms)?;
        // Each VM alone for its fair share of the time; several may fit on the host at once, unless
        // all are bound to the same CPUs.
        let fit = if self.options.pin { 1.0 } else { host::pcpus() as f64 / f64::from(spec.vcpus) };
        let at_once = fit.clamp(1.0, vms.into());
        measured.add_rates(repetition, together, alone.map(|alone| alone * at_once));
        Ok(())
    }

    /// Until all vCPUs of these VMs run.
    pub(crate) fn wait_up(&self, running: &[Running]) -> Result<()> {
        let up = |vm: &Vm| vm.params().up.load(SeqCst) >= vm.spec.vcpus.into();
        let deadline = Instant::now() + UP;
        while !running.iter().all(|running| up(&running.vm)) {
            if let Some(why) = running.iter().find_map(Running::failure) {
                bail!(why);
            }
            if Instant::now() > deadline || interrupt::asked() {
                bail!("the vCPUs did not come up in {UP:?}");
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn rate(&self, spec: &Spec, vms: u32) -> Result<Rate> {
        let time = self.options.time;
        let pin = self.options.pin;
        let running = (0..vms).map(|vm| self.start(vm, spec.clone(), None, pin));
        let running = running.collect::<Result<Vec<Running>>>()?;
        let failed = || running.iter().find_map(Running::failure);
        self.wait_up(&running)?;
        // Until caches, and the scheduler's opinions, have settled.
        thread::sleep(time / 10);
        let exits = || running.iter().map(Running::exits).sum::<Option<u64>>();
        let exits_before = exits();
        let before: Vec<f64> = running.iter().map(|running| done(&running.vm)).collect();
        let start = Instant::now();
        while start.elapsed() < time && !interrupt::asked() {
            thread::sleep(time.saturating_sub(start.elapsed()).min(Duration::from_millis(50)));
        }
        let seconds = start.elapsed().as_secs_f64();
        let after: Vec<f64> = running.iter().map(|running| done(&running.vm)).collect();
        let exits = exits().zip(exits_before).map(|(now, before)| (now - before) as f64 / seconds);
        if let Some(why) = failed() {
            bail!(why);
        }
        let per_vm: Vec<f64> =
            after.iter().zip(&before).map(|(after, before)| (after - before) / seconds).collect();
        let calibration_ns = self.calibration_ns(&running[0].vm)?;
        let preempted = running.into_iter().map(|vm| vm.end().preempted).sum();
        // One that gets nothing done beside others is a result: to drop it would flatter whoever
        // starves it.
        ensure!(per_vm.iter().any(|rate| *rate > 0.0), "no VM did anything in {seconds:.1} s");
        Ok(Rate { per_vm, exits, calibration_ns, preempted })
    }
}

/// Rounds of all vCPUs together, or turns of each of them, so far.
pub(crate) fn done(vm: &Vm) -> f64 {
    let ops = (0..vm.spec.vcpus).map(|vcpu| vm.area(vcpu).ops.load(SeqCst)).sum::<u64>() as f64;
    // At a barrier all of them count the same round.
    if vm.spec.test == TEST_BARRIER { ops / f64::from(vm.spec.vcpus) } else { ops }
}
