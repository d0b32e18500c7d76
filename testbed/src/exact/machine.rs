// SPDX-License-Identifier: GPL-2.0-only
//! The Bochs process: its configuration, and its files, which are nameless.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Cpu, Exact, Profile};
use crate::command;
use crate::console::Console;
use crate::emulator::{Emulator, Time};

/// Descriptors that the emulator finds its files at; a saved machine's configuration names them.
const CONSOLE: RawFd = 60;
const LOG: RawFd = 61;
const MEDIUM: RawFd = 62;
const SOCKET: RawFd = 63;
const CLOCK: RawFd = 64;
const CONFIG: RawFd = 65;
const MSRS: RawFd = 66;
const PROFILE: RawFd = 67;
/// Above all of these.
const ELSEWHERE: RawFd = 100;

/// Exit statuses, which `testbed/bochs/port.h` knows as well.
const SAVED: i32 = 90;
const NOT_SAVED: i32 = 91;
const RESET: i32 = 92;

/// Instructions that each pCPU executes before the next has its turn: what one sends reaches
/// another so much too early or too late. A fast IPI of the bench takes 4,000 here; the emulator
/// allows for 32 at the most, and shorter turns make it slower.
const QUANTUM: u32 = 32;

/// The emulator has a parameter for each block of memory, and compares each new one's name with all
/// before it: with its 128 KiB a GiB of memory takes 2.5 s a start.
const BLOCK_KIB: u32 = 1024;

/// 2026-01-01 00:00 UTC: the host's clock starts there, always.
const BOOT_TIME: u64 = 1_767_225_600;

/// Registers that Bochs' Intel models lack, in the form of its msrs.def: IA32_MISC_ENABLE, with
/// fast strings and MONITOR on, without BTS and PEBS (or Linux copies memory a word at a time); and
/// IA32_BIOS_SIGN_ID, a microcode that is newer than every erratum (or Linux does without the TSC
/// deadline). Address, type, value, reserved and ignored bits, each high and low.
const INTEL_MSRS: &str = "\
    1a0 0 00000000 00041801 00000000 00000000 00000000 00000000\n\
    08b 0 7fffffff 00000000 00000000 00000000 ffffffff ffffffff\n";

/// What is emulated.
#[derive(Clone, Debug)]
pub struct Machine {
    pub exact: Exact,
    pub pcpus: u32,
    /// Two of them make a core.
    pub smt: bool,
    pub mem_mib: u32,
    pub bios: PathBuf,
    pub vga_bios: PathBuf,
}

/// What the emulator is started with.
pub enum Start<'a> {
    /// Boot from this medium, ready to be saved to this directory; the seed is that of RDRAND.
    Boot { medium: &'a File, save_to: &'a Path, seed: u64 },
    /// Go on where a machine was saved. The directory, the virtual time then, and what RDRAND gives
    /// from here on; where it can be saved again.
    Restore {
        from: &'a Path,
        time: Duration,
        seed: u64,
        save_to: Option<PathBuf>,
        /// Where instructions are counted by place.
        profile: Option<&'a Profile>,
    },
}

