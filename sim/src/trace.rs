// SPDX-License-Identifier: GPL-2.0-only
//! A simulation as a trace for the Perfetto UI: a track for each pCPU and each vCPU, arrows from a
//! spinner to the vCPU that it yields to, and from an IPI's sender to its receiver.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result};
use prost::Message;

use crate::machine::{NONE, Ns};

/// The fields of Perfetto's `protos/perfetto/trace/` that are used here, with its numbers.
#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;

/// How the error begins where the file could not be written, and is not whole.
pub const UNWRITTEN: &str = "cannot write the trace";

/// The UI takes a while to open more.
const MOST_EVENTS: u64 = 3_000_000;

/// Tracks of threads begin here, those of pCPUs at 1.
const THREADS: u64 = 100_000;

pub struct Trace {
    out: BufWriter<Box<dyn Write>>,
    events: u64,
    flows: u64,
    /// For each thread the arrow that ends when it runs next.
    awaited: Vec<u64>,
    names: Vec<String>,
    failure: Option<std::io::Error>,
}

impl Trace {
    pub fn new(out: Box<dyn Write>, pcpus: usize, threads: Vec<String>) -> Self {
        let mut trace = Trace {
            out: BufWriter::new(out),
            events: 0,
            flows: 0,
            awaited: vec![0; threads.len()],
            names: threads,
            failure: None,
        };
        for cpu in 0..pcpus as u64 {
            trace.describe(1 + cpu, format!("pCPU {cpu}"));
        }
        for (thread, name) in (0..).zip(trace.names.clone()) {
            trace.describe(THREADS + thread, name);
        }
        trace
    }

    fn describe(&mut self, uuid: u64, name: String) {
        let descriptor = TrackDescriptor { uuid: Some(uuid), name: Some(name) };
        self.write(Packet { track_descriptor: Some(descriptor), ..Packet::default() });
    }

    fn write(&mut self, mut packet: Packet) {
        packet.trusted_packet_sequence_id = Some(1);
        // Trace { repeated TracePacket packet = 1; }
        let mut bytes = vec![0x0a];
        if packet.encode_length_delimited(&mut bytes).is_ok()
            && let Err(error) = self.out.write_all(&bytes)
        {
            self.failure.get_or_insert(error);
        }
    }

    fn event(&mut self, now: Ns, track: u64, kind: i32, name: &str, flow: u64, ends: u64) {
        self.events += 1;
        if self.events > MOST_EVENTS {
            return;
        }
        let list = |flow: u64| if flow == 0 { Vec::new() } else { vec![flow] };
        let event = TrackEvent {
            kind: Some(kind),
            track_uuid: Some(track),
            name: (!name.is_empty()).then(|| name.to_string()),
            flow_ids: list(flow),
            terminating_flow_ids: list(ends),
        };
        self.write(Packet { timestamp: Some(now), track_event: Some(event), ..Packet::default() });
    }

    /// A thread runs on a pCPU from now on.
    pub fn runs(&mut self, now: Ns, cpu: u32, thread: u32) {
        let name = self.names[thread as usize].clone();
        self.event(now, 1 + u64::from(cpu), BEGIN, &name, 0, 0);
        let ends = std::mem::take(&mut self.awaited[thread as usize]);
        let name = format!("on pCPU {cpu}");
        self.event(now, THREADS + u64::from(thread), BEGIN, &name, 0, ends);
    }

    pub fn stops(&mut self, now: Ns, cpu: u32, thread: u32) {
        self.event(now, 1 + u64::from(cpu), END, "", 0, 0);
        self.event(now, THREADS + u64::from(thread), END, "", 0, 0);
    }

    /// Something happened to a thread.
    pub fn instant(&mut self, now: Ns, thread: u32, name: &str) {
        self.event(now, THREADS + u64::from(thread), INSTANT, name, 0, 0);
    }

    /// An arrow to when another thread runs next; returns it.
    pub fn arrow(&mut self, now: Ns, from: u32, to: u32, name: &str) {
        self.flows += 1;
        let flow = self.flows;
        self.event(now, THREADS + u64::from(from), INSTANT, name, flow, 0);
        if to != NONE {
            self.awaited[to as usize] = flow;
        }
    }

    /// An arrow that ends at a thread at once, if that runs.
    pub fn arrow_now(&mut self, now: Ns, from: u32, to: u32, name: &str) {
        self.arrow(now, from, NONE, name);
        let flow = self.flows;
        self.event(now, THREADS + u64::from(to), INSTANT, name, 0, flow);
    }

    /// Whether something was left out.
    ///
    /// Errors: the file could not be written.
    pub fn end(mut self) -> Result<bool> {
        if let Some(error) = self.failure.take() {
            return Err(error).context(UNWRITTEN);
        }
        self.out.flush().context(UNWRITTEN)?;
        Ok(self.events > MOST_EVENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_those_of_perfetto() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut trace =
            Trace::new(Box::new(file.reopen().unwrap()), 1, vec!["a".into(), "b".into()]);
        trace.runs(10, 0, 0);
        trace.arrow(20, 0, 1, "yields to b");
        trace.stops(20, 0, 0);
        trace.runs(25, 0, 1);
        assert!(!trace.end().unwrap());
        let bytes = std::fs::read(file.path()).unwrap();
        let mut rest = &bytes[..];
        let mut packets = Vec::new();
        while let Some((0x0a, tail)) = rest.split_first() {
            rest = tail;
            packets.push(Packet::decode_length_delimited(&mut rest).unwrap());
        }
        assert!(rest.is_empty() && packets.len() == 3 + 2 + 1 + 2 + 2);
        let events: Vec<&TrackEvent> =
            packets.iter().filter_map(|p| p.track_event.as_ref()).collect();
        let from = events.iter().find(|event| !event.flow_ids.is_empty()).unwrap();
        let to = events.iter().find(|event| !event.terminating_flow_ids.is_empty()).unwrap();
        assert_eq!(from.flow_ids, to.terminating_flow_ids);
        assert_eq!(to.track_uuid, Some(THREADS + 1));
    }
}
