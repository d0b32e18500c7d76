// SPDX-License-Identifier: GPL-2.0-only
//! One thing that doctor looks for.

use crate::scene::Scene;

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// scx_baton does not start, or would harm the host.
    Blocker,
    /// VMs get less, with Baton or without it.
    Cost,
    /// Worth knowing when figures are read.
    Note,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Blocker => "blocker",
            Level::Cost => "cost",
            Level::Note => "note",
        }
    }
}

/// How a finding is mended.
#[derive(Clone, Copy, Debug)]
pub struct Fix {
    /// None: nothing that a write mends, as the host is now.
    pub writes: fn(&Scene) -> Vec<Write>,
}

/// A value for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub path: String,
    pub value: String,
}

impl Write {
    pub fn new(path: impl Into<String>, value: &str) -> Write {
        Write { path: path.into(), value: value.into() }
    }
}

/// One thing to look for.
#[derive(Debug)]
pub struct Finding {
    pub id: &'static str,
    pub level: Level,
    pub title: &'static str,
    /// A sentence; what it costs where that was measured, with the file that says so.
    pub cost: &'static str,
    /// What mends it: a command where there is one.
    pub mend: &'static str,
    /// What it is, and how it is seen.
    pub explain: &'static str,
    /// A line of evidence for each thing seen; none: not found.
    pub look: fn(&Scene) -> Vec<String>,
    /// For what a few writes to files of the kernel mend.
    pub fix: Option<Fix>,
}

/// A finding that a host shows.
#[derive(Clone, Debug)]
pub struct Found {
    pub finding: &'static Finding,
    pub evidence: Vec<String>,
    /// Its fix has something to write, as the host is.
    pub fixable: bool,
}
