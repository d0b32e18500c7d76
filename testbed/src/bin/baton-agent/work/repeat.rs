// SPDX-License-Identifier: GPL-2.0-only
//! A command of its own length as a workload: it runs again and again until the time is over.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use baton_testbed::plan::Measured;
use baton_testbed::scheduler::last_line;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How much longer than the given time the first completion may take.
const PATIENCE: u32 = 4;

/// How often the command is looked at: far below the half second that one completion should take.
const LOOK: Duration = Duration::from_millis(2);

/// Completions per second, up to the last completion: what was not finished when the time was over
/// does not count, nor does the time it took. If nothing was finished by then, the first completion
/// is waited for, at most [`PATIENCE`] times as long.
pub fn run(time: Duration, command: &[String], unit: &str) -> Result<Measured> {
    let start = Instant::now();
    let (mut ops, mut last) = (0u64, Duration::ZERO);
    while start.elapsed() < time {
        let limit = if ops == 0 { time * PATIENCE } else { time };
        if !once(command, start + limit)? {
            break;
        }
        (ops, last) = (ops + 1, start.elapsed());
    }
    ensure!(ops > 0, "{} did not finish once in {:.0?}", command[0], time * PATIENCE);
    Ok(Measured::new(ops, last.as_secs_f64(), unit))
}

/// Whether the command ended before `end`. If not, it is killed with all it started.
fn once(command: &[String], end: Instant) -> Result<bool> {
    let (name, args) = command.split_first().context("no command to repeat")?;
    let mut child = Command::new(name)
        .args(args)
        .stdin(Stdio::null())
        .stdout(File::options().write(true).open("/dev/null")?)
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                bail!("{name} failed ({status}): {}", last_words(&mut child));
            }
            return Ok(true);
        }
        if Instant::now() >= end {
            // Gone already is fine: it has ended between the two looks.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
}

/// The last line of the error output of a command that has ended.
fn last_words(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = &mut child.stderr {
        // An unreadable message is no reason to lose the failure itself.
        let _ = stderr.take(64 << 10).read_to_end(&mut text);
    }
    last_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(String::from).to_vec()
    }

    #[test]
    fn counts_completions() {
        let measured = run(Duration::from_millis(200), &sh("true"), "runs/s").unwrap();
        assert!(measured.ops > 0 && measured.seconds > 0.0);
        assert_eq!(measured.rate, measured.ops as f64 / measured.seconds);
    }

    #[test]
    fn waits_for_the_first_completion() {
        let measured = run(Duration::from_secs(1), &sh("sleep 1.1"), "runs/s").unwrap();
        assert_eq!(measured.ops, 1);
    }

    #[test]
    fn tells_why_nothing_was_measured() {
        let slow = run(Duration::from_millis(10), &sh("sleep 5"), "x").unwrap_err().to_string();
        assert!(slow.contains("did not finish"), "{slow}");
        let failing = run(Duration::from_secs(5), &sh("echo no such thing >&2; exit 3"), "x");
        assert!(failing.unwrap_err().to_string().contains("no such thing"));
        assert!(run(Duration::from_secs(5), &["/nonexistent".to_string()], "x").is_err());
    }
}
