// SPDX-License-Identifier: GPL-2.0-only
//! A running emulated host: boots it, runs commands on it, and tells its failures apart.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use baton_hostinfo::Host as Machine;
use baton_output::note;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tempfile::NamedTempFile;

use crate::cache::Cache;
use crate::console::Fault;
use crate::emulator::Emulator;
use crate::exact::{self, Exact, Ready};
use crate::image;
use crate::kernel::{Kernel, Series};
use crate::kvm::{self, Accel, Virtualization};
use crate::log;
use crate::pace::Pace;
use crate::qemu;
use crate::terminal;
use crate::userland::{Userland, check_qemu};
use crate::wire::{self, CHUNK, Decoder, Frame};
use baton_output::interrupt::{self, Interrupted};

pub use crate::wire::Hello;

/// Five to ten seconds are usual; a busy machine takes a multiple. An exact host needs 20 to 60
/// virtual seconds.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);

/// The longest real time in which virtual time may stand still while the host has something to do.
/// The emulator shows each virtual millisecond, and needs half a second for one at the most.
const STANDSTILL: Duration = Duration::from_secs(120);

/// How often the console, the interrupt flag and the deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);

/// After a fault, the console's next lines tell why.
const AFTERMATH: Duration = Duration::from_secs(2);

/// The emulator itself, its translated code and the host's image, MiB.
const EMULATOR_MIB: u64 = 768;

/// Input that is not taken off our hands stops us from reading more.
const OUTBOX_LIMIT: usize = 1 << 20;

/// Where kernel and programs come from: Debian's packages, unless a file is named.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Debian's kernel of this series; the newest with sched_ext if `None`.
    pub series: Option<Series>,
    /// A bzImage to use instead.
    pub kernel: Option<PathBuf>,
    /// Its lib/modules/RELEASE.
    pub modules: Option<PathBuf>,
    /// A qemu-system-x86_64 of this machine to emulate the host with.
    pub qemu: Option<PathBuf>,
}

/// What kind of host to boot.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// 1 to 255.
    pub pcpus: u32,
    /// They are hyper-threads, two a core: an even number of them.
    pub smt: bool,
    /// They are on so many sockets, each with a last-level cache: a divisor of them, or of their
    /// cores. Not of an exact host.
    pub sockets: u32,
    pub mem_mib: u32,
    pub source: Source,
    /// Programs for the host's /bin, with the libraries that they need on this machine.
    pub extra_bins: Vec<PathBuf>,
    /// The host's console goes to standard error.
    pub verbose: bool,
    /// Boot also where sched_ext, BTF or KVM is missing.
    pub any_kernel: bool,
    /// Leave KVM's modules to be loaded later, with `baton-agent insmod`.
    pub without_kvm: bool,
    /// What executes its instructions, unless it is an exact host.
    pub accel: Accel,
    /// An exact host, emulated instruction by instruction, instead of QEMU's.
    pub exact: Option<Exact>,
}

impl HostOptions {
    /// What this machine runs the host with; `None`: it is emulated.
    ///
    /// Errors: KVM is asked for, and not possible here.
    pub fn virtualization(&self) -> anyhow::Result<Option<Virtualization>> {
        match (self.accel, &self.exact) {
            (Accel::Tcg, _) => Ok(None),
            (Accel::Kvm, Some(_)) => bail!(
                "an exact host is emulated instruction by instruction: leave --exact or --accel \
                 kvm out"
            ),
            (Accel::Kvm, None) => kvm::check(&Machine::here()).map(Some),
        }
    }

    /// What the kernel's command line has more for these.
    pub(crate) fn append(&self) -> &'static str {
        if self.without_kvm { "baton.nokvm" } else { "" }
    }
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            pcpus: 2,
            smt: false,
            sockets: 1,
            mem_mib: 4096,
            source: Source::default(),
            extra_bins: Vec::new(),
            verbose: false,
            any_kernel: false,
            without_kvm: false,
            accel: Accel::default(),
            exact: None,
        }
    }
}

/// Which of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// A command for the host.
#[derive(Clone, Debug)]
pub struct Exec {
    /// Program (searched in the host's `PATH`) and arguments.
    pub argv: Vec<String>,
    /// Added to the host's environment.
    pub env: Vec<(String, String)>,
    pub stdin: Vec<u8>,
    /// The longest that it may run.
    pub deadline: Duration,
    /// The longest that it may print nothing.
    pub silence: Duration,
    /// Makes the command's run on an exact host another than that of another seed.
    pub seed: Option<u64>,
}

impl Exec {
    /// A command without input that may run, and be silent, for this long.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>, deadline: Duration) -> Exec {
        Exec {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            stdin: Vec::new(),
            deadline,
            silence: deadline,
            seed: None,
        }
    }
}

