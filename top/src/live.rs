// SPDX-License-Identifier: GPL-2.0-only
//! The screen as it lives: keys, samples, and the terminal given back as it was.

use crate::history::History;
use crate::rates::Rates;
use crate::sample::{Note, Sample};
use crate::screen::draw;
use crate::shown::Shown;
use crate::view::{Action, View};
use crate::wanted::Wanted;
use crate::{Watch, only};
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The first figures are of so long.
const FIRST: Duration = Duration::from_millis(200);

/// Signals are looked for so often.
const LOOK: Duration = Duration::from_millis(250);

/// Errors: no such VM, a terminal that cannot be used.
pub fn screen(delay: Duration, vm: Option<&str>, watch: &mut Watch, view: &mut View) -> Result<()> {
    let wanted = Wanted { vcpus: true, threads: vm.into_iter().map(str::to_owned).collect() };
    let Some(before) = watch.next(&wanted) else { return Ok(()) };
    if let Some(name) = vm {
        only(name, view, &before)?;
    }
    watch.feed.call_doctor();
    let mut terminal =
        ratatui::try_init().context("cannot use this terminal: --batch needs none")?;
    let result = Screen::new(delay, before).follow(&mut terminal, watch, view);
    ratatui::restore();
    result
}

/// As crossterm chooses.
fn keys() -> io::Result<File> {
    let input = io::stdin();
    match input.is_terminal() {
        true => input.as_fd().try_clone_to_owned().map(File::from),
        false => File::open("/dev/tty"),
    }
}

/// Waits for a key, or a signal. `false`: the terminal has gone, where crossterm would read for
/// ever, whatever signal came.
fn lasts(keys: BorrowedFd, timeout: Duration) -> bool {
    let mut files = [PollFd::new(keys, PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
    // EINTR: a terminal that has another size says so by a signal.
    let _ = poll(&mut files, timeout);
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    !files[0].revents().is_some_and(|events| events.intersects(gone))
}

struct Screen {
    delay: Duration,
    now: Sample,
    rates: Rates,
    history: History,
    /// What doctor said last.
    notes: Vec<Note>,
    message: Option<String>,
    colors: bool,
}

impl Screen {
    fn new(delay: Duration, mut now: Sample) -> Screen {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb" || term == "vt100");
        let colors = !is_set("NO_COLOR") && !is_dumb;
        let notes = now.notes.take().unwrap_or_default();
        let (rates, history) = (Rates::default(), History::default());
        Screen { delay, now, rates, history, notes, message: None, colors }
    }

    fn follow(
        mut self,
        terminal: &mut DefaultTerminal,
        watch: &mut Watch,
        view: &mut View,
    ) -> Result<()> {
        let mut next = Instant::now() + FIRST.min(self.delay);
        let keys = keys().context("cannot read keys")?;
        // Nothing changes by itself: what is drawn stays.
        let mut is_drawn = false;
        while !watch.is_over() {
            if Instant::now() >= next && !view.paused {
                next = Instant::now() + self.delay;
                self.take(watch, view);
                is_drawn = false;
            }
            if !is_drawn {
                self.draw(terminal, view)?;
                is_drawn = true;
            }
            let wait = next.saturating_duration_since(Instant::now());
            let wait = if view.paused { LOOK } else { wait.min(LOOK) };
            if !lasts(keys.as_fd(), wait) {
                break;
            }
            while event::poll(Duration::ZERO)? {
                is_drawn = false;
                if self.react(&event::read()?, watch, view) == Action::Quit {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, watch: &mut Watch, view: &View) {
        match watch.next(&view.wanted(&self.rates)) {
            Some(mut sample) => {
                self.rates = Rates::between(&self.now, &sample);
                self.history.add(&self.rates, self.now.at_s, sample.at_s);
                if let Some(notes) = sample.notes.take() {
                    self.notes = notes;
                }
                self.now = sample;
                self.message = None;
            }
            None => self.message = Some("the recording has ended: q quits".to_owned()),
        }
    }

    fn react(&mut self, event: &Event, watch: &Watch, view: &mut View) -> Action {
        let Event::Key(key) = event else { return Action::Draw };
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        let action = view.key(*key, &self.rates);
        self.message = (action == Action::Write).then(|| match (&watch.write, watch.finish()) {
            (None, _) => "nothing to write to: start it with --write FILE".to_owned(),
            (_, Ok(())) => "written".to_owned(),
            (_, Err(why)) => format!("{why:#}"),
        });
        action
    }

    fn draw(&self, terminal: &mut DefaultTerminal, view: &View) -> Result<()> {
        let shown = Shown {
            now: &self.now,
            rates: &self.rates,
            history: &self.history,
            notes: &self.notes,
            view,
            delay: self.delay.as_secs_f64(),
            colors: self.colors,
            message: self.message.as_deref(),
        };
        terminal.draw(|frame| draw(frame, &shown)).map(drop).context("cannot draw")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;

    #[test]
    fn a_terminal_that_has_gone_is_noticed_at_once() -> Result<()> {
        let pair = openpty(None, None)?;
        assert!(lasts(pair.slave.as_fd(), Duration::from_millis(1)));
        nix::unistd::write(&pair.master, b"q\n")?;
        let began = Instant::now();
        assert!(lasts(pair.slave.as_fd(), Duration::from_secs(60)));
        drop(pair.master);
        assert!(!lasts(pair.slave.as_fd(), Duration::from_secs(60)));
        assert!(began.elapsed() < Duration::from_secs(30));
        Ok(())
    }
}
