// SPDX-License-Identifier: GPL-2.0-only
//! Process 1 of a guest: runs workloads on command. It is told over the serial console, where
//! kernel messages may stand between its own lines; these start with [`MARK`].
//!
//! host → guest: `@run ID ["argv", …]`, `@quit`
//! guest → host: `@baton up JSON`, `@baton done ID JSON`, `@baton fail ID TEXT`

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use baton_testbed::plan::Measured;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use crate::work;

pub const MARK: &str = "@baton ";

/// The host gives a run its deadline and ends the guest if it is missed; this only bounds a guest
/// that nobody watches.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Serves until `@quit` or the console is gone, then powers off. Returns only if that fails.
pub fn run() -> Result<()> {
    if let Err(error) = serve() {
        eprintln!("{MARK}stuck {error:#}");
    }
    // microvm has no power button; with `reboot=t` a restart is a triple fault, which ends QEMU.
    reboot(RebootMode::RB_AUTOBOOT).context("cannot end the guest")?;
    Ok(())
}

fn serve() -> Result<()> {
    mount_all()?;
    let console = File::options().read(true).write(true).open("/dev/ttyS0")?;
    let mut settings = tcgetattr(&console)?;
    cfmakeraw(&mut settings);
    tcsetattr(&console, SetArg::TCSANOW, &settings)?;

    let mut input = BufReader::new(console.try_clone()?);
    say(&console, &format!("up {{\"cpus\": {}}}", std::thread::available_parallelism()?))?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        match line.trim().split_once(' ') {
            Some(("@run", rest)) => {
                let (id, argv) = rest.split_once(' ').context("@run without a command")?;
                match measure(argv) {
                    Ok(measured) => {
                        say(&console, &format!("done {id} {}", serde_json::to_string(&measured)?))?
                    }
                    Err(error) => {
                        say(&console, &format!("fail {id} {error:#}").replace('\n', " "))?
                    }
                }
            }
            None if line.trim() == "@quit" => break,
            _ => {}
        }
        line.clear();
    }
    Ok(())
}

fn mount_all() -> Result<()> {
    for (kind, at) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")]
    {
        std::fs::create_dir_all(at)?;
        mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {at}"))?;
    }
    Ok(())
}

/// One line of our own. It starts with a line break: the kernel may have left a message half said.
fn say(mut console: &File, text: &str) -> Result<()> {
    console.write_all(format!("\n{MARK}{text}\n").as_bytes())?;
    Ok(())
}

/// Runs the command (a JSON list) and reads what it reports.
fn measure(argv: &str) -> Result<Measured> {
    let argv: Vec<String> = serde_json::from_str(argv).context("bad @run command")?;
    let measured = work::report(&argv, PATIENCE);
    reap();
    measured
}

/// Orphans of a workload that was killed come to process 1; nobody else takes them.
fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
}
