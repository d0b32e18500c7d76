// SPDX-License-Identifier: GPL-2.0-only
//! What the emulated machine boots from: its ROMs, and a CD-ROM with a boot loader, kernel and
//! initramfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use baton_output::note;

use crate::apt::Apt;
use crate::cache::Cache;
use crate::command;
use crate::elf::Program;

/// Where Debian has all of it.
pub const SUITE: &str = "trixie";
const PACKAGES: [&str; 5] = ["bochsbios", "vgabios", "isolinux", "syslinux-common", "genisoimage"];
/// Rises with every change of them.
const EDITION: u32 = 1;
/// Packages, unpacked files and apt's lists.
const NEEDED_MIB: u64 = 200;

/// The boot loader's own files, and where it looks for them.
const LOADER: [(&str, &str); 2] = [
    ("isolinux/isolinux.bin", "usr/lib/ISOLINUX/isolinux.bin"),
    ("isolinux/ldlinux.c32", "usr/lib/syslinux/modules/bios/ldlinux.c32"),
];

/// Debian's programs and ROMs.
pub struct Tools {
    root: PathBuf,
}

impl Tools {
    /// Fetched only once.
    ///
    /// Errors: see [`Apt`]; too little disk.
    pub fn debian(cache: &Cache) -> Result<Tools> {
        let root = cache.get_or_make(&format!("exact-tools-{SUITE}-{EDITION}"), |root| {
            cache.require_free(NEEDED_MIB)?;
            let apt = Apt::open(&cache.scratch("apt-exact")?, &[SUITE])?;
            note("baton: fetching the exact host's ROMs and boot loader, about 10 MB");
            apt.unpack_closure(&PACKAGES, SUITE, root)
        })?;
        Ok(Tools { root })
    }

    pub fn bios(&self) -> PathBuf {
        self.root.join("usr/share/bochs/BIOS-bochs-latest")
    }

    pub fn vga_bios(&self) -> PathBuf {
        self.root.join("usr/share/vgabios/vgabios.bin")
    }

    /// Writes a CD-ROM that boots this kernel.
    ///
    /// Errors: a file that cannot be read, a full disk.
    pub fn medium(
        &self,
        to: &Path,
        kernel: &Path,
        initrd: &Path,
        command_line: &str,
    ) -> Result<()> {
        let libs = self.root.join("usr/lib/x86_64-linux-gnu");
        let loader = libs.join("ld-linux-x86-64.so.2");
        let maker =
            Program::with_libraries(&self.root.join("usr/bin/genisoimage"), &loader, &libs)?;
        let menu = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
        let text = format!(
            "default baton\nprompt 0\nlabel baton\nkernel /kernel\ninitrd /initrd\n\
             append {command_line}\n"
        );
        fs::write(menu.path(), text).context("cannot write the boot menu")?;
        let mut command = Command::new(&loader);
        command.arg("--library-path").arg(&libs).arg(&maker.file);
        command.args(["-quiet", "-r", "-V", "BATON", "-b", "isolinux/isolinux.bin"]);
        command.args(["-c", "isolinux/boot.cat", "-no-emul-boot", "-boot-load-size", "4"]);
        command.args(["-boot-info-table", "-graft-points", "-o"]).arg(to);
        for (name, file) in LOADER {
            command.arg(format!("{name}={}", self.root.join(file).display()));
        }
        command.arg(format!("isolinux/isolinux.cfg={}", menu.path().display()));
        command.arg(format!("kernel={}", kernel.display()));
        command.arg(format!("initrd={}", initrd.display()));
        command::output(&mut command).map(drop).context("cannot make the boot medium")
    }
}
