// SPDX-License-Identifier: GPL-2.0-only
//! The emulator: Bochs' source as Debian has it, with this project's changes, built once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use baton_output::note;

use super::medium::SUITE;
use crate::apt::Apt;
use crate::cache::Cache;
use crate::command;
use crate::hash;

/// Debian's name of the source archive, and what is in it: the changes are for no other version.
const ARCHIVE: &str = "bochs_3.0+dfsg.orig.tar.xz";
const ARCHIVE_HASH: &str = "78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b";

/// Each mends one thing and says in its head which; they are applied in this order.
const PATCHES: [(&str, &str); 20] = [
    ("smp-exceptions", include_str!("../../bochs/01-smp-exceptions.patch")),
    ("vmx-interrupt-mask", include_str!("../../bochs/02-vmx-interrupt-mask.patch")),
    ("posted-interrupts", include_str!("../../bochs/03-posted-interrupts.patch")),
    ("svm-interrupt-mask", include_str!("../../bochs/04-svm-interrupt-mask.patch")),
    ("virtual-time", include_str!("../../bochs/05-virtual-time.patch")),
    ("own-clocks", include_str!("../../bochs/06-own-clocks.patch")),
    ("string-instructions", include_str!("../../bochs/07-string-instructions.patch")),
    ("random-seed", include_str!("../../bochs/08-random-seed.patch")),
    ("port", include_str!("../../bochs/09-port.patch")),
    ("saved-memory", include_str!("../../bochs/10-saved-memory.patch")),
    ("preemption-timer", include_str!("../../bochs/11-preemption-timer.patch")),
    ("pause", include_str!("../../bochs/12-pause.patch")),
    ("virtual-interrupts", include_str!("../../bochs/13-virtual-interrupts.patch")),
    ("profile", include_str!("../../bochs/14-profile.patch")),
    ("cores", include_str!("../../bochs/15-cores.patch")),
    ("svm-pause-filter", include_str!("../../bochs/16-svm-pause-filter.patch")),
    ("invlpg", include_str!("../../bochs/17-invlpg.patch")),
    ("multiplication", include_str!("../../bochs/18-multiplication.patch")),
    ("links", include_str!("../../bochs/19-links.patch")),
    ("monitor", include_str!("../../bochs/20-monitor.patch")),
];

/// What is added to the source.
const FILES: [(&str, &str); 2] = [
    ("port.cc", include_str!("../../bochs/port.cc")),
    ("port.h", include_str!("../../bochs/port.h")),
];

/// Debian's own build has the debugger in it, which makes it slow.
const CONFIGURE: [&str; 14] = [
    "--with-nogui",
    "--enable-x86-64",
    "--enable-smp",
    "--enable-vmx=2",
    "--enable-svm",
    "--enable-cpu-level=6",
    "--enable-all-optimizations",
    "--enable-avx",
    "--enable-evex",
    "--enable-pci",
    "--enable-long-phy-address",
    "--disable-docbook",
    "--disable-plugins",
    "--disable-large-ramfile",
];

/// Its entry in the cache; one of another version is of no use.
const PREFIX: &str = "bochs-";

/// What builds it, and Debian's packages that have it.
const TOOLS: [&str; 5] = ["g++", "make", "patch", "tar", "sh"];

/// Source, objects and apt's lists.
const NEEDED_MIB: u64 = 400;

/// The built emulator.
pub struct Bochs {
    pub program: PathBuf,
    /// Of the source and every change of ours.
    pub hash: String,
}

impl Bochs {
    /// Fetches the source and builds it, unless that has been done.
    ///
    /// Errors: a tool that is missing, another version of the source, a build that fails, too
    /// little disk; see [`Apt`].
    pub fn get(cache: &Cache) -> Result<Bochs> {
        let mut parts: Vec<&str> = vec![ARCHIVE_HASH];
        parts.extend(PATCHES.iter().map(|(_, text)| *text));
        parts.extend(FILES.iter().map(|(_, text)| *text));
        parts.extend(CONFIGURE);
        let hash = hash::texts(&parts);
        let dir = cache.get_or_make(&format!("{PREFIX}{}", hash::short(&hash)), |dir| {
            for tool in TOOLS {
                if command::find(tool).is_none() {
                    bail!(
                        "this machine has no {tool} to build the emulator with: install it \
                         (Debian: apt-get install build-essential)"
                    );
                }
            }
            cache.require_free(NEEDED_MIB)?;
            for old in cache.names()?.iter().filter(|name| name.starts_with(PREFIX)) {
                cache.remove(old)?;
            }
            let archive = fetch(cache)?;
            build(&archive, dir)
        })?;
        Ok(Bochs { program: dir.join("bochs"), hash })
    }
}

fn fetch(cache: &Cache) -> Result<PathBuf> {
    let apt = Apt::open_for_sources(&cache.scratch("apt-source")?, &[SUITE])?;
    note("baton: fetching the emulator's source, 4 MB");
    let archive = apt.source("bochs")?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name != ARCHIVE || hash::file(&archive)? != ARCHIVE_HASH {
        bail!(
            "Debian's source of the emulator is {name} now, this version of Baton has changes for \
             {ARCHIVE}: use a newer Baton, or QEMU (without --exact)"
        );
    }
    Ok(archive)
}

/// Leaves the program alone in `dir`.
fn build(archive: &Path, dir: &Path) -> Result<()> {
    let source = tempfile::tempdir_in(dir).context("cannot write to the cache")?;
    let root = source.path();
    let tar = root.join("source.tar");
    let unpack = || -> Result<()> {
        let mut packed = std::io::BufReader::new(fs::File::open(archive)?);
        let mut out = std::io::BufWriter::new(fs::File::create(&tar)?);
        lzma_rs::xz_decompress(&mut packed, &mut out).map_err(|error| anyhow::anyhow!("{error:?}"))
    };
    unpack().with_context(|| format!("cannot unpack {}", archive.display()))?;
    let run = |program: &str, args: &[&str]| -> Result<()> {
        let mut command = Command::new(program);
        command.args(args).current_dir(root).env("LC_ALL", "C");
        command.env("CFLAGS", "-O3").env("CXXFLAGS", "-O3");
        command::output(&mut command).map(drop)
    };
    run("tar", &["-x", "--strip-components=1", "--no-same-owner", "-f", "source.tar"])?;
    for (name, text) in PATCHES {
        let file = root.join(format!("{name}.patch"));
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        run("patch", &["-p1", "--fuzz=0", "-s", "-i", &format!("{name}.patch")])
            .with_context(|| format!("change {name} does not fit the emulator's source"))?;
    }
    for (name, text) in FILES {
        fs::write(root.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    note("baton: building the emulator: about 3 minutes on two cores, once");
    let build = || -> Result<()> {
        run("./configure", &CONFIGURE)?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        run("make", &[&format!("-j{jobs}"), "bochs"])
    };
    build().context("cannot build the emulator")?;
    fs::rename(root.join("bochs"), dir.join("bochs")).context("cannot keep the emulator")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_says_why_and_quotes_no_more_than_it_changes() {
        for (name, text) in PATCHES {
            let (head, hunks) = text.split_once("\n--- ").unwrap();
            assert!(head.lines().count() > 2, "{name}");
            for line in hunks.lines().skip(1) {
                assert!(line.starts_with(['+', '-', '@']), "{name}: {line}");
            }
        }
    }
}
