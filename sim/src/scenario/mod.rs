// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios as people write them: TOML that says which machine, which VMs, what they do, and which
//! scheduler and KVM there are.

mod builtin;
mod check;
mod derive;
mod fault;
mod programs;
mod records;
mod schedulers;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use self::builtin::{MACHINES, SCENARIOS};
pub use self::records::{FaultSpec, Host, Noise, Scenario, ThreadSpec, VmSpec};
pub use self::schedulers::{Made, SCHEDULERS, is_source, known, made, object};
use crate::keys::{Change, Source, did_you_mean};

/// Of a scenario's text: a thousand times the longest that ships.
const MOST_BYTES: u64 = 1 << 22;

/// The text of a scenario, and where it is from.
#[derive(Clone, Debug, Default)]
pub struct Text {
    pub text: String,
    /// Where the files that it names are looked for.
    pub dir: PathBuf,
}

impl Text {
    /// Reads a file, or one of the scenarios that come with the simulator.
    ///
    /// Errors: it is neither.
    pub fn named(name: &str) -> Result<Text> {
        if let Some((_, text)) = SCENARIOS.iter().find(|(known, _)| *known == name) {
            return Ok(Text { text: text.to_string(), dir: PathBuf::new() });
        }
        let read = || -> Result<String> {
            let mut text = String::new();
            File::open(name)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
            ensure!(text.len() as u64 <= MOST_BYTES, "it is larger than {MOST_BYTES} bytes");
            Ok(text)
        };
        let text = read().with_context(|| {
            let near = did_you_mean(name, &SCENARIOS.map(|(name, _)| name));
            format!(
                "cannot read the scenario {name}{near}; \"baton sim list\" names those that are built \
                 in"
            )
        })?;
        let dir = Path::new(name).parent().unwrap_or(Path::new("")).into();
        Ok(Text { text, dir })
    }
}

impl Scenario {
    /// As [`read`](Self::read), of a text from nowhere.
    pub fn parse(text: &str, changes: &[Change]) -> Result<Scenario> {
        Scenario::read(&Text { text: text.into(), dir: PathBuf::new() }, changes)
    }

    /// Reads a scenario with some keys changed, and checks all of it but what only running the
    /// scheduler can tell.
    ///
    /// Errors: one line that names the key that is wrong, where it stands, and what to write
    /// instead.
    pub fn read(from: &Text, changes: &[Change]) -> Result<Scenario> {
        let source = Source { text: &from.text, changes };
        let mut scenario: Scenario = source.read()?;
        // What the command line names is meant as seen from there.
        let place = |key: &str| {
            let set = changes.iter().any(|(changed, _)| changed == key);
            if set { Path::new("") } else { &from.dir }
        };
        scenario.machine_file = place("machine").join(&scenario.machine);
        scenario.scheduler_file = place("scheduler").join(&scenario.scheduler);
        scenario.check().map_err(|error| source.locate(error))?;
        Ok(scenario)
    }
}

impl Host {
    /// Errors: a key that is wrong, with its line; an impossible machine.
    pub fn parse(text: &str) -> Result<Host> {
        let source = Source { text, changes: &[] };
        let host: Host = source.read()?;
        host.check().map_err(|error| source.locate(error))?;
        Ok(host)
    }
}

/// Reads a scenario.
///
/// Errors: as [`Scenario::read`], with the name in front.
pub fn load(name: &str, changes: &[Change]) -> Result<Scenario> {
    let text = Text::named(name)?;
    Scenario::read(&text, changes).with_context(|| format!("scenario {name}"))
}
