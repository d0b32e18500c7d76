// SPDX-License-Identifier: GPL-2.0-only
//! A sched_ext scheduler as an experiment uses it: a command that takes the host over and gives it
//! back when interrupted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command;
use crate::kernel_log::KernelLog;

/// Of the CPU times in /proc; USER_HZ is 100 in every x86-64 kernel.
const TICKS_A_SECOND: f64 = 100.0;

const STATE: &str = "/sys/kernel/sched_ext/state";
/// Counts the times that a scheduler was enabled.
const ENABLE_SEQ: &str = "/sys/kernel/sched_ext/enable_seq";

/// Verifying a large scheduler takes 20 s in emulation.
const START: Duration = Duration::from_secs(90);
const STOP: Duration = Duration::from_secs(10);
/// The kernel throws a stalled scheduler out after 30 s at the latest (its watchdog's maximum).
const RELEASE: Duration = Duration::from_secs(40);
/// After a change, tasks settle on their queues and a scheduler finds the guests that are there.
const SETTLE: Duration = Duration::from_millis(500);
/// Loading leaves work behind (memory to free, programs to patch): a scheduler is quiet when it
/// uses less than a twentieth of a CPU. One that never is, is not waited for any longer.
const QUIET_SHARE: f64 = 0.05;
const QUIET_BY: Duration = Duration::from_secs(20);

/// A scheduler that is in charge of this host. Dropped, it is killed.
pub struct Running {
    child: Child,
    enabled: u64,
    /// What it says.
    log: File,
    /// What the kernel has said since it was started.
    kernel: Option<KernelLog>,
}

/// What scx_disable_workfn() in kernel/sched/ext.c prints: that a scheduler is disabled and the
/// kind of reason, then, for an error, what happened.
fn reason_in(records: &str) -> Option<String> {
    let said = records.lines().filter_map(|line| line.split_once(";sched_ext: ").map(|it| it.1));
    let words: Vec<&str> = said.skip_while(|words| !words.contains(" disabled (")).collect();
    (!words.is_empty()).then(|| words.join(": "))
}

/// Why a scheduler did not take over. The kernel's own is in charge, or will be soon.
#[derive(Debug)]
pub enum StartError {
    /// It ended by itself.
    Ended(String),
    /// It neither took over nor ended; it was killed.
    Hung(String),
}

/// Starts the command and waits until it schedules the host, and is quiet.
pub fn start(command: &[String]) -> Result<Running, StartError> {
    let running = take_over(command, || None)?;
    wait_until_quiet(&running.child);
    Ok(running)
}

/// Starts the command and waits until it schedules the host, or `enough` says why not to go on.
pub fn take_over(
    command: &[String],
    mut enough: impl FnMut() -> Option<String>,
) -> Result<Running, StartError> {
    let name = command.first().map_or("", String::as_str);
    let ended = |text: String| StartError::Ended(format!("{name}: {text}"));
    let before = enable_seq();
    let kernel = KernelLog::open();
    let (mut child, log) = spawn(command).map_err(|error| ended(format!("{error:#}")))?;
    let end = Instant::now() + START;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return Err(ended(format!("{} ({status})", last_words(&log)))),
            Err(error) => return Err(ended(error.to_string())),
        }
        if let Some(why) = enough() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(StartError::Ended(why));
        }
        if state() == "enabled" && enable_seq() > before {
            return Ok(Running { child, enabled: before + 1, log, kernel });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // It may be past help; the kernel takes over when it is gone.
    let _ = child.kill();
    let _ = child.wait();
    Err(StartError::Hung(format!("{name} did not take over in {START:.0?}: {}", last_words(&log))))
}

/// At least [`SETTLE`].
fn wait_until_quiet(child: &Child) {
    let end = Instant::now() + QUIET_BY;
    let mut used = cpu_ticks(child);
    while Instant::now() < end {
        std::thread::sleep(SETTLE);
        let now = cpu_ticks(child);
        let share = now.saturating_sub(used) as f64 / TICKS_A_SECOND;
        if share < QUIET_SHARE * SETTLE.as_secs_f64() {
            return;
        }
        used = now;
    }
}

