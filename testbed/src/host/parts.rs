// SPDX-License-Identifier: GPL-2.0-only
//! What a host is started with: kernel, userland, initramfs, and enough memory.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow, bail};
use baton_output::interrupt::Interrupted;
use tempfile::NamedTempFile;

use super::options::{HostOptions, MAX_MIB, MAX_PCPUS, Source};
use crate::cache::Cache;
use crate::image;
use crate::kernel::Kernel;
use crate::kvm::Virtualization;
use crate::userland::{Userland, check_qemu};

/// The emulator itself, its translated code and the host's image, MiB.
const EMULATOR_MIB: u64 = 768;

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
    let most = if options.exact.is_some() { MAX_PCPUS } else { 255 };
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
    if options.exact.is_some() && options.mem_mib > MAX_MIB {
        let most = MAX_MIB;
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
}
