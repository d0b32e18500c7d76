// SPDX-License-Identifier: GPL-2.0-only
//! A host with an scx_baton, as files and a socket.
// No test file uses all of it.
#![allow(dead_code)]

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;

pub const OPS: &str = "baton_0.1.0_g1a2b3c_x86_64_unknown_linux_gnu";

pub struct Host {
    root: TempDir,
}

impl Host {
    /// Nobody has loaded a scheduler there.
    pub fn new() -> Host {
        let host = Host { root: tempfile::tempdir().unwrap() };
        host.put("/sys/kernel/sched_ext/state", "disabled\n");
        host.put("/proc/sys/kernel/osrelease", "6.17.2\n");
        host
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn put(&self, path: &str, text: &str) {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// This scheduler is loaded now.
    pub fn load(&self, ops: &str) {
        self.put("/sys/kernel/sched_ext/root/ops", ops);
        self.put("/sys/kernel/sched_ext/state", "enabled\n");
    }

    pub fn unload(&self) {
        self.put("/sys/kernel/sched_ext/state", "disabled\n");
    }

    /// scx_baton listens, and answers so, until this is called again.
    pub fn answer(&self, answer: Value) -> Arc<Mutex<Value>> {
        let path = self.root.path().join("var/run/scx/root/stats");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(path).unwrap();
        let answer = Arc::new(Mutex::new(answer));
        let now = answer.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let now = now.clone();
                thread::spawn(move || talk(&stream, &now));
            }
        });
        answer
    }
}

fn talk(stream: &UnixStream, now: &Mutex<Value>) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let asked: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&asked["req"], &asked["args"]["target"]), (&json!("stats"), &json!("totals")));
        let mut resp = now.lock().unwrap().clone();
        let vms = resp.get_mut("by_vm").and_then(Value::as_object_mut);
        for vm in vms.into_iter().flat_map(serde_json::Map::values_mut) {
            if asked["args"]["vcpus"].is_null() {
                vm["by_vcpu"] = json!({});
            }
        }
        let answer = json!({"errno": 0, "args": {"resp": resp}});
        let mut stream = stream;
        if stream.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// What scx_baton tells, with these VMs: key, name, vCPUs.
pub fn stats(vms: &[(String, String, u32)]) -> Value {
    let by_vm: serde_json::Map<String, Value> =
        vms.iter().map(|(key, name, vcpus)| (key.clone(), vm(name, *vcpus))).collect();
    json!({
        "counted_s": 10.0, "policy": "kick,sent,ipi,kvm", "by_vm": by_vm, "at": 1,
        "yields": 100, "obeyed": 61, "redirected": 22, "missed_running": 1, "missed_asleep": 2,
        "missed_spent": 3, "missed_raced": 4, "missed_foreign": 5, "refused": 24,
        "turns": 301, "gangs": 265, "lent": 912, "a later version's": [1], "vms": vms.len(),
        "vcpus": 2, "spread": 1, "spins": 1904, "plain_yields": 9, "stacking_avoided": 1,
        "host_preempts": 2, "visits": 3, "polls_cut": 4, "cores_left": 5, "boost_us": 6,
    })
}

pub fn vm(name: &str, vcpus: u32) -> Value {
    let mut wakeups = vec![0; 32];
    (wakeups[3], wakeups[11], wakeups[20], wakeups[31]) = (1, 90, 8, 1);
    let vcpu = |id: u32| {
        let times = json!({
            "tid": 1000 + id, "cpu": id, "watched_ms": 10000.0, "ran_ms": 7000.0,
            "ready_only_ms": 500.0, "costop_ms": 250.0, "throttled_ms": 0.0, "waited_ms": 2250.0,
        });
        (id.to_string(), times)
    };
    let by_vcpu: serde_json::Map<String, Value> = (0..vcpus).map(vcpu).collect();
    let n = f64::from(vcpus);
    json!({
        "name": name, "vcpus": vcpus, "weight": 100, "spread": 1, "ran_ms": 7000.0 * n,
        "ready_ms": 750.0 * n, "ready_only_ms": 500.0 * n, "costop_ms": 250.0 * n,
        "throttled_ms": 0.0, "spin_ms": 125.5, "boost_ms": 20.0, "ipi_wait_ms": 41.0,
        "spins": 1904, "halts": 400, "polled": 300, "slept": 100, "poll_ms": 3.0,
        "vain_poll_ms": 20.0, "wakeups": wakeups, "wakeup_us": 2.0, "wakeup99_us": 1048.6,
        "poll_by": "host", "boosts": 700, "useful": 612, "useless": 80, "by_vcpu": by_vcpu,
    })
}
