// SPDX-License-Identifier: GPL-2.0-only
//! The tables and claims of the seed documents, simulated: what they say, what comes out here.
//!
//! One description of each machine serves all of its rows, and no parameter is set for one result.

use anyhow::{Result, anyhow, bail};
use baton_output::interrupt::{self, Interrupted};
use serde::Serialize;

use crate::lookups;
use crate::outcome::Outcome;
use crate::scenario::Text;
use crate::sweep::{Point, each, here, points};

/// One claim.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub seed: &'static str,
    pub claim: String,
    /// The seed's figure; `None` where it gives no number.
    pub theirs: Option<f64>,
    pub ours: f64,
    /// Ours through theirs.
    pub ratio: Option<f64>,
    /// Both gain, both lose, or both change by less than 2 %.
    pub sign_ok: bool,
    /// Every pair of this row and another of its table is ordered as in the seed; those that are
    /// within 2 % of each other may be in either order.
    pub rank_ok: bool,
    /// Between two thirds and one and a half times the seed's.
    pub within_1_5: Option<bool>,
    /// It comes out of the interplay; otherwise it mostly echoes a cost that was put in.
    pub emergent: bool,
    pub note: String,
    #[serde(skip)]
    table: &'static str,
    #[serde(skip)]
    sign: Option<f64>,
    /// It is a part of something, not a change: its sign is that there is any.
    #[serde(skip)]
    share: bool,
}

/// What counts as no change.
const NOTHING: f64 = 0.02;

fn row(
    seed: &'static str,
    table: &'static str,
    claim: &str,
    theirs: impl Into<Option<f64>>,
    ours: f64,
    note: &str,
) -> Row {
    Row {
        seed,
        claim: claim.into(),
        theirs: theirs.into(),
        ours,
        ratio: None,
        sign_ok: false,
        rank_ok: true,
        within_1_5: None,
        emergent: true,
        note: note.into(),
        table,
        sign: None,
        share: false,
    }
}

impl Row {
    fn input(self) -> Row {
        Row { emergent: false, ..self }
    }

    fn share(self) -> Row {
        Row { share: true, ..self }
    }

    /// Where the seed has no number, but says which way it goes.
    fn goes(self, sign: f64) -> Row {
        Row { sign: Some(sign), ..self }
    }
}

fn sign(value: f64) -> i32 {
    if value.abs() < NOTHING { 0 } else { value.signum() as i32 }
}

/// Judges all rows, once all are there.
fn judge(rows: &mut [Row]) {
    let figures: Vec<(&str, Option<f64>, f64)> =
        rows.iter().map(|row| (row.table, row.theirs, row.ours)).collect();
    for (place, row) in rows.iter_mut().enumerate() {
        let expected = row.theirs.or(row.sign);
        row.sign_ok = expected.is_some_and(|theirs| match row.share {
            true => theirs > 0.0 && row.ours > 0.0,
            false => sign(theirs) == sign(row.ours),
        });
        if let Some(theirs) = row.theirs {
            let ratio = row.ours / theirs;
            row.ratio = Some(ratio);
            let both_nothing = sign(theirs) == 0 && sign(row.ours) == 0;
            row.within_1_5 = Some(both_nothing || (1.0 / 1.5..=1.5).contains(&ratio));
            row.rank_ok = figures.iter().enumerate().all(|(other, (table, others, ours))| {
                let (Some(others), true) = (others, other != place && *table == row.table) else {
                    return true;
                };
                let (a, b) = (theirs - others, row.ours - ours);
                sign(a) == 0 || sign(b) == 0 || sign(a) == sign(b)
            });
        }
    }
}

/// A scenario for some seeds, on all cores.
struct Runs {
    text: String,
    seeds: u32,
    jobs: usize,
}

