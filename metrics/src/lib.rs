// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton did, for Prometheus: an [`Exporter`] asks it, [`text()`] writes what it says in
//! OpenMetrics' format, [`serve`] answers over HTTP.

mod exporter;
mod http;
mod snapshot;
mod text;
mod told;

pub use exporter::{Exits, Exporter};
pub use http::{listen, serve};
pub use snapshot::{Info, Snapshot, Times, Totals, Vcpu, Vm};
pub use text::{names, text};
