// SPDX-License-Identifier: GPL-2.0-only
//! What the user wants, checked before anything is touched, and asked once more.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_bench::{Bench, Steady, find};
use baton_doctor::report::Report;
use baton_doctor::{Level, Scene};
use baton_hostinfo::Host;
use baton_output::interrupt;
use baton_output::{open_all, say};
use baton_testbed::{kernel_log::KernelLog, scheduler};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bundle::{Abort, Bundle, HostFacts};
use crate::plan::{Measure, Plan};
use crate::probe::Probe;
use crate::report;
use crate::run::{Ended, Run};
use crate::sampler::Sampler;
use crate::words;

/// EX_CONFIG of sysexits.h, as scx_baton has it: the host has to be changed first.
const UNFIT: i32 = 78;

pub struct Options {
    pub time: Duration,
    pub slot: Duration,
    /// `None`: another one each time.
    pub seed: Option<u32>,
    pub control: bool,
    pub probe: Option<String>,
    pub lower_is_better: bool,
    pub synthetic: Option<Synthetic>,
    pub yes: bool,
    /// `None`: one in this directory that has the seed in its name.
    pub bundle: Option<PathBuf>,
    /// A page for a browser.
    pub report: Option<PathBuf>,
    pub scheduler: PathBuf,
}

/// VMs that the trial runs.
pub struct Synthetic {
    /// Of 'baton bench list'.
    pub test: String,
    pub vms: u32,
    pub vcpus: u32,
}

/// Returns the exit status.
///
/// Errors: it cannot begin; nothing on the host has been changed then.
pub fn trial(options: &Options) -> Result<i32> {
    let seed = options.seed.unwrap_or_else(random);
    let file = options.bundle.clone().unwrap_or_else(|| format!("baton-trial-{seed}.json").into());
    let wanted = [("--bundle", Some(file.as_path())), ("--report", options.report.as_deref())];
    let [out, page] = open_all(wanted, &[])?;
    let out = out.context("--bundle names no file")?;
    let scene = Scene::here();
    if scene.baton_runs() {
        bail!("scx_baton schedules this host: stop it first, a trial starts it in its slots");
    }
    let report = Report::of(&scene);
    if !is_fit(options, &report)? {
        return Ok(UNFIT);
    }
    let bench = options.synthetic.as_ref().map(bench).transpose()?;
    interrupt::install();
    let measure = measure(options);
    let plan = Plan::new(options.time, options.slot, seed.into(), measure, options.control);
    let window = Duration::from_secs_f64(plan.slot_s - plan.dropped_s);
    let mut sampler = Sampler::here();
    sampler.sample(0.0, None);
    ensure!(
        sampler.count() > 0 || plan.measure != Measure::Ready,
        "no VM runs on this host, or its vCPUs are not to be told from other threads ('baton top' \
         shows them): start some, or see --synthetic"
    );
    let may_read = KernelLog::open().is_some();
    let bundle = Bundle::new(facts(&scene, &report), plan);
    let file = file.display().to_string();
    say(&words::plan(&bundle, sampler.count(), may_read, &file))?;
    if !options.yes && !agreed()? {
        baton_output::note("baton trial: not begun");
        return Ok(if interrupt::asked() { interrupt::STATUS } else { 1 });
    }

    let synthetic = bench.as_ref().map(Steady::start).transpose().context("synthetic VMs")?;
    let probe = options.probe.as_deref().map(|command| -> Result<_> {
        let once = Probe::once(command, window, interrupt::asked);
        let (value, takes) = once.context("the probe")?;
        baton_output::note(&format!("the probe printed {value} in {:.1} s", takes.as_secs_f64()));
        Ok((command.to_owned(), takes))
    });
    let probe = match probe.transpose() {
        Err(_) if interrupt::asked() => return Ok(interrupt::STATUS),
        probe => probe?,
    };
    // What the kernel said before is not the trial's doing.
    let log = KernelLog::open();
    let scheduler = options.scheduler.clone();
    let mut run = Run { bundle, out, scheduler, probe, synthetic, sampler, log };
    let ended = run.all();
    let mut text = words::verdict(&run.bundle);
    if ended.as_ref().is_none_or(|ended| ended.abort != Abort::Bundle)
        && let Some(seal) = run.bundle.seal()?
    {
        text += &format!("{file} has every sample; its hash is {seal}\n");
    }
    let told = say(&text);
    let drawn = page.map_or(Ok(()), |page| page.finish(&report::html(&run.bundle)?));
    let Some(ended) = ended else { return told.and(drawn).map(|()| 0) };
    if let Err(error) = drawn {
        baton_output::note(&format!("baton trial: {error:#}"));
    }
    tell(&ended);
    Ok(if ended.abort == Abort::User { interrupt::STATUS } else { 1 })
}

/// Whether a trial can begin; if scx_baton cannot run, that has been told.
///
/// Errors: what else keeps it from that.
fn is_fit(options: &Options, report: &Report) -> Result<bool> {
    if report.status() == 2 && !options.control {
        say(&report.text(None))?;
        baton_output::note("baton trial: scx_baton cannot run on this host, see above");
        return Ok(false);
    }
    // SAFETY: geteuid() only returns a number.
    if unsafe { libc::geteuid() } != 0 && !options.control {
        bail!("no permission to load a scheduler: run it as root (sudo baton trial)");
    }
    ensure!(
        options.yes || io::stdin().is_terminal(),
        "standard input is no terminal to ask: add --yes"
    );
    ensure!(
        scheduler::is_kernels(),
        "a sched_ext scheduler schedules this host: stop it first ('baton doctor' tells which)"
    );
    Ok(true)
}

