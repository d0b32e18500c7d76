// SPDX-License-Identifier: GPL-2.0-only
//! The QEMU process that is the emulated host. All its files are nameless and the kernel kills it
//! with us, so nothing is left behind however this process ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::command;
use crate::console::Console;
use crate::pace::Pace;

/// What a host is started with.
pub struct Machine<'a> {
    pub kernel: &'a Path,
    pub initrd: &'a File,
    pub pcpus: u32,
    /// Two of them make a core.
    pub smt: bool,
    pub mem_mib: u32,
    /// Added to the kernel's command line.
    pub append: &'a str,
    /// The console goes to standard error, too.
    pub echo: bool,
}

/// A running QEMU. Dropping it kills it.
pub struct Qemu {
    child: Child,
    pub control: UnixStream,
    pub console: Console,
    complaints: File,
}

impl Qemu {
    /// Starts `command`, a QEMU, as this machine.
    pub fn start(mut command: Command, machine: &Machine) -> Result<Qemu> {
        let temporary = || tempfile::tempfile().context("cannot make a temporary file");
        let (console, complaints) = (temporary()?, temporary()?);
        let (control, theirs) = UnixStream::pair().context("cannot make a socket")?;
        control.set_nonblocking(true).context("cannot set up a socket")?;

        let pcpus = machine.pcpus;
        let smp = match machine.smt {
            true => format!("{pcpus},sockets=1,cores={},threads=2", pcpus / 2),
            false => pcpus.to_string(),
        };
        command
            .args(["-accel", "tcg,thread=multi"])
            .args(["-cpu", "EPYC-Milan,+svm,+npt"])
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
            .args(["-append", &command_line(machine.append)])
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
        Ok(Qemu { child, control, console: Console::new(console, machine.echo), complaints })
    }

    pub fn pace(&self) -> Pace {
        Pace::of(self.child.id())
    }

    /// Why it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) if status.success() => {
                Some("the host was switched off or restarted".to_string())
            }
            Ok(Some(status)) => Some(
                command::last_line(&self.complaints())
                    .map_or_else(|| status.to_string(), str::to_string),
            ),
            Err(error) => Some(error.to_string()),
        }
    }

    /// What QEMU itself printed.
    pub fn complaints(&self) -> String {
        use std::os::unix::fs::FileExt;
        let mut text = vec![0; 4096];
        let length = self.complaints.read_at(&mut text, 0).unwrap_or(0);
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    pub fn kill(&mut self) {
        command::kill_group(&mut self.child);
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command_line(more: &str) -> String {
    // Emulated SVM has no pause filter, and KVM then leaves PAUSE exits off; setcpuid makes it
    // believe that there is one. Mitigations cost emulated time and protect nothing here. With
    // panic=-1 and -no-reboot a panic ends QEMU.
    let fixed = "console=ttyS0 panic=-1 setcpuid=pausefilter,pfthreshold mitigations=off";
    format!("{fixed} {more}").trim_end().to_string()
}
