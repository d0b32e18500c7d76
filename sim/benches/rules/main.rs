// SPDX-License-Identifier: GPL-2.0-only
//! What each rule of the policy buys: it is left out, and the work of every VM and thread of a grid
//! of scenarios is compared. `make bench-rules`.
#![allow(clippy::print_stderr, clippy::print_stdout)]

mod edits;
mod grid;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail, ensure};
use baton_output::{interrupt, open_all};
use baton_sim::outcome::{Outcome, VmOutcome, simulate};
use baton_sim::sweep::each;
use serde::Serialize;

use edits::rules;
use grid::{Case, cases};

/// A party does less without a rule, or more: work relative to that with it.
const LESS: f64 = 0.9;
/// One whose work changes by more where a turn is a microsecond longer, or shorter, tells nothing.
const CHANCE: f64 = 0.05;
const TURN: &str = "#define TURN_NS (12ULL * 1000 * 1000";
/// So many units of its work tell how much a VM does.
const ENOUGH_WORK: f64 = 20.0;
/// So many of each kind are named in a row.
const NAMED: usize = 3;

/// Work of each VM and thread of the cases by name; of those that ended with an error, why.
#[derive(Default)]
struct Measured {
    work: BTreeMap<String, BTreeMap<String, f64>>,
    failed: Vec<String>,
}

#[derive(Serialize)]
struct Party {
    scenario: String,
    party: String,
    /// Without the rule, of that with it.
    work: f64,
}

#[derive(Serialize)]
struct Row {
    name: String,
    says: String,
    /// Those that do less without it, the least first.
    less: Vec<Party>,
    /// Those that do more, the most first.
    more: Vec<Party>,
    failed: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    scenarios: usize,
    parties: usize,
    rules: Vec<Row>,
}

struct Args {
    policy: PathBuf,
    only: Vec<String>,
    mixtures: u64,
    json: Option<PathBuf>,
}

fn args() -> Result<Args> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../scx_baton/bpf");
    let mut all = Args { policy: own.into(), only: Vec::new(), mixtures: 100, json: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            // Cargo's.
            "--bench" => {}
            "--policy" => all.policy = value()?.into(),
            "--rule" => all.only.extend(value()?.split(',').map(str::to_owned)),
            "--mixtures" => all.mixtures = value()?.parse().context("--mixtures is no number")?,
            "--json" => all.json = Some(value()?.into()),
            _ => bail!("unknown argument {word}; there are --policy, --rule, --mixtures, --json"),
        }
    }
    Ok(all)
}

/// Units of work of the VMs, CPU time of the threads. What the threads of an attack get is nobody's
/// gain.
fn parties(case: &Case, outcome: &Outcome, seconds: f64) -> BTreeMap<String, f64> {
    let units = |(at, vm): (usize, &VmOutcome)| (format!("VM {at}"), vm.rate * seconds);
    let vms = outcome.vms.iter().enumerate().map(units);
    let threads = outcome.threads_used.iter().filter(|_| !case.name.starts_with("attack-"));
    let threads = threads.enumerate().map(|(at, used)| (format!("thread {at}"), *used));
    vms.chain(threads).collect()
}

/// Writes the policy in `from` to the directory `to`, as the simulator compiles it, with another
/// `text` in one of its files. Where its source is.
fn write(from: &Path, to: &Path, file: &str, text: String) -> Result<PathBuf> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            fs::copy(&path, to.join(name))?;
        }
    }
    fs::write(to.join(file), text)?;
    let source = to.join("baton.bpf.c");
    let shim = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/baton.c");
    fs::copy(shim, &source).with_context(|| format!("cannot copy {shim}"))?;
    Ok(source)
}

/// Simulates all cases with one of the policy's files edited.
fn measure(cases: &[Case], policy: &Path, file: &str, text: String) -> Result<Measured> {
    let dir = tempfile::tempdir()?;
    let source = write(policy, dir.path(), file, text)?;
    let source = source.to_str().context("the temporary directory is no UTF-8")?;
    let jobs = available_parallelism().map_or(1, usize::from);
    let one = |at: usize| {
        let scenario = cases[at].scenario(source)?;
        simulate(&scenario).map(|(outcome, _)| parties(&cases[at], &outcome, scenario.seconds))
    };
    let mut all = Measured::default();
    for (case, result) in cases.iter().zip(each(cases.len(), jobs, interrupt::asked, one)) {
        interrupt::check()?;
        match result.context("a simulation has no result")? {
            Ok(work) => drop(all.work.insert(case.name.clone(), work)),
            Err(error) => all.failed.push(format!("{}: {error:#}", case.name)),
        }
    }
    Ok(all)
}

