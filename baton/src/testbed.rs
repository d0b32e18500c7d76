// SPDX-License-Identifier: GPL-2.0-only
//! `baton testbed`: an emulated KVM host to run things on.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use baton_output::interrupt;
use baton_output::{note, say};
use baton_testbed::boot;
use baton_testbed::cache::Cache;
use baton_testbed::host::{self, Exec, HostError, Source, Stream};
use baton_testbed::kernel;
use clap::{Args, Subcommand};

use crate::host_args::HostArgs;
use crate::profile::Profile;

/// Exit statuses of our own, as timeout(1) and env(1) have them.
const LATE: i32 = 124;
const TROUBLE: i32 = 125;
/// 128 + SIGPIPE: nobody reads our output any more.
const UNREAD: i32 = 141;

#[derive(Subcommand)]
#[command(after_help = HELP)]
pub enum Testbed {
    /// Run a command on the host and pass on its output and exit status
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// A shell on the host
    #[command(after_help = SHELL_HELP)]
    Shell(HostArgs),
    /// Compare schedulers: an experiment from a file
    Ab(Box<crate::ab::Ab>),
    /// Fetch and list the kernels with sched_ext that Debian offers now
    #[command(
        after_help = "A line each: series, for --kernel-series, and Debian's version. Needs the \
                            network. Exit status: 0; 125 if that failed."
    )]
    Kernels,
    /// Fetch what a host is started with, and tell where it is: for packaging/test-systemd
    #[command(hide = true)]
    Files(HostArgs),
}

const HELP: &str = "\
Begin with: baton testbed run -- uname -a

QEMU emulates the host, or, with --exact, Bochs: instruction by instruction, so that the same \
inputs give the same bytes on any machine. So it needs neither root nor KVM, and nothing here can \
harm this one. With --accel kvm QEMU runs the host under this machine's KVM, nested, where that is \
possible. The first run fetches a kernel, QEMU and a userland with apt, 90 MB, into a cache; \
the first with --exact builds the emulator, too, and needs a C++ compiler; later ones need no \
network.";

const RUN_HELP: &str = "\
The host has busybox, qemu-system-x86_64 with a kernel and an initramfs for its guests in /guest, \
hackbench, pbzip2, dbench, make, tcc, baton and scx_baton.

Exit status: the command's; 124 after --timeout; 125 when the host fails (the message tells why \
and where its console log is); 130 after Ctrl-C.

With --exact the command's standard input is read to its end first, and --timeout counts virtual \
seconds.

What is fetched stays in $BATON_CACHE, else $XDG_CACHE_HOME/baton, else ~/.cache/baton.

Example: baton testbed run -- sh -c 'uname -r; ls -l /dev/kvm'";

const SHELL_HELP: &str = "\
Ends with 'exit' or Ctrl-D. Exit status: the shell's; 125 when the host fails; 130 after Ctrl-C \
while it boots.";

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    host: HostArgs,
    /// Seconds after which the command is ended
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Count the instructions that the exact host executes meanwhile, by symbol, to this file
    #[arg(long, value_name = "FILE", requires = "exact")]
    profile: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Returns the exit status.
pub fn main(what: Testbed) -> i32 {
    let done = match what {
        Testbed::Run(run) => self::run(run),
        Testbed::Ab(ab) => return crate::ab::main(*ab),
        Testbed::Shell(host) => boot(&host.options()).and_then(|mut host| host.shell()),
        Testbed::Kernels => kernels().map_err(HostError::from),
        Testbed::Files(host) => files(&host.options().source).map_err(HostError::from),
    };
    done.unwrap_or_else(|error| {
        note(&format!("baton: {error}"));
        match error {
            HostError::Deadline { .. } => LATE,
            HostError::Interrupted => interrupt::STATUS,
            _ => TROUBLE,
        }
    })
}

fn run(run: Run) -> Result<i32, HostError> {
    let command = Exec::new(run.command, Duration::from_secs(run.timeout));
    let options = run.host.options();
    let profile = run.profile.as_deref().map(|file| Profile::open(file, &options)).transpose()?;
    let mut host = match &profile {
        Some(profile) => profile.host(&options)?,
        None => boot(&options)?,
    };
    let mut lost = None;
    let status = host.attach(&command, &mut |stream, bytes| {
        let written = match stream {
            Stream::Out => write(io::stdout(), bytes),
            Stream::Err => return drop(write(io::stderr(), bytes)),
        };
        match written {
            // The host goes with us: the kernel sees to that.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(UNREAD),
            Err(error) => drop(lost.get_or_insert(error)),
            Ok(()) => {}
        }
    });
    let profiled = profile.map_or(Ok(()), |profile| profile.write(&mut host));
    match (status, lost) {
        (Err(error), _) => Err(error),
        (Ok(_), Some(error)) => {
            Err(HostError::from(anyhow!("cannot write standard output: {error}")))
        }
        (Ok(status), None) => profiled.map(|()| status),
    }
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

fn kernels() -> Result<i32> {
    interrupt::install();
    let offers = kernel::series_on_offer(&Cache::open()?)?;
    let lines = offers.iter().map(|(series, version)| format!("{series}  Debian {version}\n"));
    say(&lines.collect::<String>())?;
    Ok(0)
}

fn files(source: &Source) -> Result<i32> {
    interrupt::install();
    let lines = host::files(source)?.into_iter().map(|(name, value)| format!("{name} {value}\n"));
    say(&lines.collect::<String>())?;
    Ok(0)
}
