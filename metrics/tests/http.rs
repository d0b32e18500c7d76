// SPDX-License-Identifier: GPL-2.0-only
//! Whoever can reach the port gets an answer, and no more.

use baton_metrics::{listen, serve};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn server(produce: impl FnMut() -> String + Send + 'static) -> SocketAddr {
    let listener = listen(any()).unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, produce).unwrap();
    address
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn answers_by_path_and_method() {
    let address = server(|| "baton_enabled 1\n# EOF\n".to_owned());
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let content = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(head.contains(content) && head.contains("Content-Length: 22"), "{head}");
    assert_eq!(body, "baton_enabled 1\n# EOF\n");
    for (request, status, word) in [
        ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200", "baton_enabled"),
        ("GET / HTTP/1.1\r\n\r\n", "200", "/metrics"),
        ("GET /metrics/ HTTP/1.1\r\n\r\n", "404", ""),
        ("GET /../etc/passwd HTTP/1.1\r\n\r\n", "404", ""),
        ("HEAD /metrics HTTP/1.1\r\n\r\n", "405", "Allow: GET"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405", "Allow: GET"),
        ("GET /metrics HTTP/2\r\n\r\n", "400", ""),
        ("GET /metrics\r\n\r\n", "400", ""),
        ("\r\n\r\n", "400", ""),
        ("GET  /metrics HTTP/1.1\r\n\r\n", "400", ""),
    ] {
        let answer = ask(address, request);
        let begin = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&begin) && answer.contains(word), "{request:?}: {answer}");
    }
}

#[test]
fn a_head_without_end_is_refused() {
    let address = server(String::new);
    let mut stream = TcpStream::connect(address).unwrap();
    // More than is read would be an error of the connection, which is an answer, too.
    let line = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(8 << 10));
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // One that goes in the middle does no harm.
    drop(TcpStream::connect(address).unwrap());
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").contains("/metrics"));
}

/// Each is given 5 s. A machine that stops for longer is told apart.
#[test]
fn who_says_nothing_and_who_reads_nothing_keeps_nobody_waiting() {
    let in_time = (0..3).any(|_| {
        let begin = Instant::now();
        let [last, silent, late, deaf] = beside_others();
        if begin.elapsed() > Duration::from_secs(4) {
            return false;
        }
        assert_eq!((&*last, &*late), ("x", "x"));
        assert_eq!(silent, "WouldBlock".repeat(8));
        assert_eq!(deaf.len(), 16 << 20);
        true
    });
    assert!(in_time, "three times it took more than 4 s");
}

/// What comes of the last request, before that of those that had said nothing, of one of them that
/// goes on, and of one that did not read its answer.
fn beside_others() -> [String; 4] {
    let mut answered = 0;
    let address = server(move || {
        answered += 1;
        // More than a socket takes: the rest waits for the client.
        "x".repeat(if answered <= 4 { 16 << 20 } else { 1 })
    });
    let request = b"GET /metrics HTTP/1.1\r\n\r\n";
    let connect = || TcpStream::connect(address).unwrap();
    let rest = |stream: &mut TcpStream| {
        let mut answer = String::new();
        // What is cut off is seen by its length.
        let _ = stream.read_to_string(&mut answer);
        answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
    };
    let mut silent: Vec<_> = (0..8).map(|_| connect()).collect();
    silent[7].write_all(&request[..9]).unwrap();
    let mut deaf: Vec<_> = (0..4).map(|_| connect()).collect();
    for stream in &mut deaf {
        stream.write_all(request).unwrap();
        // Its answer is on its way.
        stream.read_exact(&mut [0; 4]).unwrap();
    }
    let mut last = connect();
    last.write_all(request).unwrap();
    let last = rest(&mut last);
    let said = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0; 4]);
        stream.set_nonblocking(false).unwrap();
        read.map_or_else(|error| format!("{:?}", error.kind()), |n| format!("{n} bytes"))
    };
    let what: String = silent.iter_mut().map(said).collect();
    let _ = silent[7].write_all(&request[9..]);
    [last, what, rest(&mut silent[7]), rest(&mut deaf[3])]
}

#[test]
fn the_oldest_connections_make_room() {
    let address = server(|| "it\n".to_owned());
    let mut silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("it\n"));
    for stream in &mut silent[..84] {
        assert_eq!(stream.read(&mut [0; 4]).unwrap(), 0);
    }
    let last = silent.last_mut().unwrap();
    last.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("/metrics"), "{answer}");
}

#[test]
fn a_port_in_use_is_told() {
    let taken = TcpListener::bind(any()).unwrap();
    let address = taken.local_addr().unwrap();
    let why = format!("{:#}", listen(address).unwrap_err());
    let begin = format!("cannot listen at {address}: Address already in use");
    assert!(why.starts_with(&begin) && !why.contains('\n'), "{why}");
}
