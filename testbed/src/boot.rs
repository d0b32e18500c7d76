// SPDX-License-Identifier: GPL-2.0-only
//! Boots a host.

use std::process::Command;

use baton_output::interrupt;
use baton_output::note;

use crate::emulator::Emulator;
use crate::exact::Ready;
use crate::host::{Host, HostError, HostOptions, Parts, parts};
use crate::qemu;

/// Boots a host: fetches what is missing, then starts it. A boot that hangs or dies is tried
/// once more. From the first call on, SIGINT and SIGTERM end every wait with
/// [`HostError::Interrupted`] instead of ending the process. The thread that calls this must
/// outlive the host: the kernel kills the host with it.
pub fn boot(options: &HostOptions) -> Result<Host, HostError> {
    interrupt::install();
    match boot_once(options) {
        Err(error @ (HostError::BootTimeout { .. } | HostError::EmulatorDied { .. })) => {
            note(&format!("baton: {error}; trying once more"));
            boot_once(options)
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