/// Every way in which a host can fail. After any of them the host is gone.
#[derive(Debug)]
pub enum HostError {
    /// The host's kernel crashed.
    Oops {
        line: String,
        log: Option<PathBuf>,
    },
    /// A CPU of the host makes no progress.
    RcuStall {
        line: String,
        log: Option<PathBuf>,
    },
    /// The host's watchdog found a CPU or a work queue stuck.
    Lockup {
        line: String,
        log: Option<PathBuf>,
    },
    OutOfMemory {
        line: String,
        log: Option<PathBuf>,
    },
    /// A command did not end, or said nothing, in time.
    Deadline {
        what: String,
        log: Option<PathBuf>,
    },
    EmulatorDied {
        why: String,
        log: Option<PathBuf>,
    },
    BootTimeout {
        log: Option<PathBuf>,
    },
    /// The kernel lacks what every experiment needs.
    NotUsable {
        release: String,
        what: &'static str,
    },
    /// It cannot work on this machine, or with these files.
    Setup(anyhow::Error),
    /// SIGINT or SIGTERM.
    Interrupted,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, log) = match self {
            HostError::Oops { line, log } => (format!("the host kernel crashed: {line}"), log),
            HostError::RcuStall { line, log } => (format!("the host stalled: {line}"), log),
            HostError::Lockup { line, log } => (format!("the host locked up: {line}"), log),
            HostError::OutOfMemory { line, log } => {
                (format!("the host ran out of memory: {line}"), log)
            }
            HostError::Deadline { what, log } => (what.clone(), log),
            HostError::EmulatorDied { why, log } => {
                (format!("the emulated host ended: {why}"), log)
            }
            HostError::BootTimeout { log } => {
                (format!("the host did not boot within {} s", BOOT_DEADLINE.as_secs()), log)
            }
            HostError::NotUsable { release, what } => {
                return write!(
                    f,
                    "kernel {release} has no {what}, or not in its --modules: choose another with \
                     --kernel-series or --kernel ('baton testbed kernels' lists those on offer)"
                );
            }
            HostError::Setup(error) => return write!(f, "{error:#}"),
            HostError::Interrupted => return f.write_str("interrupted"),
        };
        match log {
            Some(log) => write!(f, "{what}; console log: {}", log.display()),
            None => f.write_str(&what),
        }
    }
}

impl std::error::Error for HostError {}

impl From<anyhow::Error> for HostError {
    fn from(error: anyhow::Error) -> Self {
        let error = match error.downcast() {
            Ok(host) => return host,
            Err(other) => other,
        };
        if error.chain().any(|cause| cause.is::<Interrupted>()) {
            HostError::Interrupted
        } else {
            HostError::Setup(error)
        }
    }
}

/// Why the conversation with a host ended early.
enum Trouble {
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
    /// Boots a host: fetches what is missing, then starts it. A boot that hangs or dies is tried
    /// once more. From the first call on, SIGINT and SIGTERM end every wait with
    /// [`HostError::Interrupted`] instead of ending the process. The thread that calls this must
    /// outlive the host: the kernel kills the host with it.
    pub fn boot(options: &HostOptions) -> Result<Host, HostError> {
        interrupt::install();
        match Host::boot_once(options) {
            Err(error @ (HostError::BootTimeout { .. } | HostError::EmulatorDied { .. })) => {
                note(&format!("baton: {error}; trying once more"));
                Host::boot_once(options)
            }
            other => other,
        }
    }

    fn boot_once(options: &HostOptions) -> Result<Host, HostError> {
        let host = match &options.exact {
            None => Host::greeted_by(start(options)?)?,
            Some(_) => Ready::get(options)?.restore(0)?,
        };
        host.usable(options)
    }

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

