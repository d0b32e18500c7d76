// SPDX-License-Identifier: GPL-2.0-only
//! What `baton top` costs: processes that look like VMs, a terminal, and the screen in it; with
//! `--baton` (as root) what it costs where scx_baton runs, whose answers are made up.

use anyhow::{Context, Result, bail};
use baton_counters::{Metrics, VcpuMetrics, VmMetrics};
use baton_output::say;
use clap::{Args, Parser};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{ForkptyResult, Winsize, forkpty};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execv, read};
use std::env;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// VMs have names that begin so.
const NAME: &str = "bench-";

/// As a large terminal is.
const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 };

/// From the start on: what is measured is what it costs to go on.
const START: Duration = Duration::from_secs(5);

#[derive(Parser)]
enum What {
    Measure(Measure),
    /// A process that looks like a VM, until its input ends.
    Vmm {
        #[arg(long)]
        name: String,
        vcpus: usize,
    },
    /// Answers as scx_baton, until its input ends.
    Baton {
        vms: usize,
        vcpus: usize,
    },
    Top(baton_top::Top),
}

#[derive(Args)]
struct Measure {
    #[arg(long, default_value = "300")]
    vms: usize,
    #[arg(long, default_value = "7")]
    vcpus: usize,
    #[arg(long, default_value = "60")]
    seconds: u64,
    #[arg(long, default_value = "1")]
    rounds: usize,
    /// With scx_baton's answers instead of the kernel's
    #[arg(long)]
    baton: bool,
    /// Other programs with the subcommand `top`, measured in turn with this one
    #[arg(long)]
    program: Vec<String>,
    /// As cargo calls a bench
    #[arg(long)]
    bench: bool,
}

fn main() -> Result<()> {
    let mut words: Vec<_> = env::args_os().collect();
    let is_word =
        words.get(1).is_some_and(|word| word == "vmm" || word == "baton" || word == "top");
    if !is_word {
        words.insert(1, "measure".into());
    }
    match What::parse_from(words) {
        What::Measure(measure) => run(&measure),
        What::Vmm { vcpus, .. } => be_a_vmm(vcpus),
        What::Baton { vms, vcpus } => be_scx_baton(vms, vcpus),
        What::Top(top) => baton_top::run(&top),
    }
}

fn be_a_vmm(vcpus: usize) -> Result<()> {
    for id in 0..vcpus {
        let vcpu = thread::Builder::new().name(format!("CPU {id}/KVM")).stack_size(1 << 16);
        vcpu.spawn(|| {
            loop {
                thread::park();
            }
        })?;
    }
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// From here on this process and its children see a host on which scx_baton is loaded.
fn pretend_baton() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("--baton needs root")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    for over in ["/sys/kernel", "/run"] {
        mount(Some("none"), over, Some("tmpfs"), MsFlags::empty(), none)?;
    }
    fs::create_dir_all("/sys/kernel/sched_ext/root")?;
    fs::write("/sys/kernel/sched_ext/state", "enabled\n")?;
    fs::write("/sys/kernel/sched_ext/root/ops", "baton_bench\n")?;
    Ok(())
}