/// Work relative to that of `base`, of each who is in both.
fn compare(base: &Measured, other: &Measured) -> Vec<Party> {
    let mut all = Vec::new();
    for (scenario, parties) in &base.work {
        for (party, work) in parties {
            let found = other.work.get(scenario).and_then(|all| all.get(party));
            let Some(changed) = found else { continue };
            let (scenario, party) = (scenario.clone(), party.clone());
            all.push(Party { scenario, party, work: changed / work });
        }
    }
    all.sort_by(|a, b| a.work.total_cmp(&b.work));
    all
}

fn named(parties: &[Party]) -> String {
    let one = |p: &Party| format!("{} ({}) {:.2}", p.scenario, p.party, p.work);
    parties.iter().take(NAMED).map(one).collect::<Vec<_>>().join("; ")
}

fn main() -> Result<()> {
    interrupt::install();
    let args = args()?;
    let rules = rules()?;
    for name in &args.only {
        ensure!(rules.iter().any(|rule| rule.name == *name), "there is no rule \"{name}\"");
    }
    let [json] = open_all([("--json", args.json.as_deref())], &[])?;
    let cases = cases(args.mixtures)?;
    let read = |name: &str| {
        let path = args.policy.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };

    eprintln!("{} scenarios with all rules, and twice with another turn", cases.len());
    let whole = read("policy.h")?;
    ensure!(whole.contains(TURN), "policy.h does not define TURN_NS as {TURN}…");
    let mut base = measure(&cases, &args.policy, "policy.h", whole.clone())?;
    ensure!(base.failed.is_empty(), "with all rules: {}", base.failed.join("; "));
    for parties in base.work.values_mut() {
        let few = |party: &String, work: f64| party.starts_with("VM ") && work < ENOUGH_WORK;
        parties.retain(|party, work| *work > 0.0 && !few(party, *work));
    }
    for other in [" + 1000", " - 1000"] {
        let text = whole.replace(TURN, &format!("{TURN}{other}"));
        let turned = measure(&cases, &args.policy, "policy.h", text)?;
        for party in compare(&base, &turned) {
            if (party.work - 1.0).abs() > CHANCE
                && let Some(parties) = base.work.get_mut(&party.scenario)
            {
                parties.remove(&party.party);
            }
        }
    }
    let parties = base.work.values().map(BTreeMap::len).sum();
    let mut report = Report { scenarios: cases.len(), parties, rules: Vec::new() };
    println!("{} scenarios, {} VMs and threads", report.scenarios, report.parties);
    println!("| without | less | more | the least, and the most |");
    println!("|---|---:|---:|---|");
    for rule in rules.iter().filter(|r| args.only.is_empty() || args.only.contains(&r.name)) {
        let text = rule.without(&read(&rule.file)?)?;
        let without = measure(&cases, &args.policy, &rule.file, text)?;
        let (mut less, mut more) = (compare(&base, &without), Vec::new());
        while let Some(party) = less.pop_if(|party| party.work > 1.0 / LESS) {
            more.push(party);
        }
        less.truncate(less.partition_point(|party| party.work < LESS));
        let examples = [named(&less), named(&more)].join("; ");
        let (l, m) = (less.len(), more.len());
        println!("| {} (`{}`) | {l} | {m} | {examples} |", rule.says, rule.name);
        for error in &without.failed {
            eprintln!("{} fails without {}", error, rule.name);
        }
        let (name, says) = (rule.name.clone(), rule.says.clone());
        report.rules.push(Row { name, says, less, more, failed: without.failed });
        if let Some(json) = &json {
            json.keep(&serde_json::to_string_pretty(&report)?)?;
        }
    }
    if let Some(json) = json {
        json.finish(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    Ok(())
}
