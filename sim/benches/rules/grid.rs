// SPDX-License-Identifier: GPL-2.0-only
//! What each rule is measured on: every kind of VM beside every kind of neighbour.

use anyhow::Result;
use baton_sim::keys::Change;
use baton_sim::neighbours::{With, generate};
use baton_sim::scenario::{Scenario, Text};

/// VMs, their vCPUs, and pCPUs.
const SIZES: [[u32; 3]; 12] = [
    [2, 2, 2],
    [2, 4, 4],
    [3, 4, 4],
    [4, 4, 4],
    [2, 8, 8],
    [2, 10, 8],
    [2, 8, 6],
    [4, 16, 8],
    [3, 8, 8],
    [2, 12, 16],
    [4, 16, 16],
    [1, 12, 8],
];

const GANGS: [&str; 7] =
    ["barrier", "barrier-pause", "lock", "mutex", "ebizzy", "hackbench", "pbzip2"];

/// A machine, VMs and their vCPUs, and what they do.
type Hosts = (&'static str, &'static [[u32; 2]], &'static [&'static str]);

/// Gangs that are larger than a last-level cache, or fill a host that has several.
const FAR: [Hosts; 6] = [
    ("rome-256", &[[4, 64], [16, 16], [1, 256]], &["lock", "ebizzy"]),
    ("rome-256", &[[3, 128]], &["lock", "ebizzy", "barrier", "mutex"]),
    ("rome-256", &[[2, 256]], &["lock", "barrier"]),
    ("ice-lake-160", &[[10, 16], [1, 160]], &["lock", "ebizzy"]),
    ("ice-lake-160", &[[2, 160]], &["lock", "barrier"]),
    ("ryzen-16", &[[2, 16]], &["lock", "barrier"]),
];

const SHIPPED: [&str; 18] = [
    "attack-bound",
    "attack-container",
    "attack-crowd",
    "attack-forks",
    "attack-quotas",
    "attack-threads",
    "attack-vms",
    "call",
    "call-bound",
    "crowded",
    "file-server",
    "io-threads",
    "sizes",
    "two-barriers",
    "vhost-crowd",
    "weights-100",
    "big-300",
    "big-partitions",
];

const THREADS: &str = "[[thread]]\nown-cgroup = true\ncount = 4\nrun-us = 1000\n";

pub struct Case {
    pub name: String,
    from: Text,
    changes: Vec<Change>,
}

impl Case {
    fn new(name: String, text: String) -> Case {
        Case { name, from: Text { text, dir: Default::default() }, changes: Vec::new() }
    }

    /// The scenario under the scheduler in the file `source`.
    pub fn scenario(&self, source: &str) -> Result<Scenario> {
        let mut changes = self.changes.clone();
        changes.push(("scheduler".into(), source.into()));
        Scenario::read(&self.from, &changes)
    }
}

fn table(count: u32, vcpus: u32, workload: &str) -> String {
    format!("[[vm]]\ncount = {count}\nvcpus = {vcpus}\nworkload = \"{workload}\"\n")
}