fn be_scx_baton(vms: usize, vcpus: usize) -> Result<()> {
    let socket = Path::new(baton_counters::Client::SOCKET);
    fs::create_dir_all(socket.parent().context("a socket at /")?)?;
    let listener = UnixListener::bind(socket)?;
    let began = Instant::now();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&stream, began, vms, vcpus));
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn answer(stream: &UnixStream, began: Instant, vms: usize, vcpus: usize) -> Result<()> {
    for line in BufReader::new(stream).lines() {
        let with_vcpus = line?.contains(baton_counters::VCPUS);
        let ms = began.elapsed().as_secs_f64() * 1e3;
        let (ran_ms, ready_only_ms, costop_ms) = (ms * 0.5, ms * 0.1, ms * 0.1);
        let vcpu = VcpuMetrics {
            tid: 1,
            cpu: 1,
            watched_ms: ms,
            ran_ms,
            ready_only_ms,
            costop_ms,
            throttled_ms: 0.0,
            waited_ms: ms * 0.3,
        };
        let by_vcpu = (0..if with_vcpus { vcpus as u32 } else { 0 }).map(|id| (id, vcpu.clone()));
        let all = vcpus as f64;
        let vm = VmMetrics {
            vcpus: vcpus as u64,
            ran_ms: ran_ms * all,
            ready_ms: (ready_only_ms + costop_ms) * all,
            ready_only_ms: ready_only_ms * all,
            costop_ms: costop_ms * all,
            watched_ms: ms * all,
            wakeups: vec![ms as u64; 32],
            by_vcpu: by_vcpu.collect(),
            ..VmMetrics::default()
        };
        let named = |n: usize| {
            (format!("{n}.{n}.1"), VmMetrics { name: format!("{NAME}{n:03}"), ..vm.clone() })
        };
        let resp = Metrics { by_vm: (0..vms).map(named).collect(), ..Metrics::default() };
        let answer = serde_json::json!({"errno": 0, "args": {"resp": resp}});
        let mut stream = stream;
        stream.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

fn run(measure: &Measure) -> Result<()> {
    let this = env::current_exe()?.into_os_string().into_string();
    let Ok(this) = this else { bail!("the path of this program is no UTF-8") };
    let sizes = [measure.vms.to_string(), measure.vcpus.to_string()];
    let baton = if measure.baton {
        pretend_baton()?;
        Some(Command::new(&this).arg("baton").args(&sizes).stdin(Stdio::piped()).spawn()?)
    } else {
        None
    };
    let vmm = |n: usize| -> Result<Child> {
        let mut command = Command::new(&this);
        command.args(["vmm", "--name", &format!("{NAME}{n:03}"), &measure.vcpus.to_string()]);
        command.stdin(Stdio::piped()).spawn().context("cannot start a process")
    };
    let vmms = (0..measure.vms).map(vmm).collect::<Result<Vec<_>>>()?;
    thread::sleep(Duration::from_secs(3));
    for _ in 0..measure.rounds {
        for program in measure.program.iter().chain([&this]) {
            let line = one(program, measure.seconds)?;
            let name = program.rsplit('/').next().unwrap_or_default();
            say(&format!("{name}: {} VMs of {} vCPUs: {line}\n", measure.vms, measure.vcpus))?;
        }
    }
    for mut vmm in vmms.into_iter().chain(baton) {
        drop(vmm.stdin.take());
        vmm.wait()?;
    }
    Ok(())
}

fn one(program: &str, seconds: u64) -> Result<String> {
    let path = CString::new(std::ffi::OsStr::new(program).as_bytes())?;
    let words = [path.clone(), c"top".to_owned()];
    let began = Instant::now();
    // SAFETY: this process has one thread, and the child does nothing but become another program.
    let (child, terminal) = match unsafe { forkpty(&SIZE, None) }? {
        ForkptyResult::Parent { child, master } => (child, master),
        ForkptyResult::Child => {
            let _ = execv(&path, &words);
            std::process::abort();
        }
    };
    let first = show(&terminal, began + START, true)?.map(|at| at - began);
    show(&terminal, began + START, false)?;
    let (from, at) = (ticks(child)?, Instant::now());
    show(&terminal, at + Duration::from_secs(seconds), false)?;
    let part = (ticks(child)? - from) as f64 / at.elapsed().as_secs_f64();
    let status = fs::read_to_string(format!("/proc/{child}/status"))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("").trim();
    let first = first.map_or("none".to_owned(), |first| format!("{:.2} s", first.as_secs_f64()));
    kill(child, Signal::SIGTERM)?;
    waitpid(child, None)?;
    let start = from as f64 / 100.0;
    Ok(format!(
        "{part:.2} % of a CPU over {seconds} s, {start:.2} s of CPU time in the {} s before, at \
         most {most}, first VM after {first}",
        START.as_secs()
    ))
}

/// Reads what the terminal is sent until then, or until a VM is `awaited` there.
fn show(terminal: &OwnedFd, until: Instant, awaited: bool) -> Result<Option<Instant>> {
    let (mut text, mut piece) = (Vec::new(), [0; 1 << 16]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left)?;
        let mut files = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        if left.is_zero() || poll(&mut files, timeout)? == 0 {
            return Ok(None);
        }
        let length = read(terminal, &mut piece).context("'top' has ended")?;
        if awaited {
            text.extend_from_slice(&piece[..length]);
            if text.windows(NAME.len()).any(|words| words == NAME.as_bytes()) {
                return Ok(Some(Instant::now()));
            }
        }
    }
}

/// Hundredths of a second of CPU time of all its threads.
fn ticks(pid: Pid) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let [user, system] = fields.skip(11).take(2).collect::<Vec<_>>()[..] else {
        bail!("/proc/{pid}/stat has too few fields");
    };
    Ok(user.parse::<u64>()? + system.parse::<u64>()?)
}
