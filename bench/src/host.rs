// SPDX-License-Identifier: GPL-2.0-only
//! What the bench asks of the host's operating system.

use std::fs;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvm_ioctls::Kvm;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

extern "C" fn on_kick(_: libc::c_int) {}

fn on_signal(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: an all-zero sigaction is one without flags: system calls end with EINTR. The
    // handlers do nothing that a signal handler may not.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(signal, &action, ptr::null_mut());
    }
}

/// So that [`kick`] does not end the process.
pub fn prepare_kick() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| on_signal(libc::SIGUSR1, on_kick));
}

/// Gets a thread out of KVM_RUN.
pub fn kick(thread: libc::pthread_t) {
    // SAFETY: the caller has not joined it yet, so the thread's identity is still its own.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
}

/// Each vCPU and each eventfd is a file: as many as this process may have.
pub fn raise_file_limit() {
    // SAFETY: a structure of two numbers, filled and read by the kernel. If it refuses, the limit
    // stays as it is.
    unsafe {
        let mut limit: libc::rlimit = mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Binds this thread to the CPU that is the `place`th of those it may use, counted round.
///
/// Errors: the kernel refuses.
pub fn pin(place: u32) -> Result<()> {
    let me = Pid::from_raw(0);
    let usable = sched_getaffinity(me).context("cannot read the CPU affinity")?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| usable.is_set(*cpu).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    one.set(cpus[place as usize % cpus.len()])?;
    sched_setaffinity(me, &one).context("cannot bind a vCPU to a CPU")
}

/// A thread of the host that computes on the CPU of vCPU `place` alone; dropped, it ends.
pub struct Rival {
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    /// Errors: no thread, or the kernel does not bind it.
    pub fn start(place: u32) -> Result<Self> {
        let enough = Arc::new(AtomicBool::new(false));
        let (sender, pinned) = channel();
        let until = enough.clone();
        let run = move || {
            let pinned = pin(place);
            let fine = pinned.is_ok();
            let _ = sender.send(pinned);
            while fine && !until.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        let thread = thread::Builder::new().name("bench-rival".into()).spawn(run)?;
        let rival = Rival { enough, thread: Some(thread) };
        pinned.recv().context("the rival thread is gone")??;
        Ok(rival)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.enough.store(true, Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// What a thread used and suffered.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    /// How often it had to leave its CPU although it could have run.
    pub preempted: u64,
    pub cpu_time: Duration,
}

/// Of this thread so far.
pub fn usage() -> Usage {
    // SAFETY: two structures of numbers, filled by the kernel.
    let (usage, time) = unsafe {
        let (mut usage, mut time): (libc::rusage, libc::timespec) = mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        (usage, time)
    };
    let cpu_time = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
    Usage { preempted: usage.ru_nivcsw as u64, cpu_time }
}

/// Time that this machine's own hypervisor gave to others, of all CPUs together.
pub fn stolen() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let steal = stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    // USER_HZ is 100 on every architecture with KVM.
    Duration::from_millis(steal.unwrap_or(0u64) * 10)
}

pub fn pcpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into()
}

/// Why clocks cannot be trusted here, if so.
pub fn clock_trouble() -> Option<String> {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(file).ok()?;
    let source = source.trim();
    let fine = matches!(source, "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page");
    (!fine).then(|| format!("the host's clock source is {source}: it does not trust its TSC"))
}

/// Why figures say little about hosts, if KVM works without VMX and SVM (kvm_pvm): the guests'
/// kernel mode, in which payloads run, is then KVM's emulation, an instruction at a time.
pub fn no_hardware() -> Option<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    without_hardware(&cpus)
}

fn without_hardware(cpuinfo: &str) -> Option<String> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    let has = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    (!has).then(|| {
        "warning: this KVM has no hardware virtualization (no vmx, no svm; kvm_pvm or the like): \
         these are figures of KVM's instruction emulator, not of a host"
            .into()
    })
}

/// KVM, or one line on why there is none.
pub fn open_kvm() -> Result<Kvm> {
    match Kvm::new() {
        Ok(kvm) if kvm.get_api_version() == 12 => Ok(kvm),
        Ok(kvm) => bail!("/dev/kvm speaks version {}, not 12", kvm.get_api_version()),
        Err(error) if error.errno() == libc::ENOENT => bail!(
            "there is no /dev/kvm: load the module kvm_intel or kvm_amd, or run this in the \
             testbed: baton testbed run -- baton bench"
        ),
        Err(error) if error.errno() == libc::EACCES => {
            bail!("no permission for /dev/kvm: run as root or join the group kvm")
        }
        Err(error) => bail!("cannot open /dev/kvm: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_without_vmx_and_svm_is_told_apart() {
        assert!(without_hardware("processor: 0\nflags\t\t: fpu sse vmx lm\n").is_none());
        assert!(without_hardware("flags\t\t: fpu svm\n").is_none());
        // vmx flags, a line of newer kernels, is another one.
        let none = "processor: 0\nflags\t\t: fpu sse lm\nvmx flags\t: vnmi\n";
        assert!(without_hardware(none).is_some_and(|why| why.contains("no hardware")));
        // Other architectures have no such line.
        assert!(without_hardware("Features\t: fp asimd\n").is_none());
    }
}
