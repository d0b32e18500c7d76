// SPDX-License-Identifier: GPL-2.0-only
//! A running emulated host: runs commands on it, and tells its failures apart.

mod conversation;
mod error;
mod exec;
mod options;
mod parts;

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use baton_output::note;

use self::conversation::{Ended, Input, Trouble, Turn};
pub use self::error::HostError;
pub use self::exec::{Exec, Stream};
pub use self::options::{Cpu, Exact, HostOptions, MAX_MIB, MAX_PCPUS, Source};
pub use self::parts::files;
pub(crate) use self::parts::{Parts, parts};
use crate::emulator::Emulator;
use crate::log;
use crate::pace::Pace;
use crate::terminal;
pub use crate::wire::Hello;
use crate::wire::{self, CHUNK, Decoder, Frame};

/// Five to ten seconds are usual; a busy machine takes a multiple. An exact host needs 20 to 60
/// virtual seconds.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);

/// A booted host. Dropping it ends it; nothing is left behind.
pub struct Host {
    emulator: Emulator,
    hello: Hello,
    /// When virtual time was last seen to pass: the virtual and the real time.
    progress: (Duration, Instant),
    decoder: Decoder,
    /// What the host has not taken yet.
    outbox: Vec<u8>,
}

impl Host {
    /// The host, unless its kernel lacks what the options ask for.
    pub fn usable(self, options: &HostOptions) -> Result<Host, HostError> {
        let hello = &self.hello;
        let required = [
            ("sched_ext", hello.sched_ext),
            ("BTF", hello.btf),
            ("KVM", hello.kvm || options.without_kvm),
        ];
        for (what, there) in required {
            if !there && !options.any_kernel {
                return Err(HostError::NotUsable { release: hello.release.clone(), what });
            }
        }
        Ok(self)
    }

    /// Has the emulator save the host, and end.
    pub(crate) fn save(&mut self) -> Result<(), HostError> {
        self.queue(&Frame::Save);
        self.progress = (self.emulator.time.now(), Instant::now());
        loop {
            match self.turn(None) {
                Ok(_) => {}
                Err(Trouble::Died(_)) if self.emulator.saved() => return Ok(()),
                Err(trouble) => return Err(self.failed(trouble)),
            }
        }
    }

    /// Virtual or real, since some moment before the host was started.
    pub(crate) fn now(&self) -> Duration {
        self.emulator.time.now()
    }

    /// A host of which only the emulator runs yet.
    pub(crate) fn new(emulator: Emulator, hello: Hello) -> Host {
        let progress = (emulator.time.now(), Instant::now());
        Host { emulator, hello, progress, decoder: Decoder::default(), outbox: Vec::new() }
    }

    /// A host that has booted.
    pub(crate) fn greeted_by(emulator: Emulator) -> Result<Host, HostError> {
        let mut host = Host::new(emulator, Hello::default());
        let deadline = host.emulator.time.now() + BOOT_DEADLINE;
        host.hello = loop {
            match host.turn(None) {
                Ok(Turn { frame: Some(Frame::Hello(hello)), .. }) => break hello,
                Ok(_) if host.emulator.time.now() < deadline => {}
                Ok(_) => {
                    let log = host.end();
                    return Err(HostError::BootTimeout { log });
                }
                Err(trouble) => return Err(host.failed(trouble)),
            }
        };
        Ok(host)
    }

    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    pub fn pace(&self) -> Pace {
        self.emulator.pace()
    }