impl Runs {
    /// The mean over the seeds of a figure.
    fn figure(&self, changes: &[(&str, &str)], figure: fn(&Outcome) -> f64) -> Result<f64> {
        let base: Point = changes.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let seeds = (1..=self.seeds).map(|seed| seed.to_string()).collect();
        let all = points(&[("seed".into(), seeds)]);
        let mut sum = 0.0;
        let text = Text { text: self.text.clone(), ..Text::default() };
        let run = |place: usize| here(&text, &base, &all[place]);
        let stop = || interrupt::check().is_err();
        for result in each(all.len(), self.jobs, stop, run) {
            let Some(result) = result else { bail!(Interrupted) };
            sum += figure(&result.map_err(|why| anyhow!(why))?);
        }
        Ok(sum / f64::from(self.seeds))
    }

    fn rate(&self, changes: &[(&str, &str)]) -> Result<f64> {
        self.figure(changes, Outcome::rate)
    }
}

/// All claims, in the order of the seeds. `progress` is called before each part. With an error come
/// the claims of the parts before it.
///
/// Errors: a scenario of ours does not run, or it was interrupted.
pub fn reproduce(jobs: usize, mut progress: impl FnMut(&str)) -> (Vec<Row>, Result<()>) {
    type Claims = fn(usize) -> Result<Vec<Row>>;
    const PARTS: [(&str, Claims); 5] = [
        ("seed 000: candidates that spin themselves", seed_000),
        ("seed 001: IPI senders and receivers", seed_001),
        ("seed 002: halt polling", seed_002),
        ("seed 003: fast paths, AVIC, boosts", seed_003),
        ("seed 004: look-up of memory slots", seed_004),
    ];
    let mut rows = Vec::new();
    let mut ended = Ok(());
    for (name, claims) in PARTS {
        progress(name);
        match claims(jobs) {
            Ok(part) => rows.extend(part),
            Err(error) => {
                ended = Err(error.context(name));
                break;
            }
        }
    }
    judge(&mut rows);
    (rows, ended)
}

/// Guests of 32 vCPUs on 32 cores, Linux 3.5: one (1x), and two (2x).
fn seed_000(jobs: usize) -> Result<Vec<Row>> {
    let runs = Runs {
        text: "machine = \"xeon-x7560\"\nscheduler = \"cfs\"\nseconds = 2.0\nwarmup = 0.5\n\
               [[vm]]\ncount = 1\nvcpus = 32\nworkload = \"ebizzy\"\nguest = { tlb-lock = true }"
            .into(),
        seeds: 4,
        jobs,
    };
    let mut rows = Vec::new();
    for (workload, guests, theirs, note) in [
        (
            "kernbench",
            "1",
            0.2827,
            "our kernbench hardly spins while nobody is preempted: its guests' locks \
             are shorter than a PAUSE-loop's window",
        ),
        ("kernbench", "2", 0.0705, ""),
        ("sysbench-oltp", "1", -0.0004, "no change there, none here"),
        ("sysbench-oltp", "2", 0.0084, "no change there, none here"),
        (
            "ebizzy",
            "1",
            1.0515,
            "spinners that scan each other's runqueues queue up for their locks",
        ),
        ("ebizzy", "2", 0.2611, ""),
    ] {
        let rate = |policy: &str| {
            runs.rate(&[
                ("vm.0.workload", workload),
                ("vm.0.count", guests),
                ("kvm.on-spin", policy),
            ])
        };
        let gain = rate("eligible")? / rate("last-boosted")? - 1.0;
        let claim = format!("{workload} {guests}x: gain of not yielding to spinners");
        rows.push(row("000", "000", &claim, theirs, gain, note));
    }
    Ok(rows)
}

