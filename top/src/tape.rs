// SPDX-License-Identifier: GPL-2.0-only
//! The last minute of samples, written to a file and read again.

use crate::sample::Sample;
use anyhow::{Context, Result, bail, ensure};
use baton_output::OutFile;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs;
use std::path::Path;

/// Seconds.
const KEPT: f64 = 60.0;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Recording {
    version: u32,
    samples: VecDeque<Sample>,
}

#[derive(Default)]
pub struct Tape {
    samples: VecDeque<Sample>,
}

impl Tape {
    pub fn keep(&mut self, sample: Sample) {
        let from = sample.at_s - KEPT;
        self.samples.push_back(sample);
        while self.samples.len() > 2 && self.samples.front().is_some_and(|s| s.at_s < from) {
            let gone = self.samples.pop_front().and_then(|sample| sample.notes);
            // They hold until there are others.
            if let Some(first) = self.samples.front_mut() {
                first.notes = first.notes.take().or(gone);
            }
        }
    }

    /// Figures need two samples.
    pub fn is_shown(&self) -> bool {
        self.samples.len() > 1
    }

    /// Errors: the file cannot be written.
    pub fn write(&self, file: &OutFile) -> Result<()> {
        let recording = Recording { version: VERSION, samples: self.samples.clone() };
        file.finish(&(serde_json::to_string(&recording)? + "\n"))
    }

    /// The samples of a file, in order.
    ///
    /// Errors: it is not there, is no recording, of another version, or too short to show.
    pub fn read(path: &Path) -> Result<Vec<Sample>> {
        let read = || -> Result<Vec<Sample>> {
            let text = fs::read_to_string(path)?;
            let json: serde_json::Value =
                serde_json::from_str(&text).context("it is no recording of 'baton top'")?;
            match json.get("version").and_then(serde_json::Value::as_u64) {
                Some(version) if version == u64::from(VERSION) => {}
                Some(version) => bail!("it is of version {version}, not {VERSION}"),
                None => bail!("it is no recording of 'baton top'"),
            }
            let recording: Recording =
                serde_json::from_value(json).context("it is no recording of 'baton top'")?;
            let samples = Vec::from(recording.samples);
            ensure!(samples.len() > 1, "it has less than two samples");
            ensure!(samples.is_sorted_by(|a, b| a.at_s < b.at_s), "its times do not rise");
            Ok(samples)
        };
        read().with_context(|| format!("cannot replay {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{HostSample, Note, ThreadSample, VmSample};

    fn sample(at_s: f64) -> Sample {
        let baton = Err("no".to_owned());
        let thread = ThreadSample { tid: 8, name: "vhost-7".into(), ran: 1.0, ready: 0.5 };
        Sample {
            at_s,
            wall_s: 7,
            host: HostSample::default(),
            baton,
            vms: vec![VmSample { pid: 7, threads: vec![thread], ..VmSample::default() }],
            notes: None,
        }
    }

    #[test]
    fn what_is_written_is_read() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("tape.json");
        let mut tape = Tape::default();
        let note = Note { id: "ksm".into(), title: "t".into(), evidence: vec!["e".into()] };
        tape.keep(Sample { notes: Some(vec![note.clone()]), ..sample(-1.0) });
        (0..200).for_each(|s| tape.keep(sample(f64::from(s))));
        tape.write(&OutFile::open(&path)?)?;
        let read = Tape::read(&path)?;
        assert_eq!((read.len(), read[0].at_s), (61, 139.0));
        assert_eq!(read[60], sample(199.0));
        assert_eq!(read[0].notes, Some(vec![note]));
        Ok(())
    }

    /// What was written before there were threads of the host and notes is read.
    #[test]
    fn old_recordings_are_read() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("tape.json");
        let vm = r#"{"key":"7","name":"web","nr_vcpus":1,"times":{"ran":1.0,"ready":2.0,
            "costop":null,"throttled":null},"more":null,"vcpus":[]}"#;
        let one = |at_s| {
            format!(
                r#"{{"at_s":{at_s},"wall_s":5,"host":{{"name":"h","kernel":"6","cpus":2,
                "scheduler":"kernel","busy":1,"idle":1,"irq":0,"steal":0,"pressure_us":null}},
                "baton":{{"Err":"no"}},"vms":[{vm}]}}"#
            )
        };
        let text = format!(r#"{{"version":1,"samples":[{},{}]}}"#, one("1.0"), one("2.0"));
        fs::write(&path, text)?;
        let read = Tape::read(&path)?;
        let vm = &read[1].vms[0];
        assert_eq!((vm.name.as_str(), vm.pid, vm.threads.len()), ("web", 0, 0));
        assert_eq!(read[1].notes, None);
        Ok(())
    }

    #[test]
    fn what_is_no_recording_is_refused() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("tape.json");
        let one = serde_json::to_string(&sample(1.0))?;
        for (text, why) in [
            ("", "no recording"),
            ("{}", "no recording"),
            ("[1]", "no recording"),
            (r#"{"version":2,"samples":[]}"#, "version 2"),
            (r#"{"version":1,"samples":[]}"#, "less than two"),
            (r#"{"version":1,"samples":[7]}"#, "no recording"),
            (&format!(r#"{{"version":1,"samples":[{one},{one}]}}"#), "do not rise"),
        ] {
            fs::write(&path, text)?;
            let refused = Tape::read(&path).map_err(|why| format!("{why:#}")).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
        assert!(Tape::read(&directory.path().join("none")).is_err());
        Ok(())
    }
}
