// SPDX-License-Identifier: GPL-2.0-only
//! The programs that run around and inside the emulated host: QEMU, busybox, benchmarks.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use baton_output::note;

use crate::apt::Apt;
use crate::cache::Cache;
use crate::command;
use crate::elf::Program;

/// Debian's release, and where it has the newest QEMU: 10.0.13 of the release itself loses guests
/// more often (they triple-fault, or fall silent) than 11.1.3.
const RELEASE: &str = "trixie";
const SUITE: &str = "trixie-backports";
const PACKAGES: [&str; 7] =
    ["qemu-system-x86", "busybox-static", "rt-tests", "pbzip2", "dbench", "make", "tcc"];
/// Rises with every change of them.
const EDITION: u32 = 2;
/// Packages, unpacked files and apt's lists take about 300 MiB.
const NEEDED_MIB: u64 = 600;

/// Older QEMU's multi-threaded emulation does not show one CPU the code that another patches; the
/// host kernel then dies of `Oops: int3` at a static key (seen with 7.2).
const FIRST_QEMU: u32 = 10;

/// Benchmarks, for the host and the guests. A userland without Debian packages may lack them.
const BENCHMARKS: [&str; 5] = ["hackbench", "pbzip2", "dbench", "make", "tcc"];

/// Where Debian's package has it.
const DBENCH_LOAD: &str = "usr/share/dbench/client.txt";

/// Where the programs are on this machine.
pub struct Userland {
    pub qemu: Program,
    /// QEMU's directories of firmware.
    pub firmware: Vec<PathBuf>,
    /// A busybox; it need not be static.
    pub busybox: Program,
    pub benchmarks: Vec<(&'static str, Program)>,
    /// What dbench plays back, if it is there.
    pub dbench_load: PathBuf,
}

impl Userland {
    /// Debian's programs, fetched only once.
    ///
    /// Errors: see [`Apt`]; too little disk.
    pub fn debian(cache: &Cache) -> Result<Userland> {
        let root = cache.get_or_make(&entry(), |root| {
            cache.require_free(NEEDED_MIB)?;
            let apt = Apt::open(&cache.scratch("apt-userland")?, &[RELEASE, SUITE])?;
            note("baton: fetching QEMU and a small userland, about 50 MB");
            apt.unpack_closure(&PACKAGES, SUITE, root)
        })?;
        let libs = root.join("usr/lib/x86_64-linux-gnu");
        let loader = libs.join("ld-linux-x86-64.so.2");
        let program =
            |name: &str| Program::with_libraries(&root.join("usr/bin").join(name), &loader, &libs);
        let mut benchmarks = Vec::new();
        for name in BENCHMARKS {
            benchmarks.push((name, program(name)?));
        }
        Ok(Userland {
            qemu: program("qemu-system-x86_64")?,
            firmware: ["usr/share/qemu", "usr/share/seabios"].map(|dir| root.join(dir)).to_vec(),
            busybox: Program::of_this_machine(&root.join("usr/bin/busybox"))?,
            benchmarks,
            dbench_load: root.join(DBENCH_LOAD),
        })
    }

    /// This machine's own programs, around the QEMU that the user names.
    ///
    /// Errors: a program that is missing or cannot run here.
    pub fn of_this_machine(qemu: &Path) -> Result<Userland> {
        let Some(busybox) = command::find("busybox") else {
            bail!("this machine has no busybox for the emulated host: install it");
        };
        let mut benchmarks = Vec::new();
        for name in BENCHMARKS {
            if let Some(file) = command::find(name) {
                benchmarks.push((name, Program::of_this_machine(&file)?));
            }
        }
        let help = command::output(Command::new(qemu).args(["-L", "help"]))?;
        Ok(Userland {
            qemu: Program::of_this_machine(qemu)?,
            firmware: help.lines().map(PathBuf::from).filter(|dir| dir.is_dir()).collect(),
            busybox: Program::of_this_machine(&busybox)?,
            benchmarks,
            dbench_load: Path::new("/").join(DBENCH_LOAD),
        })
    }

    /// The start of a command line that runs this QEMU on this machine.
    pub fn qemu_command(&self) -> Command {
        let mut command = match (&self.qemu.loader, self.qemu.libs.first()) {
            (Some(loader), Some(lib)) => {
                let mut command = Command::new(loader);
                command.arg("--library-path").arg(lib.parent().unwrap_or(Path::new("/")));
                command.arg(&self.qemu.file);
                command
            }
            _ => Command::new(&self.qemu.file),
        };
        for dir in &self.firmware {
            command.arg("-L").arg(dir);
        }
        // QEMU would load this machine's modules otherwise, which are another build's.
        command.env("QEMU_MODULE_DIR", "/nonexistent");
        command
    }
}

/// The name of Debian's programs in the cache.
pub fn entry() -> String {
    format!("userland-{SUITE}-{EDITION}")
}

/// Refuses a QEMU that cannot emulate the host.
pub fn check_qemu(qemu: &Path) -> Result<()> {
    let text = command::output(Command::new(qemu).arg("--version"))
        .with_context(|| format!("{} is no usable QEMU", qemu.display()))?;
    match major_version(&text) {
        Some(version) if version >= FIRST_QEMU => Ok(()),
        Some(version) => bail!(
            "{} is QEMU {version}: multi-threaded emulation before {FIRST_QEMU} crashes the host \
             kernel when it patches its own code; use a newer one",
            qemu.display()
        ),
        None => bail!("{} does not say that it is QEMU", qemu.display()),
    }
}

fn major_version(text: &str) -> Option<u32> {
    text.strip_prefix("QEMU emulator version ")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_versions() {
        assert_eq!(major_version("QEMU emulator version 10.0.13 (Debian 1:10.0.13)"), Some(10));
        assert_eq!(major_version("QEMU emulator version 7.2.1"), Some(7));
        assert_eq!(major_version("something else"), None);
        assert!(check_qemu(Path::new("/bin/sh")).is_err());
    }
}