fn seed_001(jobs: usize) -> Result<Vec<Row>> {
    let small = Runs {
        text: "machine = \"xeon-8\"\nscheduler = \"cfs\"\nseconds = 2.0\n[kvm]\non-spin = \"kernel\"\n\
               [[vm]]\ncount = 4\nvcpus = 8\nworkload = \"ebizzy\""
            .into(),
        seeds: 3,
        jobs,
    };
    // "Up to": the workload where it is most.
    let mut best = (f64::MIN, "");
    for workload in ["ebizzy", "kernbench", "hackbench", "pbzip2"] {
        let exits = |scheduler: &str, policy: &str| {
            let changes =
                [("vm.0.workload", workload), ("scheduler", scheduler), ("kvm.on-spin", policy)];
            small.figure(&changes, |o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())
        };
        let fewer = 1.0 - exits("cfs-debooster", "ipi-pairs64")? / exits("cfs", "kernel")?;
        if fewer > best.0 {
            best = (fewer, workload);
        }
    }
    let mut rows = vec![row(
        "001",
        "001 PLE",
        "PAUSE-loop exits, four VMs of 8 vCPUs: how many fewer, at most, with both patches",
        0.876,
        best.0,
        &format!("most with {}", best.1),
    )];
    let large = Runs {
        text: "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 1.5\nwarmup = 0.5\n\
               [kvm]\non-spin = \"kernel\"\n\
               [[vm]]\ncount = 2\nvcpus = 96\nworkload = \"pbzip2\""
            .into(),
        seeds: 2,
        jobs,
    };
    let rate = |policy: &str| large.rate(&[("kvm.on-spin", policy)]);
    let vanilla = rate("kernel")?;
    let saved = |rate: f64| 1.0 - vanilla / rate;
    let [pending, pairs64, flag, pairs] =
        [rate("pending-interrupt")?, rate("ipi-pairs64")?, rate("ipi-flag")?, rate("ipi-pairs")?];
    let claim = |what: &str| format!("pbzip2 on 96 vCPUs: time saved by {what}");
    let two = "two VMs, as the seed does not say how many";
    rows.push(row("001", "001", &claim("the pending interrupt"), 0.103, saved(pending), two));
    rows.push(row("001", "001", &claim("IPI pairs of 64 vCPUs"), 0.066, saved(pairs64), two));
    rows.push(row("001", "001", &claim("a flag"), 0.038, saved(flag), two));
    let exits = |policy: &str| {
        large
            .figure(&[("kvm.on-spin", policy)], |o| o.vms.iter().map(|vm| vm.ple_exits_per_s).sum())
    };
    rows.push(
        row(
            "001",
            "001 limit",
            "what the limit of 64 vCPUs does: more PAUSE-loop exits than without",
            None,
            exits("ipi-pairs64")? / exits("ipi-pairs")? - 1.0,
            &format!("throughput {:+.1} %", (pairs64 / pairs - 1.0) * 100.0),
        )
        .goes(1.0),
    );
    let ebizzy = |policy: &str| small.rate(&[("kvm.on-spin", policy)]);
    rows.push(
        row(
            "001",
            "001 stale",
            "ebizzy, four VMs of 8 vCPUs: what a stale flag does, against pairs that are cleared",
            None,
            ebizzy("ipi-flag")? / ebizzy("ipi-pairs")? - 1.0,
            "vCPUs that have answered already are boosted",
        )
        .goes(-1.0),
    );
    Ok(rows)
}

/// `costs.…`: what a machine without a hypervisor does not pay.
const BARE_METAL: [(&str, &str); 8] = [
    ("costs.io_path_ns", "0"),
    ("costs.exit_ns", "0"),
    ("costs.halt_ns", "0"),
    ("costs.switch_ns", "0"),
    ("costs.icr_ns", "0"),
    ("costs.timer_ns", "300"),
    ("costs.interrupt_ns", "0"),
    ("costs.wake_ns", "0"),
];

