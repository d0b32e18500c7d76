// SPDX-License-Identifier: GPL-2.0-only
//! As much of HTTP as a scrape needs, and no more than a stranger may use up.
//!
//! One thread waits for all connections: one that says nothing, or does not read its answer, keeps
//! nobody else from being answered.
//!
//! The crate tiny_http 0.12 would not do, by its source: it has a thread for each connection, reads
//! headers of any length for any time, and ends for ever when it cannot accept one connection. The
//! scheduler must not run out of memory by a port that it listens at.

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// Connections at a time; for one more the oldest is closed, which says or reads nothing: a scraper
/// sends its request as it connects. Each may hold an answer, 7 MB with 4,000 vCPUs.
const CONNECTIONS: usize = 16;

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

/// Answers in a thread, as long as the process lives, with what `produce` gives at each scrape.
///
/// Errors: there is no thread to be had.
pub fn serve(
    listener: TcpListener,
    mut produce: impl FnMut() -> String + Send + 'static,
) -> Result<()> {
    listener.set_nonblocking(true).context("cannot wait for connections")?;
    let answer = move || {
        let mut connections = Vec::new();
        loop {
            if turn(&listener, &mut connections, &mut produce).is_err() {
                // No descriptors are left, for example.
                thread::sleep(Duration::from_millis(100));
            }
        }
    };
    let thread = thread::Builder::new().name("metrics".to_owned());
    thread.spawn(answer).context("cannot start a thread that answers")?;
    Ok(())
}

/// Waits until something can be done on a connection or for a new one, and does it.
fn turn(
    listener: &TcpListener,
    connections: &mut Vec<Connection>,
    produce: &mut impl FnMut() -> String,
) -> io::Result<()> {
    let mut fds: Vec<_> = connections.iter().map(Connection::poll_fd).collect();
    fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
    let first = connections.iter().map(|connection| connection.until).min();
    // In whole milliseconds, rounded up: else it would not be over yet.
    let left = first.map(|until| until.saturating_duration_since(Instant::now()).as_millis() + 1);
    let timeout =
        left.map_or(PollTimeout::NONE, |ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
    poll(&mut fds, timeout)?;
    let now = Instant::now();
    let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
    let mut ready = ready.into_iter();
    connections.retain_mut(|connection| {
        let is_ready = ready.next().unwrap_or_default();
        if !is_ready && now < connection.until {
            return true;
        }
        // A client that goes away is no event.
        connection.go_on(is_ready, produce).unwrap_or(false)
    });
    if ready.next().unwrap_or_default() {
        match listener.accept() {
            Ok((stream, _)) => {
                if connections.len() == CONNECTIONS {
                    connections.remove(0);
                }
                connections.push(Connection::new(stream)?);
            }
            Err(error) if is_for_later(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Nothing has come, or there is no room; or a client went before it was accepted.
fn is_for_later(error: &io::Error) -> bool {
    let later = [ErrorKind::WouldBlock, ErrorKind::Interrupted, ErrorKind::ConnectionAborted];
    later.contains(&error.kind())
}

struct Connection {
    stream: TcpStream,
    until: Instant,
    /// What has come of the request.
    head: Vec<u8>,
    /// What is still to be sent, once the request has come.
    answer: Option<VecDeque<u8>>,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        let until = Instant::now() + PATIENCE;
        Ok(Connection { stream, until, head: Vec::new(), answer: None })
    }

    fn poll_fd(&self) -> PollFd<'_> {
        let events = if self.answer.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
        PollFd::new(self.stream.as_fd(), events)
    }

    /// Reads or writes what it can; where nothing can be, its time is over. Is something left?
    fn go_on(&mut self, is_ready: bool, produce: &mut impl FnMut() -> String) -> io::Result<bool> {
        if self.answer.is_none() {
            let request = if is_ready { self.read()? } else { Some(Err("408 Request Timeout")) };
            let Some(request) = request else { return Ok(true) };
            let response = request.map_or_else(refuse, |()| respond(&self.head, produce));
            self.answer = Some(bytes(response).into());
            self.until = Instant::now() + PATIENCE;
        } else if !is_ready {
            return Ok(false);
        }
        self.write()
    }

    /// All up to the empty line, or with what status it is refused; None is for later.
    fn read(&mut self) -> io::Result<Option<Result<(), &'static str>>> {
        let mut some = [0; 1024];
        loop {
            match self.stream.read(&mut some) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.head.extend_from_slice(&some[..n]),
                Err(error) if is_for_later(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
            if self.head.windows(4).any(|end| end == b"\r\n\r\n") {
                return Ok(Some(Ok(())));
            }
            if self.head.len() > LONGEST {
                return Ok(Some(Err("431 Request Header Fields Too Large")));
            }
        }
    }

    /// Whether something is left to write.
    fn write(&mut self) -> io::Result<bool> {
        let Some(answer) = &mut self.answer else { return Ok(true) };
        while !answer.is_empty() {
            match self.stream.write(answer.as_slices().0) {
                Ok(n) => drop(answer.drain(..n)),
                Err(error) if is_for_later(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

type Response = (&'static str, &'static str, String);

fn refuse(status: &'static str) -> Response {
    (status, PLAIN, format!("{status}\n"))
}

fn bytes((status, content, body): Response) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\n{allow}\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn respond(head: &[u8], produce: &mut impl FnMut() -> String) -> Response {
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
