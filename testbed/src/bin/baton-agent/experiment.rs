// SPDX-License-Identifier: GPL-2.0-only
//! The part of an experiment that happens on the emulated host: guests, schedulers, runs, in the
//! order of the plan. What to make of failures is the runner's business: after anything that leaves
//! the guests useless, and any failure under the kernel's own scheduler, this ends, and the runner
//! starts it again with the runs that are left.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use baton_testbed::plan::{Event, Measured, Plan, Run, Step};
use baton_testbed::wire::ASK;

use crate::seed;
use crate::spins;
use crate::vms::{self, Trouble, Vms};
use crate::work;
use baton_testbed::scheduler::{self, Running, StartError};

/// A guest needs 5 s alone, several at once more.
const GUESTS_UP: Duration = Duration::from_secs(90);

/// Beyond the time in which a workload must have ended (4 × its time, when its first completion is
/// late): as long as the kernel's watchdog may need to throw a stalled scheduler out.
const RUN_GRACE: Duration = Duration::from_secs(20);

/// Beyond the time of the workload, after another guest has answered: a guest that was starved so
/// far has the host for itself then, and only its last completion left to do.
const STRAGGLE: Duration = Duration::from_secs(5);

/// Guests are idle when the host's CPUs together are busy for at most so many ticks of 10 ms
/// between two looks, so many times in a row. Idle guests use a tick or two in half a second.
const LOOK: Duration = Duration::from_millis(500);
const QUIET_TICKS: u64 = 5;
const QUIET_LOOKS: u32 = 4;
/// Guests that are never idle are measured as they are.
const SETTLE_BY: Duration = Duration::from_secs(60);

