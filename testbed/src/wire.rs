// SPDX-License-Identifier: GPL-2.0-only
//! What the machine outside and the agent on the emulated host say to each other.
//!
//! A frame is `kind: u8, length: u32 little endian, payload`. The outside sends `Exec`, `Stdin`,
//! `Signal`, `Resize` and, to an exact host, `Save`; the agent sends `Hello` once, then `Stdout`,
//! `Stderr`, `Asks` and one `Exit` for each `Exec`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest payload that is accepted, in bytes. Longer means that the stream is garbled.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// ASCII's ENQ: a command that prints it asks for input, and is not heard of until that has come.
pub const ASK: u8 = 5;

/// How much of a byte stream goes into one frame, in bytes.
pub const CHUNK: usize = 64 << 10;

const HEADER: usize = 5;

/// What the booted host says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The kernel has sched_ext.
    pub sched_ext: bool,
    /// The kernel has BTF.
    pub btf: bool,
    /// /dev/kvm is there.
    pub kvm: bool,
    /// CPUs online.
    pub pcpus: u32,
}

/// A command to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program (searched in `PATH`) and arguments.
    pub argv: Vec<String>,
    /// Added to the agent's environment.
    pub env: Vec<(String, String)>,
    /// On a terminal of its own; its output then comes as `Stdout`.
    pub pty: bool,
    pub input: Input,
    /// Another for each repetition: stirs what the host draws at random, and when the command
    /// starts.
    pub seed: Option<u64>,
}

/// When a command's input comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// All of it before the command starts.
    #[default]
    Before,
    /// At any time.
    Live,
    /// Some before it starts, the rest when it asks, with [`ASK`].
    Asked,
}

/// One message, either way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Exec(Command),
    /// Input of the running command; empty means that there is no more.
    Stdin(Vec<u8>),
    /// A signal for the running command's process group.
    Signal(i32),
    /// The terminal's new size.
    Resize {
        rows: u16,
        cols: u16,
    },
    /// The running command has printed [`ASK`]: it asks for input. On an exact host time stands
    /// still until the outside has said something.
    Asks,
    /// Have the emulator save the host and end. What the outside says next is said to the restored
    /// host.
    Save,
    Hello(Hello),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The command's exit status as a shell gives it: 128 + signal when killed.
    Exit(i32),
}

/// The stream is not one of frames.
#[derive(Debug, PartialEq, Eq)]
pub struct WireError(String);

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the control channel is garbled: {}", self.0)
    }
}

impl std::error::Error for WireError {}

impl Frame {
    /// The frame as it goes over the wire. A payload longer than [`MAX_PAYLOAD`] would be refused
    /// by the other side: split byte streams into [`CHUNK`]s.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Frame::Exec(command) => (b'X', json(command)),
            Frame::Stdin(bytes) => (b'I', bytes.clone()),
            Frame::Signal(number) => (b'S', number.to_le_bytes().to_vec()),
            Frame::Resize { rows, cols } => {
                (b'R', [rows.to_le_bytes(), cols.to_le_bytes()].concat())
            }
            Frame::Asks => (b'A', Vec::new()),
            Frame::Save => (b'V', Vec::new()),
            Frame::Hello(hello) => (b'H', json(hello)),
            Frame::Stdout(bytes) => (b'O', bytes.clone()),
            Frame::Stderr(bytes) => (b'E', bytes.clone()),
            Frame::Exit(status) => (b'Q', status.to_le_bytes().to_vec()),
        };
        let mut frame = Vec::with_capacity(HEADER + payload.len());
        frame.push(kind);
        frame.extend((payload.len() as u32).to_le_bytes());
        frame.extend(payload);
        frame
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Frame, WireError> {
        Ok(match kind {
            b'X' => Frame::Exec(from_json(payload)?),
            b'I' => Frame::Stdin(payload.to_vec()),
            b'S' => Frame::Signal(i32::from_le_bytes(fixed(payload)?)),
            b'R' => {
                let [r0, r1, c0, c1] = fixed(payload)?;
                Frame::Resize {
                    rows: u16::from_le_bytes([r0, r1]),
                    cols: u16::from_le_bytes([c0, c1]),
                }
            }
            b'A' => Frame::Asks,
            b'V' => Frame::Save,
            b'H' => Frame::Hello(from_json(payload)?),
            b'O' => Frame::Stdout(payload.to_vec()),
            b'E' => Frame::Stderr(payload.to_vec()),
            b'Q' => Frame::Exit(i32::from_le_bytes(fixed(payload)?)),
            other => return Err(WireError(format!("unknown frame kind {other}"))),
        })
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default() // strings, numbers, booleans: cannot fail
}

fn from_json<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, WireError> {
    serde_json::from_slice(payload).map_err(|error| WireError(error.to_string()))
}

fn fixed<const N: usize>(payload: &[u8]) -> Result<[u8; N], WireError> {
    payload.try_into().map_err(|_| WireError(format!("payload of {} bytes", payload.len())))
}

/// Takes bytes as they come and gives whole frames.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` until more bytes have come.
    ///
    /// Errors: an unknown kind, a payload of the wrong form or longer than [`MAX_PAYLOAD`]. The
    /// stream cannot be followed any further then.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        let [kind, l0, l1, l2, l3, ..] = self.bytes[..] else { return Ok(None) };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(WireError(format!("a frame of {length} bytes")));
        }
        let Some(payload) = self.bytes.get(HEADER..HEADER + length) else { return Ok(None) };
        let frame = Frame::decode(kind, payload)?;
        self.bytes.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_frame() -> Vec<Frame> {
        vec![
            Frame::Exec(Command {
                argv: vec!["sh".into(), "-c".into(), "echo ü".into()],
                env: vec![("A".into(), "b=c".into())],
                pty: true,
                input: Input::Asked,
                seed: Some(u64::MAX),
            }),
            Frame::Stdin(vec![]),
            Frame::Stdin(vec![0, 255, b'\n']),
            Frame::Signal(15),
            Frame::Resize { rows: 24, cols: 80 },
            Frame::Asks,
            Frame::Save,
            Frame::Hello(Hello {
                release: "7.3.4".into(),
                sched_ext: true,
                btf: true,
                kvm: false,
                pcpus: 2,
            }),
            Frame::Stdout(vec![7; CHUNK]),
            Frame::Stderr(b"oh".to_vec()),
            Frame::Exit(137),
        ]
    }

    #[test]
    fn frames_survive_any_cut() {
        let stream: Vec<u8> = every_frame().iter().flat_map(Frame::encode).collect();
        for step in [1, 3, 4096, stream.len()] {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for bytes in stream.chunks(step) {
                decoder.push(bytes);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, every_frame());
        }
    }

    #[test]
    fn garbage_is_refused() {
        for bytes in [&b"O\xff\xff\xff\xff"[..], b"?\0\0\0\0", b"S\x01\0\0\0a", b"X\x01\0\0\0{"] {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert!(decoder.next_frame().is_err(), "{bytes:?}");
        }
    }
}
