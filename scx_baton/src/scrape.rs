// SPDX-License-Identifier: GPL-2.0-only
//! Metrics for Prometheus.

use anyhow::Result;
use baton_metrics::{Exits, Exporter, listen, serve, text};
use log::info;
use std::net::SocketAddr;
use std::time::Duration;

/// An address that a host does not have yet, as it boots, is asked for again so soon.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// Answers Prometheus, in a thread of its own: it asks the statistics server as any client does. A
/// host is scheduled also while nobody can listen there.
pub fn answer(address: SocketAddr, vcpus: bool, exits: &Exits) -> Result<()> {
    let mut exporter = Exporter::here(vcpus).with_exits(exits.clone());
    let produce = move || text(&exporter.snapshot());
    let why = match listen(address) {
        Ok(listener) => return serve(listener, produce),
        Err(why) => why,
    };
    log::warn!(
        "no metrics, {why:#}: it is tried again every {} s; another --metrics ADDRESS, or none, \
         ends that",
        LISTEN_AGAIN.as_secs()
    );
    std::thread::spawn(move || {
        let listener = loop {
            std::thread::sleep(LISTEN_AGAIN);
            if let Ok(listener) = listen(address) {
                break listener;
            }
        };
        info!("metrics are told at {address}");
        if let Err(why) = serve(listener, produce) {
            log::warn!("no metrics: {why:#}");
        }
    });
    Ok(())
}