    fn hear_out(
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

    fn queue(&mut self, frame: &Frame) {
        self.outbox.extend(frame.encode());
    }

    /// Passes output out and input in until the command ends, or asks.
    fn converse(
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
    fn turn(&mut self, input: Option<std::os::fd::BorrowedFd>) -> Result<Turn, Trouble> {
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
    fn failed(&mut self, trouble: Trouble) -> HostError {
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

    fn end(&mut self) -> Option<PathBuf> {
        self.emulator.kill();
        self.keep_log()
    }
}

/// What a [`Host::turn`] brought.
struct Turn {
    frame: Option<Frame>,
    /// There is input to read.
    input: bool,
}

/// Why a conversation with a command is over.
enum Ended {
    Exit(i32),
    Asks,
}

/// Where a running command's input comes from, beyond what is queued.
#[derive(Clone, Copy)]
enum Input {
    None,
    Pipe,
    Terminal,
}

fn retry(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Kernel, userland and initramfs of a host.
pub(crate) struct Parts {
    pub cache: Cache,
    pub userland: Userland,
    pub kernel: Kernel,
    pub initrd: NamedTempFile,
    pub kvm: Option<Virtualization>,
}

pub(crate) fn parts(options: &HostOptions) -> anyhow::Result<Parts> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the emulated host needs an x86-64 machine to run on");
    }
    let kvm = options.virtualization()?;
    let most = if options.exact.is_some() { exact::MAX_PCPUS } else { 255 };
    if !(1..=most).contains(&options.pcpus) {
        bail!("a host with {} CPUs: 1 to {most} are possible", options.pcpus);
    }
    if options.smt && !options.pcpus.is_multiple_of(2) {
        bail!(
            "{} CPUs are no whole cores of two hyper-threads: make it an even number",
            options.pcpus
        );
    }
    let together = options.sockets * (1 + u32::from(options.smt));
    if together == 0 || !options.pcpus.is_multiple_of(together) {
        bail!(
            "{} CPUs cannot be on {} sockets, as many on each: choose a divisor",
            options.pcpus,
            options.sockets
        );
    }
    if options.exact.is_some() && options.sockets > 1 {
        bail!("an exact host has one socket: leave --exact out for {}", options.sockets);
    }
    if options.exact.is_some() && options.mem_mib > exact::MAX_MIB {
        let most = exact::MAX_MIB;
        bail!("{} MiB for an exact host: up to {most} are possible", options.mem_mib);
    }
    require_memory(u64::from(options.mem_mib) + EMULATOR_MIB)?;
    let cache = Cache::open()?;
    let source = &options.source;
    let userland = userland(&cache, source)?;
    let kernel = kernel(&cache, source)?;
    let mut initrd = cache.temporary_file()?;
    image::write_host(initrd.as_file_mut(), &userland, &kernel, &options.extra_bins)?;
    Ok(Parts { cache, userland, kernel, initrd, kvm })
}

/// What a host is started with, fetched if it is missing, by name: `kernel`, its `modules`, a
/// `busybox`, and each word of the command that runs `qemu`.
pub fn files(source: &Source) -> anyhow::Result<Vec<(&'static str, String)>> {
    let cache = Cache::open()?;
    let userland = userland(&cache, source)?;
    let kernel = kernel(&cache, source)?;
    let command = match &source.qemu {
        Some(qemu) => Command::new(qemu),
        None => userland.qemu_command(),
    };
    let path = |path: &Path| path.display().to_string();
    let mut files = vec![("kernel", path(&kernel.image))];
    files.extend(kernel.modules.map(|modules| ("modules", path(&modules))));
    files.push(("busybox", path(&userland.busybox.file)));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    files.extend(words.map(|word| ("qemu", word.to_string_lossy().into_owned())));
    Ok(files)
}

/// Starts QEMU.
fn start(options: &HostOptions) -> anyhow::Result<Emulator> {
    let Parts { userland, kernel, initrd, kvm, .. } = parts(options)?;
    if let Some(kind) = kvm {
        kind.warn();
    }
    let command = match &options.source.qemu {
        Some(qemu) => Command::new(qemu),
        None => userland.qemu_command(),
    };
    interrupt::check()?;
    qemu::start(
        command,
        &qemu::Machine {
            kernel: &kernel.image,
            initrd: initrd.as_file(),
            pcpus: options.pcpus,
            smt: options.smt,
            sockets: options.sockets,
            mem_mib: options.mem_mib,
            kvm,
            append: options.append(),
            echo: options.verbose,
        },
    )
}

/// The user's QEMU emulates the host, but inside it Debian's programs are preferred: only their
/// absence makes this machine's own take their place.
fn userland(cache: &Cache, source: &Source) -> anyhow::Result<Userland> {
    let Some(qemu) = &source.qemu else { return Userland::debian(cache) };
    check_qemu(qemu)?;
    match Userland::debian(cache) {
        Err(error) if !error.chain().any(|cause| cause.is::<Interrupted>()) => {
            Userland::of_this_machine(qemu).map_err(|own| own.context(format!("{error:#}")))
        }
        other => other,
    }
}

fn kernel(cache: &Cache, source: &Source) -> anyhow::Result<Kernel> {
    match &source.kernel {
        Some(image) => Kernel::given(image, source.modules.as_deref()),
        None => Kernel::debian(cache, source.series),
    }
}

fn require_memory(mib: u64) -> anyhow::Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let free = available_mib(&text).ok_or_else(|| anyhow!("no MemAvailable in /proc/meminfo"))?;
    if free < mib {
        bail!(
            "{free} MiB of memory are free, the emulated host needs {mib}: use --mem, or free some"
        );
    }
    Ok(())
}

fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        assert_eq!(available_mib("MemTotal: 9 kB\nMemAvailable:  2048 kB\n"), Some(2));
        assert_eq!(available_mib("MemTotal: 9 kB\n"), None);
        assert!(require_memory(u64::MAX >> 20).is_err());
    }

    #[test]
    fn errors_are_one_line() {
        let log = Some(PathBuf::from("/l"));
        let error = HostError::Oops { line: "BUG: x".into(), log };
        assert_eq!(error.to_string(), "the host kernel crashed: BUG: x; console log: /l");
        let error = HostError::from(anyhow::Error::from(Interrupted).context("while fetching"));
        assert!(matches!(error, HostError::Interrupted));
    }
}