impl Machine {
    /// Starts the emulator. With `echo`, the host's console goes to standard error too.
    pub fn start(&self, program: &Path, start: &Start, echo: bool) -> Result<Emulator> {
        let temporary = || tempfile::tempfile().context("cannot make a temporary file");
        let (console, log, clock, config, msrs) =
            (temporary()?, temporary()?, temporary()?, temporary()?, temporary()?);
        if self.exact.cpu != Cpu::Amd {
            (&msrs).write_all(INTEL_MSRS.as_bytes()).context("cannot write a file")?;
        }
        let (control, theirs) = UnixStream::pair().context("cannot make a socket")?;
        control.set_nonblocking(true).context("cannot set up a socket")?;
        let nothing = temporary()?;
        let mut command = Command::new(program);
        command.env_clear();
        command.env("BATON_SOCKET", SOCKET.to_string()).env("BATON_CLOCK", CLOCK.to_string());
        let (medium, time) = match start {
            Start::Boot { medium, save_to, seed } => {
                (&config).write_all(self.config().as_bytes()).context("cannot write a file")?;
                command.env("BATON_SAVE", save_to).env("BX_RANDOM_SEED", seed.to_string());
                command.args(["-q", "-f", &at(CONFIG)]);
                (*medium, Duration::ZERO)
            }
            Start::Restore { from, time, seed, save_to, .. } => {
                if let Some(dir) = save_to {
                    command.env("BATON_SAVE", dir);
                }
                command.env("BX_RANDOM_SEED", seed.to_string());
                command.arg("-q").arg("-r").arg(from);
                (&nothing, *time)
            }
        };
        let micros = (time.as_micros() as u64).to_ne_bytes();
        clock.write_all_at(&micros, 0).context("cannot write a file")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let counts = match start {
            Start::Restore { profile: Some(profile), .. } => {
                command.env("BATON_PROFILE", PROFILE.to_string());
                profile.file()
            }
            _ => &nothing,
        };
        let files = [
            (console.as_raw_fd(), CONSOLE),
            (log.as_raw_fd(), LOG),
            (medium.as_raw_fd(), MEDIUM),
            (theirs.as_raw_fd(), SOCKET),
            (clock.as_raw_fd(), CLOCK),
            (config.as_raw_fd(), CONFIG),
            (msrs.as_raw_fd(), MSRS),
            (counts.as_raw_fd(), PROFILE),
        ];
        // SAFETY: between fork and exec only fcntl and dup2 are called, which are
        // async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // One of the files may be where another has to go.
                let mut aside = [0; 8];
                for (place, (from, _)) in aside.iter_mut().zip(files) {
                    *place = checked(libc::fcntl(from, libc::F_DUPFD_CLOEXEC, ELSEWHERE))?;
                }
                for (from, (_, to)) in aside.into_iter().zip(files) {
                    checked(libc::dup2(from, to))?;
                }
                Ok(())
            });
        }
        let child = command::tie_to_us(&mut command)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        Ok(Emulator {
            child,
            control,
            console: Console::new(console, echo),
            complaints: log,
            time: Time::Virtual(clock),
            meaning,
            saves: saved,
        })
    }

    /// In the form of bochsrc.
    pub fn config(&self) -> String {
        let Machine { exact, pcpus, smt, mem_mib, bios, vga_bios } = self;
        let (cores, threads) = if *smt { (pcpus / 2, 2) } else { (*pcpus, 1) };
        let (model, ips) = (exact.cpu.model(), u64::from(exact.mips) * 1_000_000);
        format!(
            "display_library: nogui\n\
             romimage: file=\"{}\"\n\
             vgaromimage: file=\"{}\"\n\
             cpu: model={model}, count=1:{cores}:{threads}, ips={ips}, quantum={QUANTUM}, \
             reset_on_triple_fault=1, ignore_bad_msrs=1, msrs=\"{}\"\n\
             memory: guest={mem_mib}, host={mem_mib}, block_size={BLOCK_KIB}\n\
             clock: sync=none, time0={BOOT_TIME}\n\
             vga: realtime=0\n\
             speaker: enabled=0\n\
             ata0-master: type=cdrom, path={}, status=inserted\n\
             boot: cdrom\n\
             com1: enabled=1, mode=file, dev={}\n\
             log: {}\n\
             panic: action=fatal\n\
             error: action=ignore\n\
             info: action=ignore\n\
             debug: action=ignore\n",
            bios.display(),
            vga_bios.display(),
            at(MSRS),
            at(MEDIUM),
            at(CONSOLE),
            at(LOG),
        )
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { exact, pcpus, smt, mem_mib, .. } = self;
        let threads = if *smt { " (hyper-threads)" } else { "" };
        let Exact { cpu, mips } = exact;
        write!(
            f,
            "{cpu}, {pcpus} pCPUs{threads}, {mips} million instructions a second each, \
             {mem_mib} MiB"
        )
    }
}

/// Whether the emulator ended because it was told to save the host, and did.
fn saved(status: ExitStatus) -> bool {
    status.code() == Some(SAVED)
}

fn meaning(status: ExitStatus) -> Option<&'static str> {
    match status.code()? {
        SAVED => Some("the host was saved"),
        NOT_SAVED => Some("the host could not be saved: is the cache's disk full?"),
        RESET => Some("the host was switched off or restarted"),
        _ => None,
    }
}

fn at(fd: RawFd) -> String {
    format!("/dev/fd/{fd}")
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_follows_the_options() {
        let mut machine = Machine {
            exact: Exact { cpu: Cpu::Amd, mips: 250 },
            pcpus: 4,
            smt: true,
            mem_mib: 1024,
            bios: "/bios".into(),
            vga_bios: "/vga".into(),
        };
        let config = machine.config();
        for words in ["model=ryzen", "count=1:2:2", "ips=250000000", "guest=1024"] {
            assert!(config.contains(words), "{config}");
        }
        machine.smt = false;
        assert!(machine.config().contains("count=1:4:1"));
        assert!(machine.to_string().starts_with("amd, 4 pCPUs, 250 million"), "{machine}");
    }
}
