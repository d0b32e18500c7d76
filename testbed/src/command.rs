// SPDX-License-Identifier: GPL-2.0-only
//! Runs a tool of this machine: it dies with us, and an interrupt ends it.

use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use baton_output::interrupt;

/// The longest time between two looks whether the user asked for an end.
const TICK: Duration = Duration::from_millis(20);

/// Makes the child die when the thread that starts it does, even by SIGKILL, and keeps the
/// terminal's signals away from it, so that this process alone decides how to end.
pub fn tie_to_us(command: &mut Command) -> &mut Command {
    let us = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // We may have died before the line above took effect.
            if libc::getppid() as u32 != us {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        })
    }
}

/// Kills the process group that [`tie_to_us`] made, and reaps its leader.
pub fn kill_group(child: &mut Child) {
    // Not reaped yet, so the id cannot have been reused.
    if matches!(child.try_wait(), Ok(None)) {
        let group = nix::unistd::Pid::from_raw(child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// A tool ended with a failure.
#[derive(Debug)]
pub struct Failed {
    name: String,
    /// Its standard error.
    pub said: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.name, last_line(&self.said).unwrap_or("no reason given"))
    }
}

impl std::error::Error for Failed {}

/// Runs to the end and returns what was printed on standard output.
///
/// Errors: the tool cannot be started, it [`Failed`], or [`interrupt::Interrupted`].
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut out = tempfile::tempfile().context("cannot make a temporary file")?;
    let mut err = tempfile::tempfile().context("cannot make a temporary file")?;
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut child = tie_to_us(command).spawn().with_context(|| format!("cannot run {name}"))?;
    let mut pause = TICK / 64; // many tools end at once
    let status = loop {
        if let Err(interrupted) = interrupt::check() {
            kill_group(&mut child);
            return Err(interrupted.into());
        }
        match child.try_wait().with_context(|| format!("cannot wait for {name}"))? {
            Some(status) => break status,
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(TICK);
    };
    if !status.success() {
        err.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        err.read_to_end(&mut text)?;
        let mut said = String::from_utf8_lossy(&text).into_owned();
        if said.trim().is_empty() {
            said = status.to_string();
        }
        return Err(Failed { name, said }.into());
    }
    out.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    out.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The last line that says something.
pub fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

/// Whether a tool of this name is in `PATH`, and where.
pub fn find(tool: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_failure() {
        let text = output(Command::new("sh").args(["-c", "echo a; echo b"])).unwrap();
        assert_eq!(text, "a\nb\n");
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh failed: why");
        assert!(output(&mut Command::new("/no/such/tool")).is_err());
    }

    #[test]
    fn last_line_skips_empty_ones() {
        assert_eq!(last_line("a\nb\n\n"), Some("b"));
        assert_eq!(last_line(" \n"), None);
    }
}
