// SPDX-License-Identifier: GPL-2.0-only
//! Asks the scx_baton that runs.

use crate::{Metrics, VCPUS};
use anyhow::{Context, Result};
use scx_stats::prelude::*;
use std::path::Path;

/// It answers within milliseconds, or is stuck.
const TIMEOUT_MS: u64 = 2000;

pub struct Client {
    stats: StatsClient,
}

impl Client {
    /// Where scx_baton listens.
    pub const SOCKET: &str = "/var/run/scx/root/stats";

    /// Errors: nobody listens there, or not to this user.
    pub fn connect(socket: &Path) -> Result<Client> {
        let stats = StatsClient::new().set_path(socket).connect(Some(TIMEOUT_MS));
        let stats = stats.with_context(|| format!("cannot use {}", socket.display()))?;
        Ok(Client { stats })
    }

    /// All since it began; each vCPU too, if `vcpus`.
    ///
    /// Errors: it has gone, or is of another version.
    pub fn totals(&mut self, vcpus: bool) -> Result<Metrics> {
        let argument = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut arguments = vec![argument("target", "totals")];
        arguments.extend(vcpus.then(|| argument(VCPUS, "1")));
        let told: serde_json::Value = self.stats.request("stats", arguments)?;
        serde_json::from_value(told)
            .context("the scx_baton that runs is of another version than this program")
    }
}
