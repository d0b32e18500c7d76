// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a look-up costs: this crate, what KVM did before and after its look-up was optimized in
//! 2014 (Mammedov 2014), vm-memory, and maps that one might use instead.
//!
//! Every look-up waits for the one before it, as a VMM cannot go on before it has the slot. All
//! take turns, in many short rounds, so that a machine that slows down slows them all.

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use memslots::{Flags, GuestRegions, MemSlots, Slot, Snapshot};
use rangemap::RangeMap;
use serde_json::{Map, Value, json};
use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

/// One to four: no search should lose against looking at all of them. 13 and 117: Mammedov 2014.
/// 509: what KVM allowed for years. 32,764: what it allows now.
const SLOTS: [usize; 7] = [1, 2, 4, 13, 117, 509, 32_764];

const PATTERNS: [&str; 3] = ["same", "boot", "random"];

/// Look-ups before a sequence repeats: more than a branch predictor learns.
const SEQUENCE: usize = 1 << 16;

#[derive(Parser)]
struct Options {
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds; each has a batch of look-ups of every contestant
    #[arg(long, default_value_t = 41)]
    rounds: usize,
    /// For the instruction count: contestant, slots, pattern, look-ups, and no clock
    #[arg(long, num_args = 4, hide = true)]
    count: Vec<String>,
    /// cargo bench says this
    #[arg(long, hide = true)]
    bench: bool,
}

/// Looks up a sequence of frames and returns the sum of what was found.
type Lookups<'a> = Box<dyn FnMut(&[u64]) -> u64 + 'a>;

fn main() -> Result<()> {
    let options = Options::parse();
    if let [name, slots, pattern, lookups] = &options.count[..] {
        return count_here(name, slots.parse()?, pattern, lookups.parse()?);
    }
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    let valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !valgrind {
        eprintln!("instructions are not counted: there is no valgrind");
    }
    let mut json = json!({});
    for pattern in PATTERNS {
        println!("\n{pattern}: ns per look-up (instructions)\n");
        let names: Vec<&str> = contestants(&layout(1)).into_iter().map(|(name, _)| name).collect();
        println!("| slots | {} |", names.join(" | "));
        println!("|{}", "---|".repeat(names.len() + 1));
        for slots in SLOTS {
            progress(&format!("{pattern}, {slots} slots"));
            let results = measure(slots, pattern, options.rounds)?;
            let mut cells = Vec::new();
            for (name, ns) in &results {
                let key = slots.to_string();
                json["slots"][&key][pattern][*name] = json!(round(ns.median));
                json["spread"][&key][pattern][*name] = json!([round(ns.low), round(ns.high)]);
                let mut text = format!("{:.1}", ns.median);
                if valgrind {
                    let instructions = instructions(name, slots, pattern)?;
                    json["instructions"][&key][pattern][*name] = json!(instructions);
                    text += &format!(" ({instructions})");
                }
                cells.push(text);
            }
            progress("");
            println!("| {slots} | {} |", cells.join(" | "));
            save(&options.json, &json)?;
        }
    }
    json["threads"] = threads();
    save(&options.json, &json)
}

fn save(file: &Option<PathBuf>, json: &Value) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    fs::write(file, format!("{json:#}\n"))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// On a terminal only.
fn progress(what: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r{what:40}\r");
    }
}

fn round(ns: f64) -> f64 {
    (ns * 100.0).round() / 100.0
}

/// Slots of 1 to 64 pages; behind every fourth is a hole.
fn layout(n: usize) -> Vec<Slot<u64>> {
    let mut random = random();
    let mut base_gfn = 0x100;
    (0..n as u32)
        .map(|id| {
            let slot = Slot {
                id,
                flags: Flags::NONE,
                base_gfn,
                npages: 1 + random() % 64,
                backing: base_gfn << 12,
            };
            base_gfn =
                slot.end_gfn() + if random().is_multiple_of(4) { 1 + random() % 64 } else { 0 };
            slot
        })
        .collect()
}

/// xorshift64*: always the same sequence.
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

