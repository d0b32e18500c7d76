// SPDX-License-Identifier: GPL-2.0-only
//! QEMU as the emulator of the host.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::command;
use crate::console::Console;
use crate::emulator::{Emulator, Time};
use crate::kvm::Virtualization;

/// What a host is started with.
pub struct Machine<'a> {
    pub kernel: &'a Path,
    pub initrd: &'a File,
    pub pcpus: u32,
    /// Two of them make a core.
    pub smt: bool,
    /// Each with a last-level cache.
    pub sockets: u32,
    pub mem_mib: u32,
    /// Under this machine's KVM, which has this; emulated if `None`.
    pub kvm: Option<Virtualization>,
    /// Added to the kernel's command line.
    pub append: &'a str,
    /// The console goes to standard error, too.
    pub echo: bool,
}

/// Starts `command`, a QEMU, as this machine. All its files are nameless.
pub fn start(mut command: Command, machine: &Machine) -> Result<Emulator> {
    let temporary = || tempfile::tempfile().context("cannot make a temporary file");
    let (console, complaints) = (temporary()?, temporary()?);
    let (control, theirs) = UnixStream::pair().context("cannot make a socket")?;
    control.set_nonblocking(true).context("cannot set up a socket")?;

    let pcpus = machine.pcpus;
    let (sockets, threads) = (machine.sockets, 1 + u32::from(machine.smt));
    let cores = pcpus / sockets / threads;
    let smp = format!("{pcpus},sockets={sockets},cores={cores},threads={threads}");
    command
        .args(processor(machine.kvm))
        .args(["-smp", &smp])
        .args(["-m", &machine.mem_mib.to_string()])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-no-user-config"])
        .args(["-serial", &format!("file:/dev/fd/{}", console.as_raw_fd())])
        .args(["-device", "virtio-serial-pci"])
        .args(["-chardev", &format!("socket,id=ctl,fd={}", theirs.as_raw_fd())])
        .args(["-device", "virtserialport,chardev=ctl,name=baton"])
        .arg("-kernel")
        .arg(machine.kernel)
        .args(["-initrd", &format!("/dev/fd/{}", machine.initrd.as_raw_fd())])
        .args(["-append", &command_line(machine.kvm, machine.append)])
        .stdin(Stdio::null())
        .stdout(complaints.try_clone()?)
        .stderr(complaints.try_clone()?);
    let inherited = [console.as_raw_fd(), theirs.as_raw_fd(), machine.initrd.as_raw_fd()];
    // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            for fd in inherited {
                if libc::fcntl(fd, libc::F_SETFD, 0) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let child = command::tie_to_us(&mut command)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    Ok(Emulator {
        child,
        control,
        console: Console::new(console, machine.echo),
        complaints,
        time: Time::Real(Instant::now()),
        meaning: |_| None,
        saves: |_| false,
    })
}

/// What executes instructions, and as which CPU.
fn processor(kvm: Option<Virtualization>) -> [&'static str; 4] {
    let (accel, cpu) = match kvm {
        None => ("tcg,thread=multi", "EPYC-Milan,+svm,+npt"),
        Some(Virtualization::Vmx) => ("kvm", "host,+vmx"),
        // Without topoext AMD's hyper-threads are not seen.
        Some(Virtualization::Svm) => ("kvm", "host,+svm,+topoext"),
    };
    ["-accel", accel, "-cpu", cpu]
}

fn command_line(kvm: Option<Virtualization>, more: &str) -> String {
    let cpu = match kvm {
        // Emulated SVM has no pause filter, and KVM then leaves PAUSE exits off; setcpuid makes it
        // believe that there is one. Mitigations cost emulated time and protect nothing here.
        None => " setcpuid=pausefilter,pfthreshold mitigations=off",
        // With a filter that the outer KVM does not have, every PAUSE would exit; mitigations are
        // part of what an exit costs on hardware.
        Some(_) => "",
    };
    // With panic=-1 and -no-reboot a panic ends QEMU.
    format!("console=ttyS0 panic=-1{cpu} {more}").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_host_has_svm_and_a_pause_filter() {
        assert_eq!(processor(None), ["-accel", "tcg,thread=multi", "-cpu", "EPYC-Milan,+svm,+npt"]);
        assert_eq!(
            command_line(None, ""),
            "console=ttyS0 panic=-1 setcpuid=pausefilter,pfthreshold mitigations=off"
        );
    }

    #[test]
    fn a_host_under_kvm_has_the_cpu_of_this_machine() {
        let cpus =
            [(Virtualization::Vmx, "host,+vmx"), (Virtualization::Svm, "host,+svm,+topoext")];
        for (kind, cpu) in cpus {
            assert_eq!(processor(Some(kind)), ["-accel", "kvm", "-cpu", cpu]);
            assert_eq!(
                command_line(Some(kind), "baton.nokvm"),
                "console=ttyS0 panic=-1 baton.nokvm"
            );
        }
    }
}
