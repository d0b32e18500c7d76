// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton does on this host, for Prometheus.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use baton_metrics::{Exporter as Source, listen, serve, text};
use baton_output::{interrupt, note, say};
use clap::Args;
use signal_hook::iterator::Signals;

/// What scx_baton does on this host, for Prometheus.
#[derive(Args, Debug)]
#[command(after_help = "\
Answers GET /metrics in OpenMetrics' format, until Ctrl-C. It says baton_enabled 0 when scx_baton \
does not run, and baton_exits_total{reason} how it ended: 'scx_baton --metrics' ends with \
scx_baton. docs/metrics.md has the table, a dashboard and alerts.\n\n\
Needs no root, but whoever may not use scx_baton's socket (/var/run/scx/root/stats) learns of no \
VM, and it says so. It changes nothing on the host.\n\n\
Exit status: 0 after Ctrl-C or SIGTERM; 1 if it cannot listen there, after a line that says why; \
2 for wrong options.")]
pub struct Exporter {
    /// Where to listen; whoever reaches it can read the VMs' names
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9877", value_parser = address)]
    listen: SocketAddr,

    /// Series for each vCPU, too
    #[arg(long)]
    vcpus: bool,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, such as 127.0.0.1:9877".to_owned())
}

pub fn main(exporter: &Exporter) -> i32 {
    match run(exporter) {
        Ok(()) => 0,
        Err(error) => {
            note(&format!("baton exporter: {error:#}"));
            1
        }
    }
}

fn run(exporter: &Exporter) -> Result<()> {
    let mut signals = Signals::new(interrupt::signals()).context("cannot wait for signals")?;
    let listener = listen(exporter.listen)?;
    let address = listener.local_addr().unwrap_or(exporter.listen);
    let mut source = Source::here(exporter.vcpus);
    serve(listener, move || text(&source.snapshot()))?;
    say(&format!("http://{address}/metrics\n"))?;
    signals.forever().next();
    Ok(())
}
