// SPDX-License-Identifier: GPL-2.0-only
//! What scx_baton counts ([`Metrics`]), as its statistics server tells it and its clients read it
//! ([`Client`]).

mod client;
mod metrics;
mod vcpu;
mod vm;

pub use client::Client;
pub use metrics::{Metrics, VCPUS};
pub use vcpu::VcpuMetrics;
pub use vm::{VmMetrics, percentile_us};
