// SPDX-License-Identifier: GPL-2.0-only
//! What a scrape takes with 300 VMs of 2,000 vCPUs, from asking a socket to the last byte over
//! HTTP: the first with files of /proc, then the mean of the others.

#[path = "../tests/common/mod.rs"]
mod common;

use baton_metrics::{Exporter, listen, serve, text};
use baton_output::say;
use common::{Host, OPS, stats};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

const TIMES: u32 = 20;

fn main() -> anyhow::Result<()> {
    let host = Host::new();
    host.load(OPS);
    let vcpus = |n: u32| if n < 200 { 7 } else { 6 };
    let vms = (0..300).map(|n| (format!("{n}.{n}.1"), format!("vm-{n}"), vcpus(n)));
    host.answer(stats(&vms.collect::<Vec<_>>()));
    for with_vcpus in [false, true] {
        let mut exporter = Exporter::at(host.root(), with_vcpus);
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?;
        serve(listener, move || text(&exporter.snapshot()))?;
        let (first, _) = scrape(address)?;
        let mut sum = 0.0;
        let mut bytes = 0;
        for _ in 0..TIMES {
            let (ms, length) = scrape(address)?;
            (sum, bytes) = (sum + ms, length);
        }
        let mean = sum / f64::from(TIMES);
        let what = if with_vcpus { "with vCPUs" } else { "VMs alone" };
        say(&format!("{what}: first {first:.1} ms, then {mean:.1} ms, {bytes} bytes\n"))?;
    }
    Ok(())
}

/// Milliseconds, and bytes.
fn scrape(address: SocketAddr) -> anyhow::Result<(f64, usize)> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok((begin.elapsed().as_secs_f64() * 1e3, answer.len()))
}
