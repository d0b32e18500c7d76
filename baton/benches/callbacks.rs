// SPDX-License-Identifier: GPL-2.0-only
//! What the host's kernel executes for one wake-up, switch, tick, yield, interrupt or exit, under
//! its own scheduler and under others: instructions, counted on the exact host, kernel functions,
//! locks and BPF programs included. `make bench-callbacks`.
//!
//! Each thing happens so many times and four times as often, on a host restored to the same state:
//! what differs is theirs.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_testbed::exact::{Exact, Profile, Ready, by_symbol};
use baton_testbed::host::{Exec, HostOptions, Stream};
use serde_json::json;

/// Virtual time that anything here may take.
const DEADLINE: Duration = Duration::from_secs(600);

/// The scheduler takes over and has found its rest; then the host is saved, and asks what to do.
const PREPARE: &str = r#"
if [ -n "$SCHEDULER" ]; then
    $SCHEDULER >/run/log 2>&1 &
    until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
        kill -0 $! || { cat /run/log >&2; exit 1; }
        sleep 0.1
    done
fi
sleep 5
cat /proc/kallsyms >/run/kallsyms
printf '\005'
IFS= read -r script
eval "$script" >/run/out 2>&1 || { cat /run/out >&2; exit 1; }
cat /run/kallsyms"#;

/// Counts the PAUSE-loop exits of a command. The profiled run has the probe as well: without, the
/// vCPUs fall into another rhythm, and make up to twice as many.
const SPINS: &str = "cd /sys/kernel/tracing; echo 0 >tracing_on; \
    echo 'p:baton/spins kvm_vcpu_on_spin' >kprobe_events; echo 1 >events/baton/spins/enable; \
    cd /; COMMAND";
const COUNTED_SPINS: &str = "; cat /sys/kernel/tracing/kprobe_profile >/run/kallsyms";

struct Event {
    name: &'static str,
    what: &'static str,
    /// In a shell on the host; N is how often.
    command: &'static str,
    n: u64,
}

/// Instructions of a function in one event, from which on --account shows it.
const ACCOUNTED: i64 = 20;

const EVENTS: [Event; 10] = [
    Event {
        name: "wake-idle",
        what: "a thread wakes on an idle pCPU and sleeps again",
        command: "baton-agent event wake-idle N",
        n: 400,
    },
    Event {
        name: "wake-busy",
        what: "a thread wakes where another one computes, and sleeps again",
        command: "baton-agent event wake-busy N",
        n: 200,
    },
    Event {
        name: "wake-vcpu",
        what: "a vCPU wakes by its timer where another VM computes, and halts again",
        command: "baton bench timer-halted-1000us --vms 2 --repetitions 1 --samples N",
        n: 200,
    },
    Event {
        name: "switch",
        what: "a thread wakes another one on its pCPU and sleeps",
        command: "baton-agent event switch N",
        n: 400,
    },
    Event {
        name: "yield",
        what: "sched_yield() to another thread",
        command: "baton-agent event yield N",
        n: 400,
    },
    Event {
        name: "tick",
        what: "a tick of a pCPU on which one thread computes",
        command: "baton-agent event tick N",
        n: 25,
    },
    Event {
        name: "ipi-running",
        what: "an IPI to a vCPU that runs, sent and taken",
        command: "baton bench ipi-unicast --repetitions 1 --samples N",
        n: 200,
    },
    Event {
        name: "ipi-waiting",
        what: "an IPI to a vCPU that a host thread has preempted, until it is taken",
        command: "baton bench ipi-unicast-preempted --repetitions 1 --samples N",
        n: 50,
    },
    Event {
        name: "halt",
        what: "two HLTs and two IPIs that end them: a round between two vCPUs",
        command: "baton bench ping-pong-100us-poll-off --repetitions 1 --samples N",
        n: 100,
    },
    Event {
        name: "pause-exit",
        what: "a PAUSE-loop exit of a vCPU, beside one that waits for its pCPU",
        command: "taskset 1 baton bench lock-ticket --vcpus 2 --repetitions 1 --seconds 0.N",
        n: 2,
    },
];

/// Counted instructions, by function: the kernel's, and BPF programs'.
#[derive(Clone, Default)]
struct Cost(BTreeMap<String, i64>);

impl Cost {
    fn all(&self) -> i64 {
        self.0.values().sum()
    }

