// SPDX-License-Identifier: GPL-2.0-only
//! The initramfs of the emulated host, which holds that of its guests. Not compressed: an emulated
//! CPU copies quickly but unpacks slowly.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::cpio::Archive;
use crate::elf::{self, Program};
use crate::kernel::{CONSOLE_MODULES, KVM_MODULES, Kernel};
use crate::plan::DBENCH_LOAD;
use crate::userland::Userland;

/// Programs that were built for another system than that of the machine-built ones, with a loader
/// and libraries of their own.
const OPT: &str = "opt/deb";

/// The first lines of what dbench plays back: whoever plays all 458,344 needs minutes. All files
/// that they open are closed in them, so that they can be played again and again, and no client has
/// more than 19 MB.
const DBENCH_LINES: usize = 3556;

/// The programs of this project that every host has.
const OWN: [&str; 3] = ["baton-agent", "baton", "scx_baton"];

/// Writes the host's initramfs. `extra` are more programs for its /bin, with their libraries.
///
/// Errors: a program of this project that is not built, one that cannot run on this machine, a
/// file that cannot be read.
pub fn write_host(
    out: &mut File,
    userland: &Userland,
    kernel: &Kernel,
    extra: &[PathBuf],
) -> Result<()> {
    let mut own = own()?;
    let agent = Program::of_this_machine(&own[0])?;
    own.extend_from_slice(extra);

    let mut image = Image::new(BufWriter::new(out));
    image.base(userland, "init")?;
    for file in &own {
        image.machine_program(&Program::of_this_machine(file)?)?;
    }
    image.foreign_program("qemu-system-x86_64", &userland.qemu, "-L /opt/deb/share/qemu ")?;
    image.firmware(&userland.firmware)?;
    for name in CONSOLE_MODULES.iter().chain(&KVM_MODULES) {
        if let Some(module) = kernel.module(name)? {
            image.archive.bytes(&format!("lib/modules/{name}.ko"), 0o644, &module)?;
        }
    }
    // libbpf looks there for the options that a BPF program asks for (`__kconfig`), as those of
    // most public schedulers do.
    if let (Some(config), Some(modules)) = (kernel.config(), &kernel.modules) {
        image.file(&format!("boot/config-{}", name_of(modules)), 0o644, &config)?;
    }
    image.file("guest/bzImage", 0o644, &kernel.image)?;
    image.archive.bytes("guest/initrd", 0o644, &guest(userland, &agent)?)?;
    image.archive.finish()?.flush()?;
    Ok(())
}

/// The programs of this project, the agent first.
///
/// Errors: one that is not built.
pub fn own() -> Result<Vec<PathBuf>> {
    OWN.map(beside).into_iter().collect()
}

fn guest(userland: &Userland, agent: &Program) -> Result<Vec<u8>> {
    let mut image = Image::new(Vec::new());
    image.base(userland, "guest")?;
    image.machine_program(agent)?;
    Ok(image.archive.finish()?)
}

/// A program of this project: it is built into the same directory as the running one.
pub fn beside(name: &str) -> Result<PathBuf> {
    let us = std::env::current_exe().context("cannot see where this program is")?;
    let dir = us.parent().unwrap_or(Path::new("/"));
    // Cargo puts test programs one directory deeper.
    let dir = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
    let file = dir.join(name);
    if !file.is_file() {
        bail!("{} is missing: run 'make' first", file.display());
    }
    Ok(file)
}

struct Image<W: Write> {
    archive: Archive<W>,
    /// Libraries and loaders that are in already.
    there: BTreeSet<String>,
}

impl<W: Write> Image<W> {
    fn new(out: W) -> Self {
        Image { archive: Archive::new(out), there: BTreeSet::new() }
    }

