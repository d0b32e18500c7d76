// SPDX-License-Identifier: GPL-2.0-only
//! What Prometheus itself makes of the text, the alerts and the dashboard: 'make test-operate'.

mod common;

use baton_metrics::{Exporter, listen, names, serve, text};
use common::{Host, OPS, stats};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Prometheus needs a second or two to begin.
const PATIENCE: Duration = Duration::from_secs(60);

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A host with three VMs, two of which are called alike, and one badly.
fn host() -> Host {
    let host = Host::new();
    host.load(OPS);
    let vms = [("70.1.1", "web", 4), ("71.2.1", "a\"b\\c\n{}", 1), ("72.3.1", "web", 2)];
    host.answer(stats(&vms.map(|(key, name, vcpus)| (key.into(), name.into(), vcpus))));
    host
}

fn promtool(words: &[&str], directory: &Path, input: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there: tools/setup prometheus");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn passes(words: &[&str], directory: &Path, input: &str) {
    let output = promtool(words, directory, input);
    let [told, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{words:?}: {told}{errors}\n{input}");
}

/// promtool reads Prometheus's older format, in which a counter's type is told with `_total`.
fn older(text: &str) -> String {
    let mut older = String::new();
    let mut family = String::new();
    for line in text.lines().filter(|line| !line.starts_with("# UNIT ")) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "TYPE", name, kind] => {
                let end = if *kind == "counter" { "_total" } else { "" };
                family = format!("{name}{end}");
                older += &format!("# TYPE {family} {kind}\n");
            }
            ["#", "HELP", _, help] => older += &format!("# HELP {family} {help}\n"),
            _ => older += &format!("{line}\n"),
        }
    }
    older
}

#[test]
fn promtool_finds_nothing_in_the_text() {
    let host = host();
    let snapshot = Exporter::at(host.root(), true).snapshot();
    assert_eq!((snapshot.vms.len(), snapshot.vms[0].by_vcpu.len()), (3, 4));
    passes(&["check", "metrics"], &here(), &older(&text(&snapshot)));
    host.unload();
    let gone = Exporter::at(host.root(), true).snapshot();
    passes(&["check", "metrics"], &here(), &older(&text(&gone)));
    // It does find things.
    let wrong = "# TYPE baton_x counter\nbaton_x 1\n";
    assert!(!promtool(&["check", "metrics"], &here(), wrong).status.success());
}

#[test]
fn each_alert_fires_when_it_should_and_else_does_not() {
    let rules = fs::read_to_string(here().join("alerts.yml")).unwrap();
    passes(&["check", "rules", "alerts.yml"], &here(), "");
    passes(&["test", "rules", "alerts.yml"], &here().join("tests"), "");
    // None without a test, a summary and what to do.
    let tests = fs::read_to_string(here().join("tests/alerts.yml")).unwrap();
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        let of_it: Vec<&str> = tests.split("alertname: ").filter(|t| t.starts_with(name)).collect();
        let fires = |test: &&&str| test.lines().nth(1).is_some_and(|l| !l.ends_with("[]"));
        let firing = of_it.iter().filter(fires).count();
        assert!(firing > 0 && firing < of_it.len(), "{name}: {firing} of {}", of_it.len());
        assert!(rule.contains("summary: ") && rule.contains("What to"), "{name}");
    }
}

/// Words of the expressions that are names of metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("baton_")).map(str::to_owned);
    ours.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

