// SPDX-License-Identifier: GPL-2.0-only
//! `baton sim`: hosts of any size, simulated, under any scheduler.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use baton_sim::explain::explain;
use baton_sim::fuzz::{fuzz, generate};
use baton_sim::outcome::{Outcome, short, simulate, simulate_traced};
use baton_sim::reproduce::{reproduce, verdict};
use baton_sim::scenario::{MACHINES, SCENARIOS, Scenario};
use baton_sim::sweep::{Point, axis, points, sweep};
use baton_sim::workload;
use baton_testbed::columns::aligned;
use baton_testbed::stats::{median, paired_ratio, range};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::files::{replace, writable};

/// Simulates KVM hosts: scx_baton's own source, the kernel's schedulers, any VMs, the same result every
/// time.
#[derive(Subcommand)]
pub enum Sim {
    /// Simulate one scenario
    Run(Run),
    /// The same scenario with one key varied, side by side, for several seeds
    Compare(Compare),
    /// All combinations of several keys, on all cores
    Sweep(Sweep),
    /// The scenarios, machines, workloads and schedulers that come with the simulator
    List,
    /// What a scenario says, in words, with every default
    Explain(Named),
    /// The tables and claims of the seed documents: theirs, ours, and what agrees
    Reproduce(Reproduce),
    /// Random scenarios with faults, and invariants that must hold: the scheduler's test rig
    Fuzz(Fuzz),
}

