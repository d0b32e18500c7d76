// SPDX-License-Identifier: GPL-2.0-only
//! Slot after slot, and an end that leaves the host with the kernel's scheduler.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use baton_bench::Steady;
use baton_counters::Client;
use baton_output::{OutFile, interrupt};
use baton_testbed::kernel_log::KernelLog;
use baton_testbed::scheduler::{self, Running, StartError};

use crate::bundle::{Abort, Bundle, Probed, Slot};
use crate::keys::Keys;
use crate::limits::{ReadyLimit, warning};
use crate::plan::Who;
use crate::probe::Probe;
use crate::progress::Progress;
use crate::sampler::Sampler;

const TICK: Duration = Duration::from_millis(50);

/// Between samples, of slots of 30 s.
const SAMPLE_S: f64 = 1.0;

/// Attaching to KVM takes milliseconds, and 3 s on an emulated host.
const ATTACHED: Duration = Duration::from_secs(20);

/// Beyond its slots, what scx_baton may take to start and to be stopped. Then it ends by itself.
const LIMIT_S: f64 = 30.0;

/// What a trial works with.
pub struct Run {
    pub bundle: Bundle,
    pub out: OutFile,
    pub scheduler: PathBuf,
    /// The command, and how long one run of it takes.
    pub probe: Option<(String, Duration)>,
    pub synthetic: Option<Steady>,
    pub sampler: Sampler,
    pub log: Option<KernelLog>,
}

/// Why it ended early, with what a person has to know.
pub struct Ended {
    pub abort: Abort,
    pub why: String,
}

impl Ended {
    fn of(abort: Abort, why: impl Into<String>) -> Ended {
        Ended { abort, why: why.into() }
    }
}

/// What lasts while slots are run.
struct Now {
    began: Instant,
    running: Option<Running>,
    limit: ReadyLimit,
    keys: Option<Keys>,
    progress: Progress,
}

impl Run {
    /// All slots; then the bundle is whole, and written.
    pub fn all(&mut self) -> Option<Ended> {
        let mut now = Now {
            began: Instant::now(),
            running: None,
            limit: ReadyLimit::default(),
            keys: Keys::listen(),
            progress: Progress::new(self.bundle.plan.order.len()),
        };
        let slots = self.bundle.plan.order.len();
        let done = (0..slots).try_for_each(|place| self.slot(&mut now, place));
        now.progress.clear();
        let mut ended = done.err();
        if let Err(why) = give_back(&mut now) {
            ended.get_or_insert(Ended::of(Abort::Scheduler, why));
        }
        let end = ended.as_ref().map(|ended| ended.abort);
        let whole = self.bundle.finish(end);
        if let Err(error) = whole.and_then(|()| self.out.finish(&self.bundle.text()?)) {
            ended.get_or_insert(Ended::of(Abort::Bundle, format!("{error:#}")));
        }
        ended
    }

    fn slot(&mut self, now: &mut Now, place: usize) -> Result<(), Ended> {
        self.switch(now, place)?;
        let before = self.bundle.last_hash().map_err(|error| of_bundle(&error))?;
        let (who, began) = (self.bundle.plan.order[place], now.began.elapsed());
        let began_s = began.as_millis() as f64 / 1e3;
        let mut slot = Slot { before, who, began_s, samples: Vec::new(), probe: Vec::new() };
        now.limit.begin();
        let lasted = self.measure(now, place, &mut slot);
        // What was measured until then is kept.
        self.bundle.push(slot);
        let kept = self.bundle.text().and_then(|text| self.out.keep(&text));
        lasted?;
        kept.map_err(|error| of_bundle(&error))
    }

    /// Who schedules in a slot.
    fn who(&self, place: usize) -> Who {
        let plan = &self.bundle.plan;
        if plan.control { Who::Kernel } else { plan.order[place] }
    }

    /// The scheduler of this slot takes over, if it is not in charge.
    fn switch(&mut self, now: &mut Now, place: usize) -> Result<(), Ended> {
        let failed = |why| Ended::of(Abort::Scheduler, why);
        match (self.who(place), &now.running) {
            (Who::Kernel, _) => {
                give_back(now).map_err(failed)?;
                // What it says of an scx_baton that ends belongs to that one.
                self.warning_of(Who::Baton)
            }
            (Who::Baton, Some(_)) => Ok(()),
            (Who::Baton, None) => {
                now.progress.show(place, "scx_baton starts");
                // What was said until now is none of its doing.
                self.warning_of(Who::Kernel)?;
                let plan = &self.bundle.plan;
                let slots = plan.order[place..].iter().take_while(|who| **who == Who::Baton);
                let limit = slots.count() as f64 * plan.slot_s + LIMIT_S;
                let program = self.scheduler.display().to_string();
                let command = [program, "--for".into(), format!("{limit:.0}")];
                let mut asked = false;
                let enough = || {
                    let key = || now.keys.as_ref().is_some_and(Keys::quit);
                    asked = interrupt::asked() || key();
                    asked.then(|| Abort::User.words().to_owned())
                };
                let start = scheduler::take_over(&command, enough);
                let start = start.map_err(|error| match error {
                    _ if asked => user(),
                    StartError::Ended(why) | StartError::Hung(why) => failed(why),
                })?;
                now.running = Some(start);
                self.attached(now)
            }
        }
    }

