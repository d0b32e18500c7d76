// SPDX-License-Identifier: GPL-2.0-only
//! Statistics for whoever asks, and the line that asks each second.

use anyhow::Result;
use baton_counters::{Metrics, VCPUS, VcpuMetrics, VmMetrics};
use scx_stats::prelude::*;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The server's side: each client gets what happened since its last request ("top"), or since the
/// scheduler began ("totals").
pub fn server_data() -> StatsServerData<(), Metrics> {
    let open: Box<dyn StatsOpener<(), Metrics>> = Box::new(move |(req_ch, res_ch)| {
        req_ch.send(())?;
        let mut before = res_ch.recv()?;
        let read: Box<dyn StatsReader<(), Metrics>> = Box::new(move |args, (req_ch, res_ch)| {
            req_ch.send(())?;
            let now = res_ch.recv()?;
            let since = now.since(&before);
            before = now;
            since.shown(args).to_json()
        });
        Ok(read)
    });
    let totals: Box<dyn StatsOpener<(), Metrics>> = Box::new(move |_| {
        let read: Box<dyn StatsReader<(), Metrics>> = Box::new(move |args, (req_ch, res_ch)| {
            req_ch.send(())?;
            res_ch.recv()?.shown(args).to_json()
        });
        Ok(read)
    });
    StatsServerData::new()
        .add_meta(Metrics::meta())
        .add_meta(VmMetrics::meta())
        .add_meta(VcpuMetrics::meta())
        .add_ops("top", StatsOps { open, close: None })
        .add_ops("totals", StatsOps { open: totals, close: None })
}

/// What the client's side asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Since the scheduler began, not since the line before.
    pub totals: bool,
    /// Each vCPU, too.
    pub vcpus: bool,
}

/// The client's side: print lines every `interval` until `shutdown`.
pub fn monitor(interval: Duration, wanted: Wanted, shutdown: Arc<AtomicBool>) -> Result<()> {
    let argument = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let totals = wanted.totals.then(|| argument("target", "totals"));
    let arguments = totals.into_iter().chain(wanted.vcpus.then(|| argument(VCPUS, "1")));
    scx_utils::monitor_stats::<Metrics>(
        &arguments.collect::<Vec<_>>(),
        interval,
        || shutdown.load(Ordering::Relaxed),
        |m| m.print(&mut std::io::stdout()),
    )
    .map_err(|why| match why.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => {
            why.context("no permission to ask scx_baton: run it as root")
        }
        _ => why,
    })
}
