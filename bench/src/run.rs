// SPDX-License-Identifier: GPL-2.0-only
//! Runs tests in VMs: all of them once, then all of them again, so that a host that changes in
//! between changes for all.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use kvm_ioctls::Kvm;

use crate::figures::histogram;
use crate::host;
use crate::layout::*;
use crate::report::{Measured, Report};
use crate::tests::{Args, Gives, Test, Vcpus};
use crate::vcpu::Running;
use crate::vm::{Spec, Vm};

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// VMs at once. Of tests of latency the first one measures, the others compute.
    pub vms: u32,
    /// Of each VM, where the test leaves a choice.
    pub vcpus: u32,
    pub repetitions: u32,
    /// Latencies of one run.
    pub samples: u64,
    /// Of one run that measures a rate.
    pub time: Duration,
}

/// What one run of a latency takes at most; a host may be emulated and overcommitted.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long a VM's vCPUs may take to come up, all of them.
const UP: Duration = Duration::from_secs(30);

/// Runs the tests and calls `progress` before each run. What has been measured is in the report
/// also if this ends early, which the report then says.
///
/// Errors: there is no usable KVM, or it makes no VM at all.
pub fn run(
    tests: &[Test],
    options: &Options,
    mut progress: impl FnMut(&str, u32),
) -> Result<Report> {
    let kvm = host::open_kvm()?;
    host::catch_interrupt();
    let most = kvm.get_max_vcpus();
    if options.vcpus as usize > most {
        bail!("this KVM takes at most {most} vCPUs a VM, not {}", options.vcpus);
    }
    let mut report = Report::new(options, tsc_khz(&kvm)?);
    report.notes.extend(host::clock_trouble());
    let mut runs = Vec::new();
    for test in tests {
        match test.missing(&kvm) {
            Some(why) => report.skipped.push((test.name.clone(), why.into())),
            None => runs.push((test, Measured::new(test))),
        }
    }
    let stolen = host::stolen();
    'all: for repetition in 0..options.repetitions {
        for (test, measured) in &mut runs {
            progress(&test.name, repetition);
            let result = match test.gives {
                Gives::Latencies(series) => {
                    latencies(&kvm, test, series.len(), options, report.tsc_khz, measured)
                }
                Gives::Rate(_) => rates(&kvm, test, options, report.tsc_khz, measured),
            };
            if host::interrupted() {
                report.interrupted = true;
                report.notes.push("interrupted: what was measured until then".into());
                break 'all;
            }
            if let Err(error) = result {
                measured.errors.push(format!("{error:#}"));
            }
        }
    }
    let stolen = host::stolen() - stolen;
    if !stolen.is_zero() {
        report.notes.push(format!("disturbed: this machine's hypervisor took {stolen:?} of it"));
    }
    report.measured = runs.into_iter().map(|(_, measured)| measured).collect();
    Ok(report)
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

fn spec(test: &Test, options: &Options, tsc_khz: u64) -> Spec {
    let vcpus = match test.vcpus {
        Vcpus::Exactly(n) => n,
        Vcpus::Wanted(least) => options.vcpus.max(least),
    };
    let mut args = match test.args {
        Args::Plain(args) => args,
        Args::Time(place, mut args) => {
            args[place] = args[place] * tsc_khz / 1_000_000;
            args
        }
    };
    if test.test == TEST_IPI && args[2] == 0 {
        args[2] = u64::from(vcpus) - 1;
    }
    Spec {
        vcpus,
        test: test.test,
        args,
        samples: options.samples,
        x2apic: test.x2apic,
        halt_poll_ns: test.halt_poll_ns,
        more_slots: test.more_slots,
    }
}

/// A VM that takes CPU time from the others: vCPUs that compute, and wait for nobody.
fn load(options: &Options) -> Spec {
    Spec {
        vcpus: options.vcpus,
        test: TEST_LOCK,
        // Nobody holds the lock for long: 10 ms of computing outside.
        args: [LOCK_TEST_AND_SET, 0, 7_500_000, 0],
        samples: 0,
        x2apic: true,
        halt_poll_ns: None,
        more_slots: 0,
    }
}

fn start(kvm: &Kvm, spec: Spec, io_time: Option<Duration>) -> Result<Running> {
    let (vm, vcpus) = Vm::new(kvm, spec)?;
    Running::start(vm, vcpus, io_time)
}