    fn measure(&mut self, now: &mut Now, place: usize, slot: &mut Slot) -> Result<(), Ended> {
        let (slot_s, dropped_s) = (self.bundle.plan.slot_s, self.bundle.plan.dropped_s);
        let who = self.who(place);
        let every = SAMPLE_S.min(slot_s / 30.0);
        let began = Instant::now();
        let mut probe: Option<Probe> = None;
        let mut next_s = 0.0;
        loop {
            let at_s = began.elapsed().as_secs_f64();
            if at_s >= next_s {
                let work = self.synthetic.as_ref().map(Steady::done);
                let (sample, open) = self.sampler.sample_waits(at_s, work);
                if let Some(before) = slot.samples.last() {
                    now.progress.sample(place, who, before, &sample);
                }
                let too_long = now.limit.look(who, &sample, &open);
                slot.samples.push(sample);
                if let Some((vm, percent, usual)) = too_long {
                    let name = self.sampler.name(vm);
                    let why = format!(
                        "VM {name} waited for CPUs {percent:.0} % of its vCPUs' time, under the \
                         kernel's scheduler {usual:.1} %"
                    );
                    return Err(Ended::of(Abort::Ready, why));
                }
                self.watch(now, who)?;
                next_s = ((at_s / every).floor() + 1.0) * every;
                if at_s >= slot_s {
                    break;
                }
                // The last one is the slot's end.
                next_s = if next_s > slot_s - every / 2.0 { slot_s } else { next_s };
            }
            self.watch(now, who)?;
            if let Some((command, takes)) = &mut self.probe {
                let fits = at_s + takes.as_secs_f64() < slot_s;
                let run = turn(&mut probe, command, at_s >= dropped_s && fits, began);
                let run = run.map_err(|e| Ended::of(Abort::Probe, format!("{e:#}")))?;
                // A run that takes longer than others before is not begun and cut off again.
                let took = run.map_or(0.0, |run| run.to_s - run.from_s);
                *takes = (*takes).max(Duration::from_secs_f64(took));
                slot.probe.extend(run);
            }
            let until = (next_s - began.elapsed().as_secs_f64()).max(0.0);
            std::thread::sleep(TICK.min(Duration::from_secs_f64(until)));
        }
        if !slot.is_whole(&self.bundle.plan) {
            let why = "this program did not run for seconds, so that nobody knows who scheduled";
            return Err(Ended::of(Abort::Hole, why));
        }
        if self.probe.is_some() && !slot.probe.iter().any(|one| one.from_s >= dropped_s) {
            return Err(Ended::of(Abort::Probe, "it did not end within its slot"));
        }
        Ok(())
    }

    /// Waits until scx_baton has attached to KVM, which it does before it answers anybody: until
    /// then vCPUs are to it as any other thread.
    fn attached(&mut self, now: &mut Now) -> Result<(), Ended> {
        let end = Instant::now() + ATTACHED;
        loop {
            let ask =
                Client::connect(Path::new(Client::SOCKET)).and_then(|mut it| it.totals(false));
            let Err(error) = ask else { return Ok(()) };
            self.watch(now, Who::Baton)?;
            if Instant::now() >= end {
                let why = format!("it does not answer: {error:#}");
                return Err(Ended::of(Abort::Scheduler, why));
            }
            std::thread::sleep(TICK);
        }
    }

    /// What the kernel has warned of while this one scheduled.
    fn warning_of(&mut self, who: Who) -> Result<(), Ended> {
        match self.log.as_mut().and_then(warning) {
            Some(warning) if who == Who::Baton => Err(Ended::of(Abort::KernelWarning, warning)),
            _ => Ok(()),
        }
    }

    fn watch(&mut self, now: &mut Now, who: Who) -> Result<(), Ended> {
        if interrupt::asked() || now.keys.as_ref().is_some_and(Keys::quit) {
            return Err(user());
        }
        self.warning_of(who)?;
        if who == Who::Kernel && !scheduler::is_kernels() {
            let why = "somebody else has loaded a sched_ext scheduler";
            return Err(Ended::of(Abort::Scheduler, why));
        }
        if let Some(why) = now.running.as_mut().and_then(Running::lost) {
            return Err(Ended::of(Abort::Scheduler, why));
        }
        match self.synthetic.as_ref().and_then(Steady::failure) {
            Some(why) => Err(Ended::of(Abort::Synthetic, why)),
            None => Ok(()),
        }
    }
}

fn of_bundle(error: &anyhow::Error) -> Ended {
    Ended::of(Abort::Bundle, format!("{error:#}"))
}

fn user() -> Ended {
    Ended::of(Abort::User, Abort::User.words())
}

/// The kernel's scheduler is in charge again.
fn give_back(now: &mut Now) -> Result<(), String> {
    let Some(running) = now.running.take() else { return Ok(()) };
    running.stop().map_err(|error| format!("{error:#}"))
}

/// One run of the probe after the other: the value of one that has ended.
fn turn(
    probe: &mut Option<Probe>,
    command: &str,
    may_start: bool,
    began: Instant,
) -> anyhow::Result<Option<Probed>> {
    let Some(run) = probe else {
        if may_start {
            *probe = Some(Probe::start(command)?);
        }
        return Ok(None);
    };
    let value = run.poll()?;
    let from_s = run.began().duration_since(began).as_secs_f64();
    let to_s = began.elapsed().as_secs_f64();
    Ok(value.map(|value| {
        *probe = None;
        Probed { from_s, to_s, value }
    }))
}
