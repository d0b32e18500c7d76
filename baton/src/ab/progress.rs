// SPDX-License-Identifier: GPL-2.0-only
//! What an experiment does right now, on standard error: one line that is rewritten on a terminal,
//! a line for each run elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::Instant;

use baton_testbed::ab::{Notice, Record};
use baton_testbed::plan::{Event, Run};

/// What a run takes beyond its own time, until that has been measured: guests answer, schedulers
/// change.
const OVERHEAD_GUESS: f64 = 2.0;

pub struct Progress {
    runs: Vec<Run>,
    done: usize,
    now: String,
    /// When the first run started.
    start: Option<Instant>,
    terminal: bool,
    emulated: bool,
}

impl Progress {
    pub fn new(runs: Vec<Run>, emulated: bool) -> Progress {
        let terminal = stderr().is_terminal();
        let now = "booting the host".to_string();
        Progress { runs, done: 0, now, start: None, terminal, emulated }
    }

    pub fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Event(Event::HostUp { kernel }) => {
                let how = if self.emulated { "emulated" } else { "nested under KVM" };
                self.say(&format!("host is up: Linux {kernel}, {how}"));
                self.now = "starting guests".to_string();
            }
            Notice::Event(Event::GuestsUp { vms, seconds }) => {
                let guests = if *vms == 1 { "guest is" } else { "guests are" };
                self.say(&format!("{vms} {guests} up after {seconds:.0} s"));
            }
            Notice::Event(Event::Started { run }) => {
                self.start.get_or_insert_with(Instant::now);
                if let Some(run) = self.runs.iter().find(|of| of.id == *run) {
                    self.now = what(run);
                }
                if !self.terminal {
                    self.say(&self.line());
                }
            }
            Notice::Preparing(scheduler) => {
                self.now = format!("making hosts ready under {scheduler}");
                if !self.terminal {
                    self.say(&self.now);
                }
            }
            Notice::Recorded(record) => self.recorded(record),
            Notice::Retry(why) => self.say(&format!("{why}; trying once more")),
            Notice::Event(_) | Notice::Inputs(_) => {}
        }
        self.show();
    }

    fn recorded(&mut self, record: &Record) {
        self.done += 1;
        if let Err(why) = &record.outcome {
            self.say(&format!("{}: {why}", what(&record.run)));
        }
    }

    /// A line that stays.
    fn say(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        // Who closed standard error does not want to know.
        let _ = writeln!(stderr(), "{clear}{text}");
    }

    /// The line that is rewritten.
    fn show(&self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K{}", self.line());
            let _ = stderr().flush();
        }
    }

    /// Leaves the cursor on an empty line.
    pub fn finish(&self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    fn line(&self) -> String {
        let left = left_s(&self.runs, self.done, self.start.map(|s| s.elapsed().as_secs_f64()));
        let number = (self.done + 1).min(self.runs.len());
        format!("[{number}/{}] {}, {} left", self.runs.len(), self.now, duration(left))
    }
}

fn what(run: &Run) -> String {
    let who = if run.alone { "alone".to_string() } else { format!("under {}", run.scheduler.name) };
    format!("{} {who}, repetition {}", run.workload.name, run.repetition + 1)
}

/// Seconds until all is done, by the pace so far.
fn left_s(runs: &[Run], done: usize, elapsed_s: Option<f64>) -> f64 {
    let left = runs.len().saturating_sub(done) as f64;
    match elapsed_s {
        Some(elapsed) if done > 0 => elapsed / done as f64 * left,
        _ => runs.iter().map(|run| run.seconds + OVERHEAD_GUESS).sum(),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        90.0.. => format!("about {:.0} min", seconds / 60.0),
        _ => format!("about {:.0} s", (seconds / 5.0).ceil() * 5.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_testbed::experiment::Experiment;

    #[test]
    fn time_left_follows_the_pace() {
        let text = "repetitions = 5\nseconds = 8\nschedulers = [\"eevdf\"]\n\
                    [[workload]]\nname = \"barrier\"\nhost = true\n";
        let runs = Experiment::parse(text).unwrap().runs();
        assert_eq!(left_s(&runs, 0, None), 50.0);
        assert_eq!(left_s(&runs, 2, Some(40.0)), 60.0);
        assert_eq!(left_s(&runs, 5, Some(40.0)), 0.0);
        assert_eq!(duration(61.0), "about 65 s");
        assert_eq!(duration(600.0), "about 10 min");
    }
}
