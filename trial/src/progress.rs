// SPDX-License-Identifier: GPL-2.0-only
//! What a trial does just now: a line on a terminal, else one for each slot.

use std::io::{self, IsTerminal, Write};

use baton_output::note;

use crate::bundle::{Sample, ready_percent};
use crate::plan::Who;

pub struct Progress {
    slots: usize,
    terminal: bool,
    told: Option<usize>,
}

impl Progress {
    pub fn new(slots: usize) -> Progress {
        Progress { slots, terminal: io::stderr().is_terminal(), told: None }
    }

    pub fn show(&mut self, place: usize, text: &str) {
        let head = format!("slot {} of {}", place + 1, self.slots);
        if self.terminal {
            self.write(&format!("\r\x1b[K{head}  {text}  (q ends it)"));
        } else if self.told != Some(place) {
            self.told = Some(place);
            note(&format!("{head}: {text}"));
        }
    }

    pub fn sample(&mut self, place: usize, who: Who, before: &Sample, now: &Sample) {
        let wait = match ready_percent(before, now) {
            Some(percent) if self.terminal => format!(", vCPUs wait {percent:.1} %"),
            _ => String::new(),
        };
        let seconds = match self.terminal {
            true => format!(", {:.0} s", now.at_s),
            false => String::new(),
        };
        let who = match who {
            Who::Kernel => "the kernel's scheduler",
            Who::Baton => "scx_baton",
        };
        self.show(place, &format!("{who}{seconds}{wait}"));
    }

    pub fn clear(&self) {
        if self.terminal {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        let mut err = io::stderr();
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}