fn gangs() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |name: String, host: &str, times: [f64; 2], tables: String| {
        let [warmup, seconds] = times;
        let head = format!("machine = {host}\nwarmup = {warmup}\nseconds = {seconds}\n");
        all.push(Case::new(name, format!("{head}[kvm]\nple-user = false\n{tables}")));
    };
    for gang in GANGS {
        for [count, vcpus, pcpus] in SIZES {
            let machine = if pcpus > 8 { "xeon-16" } else { "xeon-8" };
            let host = format!("\"{machine}\"\npcpus = {pcpus}");
            let name = format!("{gang} {count}x{vcpus} on {pcpus}");
            add(name, &host, [0.6; 2], table(count, vcpus, gang));
        }
        for vcpus in [2, 4, 8] {
            let vm = table(1, vcpus, gang);
            let host = format!("\"xeon-8\"\npcpus = {vcpus}");
            let thread = "pin = true\n[[thread]]\nown-cgroup = true\nrun-us = 1000\n";
            add(format!("{gang} pinned {vcpus}, thread"), &host, [0.9, 1.0], vm.clone() + thread);
            let one = table(1, 1, "compute");
            add(format!("{gang} {vcpus}, VM of 1"), &host, [0.6; 2], vm + &one);
        }
        let threads = table(2, 16, gang) + &THREADS.replace("own-cgroup = true\n", "");
        add(format!("{gang} 2x16, threads"), "\"xeon-16\"", [0.6; 2], threads);
        add(format!("{gang} ryzen-16"), "\"ryzen-16\"", [0.6; 2], table(6, 8, gang));
        let far = table(10, 16, gang) + &table(4, 32, "compute");
        add(format!("{gang} ice-lake-160"), "\"ice-lake-160\"", [0.4, 0.3], far);
        let two = table(1, 12, gang) + &table(1, 16, gang);
        add(format!("{gang} 12 and 16 on ryzen-16"), "\"ryzen-16\"", [0.5, 0.3], two);
    }
    for (machine, sizes, gangs) in FAR {
        for [count, vcpus] in sizes {
            for gang in gangs {
                let name = format!("{gang} {count}x{vcpus} on {machine}");
                add(name, &format!("\"{machine}\""), [0.5, 0.3], table(*count, *vcpus, gang));
            }
        }
    }
    all
}

/// VMs whose vCPUs wait for each other now and then, pinned or not, beside others.
fn callers() -> Vec<Case> {
    let calls = |vcpus: u32, time: &str| {
        let program = format!("[\"compute {time} ±20% kernel\", \"call\", \"done\"]");
        format!("[[vm.task]]\nprogram = {program}\n").repeat(vcpus as usize)
    };
    let crowd = "[[cgroup]]\nname = \"b\"\n[[thread]]\ncgroup = \"b\"\ncount = 8\nrun-us = 1000\n";
    let beside = [
        ("4 threads", "", THREADS.to_string()),
        ("8 threads", "", crowd.to_string()),
        ("compute", "", table(1, 4, "compute")),
        ("lock", "", table(1, 8, "lock")),
        ("thread, no APICv", "posted = false\n", THREADS.replace("count = 4\n", "")),
    ];
    let mut all = Vec::new();
    for does in ["100us", "1ms", "ebizzy", "hackbench", "ipi", "kernbench", "sysbench-oltp"] {
        for vcpus in [4, 8] {
            for pin in [false, true] {
                for (who, kvm, tables) in &beside {
                    let work = match does {
                        "100us" | "1ms" => calls(vcpus, does),
                        _ => format!("workload = \"{does}\"\n"),
                    };
                    let pinned = if pin { " pinned" } else { "" };
                    all.push(Case::new(
                        format!("{does} {vcpus}{pinned}, {who}"),
                        format!(
                            "machine = \"xeon-8\"\npcpus = {vcpus}\nwarmup = 0.6\nseconds = 0.8\n\
                             [kvm]\nple-user = false\n{kvm}[[vm]]\nown-cgroup = true\n\
                             vcpus = {vcpus}\npin = {pin}\n{work}{tables}"
                        ),
                    ));
                }
            }
        }
    }
    all
}

/// Those that come with the simulator; the largest are shortened.
fn shipped() -> Result<Vec<Case>> {
    let case = |name: &&str| {
        let times: &[_] = match name.starts_with("big-") {
            true => &[("warmup", "0.5"), ("seconds", "0.12")],
            false => &[("seconds", "1.0")],
        };
        let changes = times.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let (name, changes) = (name.to_string(), changes.collect());
        Ok(Case { from: Text::named(&name)?, name, changes })
    };
    SHIPPED.iter().map(case).collect()
}

/// All of them, with so many of the random mixtures of VMs and threads.
pub fn cases(mixtures: u64) -> Result<Vec<Case>> {
    let mut all = Vec::new();
    for seed in 0..mixtures {
        all.push(Case::new(format!("mixture {seed}"), generate(seed, With::default())));
        let threads = With { host_threads: true, ..With::default() };
        all.push(Case::new(format!("mixture {seed}, threads"), generate(seed, threads)));
    }
    all.extend(gangs());
    all.extend(callers());
    all.extend(shipped()?);
    Ok(all)
}