#[derive(Args)]
pub struct Named {
    /// A file (TOML), "-" for standard input, or a name of 'baton sim list'
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Change a key: scheduler=scx_baton, kvm.on-spin=kernel, vm.0.vcpus=8, vm.vcpus=8 (of all VMs)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    named: Named,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write everything that happens to this file, for ui.perfetto.dev; simulate a short time then
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

#[derive(Args)]
pub struct Compare {
    #[command(flatten)]
    named: Named,
    /// What to vary, and its values; the first is what the others are compared with
    #[arg(long, value_name = "KEY=A,B,…")]
    vary: String,
    /// Seeds of each, from 1
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Simulations at once [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
pub struct Sweep {
    #[command(flatten)]
    named: Named,
    /// What to vary, and its values; several times for all combinations
    #[arg(long, value_name = "KEY=A,B,…", required = true)]
    vary: Vec<String>,
    /// Simulations at once [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One line for each VM of each point to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

#[derive(Args)]
pub struct Reproduce {
    /// Simulations at once [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Write all rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
pub struct Fuzz {
    /// One scenario for each of these numbers, the second one excluded
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds)]
    seeds: (u64, u64),
    /// Go on from there until so much time has passed
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    #[arg(long, value_name = "NAME", default_value = "scx_baton")]
    scheduler: String,
    /// Simulations at once [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Print the scenario of the first number, and simulate nothing
    #[arg(long)]
    show: bool,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.filter(|(a, b)| a < b).ok_or_else(|| "write 0..1000".to_string())
}

/// To standard output. If nobody reads on, nobody misses the rest.
fn show(text: &str) {
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Returns the exit status.
pub fn main(what: Sim) -> i32 {
    let result = match &what {
        Sim::Run(run) => self::run(run),
        Sim::Compare(compare) => self::compare(compare),
        Sim::Sweep(sweep) => self::sweep_all(sweep),
        Sim::Reproduce(options) => self::reproduce_all(options),
        Sim::Fuzz(fuzz) => self::fuzz_all(fuzz),
        Sim::List => {
            list();
            Ok(())
        }
        Sim::Explain(named) => named.scenario().and_then(|scenario| {
            show(&explain(&scenario)?);
            Ok(())
        }),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("baton sim: {error:#}");
            1
        }
    }
}

impl Named {
    fn text(&self) -> Result<String> {
        if self.scenario == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            return Ok(text);
        }
        Scenario::text(&self.scenario)
    }

    fn changes(&self) -> Result<Point> {
        let change = |text: &String| {
            let (key, value) = text
                .split_once('=')
                .with_context(|| format!("--set \"{text}\" is not key=value"))?;
            Ok((key.to_string(), value.to_string()))
        };
        self.changes.iter().map(change).collect()
    }

    fn scenario(&self) -> Result<Scenario> {
        Scenario::parse(&self.text()?, &self.changes()?)
            .with_context(|| format!("scenario {}", self.scenario))
    }
}

fn run(run: &Run) -> Result<()> {
    let scenario = run.named.scenario()?;
    if let Some(file) = &run.json {
        writable(file)?;
    }
    let (outcome, speed) = match &run.trace {
        None => simulate(&scenario)?,
        Some(file) => {
            let (outcome, speed, cut) = simulate_traced(&scenario, file)?;
            if cut {
                eprintln!(
                    "the trace ends early, it would be too large: simulate less (--set seconds=0.1)"
                );
            }
            (outcome, speed)
        }
    };
    let mut text = outcome.table();
    for (name, count) in &outcome.scheduler_counters {
        text += &format!("{name} {count}  ");
    }
    text += &format!(
        "\n{} events, {:.2} simulated seconds in {:.2} s: {} events/s, {:.0} MiB\n",
        outcome.events,
        outcome.sim_s,
        speed.wall_s,
        short(speed.events_per_s),
        speed.peak_rss_mib
    );
    show(&text);
    if let Some(file) = &run.json {
        let mut json = json!(outcome);
        for (key, value) in json!(speed).as_object().into_iter().flatten() {
            json[key] = value.clone();
        }
        replace(file, &format!("{json:#}\n"))?;
    }
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// On a terminal, one line.
fn progress(done: usize, all: usize) {
    if io::stderr().is_terminal() {
        let end = if done == all { "\r\x1b[K" } else { "" };
        eprint!("\r{done} of {all} simulated{end}");
    }
}

fn compare(compare: &Compare) -> Result<()> {
    let (key, values) = axis(&compare.vary)?;
    ensure!(values.len() > 1, "--vary {key} has one value only");
    let (text, base) = (compare.named.text()?, compare.named.changes()?);
    if let Some(file) = &compare.json {
        writable(file)?;
    }
    let seeds: Vec<String> = (1..=compare.seeds).map(|seed| seed.to_string()).collect();
    let all = points(&[(key.clone(), values.clone()), ("seed".into(), seeds)]);
    let jobs = compare.jobs.map_or_else(cores, |jobs| jobs as usize);
    let results = sweep(&text, &base, &all, jobs, |done| progress(done, all.len()));
    let n = compare.seeds as usize;
    let mut rows = vec![
        [
            key.as_str(),
            "work/s",
            "spread",
            "× first [95 %]",
            "Jain",
            "PLE/s",
            "yields/s",
            "IPIs/s",
            "longest wait ms",
        ]
        .map(String::from)
        .to_vec(),
    ];
    let mut failures = Vec::new();
    let rates = |place: usize| -> Vec<Option<f64>> {
        let of = &results[place * n..(place + 1) * n];
        of.iter().map(|result| result.as_ref().ok().map(Outcome::rate)).collect()
    };
    let first = rates(0);
    for (place, value) in values.iter().enumerate() {
        let of = &results[place * n..(place + 1) * n];
        failures.extend(of.iter().filter_map(|result| {
            result.as_ref().err().map(|why| format!("{key} = {value}: {why}"))
        }));
        let outcomes: Vec<&Outcome> = of.iter().flatten().collect();
        let figure = |figure: fn(&Outcome) -> f64| {
            median(&outcomes.iter().map(|outcome| figure(outcome)).collect::<Vec<_>>())
        };
        let all: Vec<f64> = outcomes.iter().map(|outcome| outcome.rate()).collect();
        let pairs: Vec<(f64, f64)> =
            rates(place).into_iter().zip(&first).filter_map(|(a, b)| a.zip(*b)).collect();
        let ratio = paired_ratio(&pairs).map_or("–".into(), |ratio| match ratio.interval {
            Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}]", ratio.ratio),
            None => format!("{:.2}", ratio.ratio),
        });
        let spread = range(&all).zip(median(&all));
        let spread = spread.map_or("–".into(), |((low, high), m)| {
            format!("{:.0} %", (high - low) / 2.0 / m * 100.0)
        });
        let number = |value: Option<f64>| value.map_or("–".into(), short);
        rows.push(vec![
            value.clone(),
            number(median(&all)),
            spread,
            if place == 0 { "–".into() } else { ratio },
            figure(|o| o.jain.unwrap_or(f64::NAN))
                .filter(|jain| jain.is_finite())
                .map_or("–".into(), |jain| format!("{jain:.3}")),
            number(figure(|o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())),
            number(figure(|o| o.vms.iter().map(|vm| vm.yields_per_s).sum())),
            number(figure(|o| o.vms.iter().map(|vm| vm.ipis_per_s).sum())),
            number(figure(|o| o.longest_wait_ms)),
        ]);
    }
    show(&aligned(&rows, false));
    if let Some(file) = &compare.json {
        save(file, &all, &results)?;
    }
    failed(&failures, results.len())
}

fn sweep_all(sweep_: &Sweep) -> Result<()> {
    let axes = sweep_.vary.iter().map(|text| axis(text)).collect::<Result<Vec<_>>>()?;
    let (text, base) = (sweep_.named.text()?, sweep_.named.changes()?);
    for file in sweep_.json.iter().chain(&sweep_.csv) {
        writable(file)?;
    }
    let n = axes.iter().map(|(_, values)| values.len()).fold(1usize, usize::saturating_mul);
    ensure!(n <= 1_000_000, "{n} points are too many; at most a million");
    let all = points(&axes);
    let jobs = sweep_.jobs.map_or_else(cores, |jobs| jobs as usize);
    let results = sweep(&text, &base, &all, jobs, |done| progress(done, all.len()));
    let keys: Vec<String> = axes.iter().map(|(key, _)| key.clone()).collect();
    let mut rows = vec![keys.clone()];
    rows[0].extend(["work/s", "Jain", "PLE/s", "longest wait ms"].map(String::from));
    let mut csv =
        format!("{},vm,work_per_s,used,ready,ple_per_s,late_p50_ns,late_p99_ns\n", keys.join(","));
    let mut failures = Vec::new();
    for (point, result) in all.iter().zip(&results) {
        let mut row: Vec<String> = point.iter().map(|(_, value)| value.clone()).collect();
        match result {
            Ok(o) => {
                for (vm, of) in o.vms.iter().enumerate() {
                    let late = |which: fn(&baton_sim::outcome::Lateness) -> u64| {
                        of.lateness.as_ref().map_or(String::new(), |late| which(late).to_string())
                    };
                    let quoted = point.iter().map(|(_, value)| value.replace(',', ";"));
                    csv += &format!(
                        "{},{vm},{},{},{},{},{},{}\n",
                        quoted.collect::<Vec<_>>().join(","),
                        of.rate,
                        of.used,
                        of.ready,
                        of.ple_exits_per_s,
                        late(|late| late.p50),
                        late(|late| late.p99)
                    );
                }
                row.extend([
                    short(o.rate()),
                    o.jain.map_or("–".into(), |jain| format!("{jain:.3}")),
                    short(o.vms.iter().map(|vm| vm.ple_exits_per_s).sum()),
                    short(o.longest_wait_ms),
                ]);
            }
            Err(why) => {
                let point: Vec<String> =
                    point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                failures.push(format!("{}: {why}", point.join(", ")));
                row.extend(["failed", "–", "–", "–"].map(String::from));
            }
        }
        rows.push(row);
    }
    show(&aligned(&rows, false));
    if let Some(file) = &sweep_.csv {
        replace(file, &csv)?;
    }
    if let Some(file) = &sweep_.json {
        save(file, &all, &results)?;
    }
    failed(&failures, results.len())
}

fn save(
    file: &std::path::Path,
    points: &[Point],
    results: &[Result<Outcome, String>],
) -> Result<()> {
    let entry = |(point, result): (&Point, &Result<Outcome, String>)| {
        let point: serde_json::Map<String, Value> =
            point.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        match result {
            Ok(outcome) => json!({"point": point, "outcome": outcome}),
            Err(why) => json!({"point": point, "error": why}),
        }
    };
    let all: Vec<Value> = points.iter().zip(results).map(entry).collect();
    replace(file, &format!("{:#}\n", json!(all)))
}

fn reproduce_all(options: &Reproduce) -> Result<()> {
    if let Some(file) = &options.json {
        writable(file)?;
    }
    let jobs = options.jobs.map_or_else(cores, |jobs| jobs as usize);
    let rows = reproduce(jobs, |part| {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K{part}");
        }
    })?;
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let mut table = vec![
        ["claim", "seed", "theirs", "ours", "ratio", "sign", "rank", "within 1.5", ""]
            .map(String::from)
            .to_vec(),
    ];
    let percent = |value: f64| format!("{:+.1} %", value * 100.0);
    let tick = |fine: bool| if fine { "yes" } else { "no" }.to_string();
    for row in &rows {
        table.push(vec![
            row.claim.clone(),
            row.seed.into(),
            row.theirs.map_or("–".into(), percent),
            percent(row.ours),
            row.ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")),
            tick(row.sign_ok),
            tick(row.rank_ok),
            row.within_1_5.map_or("–".into(), tick),
            if row.emergent { "" } else { "input" }.into(),
        ]);
    }
    show(&aligned(&table, false));
    let (emergent, agree, near) = verdict(&rows);
    let mut text = format!(
        "\nOf {emergent} rows that come out of the interplay {agree} agree in sign and rank, {near} are \
         within a factor of 1.5.\n"
    );
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        text += &format!("{}: {}\n", row.claim, row.note);
    }
    show(&text);
    if let Some(file) = &options.json {
        replace(file, &format!("{:#}\n", json!(rows)))?;
    }
    Ok(())
}

