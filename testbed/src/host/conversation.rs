// SPDX-License-Identifier: GPL-2.0-only
//! What the machine that emulates and the agent on the host say to each other.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use baton_output::interrupt::{self, Interrupted};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Exec, Host, HostError, Stream};
use crate::console::Fault;
use crate::terminal;
use crate::wire::{self, CHUNK, Frame};

/// The longest real time in which virtual time may stand still while the host has something to do.
/// The emulator shows each virtual millisecond, and needs half a second for one at the most.
const STANDSTILL: Duration = Duration::from_secs(120);

/// How often the console, the interrupt flag and the deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);

/// After a fault, the console's next lines tell why.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Input that is not taken off our hands stops us from reading more.
const OUTBOX_LIMIT: usize = 1 << 20;

/// Why the conversation with a host ended early.
pub(super) enum Trouble {
    Fault,
    Died(String),
    Late(String),
    Interrupted,
}

impl From<Interrupted> for Trouble {
    fn from(_: Interrupted) -> Self {
        Trouble::Interrupted
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Died(error.to_string())
    }
}

impl From<wire::WireError> for Trouble {
    fn from(error: wire::WireError) -> Self {
        Trouble::Died(error.to_string())
    }
}

impl Host {
    pub(super) fn queue(&mut self, frame: &Frame) {
        self.outbox.extend(frame.encode());
    }

