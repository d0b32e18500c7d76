// SPDX-License-Identifier: GPL-2.0-only
//! Runs the commands that come over the control port, one at a time, and reaps every orphan.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use baton_testbed::wire::{self, ASK, CHUNK, Decoder, Frame, Hello, Input};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::port::Port;
use crate::seed;

/// A side that does not take what we have for it stops us from reading more.
const LIMIT: usize = 1 << 20;

/// How long to wait for the outside to open its end, between looks.
const RETRY: Duration = Duration::from_millis(10);

/// How often an I/O port, which cannot be polled for, is asked for input of a running command.
const ASK_MS: u8 = 10;

/// Greets the outside and does what it says until it goes away.
///
/// Errors: the port breaks, or what comes over it is garbled.
pub fn serve(port: Port, hello: &Hello) -> Result<()> {
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block().context("cannot block SIGCHLD")?;
    let children = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("cannot listen to SIGCHLD")?;
    let mut server = Server {
        port,
        outbox: Frame::Hello(hello.clone()).encode(),
        pending: None,
        running: None,
        greeted: false,
    };
    let mut decoder = Decoder::default();
    loop {
        let ready = server.wait(&children)?;
        if ready.gone {
            if server.greeted {
                return Ok(());
            }
            std::thread::sleep(RETRY); // it has not opened its end yet
            continue;
        }
        server.flush()?;
        if ready.port {
            let mut bytes = [0; CHUNK];
            let length = server.port.read(&mut bytes).context("cannot read the control port")?;
            decoder.push(&bytes[..length]);
            while let Some(frame) = decoder.next_frame()? {
                server.obey(frame);
            }
        }
        server.pass();
        while let Ok(Some(_)) = children.read_signal() {}
        server.reap();
    }
}

struct Server {
    port: Port,
    /// What the outside has not taken yet.
    outbox: Vec<u8>,
    /// A command whose input has not come whole, with what has.
    pending: Option<(wire::Command, Vec<u8>)>,
    running: Option<Running>,
    /// The outside has taken something, so it is there.
    greeted: bool,
}

/// The command under way.
struct Running {
    pid: Pid,
    /// Its ends on our side; `None` once closed. A terminal is both first ones.
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
    /// What it has not read yet, and whether more may come.
    inbox: Vec<u8>,
    input_ended: bool,
    input: Input,
    /// It has asked for input and got none yet.
    asks: bool,
}

#[derive(Default)]
struct Ready {
    port: bool,
    gone: bool,
}

