// SPDX-License-Identifier: GPL-2.0-only
//! Loads `empty.bpf.c`, the floor of `make bench-callbacks`: what any sched_ext scheduler costs.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use baton_output::interrupt;
use libbpf_rs::libbpf_sys::bpf_object_open_opts;
use scx_utils::{scx_ops_attach, scx_ops_load, scx_ops_open, uei_exited, uei_report};
use signal_hook::flag;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, unreachable_patterns)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/empty_skel.rs"));
}

fn main() -> Result<()> {
    let shutdown = Arc::new(AtomicBool::new(false));
    for signal in interrupt::signals() {
        flag::register(signal, shutdown.clone()).context("cannot handle Ctrl-C")?;
    }

    let mut object = MaybeUninit::uninit();
    let options: Option<bpf_object_open_opts> = None;
    let mut skel =
        scx_ops_open!(skel::EmptySkelBuilder::default(), &mut object, empty_ops, options)?;
    let mut skel = scx_ops_load!(skel, empty_ops, uei)?;
    let ops = scx_ops_attach!(skel, empty_ops)?;
    while !shutdown.load(Ordering::Relaxed) && !uei_exited!(&skel, uei) {
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(ops);
    uei_report!(&skel, uei)?;
    Ok(())
}
