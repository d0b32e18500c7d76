// SPDX-License-Identifier: GPL-2.0-only
//! An exact host that is ready to be restored, as often as anybody likes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use baton_output::note;
use tempfile::NamedTempFile;

use super::saved::{self, Inputs, Saved};
use super::{Bochs, Machine, Profile, Start, Tools, command_line};
use crate::cache::Cache;
use crate::elf;
use crate::hash;
use crate::host::{Exec, Host, HostError, HostOptions, Parts, parts};
use crate::image;
use baton_output::interrupt;

pub struct Ready {
    program: PathBuf,
    machine: Machine,
    saved: Saved,
    verbose: bool,
}

/// The hashes of the programs that are built on this machine, by name; of what the image has of
/// them, since debug information names the directory of the build.
fn programs(extra: &[PathBuf]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for file in image::own()?.iter().chain(extra) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.insert(name, hash::bytes(&elf::loaded_part(file)?));
    }
    Ok(all)
}

/// The hash of all that the emulator is told, wherever its files lie.
fn configuration(machine: &Machine, command_line: &str) -> anyhow::Result<String> {
    let anywhere = Machine { bios: PathBuf::new(), vga_bios: PathBuf::new(), ..machine.clone() };
    let (bios, vga_bios) = (hash::file(&machine.bios)?, hash::file(&machine.vga_bios)?);
    Ok(hash::texts(&[&anywhere.config(), &bios, &vga_bios, command_line]))
}

/// A kernel that has just booted tests its cryptography: 240 million instructions beside whatever
/// is measured. Here the pCPUs together are busy for less than a tenth of a half second; a host
/// that never is so is saved after 20 s.
const SETTLE: &str = "\
    for round in $(seq 40); do
        read -r cpu user nice system rest </proc/stat; before=$((user + system))
        sleep 0.5
        read -r cpu user nice system rest </proc/stat
        [ $((user + system - before)) -lt 5 ] && break
    done; true";

fn settle(host: &mut Host) -> Result<(), HostError> {
    let command = Exec::new(["sh", "-c", SETTLE], Duration::from_secs(60));
    host.exec(&command, &mut |_, _| {}).map(drop)
}

impl Ready {
    /// Fetches and builds what is missing; boots the host and saves it unless that has been done
    /// with the same inputs.
    pub fn get(options: &HostOptions) -> Result<Ready, HostError> {
        let Parts { cache, kernel, initrd, .. } = parts(options)?;
        let bochs = Bochs::get(&cache)?;
        let tools = Tools::debian(&cache)?;
        let machine = Machine {
            exact: options.exact.clone().unwrap_or_default(),
            pcpus: options.pcpus,
            smt: options.smt,
            mem_mib: options.mem_mib,
            bios: tools.bios(),
            vga_bios: tools.vga_bios(),
        };
        let command_line = command_line(machine.exact.mips, options.append());
        let inputs = Inputs {
            emulator: bochs.hash.clone(),
            machine: machine.to_string(),
            configuration: configuration(&machine, &command_line)?,
            kernel: hash::file(&kernel.image)?,
            image: hash::file(initrd.path())?,
            programs: programs(&options.extra_bins)?,
            prepared: Vec::new(),
        };
        interrupt::check().map_err(anyhow::Error::from)?;
        let saved = match saved::find(&cache, &inputs)? {
            Some(saved) => saved,
            None => {
                let medium = NamedTempFile::new().context("cannot make a temporary file")?;
                tools.medium(medium.path(), &kernel.image, initrd.path(), &command_line)?;
                let boot = |dir: &Path, seed| {
                    let start = Start::Boot { medium: medium.as_file(), save_to: dir, seed };
                    let started = machine.start(&bochs.program, &start, options.verbose)?;
                    let mut host = Host::greeted_by(started)?;
                    settle(&mut host)?;
                    host.save()?;
                    Ok(host)
                };
                saved::get_or_make(cache, &inputs, |dir| {
                    note("baton: booting the exact host, once: 1 to 3 minutes");
                    // Some image does not boot, the same way each time: seen once, "Bad page state"
                    // of Linux 7.3.4 on the CPU model with APICv.
                    boot(dir, 0).or_else(|error| match error {
                        HostError::Oops { line, .. } => {
                            note(&format!("baton: {line}: booting with other random numbers"));
                            boot(dir, 1)
                        }
                        other => Err(other),
                    })
                })?
            }
        };
        Ok(Ready { program: bochs.program, machine, saved, verbose: options.verbose })
    }

    /// This host, after `prepare` has brought it to where a command on it asks for input, unless
    /// that has been done; `what` tells one preparation from another.
    pub fn prepared(
        &self,
        what: &str,
        prepare: impl FnOnce(&mut Host) -> Result<(), HostError>,
    ) -> Result<Ready, HostError> {
        let mut inputs = self.saved.inputs.clone();
        inputs.prepared.push(what.to_string());
        let cache = Cache::open()?;
        let saved = match saved::find(&cache, &inputs)? {
            Some(saved) => saved,
            None => saved::get_or_make(cache, &inputs, |dir| {
                let mut host = self.start(0, Some(dir.to_path_buf()), None)?;
                prepare(&mut host)?;
                host.save()?;
                Ok(host)
            })?,
        };
        let (program, machine) = (self.program.clone(), self.machine.clone());
        Ok(Ready { program, machine, saved, verbose: self.verbose })
    }

    /// The host as it was saved. The seed is that of RDRAND.
    pub fn restore(&self, seed: u64) -> Result<Host, HostError> {
        self.start(seed, None, None)
    }

    /// As [`Ready::restore`]; counts the instructions by place from then on.
    pub fn restore_profiled(&self, seed: u64, profile: &Profile) -> Result<Host, HostError> {
        self.start(seed, None, Some(profile))
    }

    /// What a run on this host depends on.
    pub fn inputs(&self) -> &Inputs {
        &self.saved.inputs
    }

    /// Of the host's kernel.
    pub fn release(&self) -> &str {
        &self.saved.hello.release
    }

    fn start(
        &self,
        seed: u64,
        save_to: Option<PathBuf>,
        profile: Option<&Profile>,
    ) -> Result<Host, HostError> {
        let Saved { dir, hello, time, .. } = &self.saved;
        let start = Start::Restore { from: dir, time: *time, seed, save_to, profile };
        let restored = self.machine.start(&self.program, &start, self.verbose)?;
        Ok(Host::new(restored, hello.clone()))
    }
}