    /// What host and guests have in common: a shell, the benchmarks, and the agent as first
    /// process in this role.
    fn base(&mut self, userland: &Userland, role: &str) -> Result<()> {
        let init = format!("#!/bin/busybox sh\nexec /bin/baton-agent {role}\n");
        self.archive.bytes("init", 0o755, init.as_bytes())?;
        self.archive.char_device("dev/console", 5, 1)?;
        for (link, target) in [("sbin", "bin"), ("usr/bin", "../bin"), ("usr/sbin", "../bin")] {
            self.archive.link(link, target)?;
        }
        for dir in ["proc", "sys", "run", "tmp", "root", "var", "etc"] {
            self.archive.dir(dir)?;
        }
        self.archive.bytes("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
        self.archive.bytes("etc/group", 0o644, b"root:x:0:\n")?;
        // Tells the loader of the machine-built programs where this machine's libraries are.
        let cache = Path::new("/etc/ld.so.cache");
        if cache.exists() {
            self.file("etc/ld.so.cache", 0o644, cache)?;
        }
        self.machine_program(&userland.busybox)?;
        let applets = command::output(Command::new(&userland.busybox.file).arg("--list"))?;
        for applet in applets.lines().filter(|name| !["busybox", "init"].contains(name)) {
            self.archive.link(&format!("bin/{applet}"), "busybox")?;
        }
        for (name, program) in &userland.benchmarks {
            self.foreign_program(name, program, "")?;
        }
        if let Ok(load) = fs::read_to_string(&userland.dbench_load) {
            let lines: String = load.split_inclusive('\n').take(DBENCH_LINES).collect();
            self.archive.bytes(DBENCH_LOAD.trim_start_matches('/'), 0o644, lines.as_bytes())?;
        }
        Ok(())
    }

    /// A program of this machine, its libraries at their own places.
    fn machine_program(&mut self, program: &Program) -> Result<()> {
        for file in program.libs.iter().chain(&program.loader) {
            let name = file.to_string_lossy().trim_start_matches('/').to_string();
            self.once(&name, file)?;
        }
        let name = format!("bin/{}", name_of(&program.file));
        if self.there.insert(name.clone()) {
            let bytes = elf::loaded_part(&program.file)?;
            self.archive
                .bytes(&name, 0o755, &bytes)
                .with_context(|| format!("cannot write {name} into the image"))?;
        }
        Ok(())
    }

    /// A program with a loader and libraries of its own, behind a script in /bin.
    fn foreign_program(&mut self, name: &str, program: &Program, options: &str) -> Result<()> {
        let mut start = String::new();
        if let Some(loader) = &program.loader {
            self.once(&format!("{OPT}/lib/{}", name_of(loader)), loader)?;
            let lib = format!("/{OPT}/lib");
            start = format!("{lib}/{} --library-path {lib} ", name_of(loader));
        }
        for lib in &program.libs {
            self.once(&format!("{OPT}/lib/{}", name_of(lib)), lib)?;
        }
        self.once(&format!("{OPT}/bin/{name}"), &program.file)?;
        let script = format!("#!/bin/busybox sh\nexec {start}/{OPT}/bin/{name} {options}\"$@\"\n");
        self.archive.bytes(&format!("bin/{name}"), 0o755, script.as_bytes())?;
        Ok(())
    }

    /// What QEMU needs to start a PC or a microvm without disk or network.
    fn firmware(&mut self, dirs: &[PathBuf]) -> Result<()> {
        for dir in dirs {
            let read = || format!("cannot read {}", dir.display());
            for entry in fs::read_dir(dir).with_context(read)? {
                let path = entry.with_context(read)?.path();
                let name = name_of(&path);
                let wanted = ["bios", "kvmvapic", "linuxboot", "multiboot", "pvh", "qboot"];
                if wanted.iter().any(|start| name.starts_with(start)) && path.is_file() {
                    self.once(&format!("{OPT}/share/qemu/{name}"), &path)?;
                }
            }
        }
        Ok(())
    }

    fn once(&mut self, name: &str, from: &Path) -> Result<()> {
        if self.there.insert(name.to_string()) { self.file(name, 0o755, from) } else { Ok(()) }
    }

    fn file(&mut self, name: &str, mode: u32, from: &Path) -> Result<()> {
        self.archive
            .file(name, mode, from)
            .with_context(|| format!("cannot copy {} into the image", from.display()))
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_the_remedy() {
        let error = beside("no_such_program").unwrap_err().to_string();
        assert!(error.contains("run 'make'"), "{error}");
    }
}
