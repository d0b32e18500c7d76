// SPDX-License-Identifier: GPL-2.0-only
//! Doctor's findings, of which the screen names a few: looked for beside the screen, which never
//! waits for them.

use crate::sample::Note;
use baton_doctor::{Level, Scene, examine};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Whoever begins wants figures first, and to look takes as long as to find all VMs.
const FIRST: Duration = Duration::from_secs(1);

/// From one look to the next.
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(600);

/// To look reads several files of each thread of each VM, which takes 150 ms for 300 VMs: it takes
/// no more than a thousandth of the time.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(1000).clamp(REST, LONGEST_REST)
}

/// A thread that looks, until this is dropped.
pub struct Doctor {
    told: Receiver<Vec<Note>>,
    /// It hears that this is gone.
    _stop: Sender<()>,
}

impl Doctor {
    /// `None`: there is no thread to be had.
    pub fn call() -> Option<Doctor> {
        Doctor::with(|| notes(&Scene::here()), FIRST, rest)
    }

    fn with(
        look: impl Fn() -> Vec<Note> + Send + 'static,
        first: Duration,
        rest: fn(Duration) -> Duration,
    ) -> Option<Doctor> {
        let ((tell, told), (stop, stopped)) = (channel(), channel::<()>());
        let follow = move || {
            let mut wait = first;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                if tell.send(look()).is_err() {
                    break;
                }
                wait = rest(began.elapsed());
            }
        };
        thread::Builder::new().name("doctor".into()).spawn(follow).ok()?;
        Some(Doctor { told, _stop: stop })
    }

    /// What it found, if it has looked since this was asked for.
    pub fn told(&self) -> Option<Vec<Note>> {
        self.told.try_iter().last()
    }
}

/// Blockers, then what costs; what is only worth knowing is left to `baton doctor`.
fn notes(scene: &Scene) -> Vec<Note> {
    let note = |found: baton_doctor::Found| Note {
        id: found.finding.id.to_owned(),
        title: found.finding.title.to_owned(),
        evidence: found.evidence,
    };
    let all = examine(scene).into_iter();
    all.filter(|found| found.finding.level != Level::Note).map(note).collect()
}

/// A line of the screen: what was seen, and whose word it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub words: String,
    pub id: &'a str,
}

/// Whom a line of evidence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    Opened,
    Shown,
    Host,
    /// A VM that is not shown.
    Other,
}

/// A line for each finding, in the order of [`About`]; `vms` are all, by name.
pub fn lines<'a>(notes: &'a [Note], vms: &BTreeMap<&str, About>) -> Vec<Line<'a>> {
    let line = |note: &'a Note| {
        let all = note.evidence.iter().map(|line| (about(line, vms), line));
        let (about, evidence) = all.min_by_key(|(about, _)| *about)?;
        let more = match note.evidence.len() - 1 {
            0 => String::new(),
            more => format!(" (+{more})"),
        };
        let words = match about {
            About::Opened | About::Shown => format!("{evidence}{more}"),
            // Without a VM's name before it, evidence alone is a riddle.
            About::Host | About::Other => format!("{}: {evidence}{more}", note.title),
        };
        Some((about, Line { words, id: &note.id }))
    };
    let mut lines: Vec<_> = notes.iter().filter_map(line).collect();
    lines.sort_by_key(|(about, _)| *about);
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Doctor begins with `web: `, or with `web and db: ` where VMs share a cgroup.
fn about(evidence: &str, vms: &BTreeMap<&str, About>) -> About {
    let Some((names, _)) = evidence.split_once(": ") else { return About::Host };
    let each = names.split(", ").flat_map(|part| part.split(" and "));
    let those = each.chain([names]).filter_map(|name| vms.get(name));
    those.copied().min().unwrap_or(About::Host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_hostinfo::Host;
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};

    fn note(id: &str, evidence: &[&str]) -> Note {
        let evidence = evidence.iter().map(|line| (*line).to_owned()).collect();
        Note { id: id.into(), title: format!("the {id}"), evidence }
    }

    #[test]
    fn what_concerns_shown_vms_comes_first() {
        let notes = [
            note("rival", &["idle: scx.service"]),
            note("throttle", &["db and mail: throttled"]),
            note(
                "vcpu-stack",
                &["other: vCPUs 1 and 2", "web: vCPUs 5 and 6", "db: vCPUs 0 and 1"],
            ),
            note("hv-spin", &["other: no hv-spinlocks"]),
            note("empty", &[]),
        ];
        let shown = [("web", About::Opened), ("mail", About::Shown), ("other", About::Other)];
        let vms = BTreeMap::from(shown);
        let lines = lines(&notes, &vms);
        let words: Vec<_> = lines.iter().map(|line| line.words.as_str()).collect();
        let expected = [
            "web: vCPUs 5 and 6 (+2)",
            "db and mail: throttled",
            "the rival: idle: scx.service",
            "the hv-spin: other: no hv-spinlocks",
        ];
        assert_eq!((words, lines[0].id), (expected.into(), "vcpu-stack"));
    }

    #[test]
    fn blockers_and_costs_of_a_host_are_noted() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let notes = || {
            let scene = Scene::new(Host::at(root.path()), Box::new(|_| Ok(0)));
            notes(&scene).into_iter().map(|note| note.id).collect::<Vec<_>>()
        };
        let ksm = root.path().join("sys/kernel/mm/ksm");
        fs::create_dir_all(&ksm)?;
        fs::write(ksm.join("run"), "1")?;
        let ipiv = root.path().join("sys/module/kvm_intel/parameters");
        fs::create_dir_all(&ipiv)?;
        fs::write(ipiv.join("enable_ipiv"), "Y")?;
        // That is a note, no more.
        assert!(notes().contains(&"ksm".to_owned()) && !notes().contains(&"ipiv".to_owned()));
        fs::write(ksm.join("run"), "0")?;
        assert!(!notes().contains(&"ksm".to_owned()));
        Ok(())
    }

    #[test]
    fn where_it_takes_long_doctor_looks_seldom() {
        let rests = [0, 10, 150, 5000].map(|ms| rest(Duration::from_millis(ms)).as_secs());
        assert_eq!(rests, [60, 60, 150, 600]);
    }

    #[test]
    fn the_screen_does_not_wait_for_doctor() {
        let (looks, busy) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(())));
        let held = busy.lock();
        let (its_looks, its_busy) = (looks.clone(), busy.clone());
        let look = move || {
            drop(its_busy.lock());
            vec![note(&format!("look-{}", its_looks.fetch_add(1, Ordering::Relaxed)), &["x"])]
        };
        let doctor =
            Doctor::with(look, Duration::ZERO, |_| Duration::from_millis(1)).expect("a thread");
        assert_eq!(doctor.told(), None);
        drop(held);
        let mut told = Vec::new();
        while told.len() < 2 {
            told.extend(doctor.told());
            thread::yield_now();
        }
        assert_ne!(told[0], told[1]);
        drop(doctor);
        // It ends: nobody holds its share any more.
        while Arc::strong_count(&looks) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