/// Reads the plan from standard input and performs it.
pub fn run() -> Result<()> {
    let plan: Plan = serde_json::from_reader(stdin()).context("bad plan")?;
    std::thread::spawn(|| {
        while tell(&Event::Tick).is_ok() {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    if let Err(error) = spins::count() {
        eprintln!("PAUSE-loop exits are not counted: {error:#}");
    }
    let mut host = Host { plan: &plan, scheduler: None, vms: None };
    for run in &plan.runs {
        if let Err(Trouble { what, guest }) = host.prepare(run) {
            return tell(&Event::Stuck { what, console: console(guest) });
        }
        tell(&Event::Started { run: run.id })?;
        let event = host.perform(run);
        tell(&event)?;
        match event {
            Event::Failed { hung, .. } if hung || run.scheduler.is_kernel() => break,
            _ => {}
        }
    }
    Ok(())
}

/// As [`run`], in two steps: a host can be saved between them. The plan is one line of standard
/// input, the step another.
pub fn prepare() -> Result<()> {
    let mut lines = stdin().lock().lines();
    let mut line = || lines.next().context("standard input ended")?.context("cannot read");
    let plan: Plan = serde_json::from_str(&line()?).context("bad plan")?;
    let run = plan.runs.first().context("a plan without a run")?;
    if let Err(error) = spins::count() {
        eprintln!("PAUSE-loop exits are not counted: {error:#}");
    }
    let mut host = Host { plan: &plan, scheduler: None, vms: None };
    if let Err(Trouble { what, guest }) = host.prepare(run) {
        return tell(&Event::Stuck { what, console: console(guest) });
    }
    if run.vms > 0 {
        settle()?;
    }
    if let Err(failed) = host.schedule(run) {
        return tell(&failed);
    }
    let mut out = stdout().lock();
    out.write_all(&[ASK])?;
    out.flush()?;
    drop(out);
    let step: Step = serde_json::from_str(&line()?).context("bad step")?;
    seed::stir(step.seed);
    tell(&Event::Started { run: step.run.id })?;
    tell(&host.perform(&step.run))
}

/// Waits until guests that have just come up are idle: their kernels test their cryptography, and
/// free what booting needed, for seconds. A scheduler that is loaded meanwhile gives them that
/// time, and what is measured under the kernel's own would be measured beside it.
fn settle() -> Result<()> {
    let end = Instant::now() + SETTLE_BY;
    let mut before = busy_ticks()?;
    let mut quiet = 0;
    while quiet < QUIET_LOOKS && Instant::now() < end {
        std::thread::sleep(LOOK);
        let now = busy_ticks()?;
        quiet = if now - before <= QUIET_TICKS { quiet + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

/// Of all CPUs together, 10 ms each.
fn busy_ticks() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    let of = |place| line.split_whitespace().nth(place).and_then(|word| word.parse::<u64>().ok());
    // user, nice and system; a guest's time is in user's.
    [1, 2, 3].into_iter().map(of).sum::<Option<u64>>().context("/proc/stat is not as expected")
}

/// One event, one line, at once.
fn tell(event: &Event) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", serde_json::to_string(event)?)?;
    out.flush()?;
    Ok(())
}

/// What a guest said on its console, if one is to blame.
fn console(guest: Option<usize>) -> String {
    guest.map(vms::console).unwrap_or_default()
}

struct Host<'a> {
    plan: &'a Plan,
    /// The scheduler that runs, with its command; `None` is the kernel's own. Dropped before the
    /// guests: they end sooner without one that hangs.
    scheduler: Option<(Vec<String>, Running)>,
    vms: Option<Vms>,
}

impl Host<'_> {
    /// Ends the scheduler that the run does not want and brings up the guests that it wants. Guests
    /// always start under the kernel's own scheduler: no contender is charged for it.
    fn prepare(&mut self, run: &Run) -> Result<(), Trouble> {
        let up = self.vms.as_ref().map_or(0, Vms::len);
        let unwanted = self
            .scheduler
            .take_if(|(command, _)| *command != run.scheduler.command || up != run.vms);
        if let Some((command, running)) = unwanted {
            running.stop().with_context(|| format!("stopping {}", command[0]))?;
        }
        if up != run.vms {
            // The old ones first: there is memory for one set.
            self.vms = None;
        }
        if up != run.vms && run.vms > 0 {
            let start = Instant::now();
            self.vms = Some(Vms::start(run.vms, self.plan, GUESTS_UP)?);
            tell(&Event::GuestsUp { vms: run.vms, seconds: start.elapsed().as_secs_f64() })?;
        }
        Ok(())
    }

    /// Starts the scheduler if it is not there yet.
    fn schedule(&mut self, run: &Run) -> Result<(), Event> {
        let failed = |what, hung| Event::Failed { run: run.id, what, hung, console: String::new() };
        let command = &run.scheduler.command;
        if !command.is_empty() && self.scheduler.is_none() {
            match scheduler::start(command) {
                Ok(running) => self.scheduler = Some((command.clone(), running)),
                Err(StartError::Ended(what)) => return Err(failed(what, false)),
                Err(StartError::Hung(what)) => return Err(failed(what, true)),
            }
        }
        Ok(())
    }

    /// Runs the workload under its scheduler.
    fn perform(&mut self, run: &Run) -> Event {
        if let Err(event) = self.schedule(run) {
            return event;
        }
        let failed =
            |what, hung, guest| Event::Failed { run: run.id, what, hung, console: console(guest) };
        let spins_before = spins::total();
        let start = Instant::now();
        let reached = self.work(run);
        let seconds = start.elapsed().as_secs_f64();
        let spins_after = spins::total();
        // A run that its scheduler did not see to the end says nothing about it, whatever it
        // reached; and it is the reason if the guests stopped answering.
        let lost = match &mut self.scheduler {
            Some((_, running)) => running.lost(),
            None => None,
        };
        if let Some(words) = lost {
            let stopped = match self.scheduler.take() {
                Some((_, running)) => running.stop(),
                None => Ok(()),
            };
            let guest = reached.err().and_then(|trouble| trouble.guest);
            let what = format!("{} left in mid-run: {words}", run.scheduler.name);
            return failed(what, stopped.is_err() || guest.is_some(), guest);
        }
        match reached {
            Ok(vms) => Event::Done {
                run: run.id,
                vms,
                ple_exits: spins_before.zip(spins_after).map(|(a, b)| b - a),
                seconds,
            },
            Err(Trouble { what, guest }) => failed(what, guest.is_some(), guest),
        }
    }

    fn work(&mut self, run: &Run) -> Result<Vec<Measured>, Trouble> {
        let deadline = Duration::from_secs_f64(run.seconds) * 4 + RUN_GRACE;
        let straggle = Duration::from_secs_f64(run.seconds) + STRAGGLE;
        let argv = &run.workload.argv;
        match &mut self.vms {
            Some(vms) => vms.run(run.id, argv, &run.active, deadline, straggle),
            None => Ok(vec![work::report(argv, deadline)?]),
        }
    }
}
