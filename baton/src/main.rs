// SPDX-License-Identifier: GPL-2.0-only
//! The command line of Baton's tools.

mod ab;
mod bench;
mod demo;
mod doctor;
mod exporter;
mod host_args;
mod peers;
mod profile;
mod sim;
mod testbed;
mod trial;

use std::env;
use std::process::ExitCode;

use baton_output::{note, options};
use clap::{Parser, Subcommand};

/// Tools around scx_baton, the scheduler for KVM hosts with more vCPUs than CPUs.
#[derive(Parser)]
#[command(version, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    tool: Tool,
}

const HELP: &str = "\
Where to begin:
  baton demo --quick                     see it: some minutes, on any Debian machine, no KVM needed
  baton sim compare two-barriers --vary scheduler=eevdf,scx_baton        seconds, simulated
  sudo baton doctor                      will scx_baton run on this host, and what costs its VMs
  sudo baton top                         who waits for CPU on this host
  sudo baton trial --for 6m              proof that it helps its VMs, or does not
  sudo baton bench                       measure this host: a minute; needs /dev/kvm
  sudo scx_baton --stats 1               use it on this host; Ctrl-C gives the host back

Root: 'trial' (which puts scx_baton in charge of the host in its slots), 'bench --schedulers' \
(which puts others in charge while it measures), 'doctor --fix' and 'doctor --restore' (which \
write the kernel's parameters); nothing else changes this host beyond its output files, a cache \
($BATON_CACHE, else $XDG_CACHE_HOME/baton, else ~/.cache/baton), and the consoles of emulated \
hosts that failed ($XDG_STATE_HOME/baton/logs, else ~/.local/state/baton/logs).

Exit status: 0; 1 if something failed, after a line that says what; 2 for wrong options; 130 after \
Ctrl-C, but 0 after that of 'top' and 'exporter', which end so. 'doctor' and 'testbed' have their \
own.";

#[derive(Subcommand)]
enum Tool {
    /// Show what Baton is for: VMs on an emulated KVM host, under the kernel's scheduler and Baton
    Demo(Box<demo::Demo>),
    /// Measure this KVM host: exits, IPIs, timers, wake-ups, locks, barriers
    Bench(Box<bench::Bench>),
    /// Simulate a KVM host of any size, under scx_baton's own source or the kernel's schedulers
    #[command(subcommand)]
    Sim(sim::Sim),
    /// What on this host stops Baton or costs its VMs, and what mends it
    Doctor(doctor::Doctor),
    /// Who waits for CPU on this host, and why: a screen, or lines
    Top(baton_top::Top),
    /// Does it help my VMs: this host under the kernel's scheduler and scx_baton in turns
    Trial(Box<trial::Trial>),
    /// What scx_baton does on this host, for Prometheus
    Exporter(exporter::Exporter),
    /// An emulated KVM host, booted in seconds, to run things on
    #[command(subcommand)]
    Testbed(testbed::Testbed),
}

/// Of wrong options, as clap has it.
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let cli: Cli = match options() {
        Ok(cli) => cli,
        Err(WRONG) if env::args_os().nth(1).is_some_and(|tool| tool == "doctor") => {
            return ExitCode::from(doctor::WRONG);
        }
        Err(status) => return ExitCode::from(status),
    };
    let status = match cli.tool {
        Tool::Demo(demo) => demo::main(*demo),
        Tool::Bench(bench) => bench::main(*bench),
        Tool::Sim(what) => sim::main(what),
        Tool::Doctor(doctor) => doctor::main(&doctor),
        Tool::Top(top) => baton_top::run(&top).map_or_else(
            |error| {
                note(&format!("baton top: {error:#}"));
                1
            },
            |()| 0,
        ),
        Tool::Trial(trial) => trial::main(*trial),
        Tool::Exporter(exporter) => exporter::main(&exporter),
        Tool::Testbed(what) => testbed::main(what),
    };
    ExitCode::from(status as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// 'make install' runs this for the files.
    #[test]
    fn has_manuals() -> anyhow::Result<()> {
        baton_manuals::write_all(Cli::command(), 1, "scx_baton(8), baton(1)")
    }
}