    pub(super) fn hear_out(
        &mut self,
        cmd: &Exec,
        input: Input,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<i32, HostError> {
        loop {
            match self.converse(cmd, input, on_output) {
                Ok(Ended::Exit(status)) => return Ok(status),
                Ok(Ended::Asks) => {}
                Err(trouble) => return Err(self.failed(trouble)),
            }
        }
    }

    /// Passes output out and input in until the command ends, or asks.
    pub(super) fn converse(
        &mut self,
        cmd: &Exec,
        mut input: Input,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<Ended, Trouble> {
        let name = cmd.argv.first().map_or("the command", String::as_str);
        let started = self.emulator.time.now();
        self.progress = (started, Instant::now());
        let mut heard = started;
        let mut size = None;
        loop {
            if matches!(input, Input::Terminal) && size != terminal::size() {
                size = terminal::size();
                if let Some((rows, cols)) = size {
                    self.queue(&Frame::Resize { rows, cols });
                }
            }
            let stdin = io::stdin();
            let wanted = match input {
                Input::None => None,
                _ if self.outbox.len() > OUTBOX_LIMIT => None,
                Input::Pipe | Input::Terminal => Some(stdin.as_fd()),
            };
            let turn = self.turn(wanted)?;
            if turn.input {
                // Not through Stdin's buffer: poll does not see what waits there.
                let mut bytes = vec![0; CHUNK];
                let length = nix::unistd::read(stdin.as_fd(), &mut bytes).unwrap_or(0);
                bytes.truncate(length);
                self.queue(&Frame::Stdin(bytes));
                if length == 0 {
                    input = Input::None;
                }
            }
            match turn.frame {
                Some(Frame::Stdout(bytes)) => {
                    heard = self.emulator.time.now();
                    on_output(Stream::Out, &bytes);
                }
                Some(Frame::Stderr(bytes)) => {
                    heard = self.emulator.time.now();
                    on_output(Stream::Err, &bytes);
                }
                Some(Frame::Exit(status)) => return Ok(Ended::Exit(status)),
                Some(Frame::Asks) => return Ok(Ended::Asks),
                _ => {}
            }
            let now = self.emulator.time.now();
            if now.saturating_sub(started) > cmd.deadline {
                let limit = cmd.deadline.as_secs_f64();
                return Err(Trouble::Late(format!("{name} did not end within {limit} s")));
            }
            if now.saturating_sub(heard) > cmd.silence {
                let limit = cmd.silence.as_secs_f64();
                return Err(Trouble::Late(format!("{name} said nothing for {limit} s")));
            }
        }
    }

    /// Waits up to a tick for a frame, for room to write and for input; looks after the host.
    pub(super) fn turn(&mut self, input: Option<std::os::fd::BorrowedFd>) -> Result<Turn, Trouble> {
        if let Some(frame) = self.decoder.next_frame()? {
            return Ok(Turn { frame: Some(frame), input: false });
        }
        let mut events = PollFlags::POLLIN;
        if !self.outbox.is_empty() {
            events |= PollFlags::POLLOUT;
        }
        let mut fds = vec![PollFd::new(self.emulator.control.as_fd(), events)];
        fds.extend(input.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let timeout = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut fds, timeout); // interrupted: then nothing is ready
        let ready =
            |index: usize| fds.get(index).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        let (control, input) = (ready(0), !ready(1).is_empty());
        if control.contains(PollFlags::POLLOUT) {
            self.send()?;
        }
        if control.contains(PollFlags::POLLIN) {
            let mut bytes = [0; CHUNK];
            match self.emulator.control.read(&mut bytes) {
                Ok(length) => self.decoder.push(&bytes[..length]),
                Err(error) if retry(&error) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                Err(error) => return Err(error.into()),
            }
        }
        interrupt::check()?;
        self.emulator.console.follow()?;
        if self.emulator.console.fault.is_some() {
            return Err(Trouble::Fault);
        }
        let (seen, when) = self.progress;
        let now = self.emulator.time.now();
        if now > seen {
            self.progress = (now, Instant::now());
        } else if when.elapsed() > STANDSTILL && self.emulator.ended().is_none() {
            let why = format!("the emulator has stood still for {} s", STANDSTILL.as_secs());
            return Err(Trouble::Died(why));
        }
        let frame = self.decoder.next_frame()?;
        if frame.is_none()
            && let Some(why) = self.emulator.ended()
        {
            return Err(Trouble::Died(why));
        }
        Ok(Turn { frame, input })
    }

    fn send(&mut self) -> Result<(), Trouble> {
        // SAFETY: the pointer and length are those of a live buffer. MSG_NOSIGNAL, because QEMU
        // may have died and SIGPIPE would end this process.
        let sent = unsafe {
            libc::send(
                self.emulator.control.as_raw_fd(),
                self.outbox.as_ptr().cast(),
                self.outbox.len().min(CHUNK),
                libc::MSG_NOSIGNAL,
            )
        };
        match usize::try_from(sent) {
            Ok(sent) => {
                self.outbox.drain(..sent);
                Ok(())
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                // A QEMU that died is told by its exit.
                let gone = error.kind() == ErrorKind::BrokenPipe;
                if retry(&error) || gone { Ok(()) } else { Err(error.into()) }
            }
        }
    }

    /// Ends the host and says why.
    pub(super) fn failed(&mut self, trouble: Trouble) -> HostError {
        if matches!(trouble, Trouble::Interrupted) {
            self.emulator.kill();
            return HostError::Interrupted;
        }
        let _ = self.emulator.console.follow();
        if self.emulator.console.fault.is_some() {
            let until = Instant::now() + AFTERMATH;
            while Instant::now() < until && self.emulator.ended().is_none() {
                std::thread::sleep(TICK);
            }
        }
        let log = self.end();
        match (self.emulator.console.fault.clone(), trouble) {
            (Some((Fault::Oops, line)), _) => HostError::Oops { line, log },
            (Some((Fault::RcuStall, line)), _) => HostError::RcuStall { line, log },
            (Some((Fault::Lockup, line)), _) => HostError::Lockup { line, log },
            (Some((Fault::OutOfMemory, line)), _) => HostError::OutOfMemory { line, log },
            (None, Trouble::Late(what)) => HostError::Deadline { what, log },
            (None, Trouble::Died(why)) => HostError::EmulatorDied { why, log },
            (None, Trouble::Fault | Trouble::Interrupted) => HostError::Interrupted,
        }
    }

    pub(super) fn end(&mut self) -> Option<PathBuf> {
        self.emulator.kill();
        self.keep_log()
    }
}

/// What a [`Host::turn`] brought.
pub(super) struct Turn {
    pub(super) frame: Option<Frame>,
    /// There is input to read.
    pub(super) input: bool,
}

/// Why a conversation with a command is over.
pub(super) enum Ended {
    Exit(i32),
    Asks,
}

/// Where a running command's input comes from, beyond what is queued.
#[derive(Clone, Copy)]
pub(super) enum Input {
    None,
    Pipe,
    Terminal,
}

fn retry(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