    fn bpf(&self) -> i64 {
        self.0.iter().filter(|(name, _)| name.ends_with("[bpf]")).map(|(_, n)| n).sum()
    }

    /// Of one event, where it happened `n` times more often in `many` than in `few`.
    fn of_one(few: &Cost, many: &Cost, n: i64) -> Cost {
        let of = |cost: &Cost, name: &String| cost.0.get(name).copied().unwrap_or(0);
        let names = few.0.keys().chain(many.0.keys());
        Cost(names.map(|name| (name.clone(), (of(many, name) - of(few, name)) / n)).collect())
    }

    /// The functions that execute most, one a line.
    fn account(&self) -> String {
        let mut rows: Vec<_> = self.0.iter().filter(|(_, n)| n.abs() >= ACCOUNTED).collect();
        rows.sort_by_key(|(_, n)| -**n);
        rows.iter().map(|(name, n)| format!("{n:>8} {name}\n")).collect()
    }
}

/// A host with a scheduler in charge.
fn with(base: &Ready, scheduler: &str) -> Result<Ready> {
    let text = format!("SCHEDULER='{scheduler}'\n{PREPARE}");
    let mut said = String::new();
    let ready = base.prepared(&text, |host| {
        host.begin(&Exec::new(["sh", "-c", &text], DEADLINE), &mut |_, bytes| {
            said += &String::from_utf8_lossy(bytes);
        })
    });
    ready.with_context(|| format!("no host under {scheduler}: {said}"))
}

/// Lets the host do `script`; what it prints at the end.
fn answer(ready: &Ready, script: &str, profile: Option<&Profile>) -> Result<String> {
    let mut host = match profile {
        Some(profile) => ready.restore_profiled(0, profile)?,
        None => ready.restore(0)?,
    };
    let (mut out, mut errors) = (Vec::new(), String::new());
    let exec = Exec { stdin: format!("{script}\n").into_bytes(), ..Exec::new(["sh"], DEADLINE) };
    let status = host.answer(&exec, &mut |stream, bytes| match stream {
        Stream::Out => out.extend_from_slice(bytes),
        Stream::Err => errors += &String::from_utf8_lossy(bytes),
    })?;
    ensure!(status == 0, "{script} ended with {status}: {errors}");
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// What the host's kernel executes in `script`; of guests and user mode nothing.
fn cost(ready: &Ready, script: &str) -> Result<Cost> {
    let profile = Profile::new()?;
    let symbols = answer(ready, script, Some(&profile))?;
    let mut cost = Cost::default();
    for one in by_symbol(&profile.places()?, &symbols) {
        if ["(guest)", "(user)"].contains(&one.symbol.as_str()) {
            continue;
        }
        *cost.0.entry(one.symbol).or_default() += one.instructions as i64;
    }
    Ok(cost)
}

/// How often the event happens in `script`, where nobody can say it beforehand.
fn spins(ready: &Ready, script: &str) -> Result<u64> {
    let text = answer(ready, &format!("{script}{COUNTED_SPINS}"), None)?;
    let line = text.lines().find(|line| line.contains("spins")).context("no count of spins")?;
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).context("no count of spins")
}

/// One of the event; `None` where it does not happen more often when there is more time for it.
fn each(ready: &Ready, event: &Event) -> Result<Option<Cost>> {
    let mut scripts = [event.n, 4 * event.n].map(|n| event.command.replace('N', &n.to_string()));
    let mut times = [event.n, 4 * event.n];
    if event.name == "pause-exit" {
        scripts = scripts.map(|script| SPINS.replace("COMMAND", &script));
        times = [spins(ready, &scripts[0])?, spins(ready, &scripts[1])?];
    }
    if times[1] <= times[0] {
        return Ok(None);
    }
    let [few, many] = [cost(ready, &scripts[0])?, cost(ready, &scripts[1])?];
    Ok(Some(Cost::of_one(&few, &many, (times[1] - times[0]) as i64)))
}

/// All that is executed until the scheduler has taken over.
fn load(base: &Ready, scheduler: &str) -> Result<i64> {
    let profile = Profile::new()?;
    let mut host = base.restore_profiled(0, &profile)?;
    let script = format!(
        "{scheduler} >/run/log 2>&1 & until [ \"$(cat /sys/kernel/sched_ext/state)\" = enabled ]; \
         do sleep 0.1; done"
    );
    let status = host.exec(&Exec::new(["sh", "-c", &script], DEADLINE), &mut |_, _| {})?;
    ensure!(status == 0, "{scheduler} did not take over");
    Ok(profile.places()?.values().sum::<u64>() as i64)
}