fn expressions(of: &Value, found: &mut Vec<String>) {
    match of {
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(text) if ["expr", "query"].contains(&key.as_str()) => {
                        found.push(text.clone());
                    }
                    value => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Prometheus, which scrapes this address each second.
struct Prometheus {
    api: SocketAddr,
    _child: Killed,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn of(target: SocketAddr) -> Prometheus {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let rules = here().join("alerts.yml");
        let configuration = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{}]\n\
             scrape_configs: [{{job_name: baton, static_configs: [{{targets: ['{target}']}}]}}]\n",
            rules.display()
        );
        fs::write(at("prometheus.yml"), configuration).unwrap();
        // Free a moment ago.
        let api = TcpListener::bind(any()).unwrap().local_addr().unwrap();
        let log = fs::File::create(at("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", at("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", at("data").display()))
            .arg(format!("--web.listen-address={api}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus is there: tools/setup prometheus");
        Prometheus { api, _child: Killed(child), _directory: directory }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.api).ok()?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// The series that a query gives; with `None` for the query that is wrong.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let word = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        let query: String = query.bytes().map(word).collect();
        let answer = self.ask(&format!("/api/v1/query?query={query}"))?;
        answer["data"]["result"].as_array().cloned()
    }

    /// The value of the only series, once there is one and `wanted` likes it.
    fn value(&self, query: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        let until = Instant::now() + PATIENCE;
        loop {
            let series = self.query(query).unwrap_or_default();
            let value = series.first().and_then(|one| one["value"][1].as_str()?.parse().ok());
            match value {
                Some(value) if series.len() == 1 && wanted(value) => return value,
                _ => assert!(Instant::now() < until, "{query}: {series:?}, {:?}", self.targets()),
            }
            sleep(Duration::from_millis(200));
        }
    }

    fn targets(&self) -> Option<Value> {
        Some(self.ask("/api/v1/targets")?["data"]["activeTargets"].clone())
    }
}

#[test]
fn prometheus_scrapes_and_answers() {
    let host = host();
    let exporter = Mutex::new(Exporter::at(host.root(), true));
    let listener = listen(any()).unwrap();
    let prometheus = Prometheus::of(listener.local_addr().unwrap());
    serve(listener, move || text(&exporter.lock().unwrap().snapshot())).unwrap();
    prometheus.value("baton_enabled", |value| value == 1.0);
    prometheus.value("up{job=\"baton\"}", |value| value == 1.0);
    let count = |query: &str| prometheus.query(query).unwrap().len();
    assert_eq!(count("baton_vm_run_seconds_total"), 3);
    assert_eq!(count("baton_vcpu_run_seconds_total"), 7);
    assert_eq!(count(r#"baton_vm_vcpus{vm="a\"b\\c\n{}"}"#), 1);
    assert_eq!(count(r#"baton_vm_vcpus{vm="web (72.3.1)"}"#), 1);
    for name in names() {
        let is_histogram = name == "baton_vm_wakeup_latency_seconds";
        assert!(count(&if is_histogram { name + "_bucket" } else { name }) > 0);
    }
    // Nothing was refused, or there twice.
    let targets = prometheus.targets().unwrap();
    assert_eq!(targets[0]["lastError"], "", "{targets}");

    // Whatever the dashboard asks for, Prometheus understands, and we have.
    let dashboard = fs::read_to_string(here().join("grafana.json")).unwrap();
    let mut asked = Vec::new();
    expressions(&serde_json::from_str(&dashboard).unwrap(), &mut asked);
    assert!(asked.len() > 15, "{asked:?}");
    let known: BTreeSet<String> = names().into_iter().collect();
    let rules = fs::read_to_string(here().join("alerts.yml")).unwrap();
    let in_rules = named(&rules);
    for name in asked.iter().flat_map(|query| named(query)).chain(in_rules) {
        assert!(known.contains(&name), "{name}");
    }
    for query in asked.iter().filter(|query| named(query).len() + query.len() > 20) {
        if query.starts_with("label_values") {
            continue;
        }
        let query = query.replace("$__rate_interval", "1m").replace("$__range", "1h");
        let query = query.replace("$instance", ".*").replace("$vm", ".*");
        assert!(prometheus.query(&query).is_some(), "{query}");
    }

    host.unload();
    prometheus.value("baton_enabled", |value| value == 0.0);
    prometheus.value(r#"baton_exits_total{reason="stopped"}"#, |value| value == 1.0);
    prometheus.value(r#"ALERTS{alertname="BatonStopped"}"#, |value| value == 1.0);
}
