// SPDX-License-Identifier: GPL-2.0-only
//! The testbed's program inside the emulated host and its guests.
#![allow(clippy::print_stderr, clippy::print_stdout)] // Its output is a pipe or a console of ours.

mod event;
mod experiment;
mod guest;
mod init;
mod io_port;
mod port;
mod seed;
mod serve;
mod spins;
mod vms;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The testbed's program inside the emulated host and its guests. The testbed calls it; it is of
/// no use by hand.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// First process of the host.
    Init,
    /// First process of a guest.
    Guest,
    /// Performs the plan on standard input and prints events.
    Experiment {
        /// Prepares for the plan's only run, asks, and performs the step that comes then.
        #[arg(long)]
        prepare: bool,
    },
    /// Lets one thing happen on this host, N times.
    Event(event::Event),
    /// Does one workload's work.
    Work(work::Work),
    /// Loads a kernel module.
    Insmod {
        /// The module's file; the host's own are in /lib/modules.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().role {
        Role::Init => init::run(),
        Role::Guest => guest::run(),
        Role::Experiment { prepare: false } => experiment::run(),
        Role::Experiment { prepare: true } => experiment::prepare(),
        Role::Event(event) => event::run(&event),
        Role::Work(work) => work::run(&work),
        Role::Insmod { file } => init::insert(&file),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