struct Arguments {
    json: Option<PathBuf>,
    account: Option<PathBuf>,
    peers: Vec<PathBuf>,
    events: Vec<&'static Event>,
}

/// --json FILE, --account FILE, --peer FILE as often as there are peers, --event NAME for some
/// events alone; cargo adds --bench.
fn arguments() -> Result<Arguments> {
    let (mut json, mut account, mut peers, mut events) = (None, None, Vec::new(), Vec::new());
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--json") => json = Some(words.next().context("--json needs a file")?.into()),
            Some("--account") => {
                account = Some(words.next().context("--account needs a file")?.into());
            }
            Some("--peer") => peers.push(words.next().context("--peer needs a file")?.into()),
            Some("--event") => {
                let name = words.next().context("--event needs a name")?;
                let known = EVENTS.iter().find(|event| name == event.name);
                events.push(known.with_context(|| format!("there is no event {name:?}"))?);
            }
            Some("--bench") => {}
            _ => bail!(
                "{word:?} is not known; --json FILE, --account FILE, --peer FILE, --event NAME"
            ),
        }
    }
    if events.is_empty() {
        events.extend(EVENTS.iter());
    }
    Ok(Arguments { json, account, peers, events })
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn main() -> Result<()> {
    let Arguments { json, account, peers, events } = arguments()?;
    let options = HostOptions {
        mem_mib: 1024,
        exact: Some(Exact::default()),
        extra_bins: peers.clone(),
        ..HostOptions::default()
    };
    let base = Ready::get(&options)?;
    let mut schedulers = vec!["eevdf".to_string()];
    schedulers.extend(peers.iter().map(|peer| name(peer)));
    schedulers.push("scx_baton".into());
    let mut costs: BTreeMap<(&str, &str), Cost> = BTreeMap::new();
    let mut loads = BTreeMap::new();
    for scheduler in &schedulers {
        eprintln!("{scheduler}");
        let command = if scheduler == "eevdf" { "" } else { scheduler };
        if !command.is_empty() {
            loads.insert(scheduler.as_str(), load(&base, command)?);
        }
        let ready = with(&base, command)?;
        for event in &events {
            if let Some(cost) = each(&ready, event)? {
                costs.insert((event.name, scheduler), cost);
            }
        }
    }
    println!("| | | {} |", schedulers.join(" | "));
    println!("|---|---|{}", "---:|".repeat(schedulers.len()));
    for event in &events {
        let fair = costs.get(&(event.name, "eevdf")).map(|cost| cost.all() as f64);
        let cell = |scheduler: &String| {
            let cost = costs.get(&(event.name, scheduler.as_str()));
            let Some(cost) = cost else { return "–".to_string() };
            let (all, bpf) = (cost.all(), cost.bpf());
            match fair {
                _ if scheduler == "eevdf" => format!("{all}"),
                None => format!("{all} ({bpf})"),
                Some(fair) => format!("{all} ({bpf}): {:.2}", all as f64 / fair),
            }
        };
        let cells: Vec<String> = schedulers.iter().map(cell).collect();
        println!("| {} | {} | {} |", event.name, event.what, cells.join(" | "));
    }
    for (scheduler, all) in &loads {
        println!("load of {scheduler}: {all}");
    }
    if let Some(file) = account {
        let one = |((event, scheduler), cost): (&(&str, &str), &Cost)| {
            format!("{event} under {scheduler}\n{}\n", cost.account())
        };
        std::fs::write(&file, costs.iter().map(one).collect::<String>())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = json {
        let table = |pick: fn(&Cost) -> i64| {
            let mut table: BTreeMap<&str, BTreeMap<&str, i64>> = BTreeMap::new();
            for ((event, scheduler), cost) in &costs {
                table.entry(*event).or_default().insert(*scheduler, pick(cost));
            }
            table
        };
        let all = json!({
            "events": table(Cost::all),
            "bpf": table(Cost::bpf),
            "load": loads["scx_baton"],
            "loads": loads,
            "inputs": base.inputs(),
        });
        std::fs::write(&file, format!("{all:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