fn seed_002(jobs: usize) -> Result<Vec<Row>> {
    let writes = Runs {
        text: "machine = \"xeon-2014\"\nscheduler = \"cfs\"\nseconds = 2.0\n\
               [[vm]]\nvcpus = 4\nworkload = \"o-dsync\""
            .into(),
        seeds: 3,
        jobs,
    };
    let polls = ("kvm.halt-poll", "{ fixed = 500000 }");
    let bare = writes.rate(&BARE_METAL)?;
    let [off, polling, guest] = [
        writes.rate(&[])?,
        writes.rate(&[polls])?,
        writes.rate(&[("vm.0.guest.idle-poll", "true")])?,
    ];
    let device = "the time in QEMU is an estimate";
    let mut rows = vec![
        row("002", "002", "O_DSYNC writes without polling, of bare metal", 0.4, off / bare, device),
        row(
            "002",
            "002",
            "O_DSYNC writes with polling, of bare metal",
            0.625,
            polling / bare,
            device,
        ),
        row("002", "002", "O_DSYNC writes with polling, of idle=poll", 0.99, polling / guest, ""),
    ];
    let idle = Runs {
        text: "machine = \"xeon-2014\"\nscheduler = \"cfs\"\nseconds = 20.0\n\
               [[vm]]\nvcpus = 4\nworkload = \"idle\""
            .into(),
        seeds: 3,
        jobs,
    };
    let used = |changes: &[(&str, &str)]| idle.figure(changes, |o| o.vms[0].used / 4.0);
    rows.push(row(
        "002",
        "002 idle",
        "CPU of an idle vCPU, because of polling",
        0.02,
        used(&[polls])? - used(&[])?,
        "the seed's own figures do not fit each other: 10 halts a second of four vCPUs, 500 µs each, \
         are 0.125 % of a vCPU, not 1.5 to 2.5 %",
    )
    .share());
    let timer = Runs {
        text: "machine = \"xeon-2014\"\nscheduler = \"cfs\"\nseconds = 2.0\n[[vm]]\nvcpus = 1\n\
               [[vm.task]]\nprogram = [\"sleep 80us\", \"compute 2us ±10%\", \"done\"]\n\
               [[vm]]\nvcpus = 4\nworkload = \"compute\""
            .into(),
        seeds: 3,
        jobs,
    };
    let late = |o: &Outcome| o.vms[0].lateness.as_ref().map_or(f64::NAN, |late| late.mean);
    let spread = |o: &Outcome| o.vms[0].lateness.as_ref().map_or(f64::NAN, |late| late.stdev);
    // The middle of the seed's ranges: 20,000 to 120,000 cycles, and 8,000 to 10,000.
    rows.push(row(
        "002",
        "002 timer",
        "TSC-deadline timer: how much less late with polling",
        1.0 - 9.0 / 70.0,
        1.0 - timer.figure(&[polls], late)? / timer.figure(&[], late)?,
        "the middle of the seed's ranges",
    ));
    rows.push(
        row(
            "002",
            "002 variance",
            "TSC-deadline timer: how much less its lateness varies",
            None,
            1.0 - timer.figure(&[polls], spread)? / timer.figure(&[], spread)?,
            "no figure in the seed",
        )
        .goes(1.0),
    );
    Ok(rows)
}

