// SPDX-License-Identifier: GPL-2.0-only
//! `testbed run --exact --profile`: the instructions of a command's run, by symbol, as a file.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use baton_output::OutFile;
use baton_testbed::exact::{self, Counted, Ready, by_symbol};
use baton_testbed::host::{Exec, Host, HostError, HostOptions};

/// Reading the host's symbols takes seconds of virtual time on slow pCPUs.
const SYMBOLS: Duration = Duration::from_secs(600);

pub struct Profile {
    file: OutFile,
    counts: exact::Profile,
    ready: Ready,
}

impl Profile {
    /// Opens the file, and has the exact host ready.
    ///
    /// Errors: the file cannot be written; as [`Ready::get`].
    pub fn open(file: &Path, options: &HostOptions) -> Result<Profile, HostError> {
        let file = OutFile::open(file)?;
        Ok(Profile { file, counts: exact::Profile::new()?, ready: Ready::get(options)? })
    }

    /// The host whose instructions are counted, from here on.
    pub fn host(&self, options: &HostOptions) -> Result<Host, HostError> {
        self.ready.restore_profiled(0, &self.counts)?.usable(options)
    }

    /// Writes what has been counted so far.
    ///
    /// Errors: the file cannot be written; no host can be asked for its symbols.
    pub fn write(&self, host: &mut Host) -> Result<(), HostError> {
        let places = self.counts.places()?;
        // One that the command has ended does not answer. Another has the same kernel at the same
        // addresses; what BPF programs executed is there by address.
        let symbols = symbols(host).or_else(|_| symbols(&mut self.ready.restore(0)?))?;
        self.file.finish(&table(&by_symbol(&places, &symbols)))?;
        Ok(())
    }
}

/// BPF programs are among them, but not those that have been unloaded.
fn symbols(host: &mut Host) -> Result<String, HostError> {
    let mut symbols = Vec::new();
    let ask = Exec::new(["cat", "/proc/kallsyms"], SYMBOLS);
    host.exec(&ask, &mut |_, bytes| symbols.extend_from_slice(bytes))?;
    Ok(String::from_utf8_lossy(&symbols).into_owned())
}

fn table(all: &[Counted]) -> String {
    let sum: u64 = all.iter().map(|one| one.instructions).sum();
    let mut text = String::from("instructions\tpercent\tsymbol\n");
    for Counted { symbol, instructions } in all {
        let percent = *instructions as f64 * 100.0 / sum.max(1) as f64;
        let _ = writeln!(text, "{instructions}\t{percent:.2}\t{symbol}"); // into a String
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_symbol() {
        let one = |symbol: &str, instructions| Counted { symbol: symbol.into(), instructions };
        let text = table(&[one("schedule", 30), one("bpf_prog_1_baton_select_cpu [bpf]", 10)]);
        assert_eq!(
            text,
            "instructions\tpercent\tsymbol\n30\t75.00\tschedule\n\
             10\t25.00\tbpf_prog_1_baton_select_cpu [bpf]\n"
        );
        assert_eq!(table(&[]).lines().count(), 1);
    }
}