fn fuzz_all(options: &Fuzz) -> Result<()> {
    let (first, last) = options.seeds;
    if options.show {
        show(&generate(first, &options.scheduler));
        return Ok(());
    }
    let start = Instant::now();
    let (next, events) = (AtomicU64::new(first), AtomicU64::new(0));
    let failures = Mutex::new(Vec::new());
    let more = |seed: u64| match options.seconds {
        Some(seconds) => start.elapsed().as_secs() < seconds,
        None => seed < last,
    };
    let jobs = options.jobs.map_or_else(cores, |jobs| jobs as usize);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if !more(seed) {
                        return;
                    }
                    match fuzz(seed, &options.scheduler) {
                        Ok(n) => drop(events.fetch_add(n, Relaxed)),
                        Err(failure) => {
                            eprintln!("seed {}: {}", failure.seed, failure.why);
                            if let Ok(mut all) = failures.lock() {
                                all.push(failure);
                            }
                        }
                    }
                    if options.seconds.is_none() {
                        progress((seed - first + 1) as usize, (last - first) as usize);
                    }
                }
            });
        }
    });
    let done = next.load(Relaxed) - first - jobs as u64;
    show(&format!(
        "{done} scenarios from seed {first} on, {} events in {:.0} s, under {}\n",
        events.load(Relaxed),
        start.elapsed().as_secs_f64(),
        options.scheduler
    ));
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort_by_key(|failure| failure.seed);
    for failure in &failures {
        let file = format!("fuzz-{}.toml", failure.seed);
        replace(file.as_ref(), &failure.scenario)?;
        show(&format!("seed {}: {}\n  again: baton sim run {file}\n", failure.seed, failure.why));
    }
    if !failures.is_empty() {
        bail!("{} of {done} scenarios broke an invariant", failures.len());
    }
    Ok(())
}