fn seed_003(jobs: usize) -> Result<Vec<Row>> {
    let ipi = Runs {
        text:
            "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 0.5\n[[vm]]\nvcpus = 2\n\
               [[vm.task]]\nprogram = [\"compute 1us\", \"call-one\", \"done\"]\n\
               [[vm.task]]\nprogram = [\"compute 1ms\"]"
                .into(),
        seeds: 1,
        jobs,
    };
    let time =
        |fast: &str| Ok::<f64, anyhow::Error>(1.0 / ipi.rate(&[("kvm.icr-fast", fast)])? - 1e-6);
    let saved = 1.0 - time("true")? / time("false")?;
    let cost = "the cost of the stages was put in";
    let mut rows = vec![
        row("003", "003 IPI", "IPI benchmark: time saved by the fast path", 0.30, saved, cost)
            .input(),
        row("003", "003 IPI", "kvm-unit-test IPI: time saved by the fast path", 0.223, saved, cost)
            .input(),
    ];
    let timer = Runs {
        text: "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 2.0\n\
               [[vm]]\nvcpus = 2\nworkload = \"timer\"\nguest = { idle-poll = true }"
            .into(),
        seeds: 1,
        jobs,
    };
    let late = |fast: &str| {
        timer.figure(&[("kvm.timer-fast", fast)], |o| {
            o.vms[0].lateness.as_ref().map_or(f64::NAN, |late| late.mean)
        })
    };
    let saved = 1.0 - late("true")? / late("false")?;
    rows.push(
        row(
            "003",
            "003 timer",
            "cyclictest (its guest never halts): lateness saved",
            0.165,
            saved,
            cost,
        )
        .input(),
    );
    let rome = |program: &str, others: u32| Runs {
        text: format!(
            "machine = \"rome-192\"\nscheduler = \"cfs\"\nseconds = 0.2\n[[vm]]\nvcpus = 180\n\
             [[vm.task]]\nprogram = [{program}]\n\
             [[vm.task]]\ncount = {others}\nprogram = [\"compute 1ms\"]"
        ),
        seeds: 1,
        jobs,
    };
    let calls = rome("\"compute 1us\", \"call\", \"done\"", 179);
    let time = |runs: &Runs, avic: &str| -> Result<f64> {
        Ok(1.0 / runs.rate(&[("kvm.avic", avic)])? - 1e-6)
    };
    rows.push(
        row(
            "003",
            "003 AVIC",
            "AVIC: longer time of a multicast IPI to 179",
            0.552,
            time(&calls, "true")? / time(&calls, "false")? - 1.0,
            cost,
        )
        .input(),
    );
    let hackbench = Runs {
        text: "machine = \"rome-192\"\nscheduler = \"cfs\"\nseconds = 0.3\n\
               [[vm]]\nvcpus = 180\nworkload = \"hackbench\""
            .into(),
        seeds: 2,
        jobs,
    };
    rows.push(row(
        "003",
        "003 hackbench",
        "AVIC: gain of hackbench on 180 vCPUs",
        0.03,
        hackbench.rate(&[("kvm.avic", "true")])? / hackbench.rate(&[("kvm.avic", "false")])? - 1.0,
        "the unicast cost is an estimate; how often it is paid comes out",
    ));
    let none = [("vm.0.guest.lock", "pv-queued")];
    let boosts = [
        ("vm.0.guest.lock", "pv-queued"),
        ("kvm.on-spin", "pending-interrupt"),
        ("vm.0.guest.sched-yield", "true"),
        ("vm.0.guest.kick-yields", "true"),
    ];
    for (vms, theirs) in [(1, Some(0.034)), (2, None), (3, Some(0.483))] {
        let others = match vms {
            1 => String::new(),
            _ => format!("[[vm]]\ncount = {}\nvcpus = 96\nworkload = \"compute\"", vms - 1),
        };
        let runs = Runs {
            text: format!(
                "machine = \"cascade-lake-96\"\nscheduler = \"cfs\"\nseconds = 0.6\n\
                 [kvm]\non-spin = \"kernel\"\n[[vm]]\nvcpus = 96\nworkload = \"ebizzy\"\n{others}"
            ),
            seeds: 2,
            jobs,
        };
        let rate = |changes| runs.figure(changes, |o| o.vms[0].rate);
        let gain = rate(&boosts)? / rate(&none)? - 1.0;
        let claim = format!("ebizzy, {vms} VMs of 96 vCPUs: gain of the boosts");
        let note = match vms {
            1 => "nobody is preempted here: boosts find nobody",
            2 => "the seed's figure is lost in the captions",
            _ => "",
        };
        let row = row("003", "003 boosts", &claim, theirs, gain, note);
        rows.push(if theirs.is_none() { row.goes(1.0) } else { row });
    }
    Ok(rows)
}

