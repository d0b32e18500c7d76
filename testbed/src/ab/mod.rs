// SPDX-License-Identifier: GPL-2.0-only
//! Conducts an experiment on emulated hosts: as few boots as there are hosts that stay well, and
//! every failure ends as a result or as one clear reason, with all that was measured until then.

pub mod exact;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::boot;
use crate::exact::Inputs;
use crate::experiment::Experiment;
use crate::host::{Exec, Host, HostError, HostOptions, Stream};
use crate::log;
use crate::plan::{Event, Measured, Plan, Run};
use crate::wire::ASK;

/// How often a run is tried. Emulation itself loses a guest or the host in up to one run of five,
/// whatever schedules it, so a scheduler is blamed only for a run that is lost every time.
const TRIES: u32 = 4;

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Record {
    pub run: Run,
    /// What the active guests reached, or why there is no figure.
    pub outcome: Result<Reached, String>,
}

#[derive(Clone, Debug)]
pub struct Reached {
    /// In the order of [`Run::active`].
    pub vms: Vec<Measured>,
    pub ple_exits: Option<u64>,
    /// From the command to the last answer.
    pub seconds: f64,
}

/// What the caller is told on the way.
pub enum Notice<'a> {
    Event(&'a Event),
    Recorded(&'a Record),
    /// An exact host is brought to where runs under this scheduler begin, unless that has been
    /// done.
    Preparing(&'a str),
    /// What all figures depend on, on exact hosts.
    Inputs(&'a Inputs),
    /// Something failed that is tried once more.
    Retry(&'a str),
}

/// Why an experiment ended before its time.
#[derive(Debug)]
pub enum Stop {
    Interrupted,
    /// The host, or something on it, failed where only the kernel can be blamed; also a workload
    /// that fails under the kernel's own scheduler.
    Fault(String),
    /// It cannot work on this machine, or with these files.
    Setup(anyhow::Error),
}

/// Plays plans on a host that it boots when it has none.
pub trait Session {
    /// Performs the plan's runs in order, up to the first after which nothing can be measured.
    fn play(&mut self, plan: &Plan, on_event: &mut dyn FnMut(Event)) -> Result<(), Stop>;
    /// Gives the host up; the next plan gets a fresh one.
    fn abandon(&mut self);
}

/// Performs the whole experiment. A run during which the host or a guest dies or falls silent is
/// lost, and tried again. One that is lost every time is a result ("hung") under a sched_ext
/// scheduler, which is not tried any more, and ends the experiment under the kernel's own.
pub fn conduct(
    experiment: &Experiment,
    session: &mut dyn Session,
    watch: &mut dyn FnMut(Notice),
) -> Result<(), Stop> {
    let mut pending = experiment.runs();
    let mut losses: HashMap<u32, u32> = HashMap::new();
    let mut hung = HashSet::new();
    loop {
        give_up_on_hung(&mut pending, &hung, watch);
        if pending.is_empty() {
            return Ok(());
        }
        let mut current = None;
        let mut trouble = None;
        let mut recorded = false;
        let played = session.play(&experiment.plan(&pending), &mut |event| {
            watch(Notice::Event(&event));
            match event {
                Event::Started { run } => current = Some(run),
                Event::Done { run, vms, ple_exits, seconds } => {
                    current = None;
                    recorded = true;
                    record(&mut pending, run, Ok(Reached { vms, ple_exits, seconds }), watch);
                }
                Event::Failed { run, what, hung, .. } => {
                    if hung || scheduler_of(&pending, run).is_none() {
                        trouble = Some(what);
                        return;
                    }
                    current = None;
                    recorded = true;
                    record(&mut pending, run, Err(what), watch);
                }
                Event::Stuck { what, .. } => trouble = Some(what),
                Event::HostUp { .. } | Event::GuestsUp { .. } | Event::Tick => {}
            }
        });
        let what = match (played, trouble) {
            (Err(Stop::Fault(what)), _) | (Ok(()), Some(what)) => what,
            (Err(stop), _) => return Err(stop),
            (Ok(()), None) if recorded => continue,
            (Ok(()), None) => "the host ended the experiment without a reason".to_string(),
        };
        session.abandon();
        let Some(next) = pending.first().map(|run| run.id) else {
            return Err(Stop::Fault(what));
        };
        let lost = losses.entry(current.unwrap_or(next)).or_default();
        *lost += 1;
        if *lost < TRIES {
            watch(Notice::Retry(&what));
            continue;
        }
        let Some((run, scheduler)) =
            current.and_then(|run| Some((run, scheduler_of(&pending, run)?)))
        else {
            return Err(Stop::Fault(what));
        };
        hung.insert(scheduler);
        record(&mut pending, run, Err(format!("hung: {what}")), watch);
    }
}

/// Takes the run off the list and passes on what became of it.
fn record(
    pending: &mut Vec<Run>,
    id: u32,
    outcome: Result<Reached, String>,
    watch: &mut dyn FnMut(Notice),
) {
    if let Some(at) = pending.iter().position(|run| run.id == id) {
        let run = pending.remove(at);
        watch(Notice::Recorded(&Record { run, outcome }));
    }
}

/// Name of the sched_ext scheduler of a run; `None` for the kernel's own.
fn scheduler_of(pending: &[Run], id: u32) -> Option<String> {
    let run = pending.iter().find(|run| run.id == id)?;
    (!run.scheduler.is_kernel()).then(|| run.scheduler.name.clone())
}

fn give_up_on_hung(pending: &mut Vec<Run>, hung: &HashSet<String>, watch: &mut dyn FnMut(Notice)) {
    let given_up = |run: &&Run| hung.contains(&run.scheduler.name);
    let given_up: Vec<u32> = pending.iter().filter(given_up).map(|run| run.id).collect();
    for id in given_up {
        let why = "not tried: it hung before in this experiment".to_string();
        record(pending, id, Err(why), watch);
    }
}

/// A [`Session`] on a real emulated host.
pub struct HostSession {
    options: HostOptions,
    host: Option<Host>,
}

/// The agent gives a sign of life every second, but a scheduler that starves it is thrown out by
/// the kernel only after up to 30 s, and an RCU stall is told after 21 s: both should be heard.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// On top of each run's own time: a slow start or end of a scheduler, late completions, guests.
pub(crate) const RUN_GRACE: f64 = 300.0;

impl HostSession {
    pub fn new(options: HostOptions) -> HostSession {
        HostSession { options, host: None }
    }
}

impl Session for HostSession {
    fn play(&mut self, plan: &Plan, on_event: &mut dyn FnMut(Event)) -> Result<(), Stop> {
        let host = match &mut self.host {
            Some(host) => host,
            None => {
                let host = self.host.insert(boot(&self.options).map_err(stop)?);
                on_event(Event::HostUp { kernel: host.hello().release.clone() });
                host
            }
        };
        let most: f64 = plan.runs.iter().map(|run| run.seconds * 4.0 + RUN_GRACE).sum();
        let exec = Exec {
            argv: ["baton-agent", "experiment"].map(String::from).to_vec(),
            env: Vec::new(),
            stdin: serde_json::to_vec(plan).map_err(|error| Stop::Setup(error.into()))?,
            deadline: Duration::from_secs_f64(most),
            silence: SILENCE,
            seed: None,
        };
        // Guests boot one emulated CPU at a time; what is measured runs on all at once.
        let pace = host.pace();
        pace.one_at_a_time();
        let (mut events, mut errors) = (Lines::default(), Lines::default());
        let mut words = "no message".to_string();
        let ended = host.exec(&exec, &mut |stream, bytes| match stream {
            Stream::Out => events.push(bytes, |line| match serde_json::from_str(line) {
                Ok(event) => {
                    if matches!(event, Event::GuestsUp { .. } | Event::Started { .. }) {
                        pace.at_once();
                    }
                    on_event(keep_console(event));
                }
                Err(_) => words = format!("unexpected output: {line}"),
            }),
            Stream::Err => errors.push(bytes, |line| words = line.to_string()),
        });
        match ended {
            Ok(0) => Ok(()),
            Ok(status) => Err(Stop::Fault(format!("the agent failed ({status}): {words}"))),
            Err(error) => {
                self.host = None;
                Err(stop(error))
            }
        }
    }

    fn abandon(&mut self) {
        self.host = None;
    }
}

/// Puts a guest's console where people find it, and says where.
pub(crate) fn keep_console(mut event: Event) -> Event {
    if let Event::Failed { what, console, .. } | Event::Stuck { what, console } = &mut event
        && !console.is_empty()
        && let Ok(log) = log::keep(console.as_bytes())
    {
        what.push_str(&format!("; console log: {}", log.display()));
    }
    event
}

pub(crate) fn stop(error: HostError) -> Stop {
    match error {
        HostError::Interrupted => Stop::Interrupted,
        HostError::Setup(error) => Stop::Setup(error),
        error @ HostError::NotUsable { .. } => Stop::Setup(error.into()),
        error => Stop::Fault(error.to_string()),
    }
}

/// Puts lines together from the pieces in which they arrive.
#[derive(Default)]
pub(crate) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    pub fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(&str)) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            on_line(String::from_utf8_lossy(&line).trim_end().trim_start_matches(char::from(ASK)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERIMENT: &str = r#"
        repetitions = 3
        seconds = 1
        schedulers = ["eevdf", "scx_good", "scx_bad"]
        [[workload]]
        name = "barrier"
    "#;

    /// Plays every run well, except as `fate` says.
    struct Fake<F: FnMut(&Run) -> Fate> {
        fate: F,
        boots: u32,
        up: bool,
    }

    enum Fate {
        Good,
        /// The host dies in mid-run.
        Fault,
        Failed {
            hung: bool,
        },
        /// Guests do not come up before the run.
        Stuck,
        Interrupted,
    }

    impl<F: FnMut(&Run) -> Fate> Session for Fake<F> {
        fn play(&mut self, plan: &Plan, on_event: &mut dyn FnMut(Event)) -> Result<(), Stop> {
            if !self.up {
                self.boots += 1;
                self.up = true;
            }
            for run in &plan.runs {
                let id = run.id;
                let fate = (self.fate)(run);
                if let Fate::Stuck = fate {
                    on_event(Event::Stuck { what: "no guest".into(), console: String::new() });
                    return Ok(());
                }
                on_event(Event::Started { run: id });
                match fate {
                    Fate::Good | Fate::Stuck => on_event(Event::Done {
                        run: id,
                        vms: run.active.iter().map(|_| Measured::new(1, 1.0, "x/s")).collect(),
                        ple_exits: None,
                        seconds: 1.0,
                    }),
                    Fate::Fault => return Err(Stop::Fault("oops".into())),
                    Fate::Interrupted => return Err(Stop::Interrupted),
                    Fate::Failed { hung } => {
                        let (what, console) = ("no".to_string(), String::new());
                        on_event(Event::Failed { run: id, what, hung, console });
                        if hung || run.scheduler.is_kernel() {
                            return Ok(());
                        }
                    }
                }
            }
            Ok(())
        }

        fn abandon(&mut self) {
            self.up = false;
        }
    }

    fn conduct_with(fate: impl FnMut(&Run) -> Fate) -> (Result<(), Stop>, Vec<Record>, u32) {
        let mut session = Fake { fate, boots: 0, up: false };
        let mut records = Vec::new();
        let result = conduct(&Experiment::parse(EXPERIMENT).unwrap(), &mut session, &mut |n| {
            if let Notice::Recorded(record) = n {
                records.push(record.clone());
            }
        });
        (result, records, session.boots)
    }

    fn failures(records: &[Record], scheduler: &str) -> Vec<String> {
        let of = records.iter().filter(|record| record.run.scheduler.name == scheduler);
        of.filter_map(|record| record.outcome.clone().err()).collect()
    }

    #[test]
    fn a_calm_experiment_takes_one_boot() {
        let (result, records, boots) = conduct_with(|_| Fate::Good);
        assert!(result.is_ok());
        assert_eq!((records.len(), boots), (12, 1));
        assert!(records.iter().all(|record| record.outcome.is_ok()));
    }

    #[test]
    fn a_scheduler_that_hangs_the_host_is_a_result() {
        let (result, records, boots) =
            conduct_with(|r| if r.scheduler.name == "scx_bad" { Fate::Fault } else { Fate::Good });
        assert!(result.is_ok());
        assert_eq!((records.len(), boots), (12, TRIES + 1));
        let failures = failures(&records, "scx_bad");
        assert_eq!(failures[0], "hung: oops");
        assert!(failures[1..].iter().all(|why| why.starts_with("not tried")));
        assert_eq!(records.iter().filter(|record| record.outcome.is_ok()).count(), 9);
    }

    #[test]
    fn a_scheduler_that_hangs_the_guests_is_a_result() {
        let (result, records, boots) = conduct_with(|r| match r.scheduler.name.as_str() {
            "scx_bad" => Fate::Failed { hung: true },
            _ => Fate::Good,
        });
        assert!(result.is_ok());
        assert_eq!((records.len(), boots), (12, TRIES + 1));
        let failures = failures(&records, "scx_bad");
        assert_eq!(failures[0], "hung: no");
        assert!(failures[1..].iter().all(|why| why.starts_with("not tried")));
    }

    #[test]
    fn a_scheduler_that_just_ends_is_tried_every_time() {
        let (result, records, _) = conduct_with(|r| match r.scheduler.name.as_str() {
            "scx_bad" => Fate::Failed { hung: false },
            _ => Fate::Good,
        });
        assert!(result.is_ok());
        assert_eq!(failures(&records, "scx_bad"), ["no", "no", "no"]);
    }

    #[test]
    fn a_single_loss_is_tried_again_whoever_scheduled() {
        let mut left = 1;
        let (result, records, boots) = conduct_with(|r| {
            if r.scheduler.name == "scx_bad" && left > 0 {
                left -= 1;
                return Fate::Failed { hung: true };
            }
            Fate::Good
        });
        assert!(result.is_ok());
        assert_eq!((records.len(), boots), (12, 2));
        assert!(failures(&records, "scx_bad").is_empty());
    }

    #[test]
    fn a_single_fault_under_the_kernels_scheduler_is_retried() {
        for make in [|| Fate::Fault, || Fate::Stuck, || Fate::Failed { hung: false }] {
            let mut left = 1;
            let (result, records, boots) = conduct_with(|r| {
                if r.scheduler.is_kernel() && r.repetition == 1 && left > 0 {
                    left -= 1;
                    return make();
                }
                Fate::Good
            });
            assert!(result.is_ok());
            assert_eq!((records.len(), boots), (12, 2));
            assert!(records.iter().all(|record| record.outcome.is_ok()));
        }
    }

    #[test]
    fn a_repeated_fault_ends_the_experiment_and_keeps_the_rest() {
        for make in [|| Fate::Fault, || Fate::Stuck, || Fate::Failed { hung: true }] {
            let (result, records, boots) = conduct_with(|r| match r.repetition {
                1 if r.scheduler.is_kernel() => make(),
                _ => Fate::Good,
            });
            assert!(matches!(result, Err(Stop::Fault(_))));
            assert_eq!(boots, TRIES);
            assert!(records.len() >= 4 && records.iter().all(|record| record.outcome.is_ok()));
        }
    }

    #[test]
    fn an_interrupt_ends_it_at_once() {
        let (result, records, boots) =
            conduct_with(|run| if run.id == 2 { Fate::Interrupted } else { Fate::Good });
        assert!(matches!(result, Err(Stop::Interrupted)));
        assert_eq!((records.len(), boots), (2, 1));
    }

    #[test]
    fn lines_come_whole() {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        for piece in ["a", "b\nc\n\nd", "", "\n"] {
            lines.push(piece.as_bytes(), |line| seen.push(line.to_string()));
        }
        assert_eq!(seen, ["ab", "c", "", "d"]);
    }
}
