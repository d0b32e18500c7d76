// SPDX-License-Identifier: GPL-2.0-only
//! Where an experiment on an exact host differs from an earlier one: in what it depends on, and in
//! its figures.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use baton_testbed::exact::Inputs;
use serde::Deserialize;
use serde_json::Value;

use super::results::Report;

/// An earlier report, whose `--json` is in a file.
pub struct Earlier {
    file: PathBuf,
    content: Content,
}

#[derive(Deserialize)]
struct Content {
    inputs: Inputs,
    workloads: Vec<Value>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// Keys of a report that say what was run, and what a person calls them.
const CONDITIONS: [(&str, &str); 5] = [
    ("pcpus", "pCPUs"),
    ("vms", "VMs"),
    ("vcpus_per_vm", "vCPUs a VM"),
    ("repetitions", "repetitions"),
    ("seconds", "seconds of a run"),
];

impl Earlier {
    /// Errors: a file that cannot be read, or is not the JSON of an experiment on an exact host.
    pub fn read(file: &Path) -> Result<Earlier> {
        let name = || format!("--against {}", file.display());
        let text = fs::read_to_string(file).with_context(name)?;
        let content = serde_json::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .context("not what --json of an experiment on an exact host writes")
            .with_context(name)?;
        Ok(Earlier { file: file.to_path_buf(), content })
    }

    /// In words; ends with a line break.
    ///
    /// Errors: figures that JSON cannot hold.
    pub fn compare(&self, report: &Report) -> Result<String> {
        let file = self.file.display();
        let now = serde_json::to_value(report)?;
        let mut causes: Vec<&str> = CONDITIONS
            .iter()
            .filter(|(key, _)| now.get(key) != self.content.rest.get(*key))
            .map(|(_, words)| *words)
            .collect();
        let programs =
            report.inputs.as_ref().map(|inputs| inputs.differ_from(&self.content.inputs));
        causes.extend(programs.iter().flatten().map(String::as_str));

        let (mut same, mut other) = (Vec::new(), Vec::new());
        for row in now["workloads"].as_array().into_iter().flatten() {
            let of = |key: &str, row: &Value| row.get(key).cloned();
            let twin = self.content.workloads.iter().find(|earlier| {
                ["name", "vms", "active_vms"].iter().all(|key| of(key, row) == of(key, earlier))
            });
            let name = row["name"].as_str().unwrap_or("?").to_string();
            match twin {
                Some(twin) if twin == row => same.push(name),
                Some(_) => other.push(name),
                None => {}
            }
        }
        let rows = match (same.len(), other.len()) {
            (0, 0) => "no row in common".to_string(),
            (_, 0) => "the same figures in every row".to_string(),
            (0, _) => "other figures in every row".to_string(),
            _ => format!("other figures in {}", list(&other)),
        };
        Ok(match (causes.is_empty(), other.is_empty()) {
            (true, true) => format!("Against {file}: the same inputs, {rows}.\n"),
            (true, false) => format!(
                "Against {file}: the same inputs, but {rows}: a defect of Baton, please report \
                 it.\n"
            ),
            (false, _) => format!("Against {file}: {rows}. Other inputs: {}.\n", list(&causes)),
        })
    }
}

fn list(names: &[impl AsRef<str>]) -> String {
    let distinct: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
    distinct.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::tests::sample;

    fn report() -> Report {
        let inputs = Inputs {
            machine: "a machine".into(),
            configuration: "a".into(),
            emulator: "b".into(),
            kernel: "c".into(),
            image: "d".into(),
            programs: [("baton".to_string(), "e".to_string())].into(),
            prepared: Vec::new(),
        };
        Report { inputs: Some(inputs), ..sample() }
    }

    fn compared(with: &Report) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.json");
        fs::write(&file, serde_json::to_string_pretty(&report()).unwrap()).unwrap();
        Earlier::read(&file).unwrap().compare(with).unwrap()
    }

    #[test]
    fn the_same_report_is_the_same() {
        let text = compared(&report());
        assert!(text.contains("the same inputs, the same figures in every row"), "{text}");
    }

    #[test]
    fn other_figures_of_the_same_inputs_are_a_defect() {
        let mut other = report();
        other.workloads[0].alone[0] += 1e-9;
        let text = compared(&other);
        assert!(text.contains("but other figures in barrier: a defect"), "{text}");
    }

    #[test]
    fn what_differs_is_named() {
        let mut other = report();
        other.seconds = 7.0;
        let inputs = other.inputs.as_mut().unwrap();
        inputs.kernel = "x".into();
        inputs.programs.insert("baton".into(), "x".into());
        let text = compared(&other);
        assert!(text.contains("the same figures"), "{text}");
        assert!(text.contains("Other inputs: baton, kernel, seconds of a run."), "{text}");
        other.workloads.clear();
        assert!(compared(&other).contains("no row in common"));
    }

    #[test]
    fn a_report_of_another_kind_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.json");
        for text in ["", "[]", "{\"workloads\": []}"] {
            fs::write(&file, text).unwrap();
            let error = format!("{:#}", Earlier::read(&file).err().unwrap());
            assert!(error.contains("r.json") && error.contains("exact host"), "{error}");
        }
    }
}
