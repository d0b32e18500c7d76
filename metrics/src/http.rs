// SPDX-License-Identifier: GPL-2.0-only
//! As much of HTTP as a scrape needs, and no more than a stranger may use up.
//!
//! The crate tiny_http 0.12 would not do, by its source: it has a thread for each connection, reads
//! headers of any length for any time, and ends for ever when it cannot accept one connection. The
//! scheduler must not run out of memory by a port that it listens at.

use anyhow::{Context, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Requests that are answered at a time; others wait in the kernel's queue.
const AT_A_TIME: usize = 4;

/// A request's head; Prometheus sends some hundred bytes.
const LONGEST: usize = 8 << 10;

/// For a request to come, and again for its answer to go: half of Prometheus's own default limit.
const PATIENCE: Duration = Duration::from_secs(5);

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Errors: somebody else listens there, or the host has no such address.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))
}

/// Answers in threads, as long as the process lives, with what `produce` gives at each scrape.
///
/// Errors: there are no threads to be had.
pub fn serve(
    listener: TcpListener,
    produce: impl Fn() -> String + Send + Sync + 'static,
) -> Result<()> {
    let produce = Arc::new(produce);
    for _ in 0..AT_A_TIME {
        let (listener, produce) = (listener.try_clone()?, produce.clone());
        let answer = move || {
            loop {
                match listener.accept() {
                    // A client that goes away is no event.
                    Ok((stream, _)) => drop(answer(stream, &*produce)),
                    // No descriptors are left, for example.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let thread = thread::Builder::new().name("metrics".to_owned());
        thread.spawn(answer).context("cannot start a thread that answers")?;
    }
    Ok(())
}

fn answer(mut stream: TcpStream, produce: &impl Fn() -> String) -> io::Result<()> {
    let (status, content, body) = match head(&mut stream) {
        Ok(head) => respond(&head, produce),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => refuse("408 Request Timeout"),
            ErrorKind::FileTooLarge => refuse("431 Request Header Fields Too Large"),
            _ => return Err(error),
        },
    };
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {}\r\n{allow}\
         Connection: close\r\n\r\n",
        body.len()
    );
    let until = Instant::now() + PATIENCE;
    send(&mut stream, head.as_bytes(), until)?;
    send(&mut stream, body.as_bytes(), until)
}

type Response = (&'static str, &'static str, String);

fn refuse(status: &'static str) -> Response {
    (status, PLAIN, format!("{status}\n"))
}

fn respond(head: &[u8], produce: &impl Fn() -> String) -> Response {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words.as_slice() else { return refuse("400 Bad Request") };
    if !version.starts_with(b"HTTP/1.") {
        return refuse("400 Bad Request");
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (*method, path) {
        (b"GET", b"/metrics") => ("200 OK", CONTENT, produce()),
        (b"GET", b"/") => ("200 OK", PLAIN, "Baton's metrics are at /metrics\n".to_owned()),
        (b"GET", _) => refuse("404 Not Found"),
        _ => refuse("405 Method Not Allowed"),
    }
}

/// What is left of the time; none is an error.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// All up to the empty line.
fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut some = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > LONGEST {
            return Err(ErrorKind::FileTooLarge.into());
        }
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut some) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => head.extend_from_slice(&some[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(head)
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
