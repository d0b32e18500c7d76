// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim show`: what comes with the simulator, as files.

use anyhow::{Result, bail};
use baton_output::say;
use baton_sim::keys::did_you_mean;
use baton_sim::scenario::{MACHINES, SCENARIOS};
use clap::Args;

#[derive(Args)]
pub struct Show {
    /// A scenario or a machine of 'baton sim list'
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn show(options: &Show) -> Result<()> {
    let mut all = SCENARIOS.iter().chain(&MACHINES);
    let Some((_, text)) = all.clone().find(|(name, _)| *name == options.name) else {
        let names: Vec<&str> = all.by_ref().map(|(name, _)| *name).collect();
        let near = did_you_mean(&options.name, &names);
        bail!(
            "there is no scenario or machine \"{}\"{near}; 'baton sim list' names all",
            options.name
        );
    };
    say(text)
}