/// Measured: the seed's walks and its search as they were, and the memslots crate beside them.
fn seed_004(_: usize) -> Result<Vec<Row>> {
    let [boot, small, large] =
        [(13, false), (13, true), (117, true)].map(|(n, random)| lookups::time(n, random));
    let hit = lookups::time(117, false);
    let cold = |slots: usize| {
        let cold = lookups::cold(slots);
        1.0 - cold.ours / cold.linear
    };
    let average =
        |slots: &str| format!("{slots} slots, boot: time saved by the search, on average");
    let greatest = |slots: &str| format!("{slots} slots, boot: time saved by the search, at most");
    let saved = |before: f64, after: f64| 1.0 - after / before;
    let note = |times: &lookups::Times| {
        let theirs = saved(times.linear_last, times.binary_last) * 100.0;
        format!("measured with the memslots crate; the seed's own search saves {theirs:.0} % here")
    };
    let search = |slots: &str| format!("{slots} slots, randomized: time saved by the search");
    Ok(vec![
        row(
            "004",
            "004 boot",
            "boot: time saved by the last-used slot",
            saved(46.0, 28.0),
            saved(boot.linear, boot.linear_last),
            "measured, with the seed's walk",
        ),
        row(
            "004",
            "004",
            &search("117"),
            saved(460.0, 180.0),
            saved(large.linear_last, large.ours),
            &note(&large),
        ),
        row(
            "004",
            "004",
            &search("13"),
            saved(30.0, 40.0),
            saved(small.linear_last, small.ours),
            &note(&small),
        ),
        row(
            "004",
            "004 boot average",
            &average("13"),
            saved(28.0, 30.0),
            saved(boot.linear_last, boot.ours),
            &note(&boot),
        ),
        row(
            "004",
            "004 boot average",
            &average("117"),
            saved(30.0, 35.0),
            saved(hit.linear_last, hit.ours),
            &note(&hit),
        ),
        row(
            "004",
            "004 boot greatest",
            &greatest("13"),
            saved(1450.0, 1400.0),
            cold(13),
            "the slot that a walk finds last, with cold caches",
        ),
        row(
            "004",
            "004 boot greatest",
            &greatest("117"),
            saved(13000.0, 2000.0),
            cold(117),
            "the slot that a walk finds last, with cold caches",
        ),
        // An exit of 1,200 cycles: 480 ns on the machine xeon-2014.
        row(
            "004",
            "004 exit",
            "117 slots, boot: a look-up as share of an exit",
            35.0 / 1200.0,
            hit.ours / 480.0,
            "measured on a newer CPU than the seed's",
        )
        .share(),
    ])
}

/// Of the emergent rows: how many there are, agree in sign and rank, and are within 1.5.
pub fn verdict(rows: &[Row]) -> (usize, usize, usize) {
    let emergent: Vec<&Row> = rows.iter().filter(|row| row.emergent).collect();
    let agree = emergent.iter().filter(|row| row.sign_ok && row.rank_ok).count();
    let near = emergent.iter().filter(|row| row.within_1_5 == Some(true)).count();
    (emergent.len(), agree, near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_judged_by_sign_rank_and_size() {
        let mut rows = vec![
            row("0", "t", "a", 0.30, 0.25, ""),
            row("0", "t", "b", 0.10, 0.28, ""),
            row("0", "t", "c", 0.01, -0.01, ""),
            row("0", "u", "d", 0.50, -0.50, ""),
            row("0", "v", "e", None, 0.10, "").goes(1.0),
        ];
        judge(&mut rows);
        let verdicts: Vec<(bool, bool, Option<bool>)> =
            rows.iter().map(|row| (row.sign_ok, row.rank_ok, row.within_1_5)).collect();
        assert_eq!(verdicts[0], (true, false, Some(true)), "a is above b there, below it here");
        assert_eq!(verdicts[1], (true, false, Some(false)));
        assert_eq!(verdicts[2], (true, true, Some(true)), "neither is a change");
        assert_eq!(verdicts[3], (false, true, Some(false)));
        assert_eq!(verdicts[4], (true, true, None));
        assert_eq!(verdict(&rows), (5, 2, 2));
    }
}