    /// Runs a command to its end and hands out what it prints as it comes. Returns the exit status
    /// as a shell gives it. Processes that the command leaves behind stay.
    pub fn exec(
        &mut self,
        cmd: &Exec,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<i32, HostError> {
        self.queue(&Frame::Exec(wire::Command {
            argv: cmd.argv.clone(),
            env: cmd.env.clone(),
            pty: false,
            input: wire::Input::Before,
            seed: cmd.seed,
        }));
        for bytes in cmd.stdin.chunks(CHUNK) {
            self.queue(&Frame::Stdin(bytes.to_vec()));
        }
        self.queue(&Frame::Stdin(Vec::new()));
        self.hear_out(cmd, Input::None, on_output)
    }

    /// On an exact host: runs a command that asks for input, until it asks for the first time.
    ///
    /// Errors: also if it ends instead.
    pub fn begin(
        &mut self,
        cmd: &Exec,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<(), HostError> {
        self.queue(&Frame::Exec(wire::Command {
            argv: cmd.argv.clone(),
            env: cmd.env.clone(),
            pty: false,
            input: wire::Input::Asked,
            seed: None,
        }));
        for bytes in cmd.stdin.chunks(CHUNK) {
            self.queue(&Frame::Stdin(bytes.to_vec()));
        }
        self.queue(&Frame::Stdin(Vec::new()));
        match self.converse(cmd, Input::None, on_output) {
            Ok(Ended::Asks) => Ok(()),
            Ok(Ended::Exit(status)) => {
                let name = cmd.argv.join(" ");
                Err(HostError::Setup(anyhow!("'{name}' ended on the host ({status})")))
            }
            Err(trouble) => Err(self.failed(trouble)),
        }
    }

    /// Goes on with a command that has asked: gives it this input, and hears it to its end.
    pub fn answer(
        &mut self,
        cmd: &Exec,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<i32, HostError> {
        self.queue(&Frame::Stdin(cmd.stdin.clone()));
        self.hear_out(cmd, Input::None, on_output)
    }

    /// As [`Host::exec`], but the command reads this process's standard input.
    pub fn attach(
        &mut self,
        cmd: &Exec,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<i32, HostError> {
        if self.emulator.time.is_virtual() {
            // What the command does may not depend on when its input comes.
            let mut stdin = Vec::new();
            if !io::stdin().is_terminal() {
                io::stdin().read_to_end(&mut stdin).context("cannot read standard input")?;
            }
            return self.exec(&Exec { stdin, ..cmd.clone() }, on_output);
        }
        self.queue(&Frame::Exec(wire::Command {
            argv: cmd.argv.clone(),
            env: cmd.env.clone(),
            pty: false,
            input: wire::Input::Live,
            seed: None,
        }));
        self.hear_out(cmd, Input::Pipe, on_output)
    }

    /// A shell on the host, on the user's terminal. Returns its exit status.
    pub fn shell(&mut self) -> Result<i32, HostError> {
        let raw = terminal::Raw::enter()
            .map_err(|_| anyhow!("a shell needs a terminal; use 'baton testbed run -- COMMAND'"))?;
        let term = std::env::var("TERM").unwrap_or_else(|_| "linux".to_string());
        let cmd = Exec::new(["sh", "-l"], Duration::from_secs(24 * 3600));
        self.queue(&Frame::Exec(wire::Command {
            argv: cmd.argv.clone(),
            env: vec![("TERM".to_string(), term), ("PS1".to_string(), "baton# ".to_string())],
            pty: true,
            input: wire::Input::Live,
            seed: None,
        }));
        let result = self.hear_out(&cmd, Input::Terminal, &mut |_, bytes| {
            use io::Write;
            let mut out = io::stdout();
            let _ = out.write_all(bytes).and_then(|()| out.flush());
        });
        drop(raw);
        result
    }

    /// Keeps the console log so far, for a failure that only the caller can see.
    pub fn keep_log(&mut self) -> Option<PathBuf> {
        let _ = self.emulator.console.follow();
        let mut text = self.emulator.console.text().unwrap_or_default();
        text.extend(self.emulator.complaints().bytes());
        match log::keep(&text) {
            Ok(path) => Some(path),
            Err(error) => {
                note(&format!("baton: the console log is lost: {error:#}"));
                None
            }
        }
    }
}