fn latencies(
    kvm: &Kvm,
    test: &Test,
    series: usize,
    options: &Options,
    tsc_khz: u64,
    measured: &mut Measured,
) -> Result<()> {
    let others =
        (1..options.vms).map(|_| start(kvm, load(options), None)).collect::<Result<Vec<_>>>()?;
    let running = start(kvm, spec(test, options, tsc_khz), test.io_time)?;
    let result = running.wait(Instant::now() + DEADLINE);
    let vm = running.vm.clone();
    let preempted = running.end();
    drop(others);
    // Also of a run that failed half way.
    let samples = vm.samples()?;
    let histograms: Vec<Histogram<u64>> = samples
        .iter()
        .take(series)
        .map(|samples| {
            let mut histogram = histogram();
            for cycles in samples {
                histogram.saturating_record(
                    (u128::from(*cycles) * 1_000_000 / u128::from(tsc_khz)) as u64,
                );
            }
            histogram
        })
        .collect();
    if !histograms[0].is_empty() {
        measured.add_latencies(histograms, calibration_ns(&vm, tsc_khz), preempted);
    }
    result
}

/// One multiply-add of the payload, ns.
fn calibration_ns(vm: &Vm, tsc_khz: u64) -> f64 {
    use std::sync::atomic::Ordering::SeqCst;
    let cycles = vm.area(0).calibration.load(SeqCst) as f64;
    cycles * 1e6 / tsc_khz as f64 / CALIBRATION_ROUNDS as f64
}

/// All VMs together, and, if there are several, one alone before that: the ideal.
fn rates(
    kvm: &Kvm,
    test: &Test,
    options: &Options,
    tsc_khz: u64,
    measured: &mut Measured,
) -> Result<()> {
    let spec = spec(test, options, tsc_khz);
    let alone = match options.vms {
        1 => None,
        _ => Some(rate(kvm, &spec, 1, options.time, tsc_khz)?.per_vm[0]),
    };
    let together = rate(kvm, &spec, options.vms, options.time, tsc_khz)?;
    // Each VM alone for its fair share of the time; more VMs than one may fit on the host at once.
    let at_once = (host::pcpus() as f64 / f64::from(spec.vcpus)).clamp(1.0, options.vms.into());
    let ideal = alone.map(|alone| alone * at_once);
    measured.add_rates(together.per_vm, ideal, together.calibration_ns, together.preempted);
    Ok(())
}

struct Rate {
    /// Rounds, or turns of all vCPUs, a second.
    per_vm: Vec<f64>,
    calibration_ns: f64,
    preempted: u64,
}

fn rate(kvm: &Kvm, spec: &Spec, vms: u32, time: Duration, tsc_khz: u64) -> Result<Rate> {
    use std::sync::atomic::Ordering::SeqCst;
    let running =
        (0..vms).map(|_| start(kvm, spec.clone(), None)).collect::<Result<Vec<Running>>>()?;
    let failed = || running.iter().find_map(Running::failure);
    let done = |vm: &Vm| {
        let ops = (0..vm.spec.vcpus).map(|vcpu| vm.area(vcpu).ops.load(SeqCst)).sum::<u64>();
        // At a barrier all of them count the same round.
        if spec.test == TEST_BARRIER { ops as f64 / f64::from(vm.spec.vcpus) } else { ops as f64 }
    };
    let up = |vm: &Vm| vm.params().up.load(SeqCst) >= vm.spec.vcpus.into();
    let deadline = Instant::now() + UP;
    while !running.iter().all(|running| up(&running.vm)) {
        if let Some(why) = failed() {
            bail!(why);
        }
        if Instant::now() > deadline || host::interrupted() {
            bail!("the vCPUs did not come up");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Until caches, and the scheduler's opinions, have settled.
    std::thread::sleep(time / 10);
    let before: Vec<f64> = running.iter().map(|running| done(&running.vm)).collect();
    let start = Instant::now();
    while start.elapsed() < time && !host::interrupted() {
        std::thread::sleep((time - start.elapsed().min(time)).min(Duration::from_millis(50)));
    }
    let seconds = start.elapsed().as_secs_f64();
    let after: Vec<f64> = running.iter().map(|running| done(&running.vm)).collect();
    if let Some(why) = failed() {
        bail!(why);
    }
    let per_vm: Vec<f64> =
        after.iter().zip(&before).map(|(after, before)| (after - before) / seconds).collect();
    let calibration_ns = calibration_ns(&running[0].vm, tsc_khz);
    let preempted = running.into_iter().map(Running::end).sum();
    if per_vm.contains(&0.0) {
        bail!("a VM did nothing in {seconds:.1} s");
    }
    Ok(Rate { per_vm, calibration_ns, preempted })
}
