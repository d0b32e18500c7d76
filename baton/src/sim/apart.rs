// SPDX-License-Identifier: GPL-2.0-only
//! A simulation in a process of its own: a scheduler of the user's may write to NULL, or never
//! return. `baton sim apart` reads a [`Job`] from standard input and answers with a [`Done`], or
//! with why there is none.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use baton_sim::current_callback;
use baton_sim::keys::Change;
use baton_sim::outcome::{Outcome, Speed, Watch, simulate_watched};
use baton_sim::scenario::{Scenario, Text};
use baton_sim::trace::UNWRITTEN;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use serde::{Deserialize, Serialize};

use super::stopped;

/// So often the child looks whether there was an event, and gives up when there was none so many
/// times: 10 s. Counted, not measured, so that a suspended machine is no hang.
const LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
pub struct Job {
    text: String,
    dir: PathBuf,
    changes: Vec<Change>,
    /// Where a trace is appended.
    trace: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
pub struct Done {
    pub outcome: Outcome,
    pub speed: Speed,
    /// The trace had to leave something out.
    pub cut: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done(Box<Done>),
    Error(String),
}

impl Job {
    /// The directory of the scenario is made absolute.
    pub fn new(text: &Text, changes: &[Change], trace: Option<&Path>) -> Job {
        let here = env::current_dir().unwrap_or_default();
        Job {
            text: text.text.clone(),
            dir: here.join(&text.dir),
            changes: changes.to_vec(),
            trace: trace.map(PathBuf::from),
        }
    }
}

/// As [`simulate_watched`], in a process of its own.
///
/// Errors: its error, or in one line what became of the process; also if we are interrupted.
pub fn simulate(text: &Text, changes: &[Change], trace: Option<&Path>) -> Result<Done, String> {
    let run = || -> Result<(Vec<u8>, Option<i32>)> {
        let job = serde_json::to_string(&Job::new(text, changes, trace))?;
        let program = env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args(["sim", "apart"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process for the simulation")?;
        if let Some(mut input) = child.stdin.take() {
            // One that has ended says why itself.
            let _ = input.write_all(job.as_bytes());
        }
        let mut answer = Vec::new();
        if let Some(mut output) = child.stdout.take() {
            let mut bytes = [0; 65_536];
            loop {
                if stopped() {
                    let _ = child.kill();
                }
                let mut ready = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
                if matches!(poll(&mut ready, PollTimeout::from(200u16)), Ok(0) | Err(_)) {
                    continue;
                }
                match output.read(&mut bytes)? {
                    0 => break,
                    n => answer.extend(&bytes[..n]),
                }
            }
        }
        let status = child.wait().context("cannot wait for the simulation")?;
        Ok((answer, status.signal()))
    };
    let (answer, signal) = run().map_err(|error| format!("{error:#}"))?;
    if stopped() {
        return Err("interrupted".into());
    }
    match (parsed(&answer), signal) {
        (None, Some(signal)) => Err(format!("the simulation was ended by signal {signal}")),
        (answer, _) => done(answer),
    }
}

/// The outcome in what `baton sim apart` has written somewhere else.
///
/// Errors: why there is none.
pub fn answer(written: &[u8]) -> Result<Outcome, String> {
    done(parsed(written)).map(|done| done.outcome)
}

fn done(answer: Option<Answer>) -> Result<Done, String> {
    match answer {
        Some(Answer::Done(done)) => Ok(*done),
        Some(Answer::Error(why)) => Err(why),
        None => Err("the simulation ended without a word: did the scheduler call _exit()?".into()),
    }
}

/// The last line.
fn parsed(answer: &[u8]) -> Option<Answer> {
    let line = answer.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty())?;
    serde_json::from_slice(line).ok()
}

/// `baton sim apart`.
pub fn serve() -> Result<()> {
    let mut job = String::new();
    io::stdin().read_to_string(&mut job).context("cannot read standard input")?;
    let job: Job = serde_json::from_str(&job).context("this is no job")?;
    let beat = Arc::new(AtomicU64::new(0));
    let mut answers = own_answers()?;
    report_crashes();
    // Only once it is built: the compiler may take longer than a hang.
    let watched = beat.clone();
    let me = pthread_self();
    let begin = move || drop(thread::spawn(move || watch(me, &watched)));
    let answer = match simulated(&job, Some(beat), begin) {
        Ok(done) => Answer::Done(Box::new(done)),
        Err(error) => Answer::Error(format!("{error:#}")),
    };
    ANSWERED.store(true, Relaxed);
    let words = serde_json::to_string(&answer)? + "\n";
    answers.write_all(words.as_bytes()).context("nobody waits for the outcome")
}

/// Where answers go.
static ANSWERS: AtomicI32 = AtomicI32::new(1);
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// What was standard output is for answers alone from now on; what a scheduler prints goes to
/// standard error.
fn own_answers() -> Result<File> {
    let answers = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    nix::unistd::dup2_stdout(io::stderr().as_fd()).context("no descriptor is left")?;
    ANSWERS.store(answers.as_raw_fd(), Relaxed);
    Ok(answers)
}

/// A job without the process of its own, for schedulers of ours.
///
/// Errors: as [`simulate_watched`].
pub fn in_this_process(job: &Job) -> Result<Done> {
    simulated(job, None, || ())
}

fn simulated(job: &Job, beat: Option<Arc<AtomicU64>>, begin: impl FnOnce()) -> Result<Done> {
    let text = Text { text: job.text.clone(), dir: job.dir.clone() };
    let scenario = Scenario::read(&text, &job.changes)?;
    let open = |path: &PathBuf| -> Result<Box<dyn Write>> {
        let file = OpenOptions::new().append(true).open(path);
        Ok(Box::new(file.context(UNWRITTEN)?))
    };
    let trace = job.trace.as_ref().map(open).transpose()?;
    begin();
    let (outcome, speed, cut) = simulate_watched(&scenario, Watch { trace, beat })?;
    Ok(Done { outcome, speed, cut })
}

/// Ends the process if the simulation hangs in the scheduler: its thread says where.
fn watch(thread: Pthread, beat: &AtomicU64) {
    let (mut before, mut same) = (0, 0);
    while !ANSWERED.load(Relaxed) {
        thread::sleep(LOOK);
        let now = beat.load(Relaxed);
        same = if now == before { same + 1 } else { 0 };
        before = now;
        if same >= LOOKS {
            let _ = pthread_kill(thread, Signal::SIGUSR1);
            // Loops that the handler does not reach do not exist.
            thread::sleep(LOOK);
        }
    }
}

fn report_crashes() {
    let flags = SaFlags::SA_ONSTACK | SaFlags::SA_RESETHAND;
    let action = SigAction::new(SigHandler::Handler(tell), flags, SigSet::empty());
    let signals = [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGABRT,
        Signal::SIGUSR1,
    ];
    for signal in signals {
        // SAFETY: the handler does only what a signal handler may. It can fail only for signals
        // that cannot be caught.
        let _ = unsafe { sigaction(signal, &action) };
    }
    // SAFETY: the function does only what a signal handler may, too.
    unsafe { libc::atexit(at_exit) };
}

/// A scheduler that calls exit() ends before the answer.
extern "C" fn at_exit() {
    if !ANSWERED.load(Relaxed) {
        answer_and_end("the scheduler called exit()");
    }
}

/// Answers with the callback in which it happened, without allocating, and ends the process.
extern "C" fn tell(signal: libc::c_int) {
    let why = match signal {
        libc::SIGSEGV | libc::SIGBUS => "the scheduler used memory that it does not have (SIGSEGV)",
        libc::SIGFPE => "the scheduler divided by zero (SIGFPE)",
        libc::SIGILL => "the scheduler ran into an impossible instruction (SIGILL)",
        libc::SIGABRT => "the simulation has aborted (SIGABRT)",
        _ => "the scheduler hangs: no event for 10 s",
    };
    answer_and_end(why)
}

fn answer_and_end(why: &str) -> ! {
    let callback = current_callback();
    let (at, callback) = if callback.is_empty() { ("", "") } else { (", in ", callback) };
    for part in ["\n{\"error\":\"", why, at, callback, "\"}\n"] {
        // SAFETY: write(2) and _exit(2) are async-signal-safe, the bytes are there.
        unsafe { libc::write(ANSWERS.load(Relaxed), part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: as above.
    unsafe { libc::_exit(1) }
}