/// Why it ended early, and who schedules now.
fn tell(ended: &Ended) {
    let charge = match scheduler::is_kernels() {
        true => "the kernel's scheduler is in charge",
        false => "a sched_ext scheduler IS STILL LOADED: end it (pkill -9 scx_), or press SysRq-S",
    };
    baton_output::note(&format!(
        "baton trial: {}; {charge}",
        match ended.why == ended.abort.words() {
            true => ended.why.clone(),
            false => format!("{}: {}", ended.abort.words(), ended.why),
        }
    ));
}

/// Tells a bundle's verdict, computed again, and writes its report.
///
/// Errors: it cannot be read, or is not as the trial wrote it; the report cannot be written.
pub fn verify(file: &Path, report: Option<&Path>) -> Result<Bundle> {
    let name = file.display();
    let [page] = open_all([("--report", report)], &[("the bundle", file)])?;
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let bundle = Bundle::parse(&text).with_context(|| format!("{name}"))?;
    bundle.verify().with_context(|| format!("{name} was changed"))?;
    let mut told = words::verdict(&bundle);
    if let Some(seal) = bundle.seal()? {
        told += &format!(
            "{name} is consistent; compare its hash with the one that the trial printed: {seal}\n"
        );
    }
    say(&told)?;
    if let Some(page) = page {
        page.finish(&report::html(&bundle)?)?;
    }
    Ok(bundle)
}

fn measure(options: &Options) -> Measure {
    match (&options.probe, &options.synthetic) {
        (Some(_), _) => Measure::Probe { lower_is_better: options.lower_is_better },
        (_, Some(synthetic)) => Measure::Work {
            test: synthetic.test.clone(),
            vms: synthetic.vms,
            vcpus: synthetic.vcpus,
        },
        _ => Measure::Ready,
    }
}

/// The standard library's hash maps have random keys of the kernel.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// Errors: there is no such test, or KVM cannot be used.
fn bench(synthetic: &Synthetic) -> Result<Bench> {
    let name = &synthetic.test;
    let tests = find(std::slice::from_ref(name), true)
        .map_err(|_| anyhow::anyhow!("there is no measurement {name}: see 'baton bench list'"))?;
    let options = baton_bench::Options {
        vms: synthetic.vms,
        vcpus: vec![synthetic.vcpus],
        weights: Vec::new(),
        pin: false,
        samples: 1,
        time: Duration::from_secs(1),
        deadline: Duration::from_secs(60),
    };
    Bench::new(tests, options).context("synthetic VMs")
}

fn facts(scene: &Scene, report: &Report) -> HostFacts {
    let cpu = Host::here().read("/proc/cpuinfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let worth = report.found.iter().filter(|found| found.finding.level != Level::Note);
    HostFacts {
        baton: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: scene.release.clone(),
        cpu: cpu.unwrap_or_default(),
        cpus: scene.online.len() as u32,
        findings: worth.map(|found| found.finding.id.to_owned()).collect(),
    }
}

/// Errors: there is nobody to ask any more.
fn agreed() -> Result<bool> {
    say("Go on? [y/N] ")?;
    // A read would go on after a signal.
    while !interrupt::asked() {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(100u8)).is_ok_and(|ready| ready > 0) {
            break;
        }
    }
    if interrupt::asked() {
        say("\n")?;
        return Ok(false);
    }
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    let yes = ["y", "yes"].contains(&answer.trim().to_lowercase().as_str());
    Ok(yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::bundle;

    #[test]
    fn a_bundle_is_not_overwritten_by_its_report() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("trial.json");
        let text = bundle(Measure::Ready, 1, |_, _| 20.0)?.text()?;
        fs::write(&file, &text)?;
        let error = format!("{:#}", verify(&file, Some(&file)).unwrap_err());
        assert!(error.contains("would overwrite the bundle"), "{error}");
        let options = Options {
            time: Duration::from_secs(120),
            slot: Duration::from_secs(30),
            seed: None,
            control: true,
            probe: None,
            lower_is_better: false,
            synthetic: None,
            yes: true,
            bundle: Some(file.clone()),
            report: Some(file.clone()),
            scheduler: PathBuf::new(),
        };
        let error = format!("{:#}", trial(&options).unwrap_err());
        assert!(error.contains("--bundle and --report name the same file"), "{error}");
        assert_eq!(fs::read_to_string(&file)?, text);
        Ok(())
    }

    #[test]
    fn a_bundle_that_was_changed_has_no_report() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let [file, page] = ["trial.json", "trial.html"].map(|name| directory.path().join(name));
        let text = bundle(Measure::Ready, 1, |_, _| 20.0)?.text()?;
        fs::write(&file, text.replacen("\"busy\":2", "\"busy\":3", 1))?;
        assert!(verify(&file, Some(&page)).is_err() && !page.exists());
        fs::write(&file, text)?;
        verify(&file, Some(&page))?;
        assert!(fs::read_to_string(&page)?.starts_with("<!DOCTYPE html>"));
        Ok(())
    }
}
