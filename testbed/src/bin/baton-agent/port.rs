// SPDX-License-Identifier: GPL-2.0-only
//! The host's end of the channel to the outside: a virtio port under QEMU, an I/O port on the exact
//! host.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::poll::PollFd;
use nix::poll::PollFlags;

use crate::io_port::IoPort;

/// How long the driver of the virtio port may take to look at the device.
const PATIENCE: Duration = Duration::from_secs(10);

pub enum Port {
    Virtio(File),
    Io(IoPort),
}

impl Port {
    /// Whichever this host has.
    ///
    /// Errors: neither is there.
    pub fn open() -> Result<Port> {
        if let Some(port) = IoPort::open() {
            return Ok(Port::Io(port));
        }
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(device) = virtio() {
                return OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(libc::O_NONBLOCK)
                    .open(&device)
                    .map(Port::Virtio)
                    .with_context(|| format!("cannot open {}", device.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("no virtio port named baton: is virtio_console in the kernel?")
    }

    /// What to poll for to know that it is ready; an I/O port has no descriptor.
    pub fn poll_fd(&self, events: PollFlags) -> Option<PollFd<'_>> {
        match self {
            Port::Virtio(file) => Some(PollFd::new(file.as_fd(), events)),
            Port::Io(_) => None,
        }
    }

    /// Takes what has come: at most as many bytes as there is room for.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Port::Virtio(file) => match file.read(bytes) {
                Err(error) if again(&error) => Ok(0),
                other => other,
            },
            Port::Io(port) => Ok(port.read(bytes)),
        }
    }

    /// Gives away as much as the outside takes now.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Port::Virtio(file) => match file.write(bytes) {
                Err(error) if again(&error) => Ok(0),
                other => other,
            },
            Port::Io(port) => {
                port.write(bytes);
                Ok(bytes.len())
            }
        }
    }
}

fn virtio() -> Option<PathBuf> {
    fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        let device = Path::new("/dev").join(entry.file_name());
        (name.trim() == "baton" && device.exists()).then_some(device)
    })
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
