// SPDX-License-Identifier: GPL-2.0-only
//! The first process of the emulated host: mounts, loads KVM, then serves the outside.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use baton_testbed::kernel::{CONSOLE_MODULES, KVM_MODULES};
use baton_testbed::wire::Hello;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

use crate::port::Port;
use crate::serve;

/// Type, where, options.
const MOUNTS: [(&str, &str, &str); 11] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("devpts", "/dev/pts", "ptmxmode=0666"),
    ("tmpfs", "/dev/shm", ""),
    ("tmpfs", "/tmp", ""),
    ("tmpfs", "/run", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("debugfs", "/sys/kernel/debug", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
    ("bpf", "/sys/fs/bpf", ""),
];

/// Never returns: when the outside is gone, or nothing can be served, the host is switched off.
pub fn run() -> ! {
    if let Err(error) = start() {
        println!("baton-agent: {error:#}");
    }
    let _ = reboot(RebootMode::RB_POWER_OFF);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn start() -> Result<()> {
    for (kind, at, options) in MOUNTS {
        tell(mount_one(kind, at, options));
    }
    for (link, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let _ = std::os::unix::fs::symlink(
            format!("/proc/self/fd{target}"),
            Path::new("/dev").join(link),
        );
    }
    tell(nix::unistd::sethostname("baton").context("cannot set the host name"));
    for controller in ["+cpu", "+cpuset"] {
        let file = "/sys/fs/cgroup/cgroup.subtree_control";
        tell(fs::write(file, controller).with_context(|| format!("cannot set {controller}")));
    }
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::set_var("PATH", "/bin");
        std::env::set_var("HOME", "/root");
    }
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let without_kvm = command_line.split_whitespace().any(|word| word == "baton.nokvm");
    let kvm = if without_kvm { &[][..] } else { &KVM_MODULES[..] };
    let other = if intel() { "kvm-amd" } else { "kvm-intel" };
    for name in CONSOLE_MODULES.iter().chain(kvm).filter(|name| **name != other) {
        let file = PathBuf::from(format!("/lib/modules/{name}.ko"));
        if file.exists() {
            tell(insert(&file));
        }
    }
    serve::serve(Port::open()?, &hello())
}

fn intel() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("GenuineIntel"))
}

fn tell(result: Result<()>) {
    if let Err(error) = result {
        println!("baton-agent: {error:#}");
    }
}

fn mount_one(kind: &str, at: &str, options: &str) -> Result<()> {
    let mounted = fs::create_dir_all(at)
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(mount(Some(kind), at, Some(kind), MsFlags::empty(), Some(options))?));
    mounted.with_context(|| format!("cannot mount {at}"))
}

/// Loads a kernel module file. One that is loaded already is fine.
pub fn insert(file: &Path) -> Result<()> {
    let load = || -> std::io::Result<()> {
        let module = File::open(file)?;
        let parameters = CString::default();
        // SAFETY: the descriptor is open and the parameters are a valid C string.
        let result = unsafe {
            libc::syscall(libc::SYS_finit_module, module.as_raw_fd(), parameters.as_ptr(), 0)
        };
        let error = std::io::Error::last_os_error();
        let loaded = result == 0 || error.raw_os_error() == Some(libc::EEXIST);
        if loaded { Ok(()) } else { Err(error) }
    };
    load().with_context(|| format!("cannot load {}", file.display()))
}

fn hello() -> Hello {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Hello {
        release: release.trim().to_string(),
        sched_ext: Path::new("/sys/kernel/sched_ext").exists(),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        kvm: Path::new("/dev/kvm").exists(),
        pcpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
    }
}
