// SPDX-License-Identifier: GPL-2.0-only
//! Whoever can reach the port gets an answer, and no more.

use baton_metrics::{listen, serve};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn server(produce: impl Fn() -> String + Send + Sync + 'static) -> SocketAddr {
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

#[test]
fn four_are_answered_at_a_time_and_others_later() {
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let four = Arc::new(Barrier::new(4));
    let address = server({
        let (at_once, most, four) = (at_once.clone(), most.clone(), four.clone());
        move || {
            most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            four.wait();
            std::thread::sleep(Duration::from_millis(20));
            at_once.fetch_sub(1, Ordering::SeqCst);
            "it\n".to_owned()
        }
    });
    std::thread::scope(|scope| {
        let ask = || ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        let clients: Vec<_> = (0..12).map(|_| scope.spawn(ask)).collect();
        assert!(clients.into_iter().all(|client| client.join().unwrap().ends_with("it\n")));
    });
    assert_eq!(most.load(Ordering::SeqCst), 4);
}

#[test]
fn a_port_in_use_is_told() {
    let taken = TcpListener::bind(any()).unwrap();
    let address = taken.local_addr().unwrap();
    let why = format!("{:#}", listen(address).unwrap_err());
    let begin = format!("cannot listen at {address}: Address already in use");
    assert!(why.starts_with(&begin) && !why.contains('\n'), "{why}");
}