/// `same`: always one slot. `boot`: of three slots, mostly the same as before, as Mammedov 2014
/// says of guests that boot; 15 times of 16. `random`: any.
fn sequence(slots: &[Slot<u64>], pattern: &str) -> Result<Vec<u64>> {
    let mut random = random();
    let any = |random: &mut dyn FnMut() -> u64| random() as usize % slots.len();
    let favourites = [any(&mut random), any(&mut random), any(&mut random)];
    let mut slot = favourites[0];
    let mut next = |random: &mut dyn FnMut() -> u64| match pattern {
        "same" => Ok(slot),
        "random" => Ok(any(random)),
        "boot" => {
            if random().is_multiple_of(16) {
                slot = favourites[random() as usize % 3];
            }
            Ok(slot)
        }
        _ => bail!("no pattern {pattern}"),
    };
    (0..SEQUENCE)
        .map(|_| {
            let slot = &slots[next(&mut random)?];
            Ok(slot.base_gfn + random() % slot.npages)
        })
        .collect()
}

/// All of them return the first frame of the slot.
fn contestants(slots: &[Slot<u64>]) -> Vec<(&'static str, Lookups<'_>)> {
    // An own copy each: neighbours in memory must not help.
    let own = || slots.to_vec();
    let base = |slot: &Slot<u64>| slot.base_gfn;

    let snapshot = Snapshot::try_from(own()).expect("a layout without overlaps");
    let mut reader = MemSlots::from(snapshot.clone()).reader();

    // What the check of one slot costs, whichever slot it is: nobody can be faster.
    let one = own();
    let check = move |gfn| match &one[0] {
        slot if slot.contains(gfn) => slot.base_gfn,
        _ => gfn,
    };
    let mut by_size = own();
    by_size.sort_by_key(|slot| std::cmp::Reverse(slot.npages));
    let linear = by_size.clone();
    let last = AtomicUsize::new(0);
    let mut by_frame = own();
    by_frame.sort_by_key(|slot| std::cmp::Reverse(slot.base_gfn));
    let last_found = AtomicUsize::new(0);

    let bytes = |slot: &Slot<u64>| (GuestAddress(slot.base_gfn << 12), slot.npages as usize * 4096);
    let ranges: Vec<_> = slots.iter().map(bytes).collect();
    let mmap = GuestMemoryMmap::<()>::from_ranges(&ranges).expect("regions in order");
    let regions: Vec<_> = ranges
        .iter()
        .map(|(at, size)| GuestRegionMmap::<()>::from_range(*at, *size, None).expect("a mapping"))
        .collect();
    let regions = GuestRegions::from_regions(regions).expect("regions in order");
    let tree: BTreeMap<u64, Slot<u64>> = own().into_iter().map(|s| (s.base_gfn, s)).collect();
    let intervals: RangeMap<u64, Slot<u64>> =
        own().into_iter().map(|slot| (slot.base_gfn..slot.end_gfn(), slot)).collect();

    vec![
        ("bounds-check", chain(check)),
        ("memslots", chain(move |gfn| reader.find(gfn).map_or(0, base))),
        ("memslots-no-hint", chain(move |gfn| snapshot.find(gfn).map_or(0, base))),
        ("linear", chain(move |gfn| linear.iter().find(|s| s.contains(gfn)).map_or(0, base))),
        ("linear-last-used", chain(move |gfn| linear_last_used(&by_size, &last, gfn))),
        ("binary-last-used", chain(move |gfn| binary_last_used(&by_frame, &last_found, gfn))),
        ("vm-memory", chain(move |gfn| region(&mmap, gfn))),
        ("memslots-for-vm-memory", chain(move |gfn| region(&regions, gfn))),
        (
            "BTreeMap",
            chain(move |gfn| {
                let found = tree.range(..=gfn).next_back().map(|(_, slot)| slot);
                found.filter(|slot| slot.contains(gfn)).map_or(0, base)
            }),
        ),
        ("rangemap", chain(move |gfn| intervals.get(&gfn).map_or(0, base))),
    ]
}