impl Server {
    fn wait(&self, children: &SignalFd) -> Result<Ready> {
        let live = matches!(&self.running, Some(Running { input: Input::Live, .. }));
        let idle = self.running.as_ref().is_none_or(|running| running.asks);
        let mut timeout = PollTimeout::NONE;
        match &self.port {
            Port::Io(_) if !self.outbox.is_empty() => timeout = PollTimeout::ZERO,
            Port::Io(port) if idle => {
                port.wait();
                return Ok(Ready { port: true, gone: false });
            }
            Port::Io(_) if live => timeout = PollTimeout::from(ASK_MS),
            // Nothing comes that would have to be looked for, or poll(2) tells.
            Port::Io(_) | Port::Virtio(_) => {}
        }
        let mut port = PollFlags::empty();
        if self.running.as_ref().is_none_or(|running| running.inbox.len() < LIMIT) {
            port |= PollFlags::POLLIN;
        }
        if !self.outbox.is_empty() {
            port |= PollFlags::POLLOUT;
        }
        let mut fds = vec![PollFd::new(children.as_fd(), PollFlags::POLLIN)];
        if let Some(running) = &self.running {
            if self.outbox.len() < LIMIT {
                for file in [&running.stdout, &running.stderr].into_iter().flatten() {
                    fds.push(PollFd::new(file.as_fd(), PollFlags::POLLIN));
                }
            }
            if let Some(file) = &running.stdin
                && !running.inbox.is_empty()
            {
                fds.push(PollFd::new(file.as_fd(), PollFlags::POLLOUT));
            }
        }
        fds.extend(self.port.poll_fd(port));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait"),
        }
        if let Port::Io(port) = &self.port {
            if live {
                port.poll();
            }
            return Ok(Ready { port: live, gone: false });
        }
        let port = fds.last().and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        Ok(Ready {
            port: port.contains(PollFlags::POLLIN),
            gone: port.contains(PollFlags::POLLHUP),
        })
    }

    fn flush(&mut self) -> Result<()> {
        while !self.outbox.is_empty() {
            match self.port.write(&self.outbox).context("cannot write to the control port")? {
                0 => break,
                length => {
                    self.outbox.drain(..length);
                    self.greeted = true;
                }
            }
        }
        Ok(())
    }

    fn say(&mut self, frame: &Frame) {
        self.outbox.extend(frame.encode());
    }

    fn obey(&mut self, frame: Frame) {
        match (frame, &mut self.running) {
            (Frame::Exec(command), None) => match command.input {
                Input::Live => self.start(&command, Vec::new()),
                Input::Before | Input::Asked => self.pending = Some((command, Vec::new())),
            },
            (Frame::Stdin(bytes), None) => {
                let Some((command, mut input)) = self.pending.take() else { return };
                if bytes.is_empty() {
                    self.start(&command, input);
                } else {
                    input.extend(bytes);
                    self.pending = Some((command, input));
                }
            }
            (Frame::Save, _) => {
                if let Port::Io(port) = &self.port {
                    port.save();
                }
            }
            (Frame::Stdin(bytes), Some(running)) => {
                running.input_ended |= bytes.is_empty();
                running.asks = false;
                running.inbox.extend(bytes);
            }
            (Frame::Signal(number), Some(running)) => {
                if let Ok(signal) = Signal::try_from(number) {
                    let _ = killpg(running.pid, signal); // it may have ended meanwhile
                }
            }
            (Frame::Resize { rows, cols }, Some(running)) => {
                if let Some(terminal) = &running.stdout {
                    resize(terminal, rows, cols);
                }
            }
            // Input for a command that has ended; nothing else is ever sent here.
            _ => {}
        }
    }

    fn start(&mut self, command: &wire::Command, input: Vec<u8>) {
        if let Some(seed) = command.seed {
            seed::stir(seed);
        }
        match start(command) {
            Ok(mut running) => {
                running.inbox = input;
                running.input_ended = command.input == Input::Before;
                self.running = Some(running);
            }
            Err(error) => {
                let name = command.argv.first().map_or("", String::as_str);
                // As a shell has it: 127 not found, 126 found but not to be run.
                let status = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
                self.say(&Frame::Stderr(format!("{name}: {error}\n").into_bytes()));
                self.say(&Frame::Exit(status));
            }
        }
    }

    /// Passes the command's output out and its input in, as far as they go now.
    fn pass(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.feed();
        if self.outbox.len() < LIMIT {
            self.drain_one(&mut running.stderr, Frame::Stderr);
            let end = self.outbox.len();
            self.drain_one(&mut running.stdout, Frame::Stdout);
            if running.input == Input::Asked && self.outbox[end..].last() == Some(&ASK) {
                running.asks = true;
                self.say(&Frame::Asks);
            }
        }
        self.running = Some(running);
    }

    /// Takes one chunk; closes what has ended. Returns whether there may be more.
    fn drain_one(&mut self, file: &mut Option<File>, frame: fn(Vec<u8>) -> Frame) -> bool {
        let Some(open) = file else { return false };
        let mut bytes = vec![0; CHUNK];
        match open.read(&mut bytes) {
            Ok(length) if length > 0 => {
                bytes.truncate(length);
                self.say(&frame(bytes));
                true
            }
            Err(error) if again(&error) => false,
            // The end; a terminal that nobody has open any more gives EIO.
            Ok(_) | Err(_) => {
                *file = None;
                false
            }
        }
    }

    /// Collects the ended. When the command is among them, what it still printed goes out first;
    /// processes that it left behind may go on, but not on its pipes.
    fn reap(&mut self) {
        loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => (pid, status),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            if let Some(mut running) = self.running.take_if(|running| running.pid == pid) {
                // A pipe holds 64 KiB, so this ends even if someone keeps writing.
                for _ in 0..16 {
                    let more = self.drain_one(&mut running.stdout, Frame::Stdout)
                        | self.drain_one(&mut running.stderr, Frame::Stderr);
                    if !more {
                        break;
                    }
                }
                self.say(&Frame::Exit(status));
            }
        }
    }
}

impl Running {
    fn feed(&mut self) {
        let Some(file) = &mut self.stdin else { return self.inbox.clear() };
        let mut broken = false;
        while !self.inbox.is_empty() && !broken {
            match file.write(&self.inbox) {
                Ok(length) => drop(self.inbox.drain(..length)),
                Err(error) if again(&error) => return,
                Err(_) => broken = true, // it has closed its input
            }
        }
        if broken || self.input_ended {
            self.stdin = None;
        }
    }
}

fn start(command: &wire::Command) -> io::Result<Running> {
    let Some((program, arguments)) = command.argv.split_first() else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "no command"));
    };
    let mut child = Command::new(program);
    child.args(arguments).envs(command.env.iter().map(|(name, value)| (name, value)));
    let pty = command.pty;
    let terminal = if pty {
        let pair = nix::pty::openpty(None, None)?;
        let slave = File::from(pair.slave);
        child.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        Some(File::from(pair.master))
    } else {
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        None
    };
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe {
        child.pre_exec(move || {
            SigSet::empty().thread_set_mask()?;
            nix::unistd::setsid()?;
            if pty && libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut spawned = child.spawn()?;
    // Frees our copies of the terminal's other side: else its end would never be seen.
    drop(child);
    let own = |fd: Option<OwnedFd>| fd.map(File::from);
    let (stdin, stdout, stderr) = match terminal {
        Some(master) => (Some(master.try_clone()?), Some(master), None),
        None => (
            own(spawned.stdin.take().map(OwnedFd::from)),
            own(spawned.stdout.take().map(OwnedFd::from)),
            own(spawned.stderr.take().map(OwnedFd::from)),
        ),
    };
    for file in [&stdin, &stdout, &stderr].into_iter().flatten() {
        fcntl(file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    let pid = Pid::from_raw(spawned.id() as i32);
    Ok(Running {
        pid,
        stdin,
        stdout,
        stderr,
        inbox: Vec::new(),
        input_ended: false,
        input: command.input,
        asks: false,
    })
}

fn resize(terminal: &File, rows: u16, cols: u16) {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize through the pointer, which is valid for that.
    let _ = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
