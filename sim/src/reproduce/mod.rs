// SPDX-License-Identifier: GPL-2.0-only
//! The tables and claims of papers, talks and patches, simulated: what they say, what comes out
//! here.
//!
//! One description of each machine serves all of its rows, and no parameter is set for one result.

mod bonzini_2015;
mod ishiguro_2021;
mod li_2020;
mod mammedov_2014;
mod raghavendra_2012;

use anyhow::{Result, anyhow, bail};
use baton_output::interrupt::{self, Interrupted};
use serde::Serialize;

use crate::outcome::Outcome;
use crate::scenario::Text;
use crate::sweep::{Point, each, here, points};

/// One claim.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// By author and year.
    pub paper: &'static str,
    pub claim: String,
    /// The paper's figure; `None` where it gives no number.
    pub theirs: Option<f64>,
    pub ours: f64,
    /// Ours through theirs.
    pub ratio: Option<f64>,
    /// Both gain, both lose, or both change by less than 2 %.
    pub sign_ok: bool,
    /// Every pair of this row and another of its table is ordered as in the paper; those that are
    /// within 2 % of each other may be in either order.
    pub rank_ok: bool,
    /// Between two thirds and one and a half times the paper's.
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
    paper: &'static str,
    table: &'static str,
    claim: &str,
    theirs: impl Into<Option<f64>>,
    ours: f64,
    note: &str,
) -> Row {
    Row {
        paper,
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

    /// Where the paper has no number, but says which way it goes.
    fn goes(self, sign: f64) -> Row {
        Row { sign: Some(sign), ..self }
    }
}

fn sign(value: f64) -> i32 {
    if value.abs() < NOTHING { 0 } else { value.signum() as i32 }
}

/// Judges all rows, once all are there.
fn judge(rows: &mut [Row]) {
    let figures: Vec<((&str, &str), Option<f64>, f64)> =
        rows.iter().map(|row| ((row.paper, row.table), row.theirs, row.ours)).collect();
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
                let (Some(others), true) =
                    (others, other != place && *table == (row.paper, row.table))
                else {
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

/// All claims, paper by paper. `progress` is called before each part. With an error come
/// the claims of the parts before it.
///
/// Errors: a scenario of ours does not run, or it was interrupted.
pub fn reproduce(jobs: usize, mut progress: impl FnMut(&str)) -> (Vec<Row>, Result<()>) {
    type Claims = fn(usize) -> Result<Vec<Row>>;
    const PARTS: [(&str, Claims); 5] = [
        ("Raghavendra 2012: candidates that spin themselves", raghavendra_2012::claims),
        ("Ishiguro 2021: IPI senders and receivers", ishiguro_2021::claims),
        ("Bonzini 2015: halt polling", bonzini_2015::claims),
        ("Li 2020: fast paths, AVIC, boosts", li_2020::claims),
        ("Mammedov 2014: look-up of memory slots", mammedov_2014::claims),
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