/// The CPU time that the process has used, in user and kernel mode.
fn cpu_ticks(child: &Child) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // Its name, in parentheses, may contain spaces.
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn spawn(command: &[String]) -> Result<(Child, File)> {
    let (name, args) = command.split_first().context("empty scheduler command")?;
    let log = tempfile::tempfile().context("no file for what it says")?;
    let mut command = Command::new(name);
    command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let child = command::tie_to_us(&mut command).spawn().context("cannot start it")?;
    Ok((child, log))
}

impl Running {
    /// Why the scheduler no longer schedules, if so: it ended, was thrown out or started again.
    pub fn lost(&mut self) -> Option<String> {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
        if !ended && state() == "enabled" && enable_seq() == self.enabled {
            return None;
        }
        // The kernel says why after it has taken over, and the program after that.
        let end = Instant::now() + SETTLE;
        loop {
            let said = self.kernel.as_mut().map(KernelLog::records);
            let reason = said.and_then(|records| reason_in(&records.join("\n")));
            if reason.is_some() || Instant::now() >= end {
                return Some(reason.unwrap_or_else(|| last_words(&self.log)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Interrupts it, kills it if that does not help, and waits until the kernel schedules again.
    pub fn stop(mut self) -> Result<()> {
        let began = Instant::now();
        // Fails only if it has ended.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT);
        while self.child.try_wait()?.is_none() {
            if began.elapsed() >= STOP {
                self.child.kill()?;
            }
            if began.elapsed() >= STOP + RELEASE {
                bail!("it cannot be killed");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let end = Instant::now() + RELEASE;
        while state() != "disabled" {
            if Instant::now() >= end {
                bail!("the kernel did not take over again in {RELEASE:.0?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(SETTLE);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // For those that were not stopped in order; fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether no sched_ext scheduler is loaded, or the kernel has none.
pub fn is_kernels() -> bool {
    ["", "disabled"].contains(&state().as_str())
}

fn state() -> String {
    fs::read_to_string(STATE).unwrap_or_default().trim().to_string()
}

fn enable_seq() -> u64 {
    fs::read_to_string(ENABLE_SEQ).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// What the scheduler said last.
fn last_words(log: &File) -> String {
    let mut text = vec![0; log.metadata().map_or(0, |file| file.len() as usize)];
    let read = log.read_at(&mut text, 0).unwrap_or(0);
    why_it_ended(&text[..read])
}

/// The line that says what is wrong, behind which others say what to do; else the last one.
fn why_it_ended(text: &[u8]) -> String {
    let all = String::from_utf8_lossy(text);
    let error = all.lines().find_map(|line| line.strip_prefix("error: "));
    error.map_or_else(|| last_line(text), |error| error.trim_end().to_string())
}

/// The last line of what a program said.
pub fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim_end().lines().last().unwrap_or("no message").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As clap says it, which ends with what to try.
    #[test]
    fn the_error_is_told_rather_than_the_last_line() {
        let said = b"error: unexpected argument '--bogus' found\n\nUsage: scx_baton [OPTIONS]\n\n\
                     For more information, try '--help'.\n";
        assert_eq!(why_it_ended(said), "unexpected argument '--bogus' found");
        assert_eq!(why_it_ended(b"loading\nno BTF\n"), "no BTF");
    }

    #[test]
    fn the_kernel_says_why_a_scheduler_left() {
        let records = "6,1,2,-;sched_ext: BPF scheduler \"baton\" enabled\n\
             4,2,3,-;kvm: something\n SUBSYSTEM=x\n\
             3,3,4,-;sched_ext: BPF scheduler \"baton\" disabled (runnable task stall)\n\
             3,4,5,-;sched_ext: baton: sh[7] failed to run for 5.012s\n";
        assert_eq!(
            reason_in(records).unwrap(),
            "BPF scheduler \"baton\" disabled (runnable task stall): \
             baton: sh[7] failed to run for 5.012s"
        );
        assert_eq!(reason_in("6,1,2,-;sched_ext: BPF scheduler \"baton\" enabled\n"), None);
    }
}