/// Each frame is known only when the slot before it is.
fn chain<'a>(mut find: impl FnMut(u64) -> u64 + 'a) -> Lookups<'a> {
    Box::new(move |gfns| {
        let zero = black_box(0);
        let (mut sum, mut last) = (0u64, 0);
        for gfn in gfns {
            last = find(gfn + (last & zero));
            sum = sum.wrapping_add(last);
        }
        sum
    })
}

/// `search_memslots()` after the first patch of Mammedov 2014; before it, without `last`.
fn linear_last_used(slots: &[Slot<u64>], last: &AtomicUsize, gfn: u64) -> u64 {
    if let Some(slot) = slots.get(last.load(Ordering::Relaxed)).filter(|slot| slot.contains(gfn)) {
        return slot.base_gfn;
    }
    for (place, slot) in slots.iter().enumerate() {
        if slot.contains(gfn) {
            last.store(place, Ordering::Relaxed);
            return slot.base_gfn;
        }
    }
    0
}

/// `search_memslots()` after Mammedov 2014; slots with the highest frame first, as there.
fn binary_last_used(slots: &[Slot<u64>], last: &AtomicUsize, gfn: u64) -> u64 {
    if let Some(slot) = slots.get(last.load(Ordering::Relaxed)).filter(|slot| slot.contains(gfn)) {
        return slot.base_gfn;
    }
    let (mut start, mut end) = (0, slots.len());
    while start < end {
        let place = start + (end - start) / 2;
        if gfn >= slots[place].base_gfn {
            end = place;
        } else {
            start = place + 1;
        }
    }
    match slots.get(start).filter(|slot| slot.contains(gfn)) {
        Some(slot) => {
            last.store(start, Ordering::Relaxed);
            slot.base_gfn
        }
        None => 0,
    }
}

fn region(memory: &impl GuestMemoryBackend, gfn: u64) -> u64 {
    memory
        .find_region(GuestAddress(gfn << 12))
        .map_or(0, |region| region.start_addr().raw_value() >> 12)
}

struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    /// Median and quartiles.
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
        Spread { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

/// Nanoseconds per look-up.
fn measure(slots: usize, pattern: &str, rounds: usize) -> Result<Vec<(&'static str, Spread)>> {
    let slots = layout(slots);
    let gfns = sequence(&slots, pattern)?;
    let mut all = contestants(&slots);
    let mut ns = vec![Vec::new(); all.len()];
    let expected = |gfns: &[u64]| gfns.iter().map(|gfn| naive(&slots, *gfn)).sum::<u64>();
    let right = expected(&gfns[..1000]);
    for (name, lookups) in all.iter_mut().filter(|(name, _)| *name != "bounds-check") {
        ensure!(lookups(&gfns[..1000]) == right, "{name} finds wrong slots");
    }
    // About half a millisecond: shorter than what else the machine does, longer than its clock.
    let batches: Vec<usize> = all.iter_mut().map(|(_, lookups)| batch(lookups, &gfns)).collect();
    for round in 0..rounds {
        for turn in 0..all.len() {
            let who = (turn + round) % all.len();
            let at = (round * 7919) % (gfns.len() - batches[who] + 1);
            let gfns = &gfns[at..at + batches[who]];
            let start = Instant::now();
            black_box((all[who].1)(gfns));
            ns[who].push(start.elapsed().as_nanos() as f64 / gfns.len() as f64);
        }
    }
    Ok(all.iter().map(|(name, _)| *name).zip(ns.into_iter().map(Spread::of)).collect())
}

fn naive(slots: &[Slot<u64>], gfn: u64) -> u64 {
    let at = slots.partition_point(|slot| slot.end_gfn() <= gfn);
    slots[at].base_gfn
}

fn batch(lookups: &mut Lookups<'_>, gfns: &[u64]) -> usize {
    let mut n = 64;
    loop {
        let start = Instant::now();
        black_box(lookups(&gfns[..n]));
        if n == gfns.len() || start.elapsed() > Duration::from_micros(300) {
            return n;
        }
        n *= 2;
    }
}

/// Instructions per look-up: those of a process that does 2n, less those of one that does n.
fn instructions(name: &str, slots: usize, pattern: &str) -> Result<u64> {
    let n = 2000;
    Ok((counted(name, slots, pattern, 2 * n)? - counted(name, slots, pattern, n)?) / n)
}

fn counted(name: &str, slots: usize, pattern: &str, n: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .arg("--count")
        .args([name, &slots.to_string(), pattern, &n.to_string()])
        .output()
        .context("cannot start valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split("Collected :").nth(1));
    collected
        .and_then(|number| number.trim().parse().ok())
        .with_context(|| format!("valgrind counted nothing:\n{text}"))
}

fn count_here(name: &str, slots: usize, pattern: &str, n: usize) -> Result<()> {
    let slots = layout(slots);
    let gfns = sequence(&slots, pattern)?;
    let mut all = contestants(&slots);
    let (_, lookups) =
        all.iter_mut().find(|(other, _)| *other == name).context("no such contestant")?;
    black_box(lookups(gfns.get(..n).context("too many look-ups")?));
    Ok(())
}

/// Two readers in three slots each, alone, together, and with a third thread that updates a
/// thousand times a second: nanoseconds per look-up of one reader.
fn threads() -> Value {
    let slots = layout(117);
    println!("\nreaders in different slots of 117, ns per look-up of each\n");
    println!("| | one reader | two readers | two, and an update every ms |");
    println!("|---|---|---|---|");
    let mut json = Map::new();
    for (name, shared) in [("memslots", false), ("binary-last-used", true)] {
        let cases = [(1, false), (2, false), (2, true)];
        let mut ns = vec![Vec::new(); cases.len()];
        for _ in 0..15 {
            for (case, (readers, update)) in cases.iter().enumerate() {
                // KVM's has no updates here: it is shown for the line that its readers share.
                if !(shared && *update) {
                    ns[case].push(read_together(&slots, *readers, *update, shared));
                }
            }
        }
        let ns: Vec<Option<f64>> = ns
            .into_iter()
            .map(|ns| (!ns.is_empty()).then(|| round(Spread::of(ns).median)))
            .collect();
        let text = |ns: Option<f64>| ns.map_or("–".into(), |ns| format!("{ns:.1}"));
        println!("| {name} | {} | {} | {} |", text(ns[0]), text(ns[1]), text(ns[2]));
        json.insert(name.into(), json!({"one": ns[0], "two": ns[1], "two_and_updates": ns[2]}));
    }
    Value::Object(json)
}

/// Mean over the readers, ns.
fn read_together(slots: &[Slot<u64>], readers: usize, update: bool, shared: bool) -> f64 {
    let mut map = MemSlots::from(Snapshot::try_from(slots.to_vec()).expect("no overlaps"));
    let mut by_frame = slots.to_vec();
    by_frame.reverse();
    let last = AtomicUsize::new(0);
    let (by_frame, last) = (&by_frame, &last);
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let all: Vec<_> = (0..readers)
            .map(|which| {
                let mut reader = map.reader();
                // Each stays in its own half of the slots.
                let mine = &slots[which * slots.len() / 2..][..slots.len() / 2];
                let gfns = sequence(mine, "boot").expect("a known pattern");
                let end = &end;
                scope.spawn(move || {
                    let mut lookups = match shared {
                        false => chain(move |gfn| reader.find(gfn).map_or(0, |s| s.base_gfn)),
                        true => chain(move |gfn| binary_last_used(by_frame, last, gfn)),
                    };
                    let (mut n, start) = (0, Instant::now());
                    while !end.load(Ordering::Relaxed) {
                        black_box(lookups(&gfns));
                        n += gfns.len();
                    }
                    start.elapsed().as_nanos() as f64 / n as f64
                })
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            thread::sleep(Duration::from_millis(1));
            if update {
                let mut slot = slots[0].clone();
                if map.snapshot().get(slot.id).is_some_and(|slot| slot.flags == Flags::NONE) {
                    slot.flags = Flags::LOG_DIRTY_PAGES;
                }
                map.set(slot).expect("a change of flags");
            }
        }
        end.store(true, Ordering::Relaxed);
        let ns: Vec<f64> = all.into_iter().map(|t| t.join().expect("a reader's end")).collect();
        ns.iter().sum::<f64>() / ns.len() as f64
    })
}