fn failed(failures: &[String], all: usize) -> Result<()> {
    let mut last = "";
    for failure in failures {
        // Seeds fail alike more often than not.
        if failure != last {
            eprintln!("{failure}");
        }
        last = failure;
    }
    if !failures.is_empty() {
        bail!("{} of {all} simulations failed, see above", failures.len());
    }
    Ok(())
}

fn list() {
    let mut out = io::stdout().lock();
    let mut section = |title: &str, lines: Vec<(String, String)>| {
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = format!("{title}\n");
        for (name, what) in lines {
            text += &format!("  {name:<width$}  {what}\n");
        }
        // Nobody reads on: then nobody misses the rest.
        let _ = writeln!(out, "{text}");
    };
    let about = |text: &str| {
        let first = text.lines().find_map(|line| line.strip_prefix("about = "));
        first.unwrap_or_default().trim_matches('"').to_string()
    };
    section(
        "Scenarios:",
        SCENARIOS.iter().map(|(name, text)| (name.to_string(), about(text))).collect(),
    );
    let comment =
        |text: &str| text.lines().next().unwrap_or_default().trim_start_matches("# ").to_string();
    section(
        "Machines:",
        MACHINES.iter().map(|(name, text)| (name.to_string(), comment(text))).collect(),
    );
    section(
        "Workloads:",
        workload::list().iter().map(|(name, what)| (name.to_string(), what.to_string())).collect(),
    );
    let schedulers = [
        ("cfs", "the kernel's, with its buddies (Linux 2.6.24 to 6.5)"),
        ("eevdf", "the kernel's (6.6 on)"),
        ("cfs-debooster, eevdf-debooster", "the same; the spinner is held back (seed 001)"),
        ("scx_baton", "Baton's own BPF source"),
        ("scx_fifo, scx_vtime", "small examples (sim/examples)"),
        ("FILE.bpf.c", "any sched_ext scheduler in BPF C; it is compiled with clang"),
    ];
    section(
        "Schedulers:",
        schedulers.map(|(name, what)| (name.to_string(), what.to_string())).to_vec(),
    );
}
