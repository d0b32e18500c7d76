// SPDX-License-Identifier: GPL-2.0-only
//! The user's command that measures work: run again and again, it prints a number each time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use baton_testbed::command;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Of what it prints; the rest before it is not looked at.
const MOST_READ: u64 = 4096;

/// One run of it. Dropped, it is killed with what it has started.
pub struct Probe {
    child: Child,
    began: Instant,
    out: File,
    err: File,
}

impl Probe {
    /// Errors: there is no shell, or no room for what it prints.
    pub fn start(command: &str) -> Result<Probe> {
        let temporary = || tempfile::tempfile().context("no file for what the probe prints");
        let (out, err) = (temporary()?, temporary()?);
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?);
        let child = command::tie_to_us(&mut shell).spawn();
        let child = child.context("cannot run the probe with /bin/sh")?;
        Ok(Probe { child, began: Instant::now(), out, err })
    }

    pub fn began(&self) -> Instant {
        self.began
    }

    /// What it printed; `None` while it runs.
    ///
    /// Errors: it failed, or printed no number above 0.
    pub fn poll(&mut self) -> Result<Option<f64>> {
        let Some(status) = self.child.try_wait().context("cannot wait for the probe")? else {
            return Ok(None);
        };
        if !status.success() {
            let said = last_line(&mut self.err)?;
            bail!("{status}{}", if said.is_empty() { said } else { format!(": {said}") });
        }
        let line = last_line(&mut self.out)?;
        match line.parse::<f64>() {
            Ok(value) if value.is_finite() && value > 0.0 => Ok(Some(value)),
            _ => bail!("its last line is '{line}', not a number above 0"),
        }
    }

    /// Runs it to its end.
    ///
    /// Errors: as [`poll`](Self::poll), or it takes too long.
    pub fn once(command: &str, most: Duration, stop: impl Fn() -> bool) -> Result<(f64, Duration)> {
        let mut probe = Probe::start(command)?;
        loop {
            if let Some(value) = probe.poll()? {
                return Ok((value, probe.began.elapsed()));
            }
            if probe.began.elapsed() >= most {
                bail!("it takes longer than {:.0} s, what a slot leaves it", most.as_secs_f64());
            }
            if stop() {
                bail!("interrupted");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Not reaped yet, so the id cannot have been reused; once it is, what it has started is
        // its own affair.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// The last one that is not empty, for a terminal.
fn last_line(file: &mut File) -> Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_READ)))?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    Ok(line.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(command: &str) -> Result<f64> {
        Probe::once(command, Duration::from_secs(60), || false).map(|(value, _)| value)
    }

    #[test]
    fn the_last_line_is_the_number() -> Result<()> {
        assert_eq!(once("echo warming up; echo ' 12.5 '; echo")?, 12.5);
        assert_eq!(once("yes | head -c 100000; echo 7")?, 7.0);
        Ok(())
    }

    #[test]
    fn what_is_no_number_or_fails_is_told() {
        for (command, why) in [
            ("true", "its last line is ''"),
            ("echo 12 requests", "'12 requests'"),
            ("echo -3", "'-3'"),
            ("echo inf", "'inf'"),
            ("printf '\\033[2Jx'", "'?[2Jx'"),
            ("echo 1; echo no server >&2; exit 3", "exit status: 3: no server"),
            ("/no/such/program", "exit status: 127"),
        ] {
            let error = format!("{:#}", once(command).unwrap_err());
            assert!(error.contains(why), "{command}: {error}");
        }
    }

    #[test]
    fn one_that_takes_too_long_is_killed_with_its_children() -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        let path = file.path().display();
        let command = format!("(sleep 600 & echo $! > {path}; wait)");
        let wait = Duration::from_secs(2);
        let error = Probe::once(&command, wait, || false).unwrap_err();
        assert!(error.to_string().contains("longer than 2 s"), "{error}");
        let pid: i32 = std::fs::read_to_string(file.path())?.trim().parse()?;
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z")
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !gone() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(gone());
        Ok(())
    }
}
