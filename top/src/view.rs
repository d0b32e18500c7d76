// SPDX-License-Identifier: GPL-2.0-only
//! What the user looks at: which VMs, in which order, which of them opened; and what keys change.

use crate::columns::Column;
use crate::rates::{Rates, VmRates};
use crate::wanted::Wanted;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// VMs whose threads on the host are shown where none is opened.
const BUSIEST: usize = 3;

#[derive(Clone, Debug)]
pub struct View {
    pub sort: Column,
    pub reversed: bool,
    /// VMs whose name has it, whatever the case.
    pub filter: String,
    /// It is a VM's whole name, not a part of those that are shown.
    pub whole: bool,
    /// The keys that come are the filter's.
    pub types: bool,
    /// Of all vCPUs together, not their mean.
    pub sum: bool,
    pub paused: bool,
    pub help: bool,
    /// The VM that keys mean.
    pub selected: Option<String>,
    pub opened: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Draw,
    Quit,
    /// Write what `--write` asked for, now.
    Write,
}

impl View {
    pub fn new(sort: Column, filter: &str) -> View {
        View {
            sort,
            reversed: false,
            filter: filter.to_owned(),
            whole: false,
            types: false,
            sum: false,
            paused: false,
            help: false,
            selected: None,
            opened: BTreeSet::new(),
        }
    }

    /// The VMs to show, in order. Names go up, figures down; what is not known comes last.
    pub fn vms<'a>(&self, rates: &'a Rates) -> Vec<&'a VmRates> {
        let filter = self.filter.to_lowercase();
        let is_shown = |vm: &&VmRates| match self.whole {
            true => vm.name == self.filter,
            false => vm.name.to_lowercase().contains(&filter),
        };
        let mut vms: Vec<_> = rates.vms.iter().filter(is_shown).collect();
        let figure = |vm: &VmRates| self.sort.figure(vm, self.sum).unwrap_or(f64::NEG_INFINITY);
        vms.sort_by(|a, b| {
            let order = figure(b).total_cmp(&figure(a));
            let order =
                if self.reversed && self.sort != Column::Name { order.reverse() } else { order };
            let by_name = a.name.cmp(&b.name).then_with(|| a.key.cmp(&b.key));
            match (order, self.sort, self.reversed) {
                (Ordering::Equal, Column::Name, true) => by_name.reverse(),
                (order, _, _) => order.then(by_name),
            }
        });
        vms
    }

    /// The VMs whose threads on the host are looked at: those that are opened, else the busiest.
    pub fn close<'a>(&self, rates: &'a Rates) -> Vec<&'a VmRates> {
        let mut vms = self.vms(rates);
        if vms.iter().any(|vm| self.opened.contains(&vm.key)) {
            vms.retain(|vm| self.opened.contains(&vm.key));
            return vms;
        }
        let ran = |vm: &VmRates| vm.parts.run * f64::from(vm.nr_vcpus);
        vms.sort_by(|a, b| ran(b).total_cmp(&ran(a)));
        vms.truncate(BUSIEST);
        vms
    }

    /// What the next sample is asked for.
    pub fn wanted(&self, rates: &Rates) -> Wanted {
        let threads = self.close(rates).iter().map(|vm| vm.key.clone()).collect();
        Wanted { vcpus: !self.opened.is_empty(), threads }
    }

    /// Errors are impossible: a key that means nothing does nothing.
    pub fn key(&mut self, key: KeyEvent, rates: &Rates) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.types {
            self.type_filter(key.code);
            return Action::Draw;
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') { Action::Quit } else { Action::Draw };
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('w') => return Action::Write,
            KeyCode::Char('h' | '?') => self.help = true,
            KeyCode::Char('/' | 'f') => (self.types, self.whole) = (true, false),
            KeyCode::Esc => self.show_all(),
            KeyCode::Char('n') => self.sum = !self.sum,
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            KeyCode::Char('R') => self.reversed = !self.reversed,
            KeyCode::Char('<') | KeyCode::Left => self.sort = self.neighbour(-1),
            KeyCode::Char('>') | KeyCode::Right => self.sort = self.neighbour(1),
            KeyCode::Enter => self.open(rates),
            KeyCode::Up | KeyCode::Char('k') => self.step(rates, -1),
            KeyCode::Down | KeyCode::Char('j') => self.step(rates, 1),
            KeyCode::PageUp => self.step(rates, -10),
            KeyCode::PageDown => self.step(rates, 10),
            KeyCode::Home => self.step(rates, isize::MIN),
            KeyCode::End => self.step(rates, isize::MAX),
            _ => {}
        }
        Action::Draw
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.types = false,
            KeyCode::Esc => {
                self.types = false;
                self.show_all();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
    }

    fn show_all(&mut self) {
        self.filter.clear();
        self.whole = false;
    }

    fn neighbour(&self, step: isize) -> Column {
        let place = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        let last = Column::ALL.len() - 1;
        Column::ALL[place.saturating_add_signed(step).min(last)]
    }

    fn open(&mut self, rates: &Rates) {
        let Some(key) = self.place(rates).map(|place| self.vms(rates)[place].key.clone()) else {
            return;
        };
        if !self.opened.remove(&key) {
            self.opened.insert(key);
        }
    }

    fn step(&mut self, rates: &Rates, step: isize) {
        let Some(place) = self.place(rates) else { return };
        let vms = self.vms(rates);
        let place = place.saturating_add_signed(step).min(vms.len() - 1);
        self.selected = Some(vms[place].key.clone());
    }

    /// Where the selected VM stands; the first one, if it is not shown. `None`: no VM is.
    pub fn place(&self, rates: &Rates) -> Option<usize> {
        let vms = self.vms(rates);
        let its = |vm: &&VmRates| Some(&vm.key) == self.selected.as_ref();
        vms.iter().position(its).or((!vms.is_empty()).then_some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::Parts;

    fn rates() -> Rates {
        let vm = |name: &str, run: f64| VmRates {
            key: format!("k-{name}"),
            name: name.into(),
            nr_vcpus: 2,
            parts: Parts { run, ..Parts::default() },
            ..VmRates::default()
        };
        let vms = vec![vm("web-1", 10.0), vm("pg", 90.0), vm("web-2", 10.0)];
        Rates { vms, ..Rates::default() }
    }

    fn names(view: &View) -> Vec<String> {
        view.vms(&rates()).iter().map(|vm| vm.name.clone()).collect()
    }

    fn press(view: &mut View, keys: &str) -> Action {
        let code = |c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        keys.chars().map(|c| view.key(code(c).into(), &rates())).last().unwrap_or(Action::Draw)
    }

    /// 'baton top web-1' showed web-10, too.
    #[test]
    fn a_whole_name_is_of_one_vm() {
        let mut view = View::new(Column::Name, "web");
        assert_eq!(names(&view), ["web-1", "web-2"]);
        view.whole = true;
        assert!(names(&view).is_empty());
        view.filter = "web-2".into();
        assert_eq!(names(&view), ["web-2"]);
        press(&mut view, "\x1b");
        assert_eq!((names(&view).len(), view.whole), (3, false));
    }

    #[test]
    fn sorts_by_figures_and_by_name() {
        let mut view = View::new(Column::Run, "");
        assert_eq!(names(&view), ["pg", "web-1", "web-2"]);
        press(&mut view, "R");
        assert_eq!(names(&view), ["web-1", "web-2", "pg"]);
        press(&mut view, "<<");
        assert_eq!(
            (view.sort, names(&view)),
            (Column::Name, vec!["web-2".into(), "web-1".into(), "pg".into()])
        );
        press(&mut view, "<<<R");
        assert_eq!(names(&view), ["pg", "web-1", "web-2"]);
        press(&mut view, &">".repeat(99));
        assert_eq!(view.sort, Column::Wait);
    }

    #[test]
    fn the_selection_stays_with_its_vm() {
        let mut view = View::new(Column::Run, "");
        assert_eq!(view.place(&rates()), Some(0));
        press(&mut view, "jj\n");
        assert_eq!(view.selected.as_deref(), Some("k-web-2"));
        assert!(view.opened.contains("k-web-2"));
        press(&mut view, "R");
        assert_eq!(view.place(&rates()), Some(1));
        press(&mut view, "jjjj\n\nkkkk\n");
        assert_eq!(view.opened.len(), 2);
        // None is shown: nothing to select or to open.
        press(&mut view, "/xyz\nj\n");
        assert_eq!((view.place(&rates()), view.opened.len()), (None, 2));
        press(&mut view, "\x1b");
        assert_eq!(view.place(&rates()), Some(0));
    }

    #[test]
    fn threads_are_wanted_of_what_is_looked_at() {
        let mut view = View::new(Column::Name, "");
        let threads = |view: &View| view.wanted(&rates()).threads;
        // The busiest first, whatever the screen is sorted by.
        assert_eq!(threads(&view), ["k-pg", "k-web-1", "k-web-2"]);
        press(&mut view, "jj\n");
        assert_eq!((threads(&view), view.wanted(&rates()).vcpus), (vec!["k-web-2".into()], true));
        // What is opened, but not shown, is not looked at.
        press(&mut view, "/pg\n");
        assert_eq!(threads(&view), ["k-pg"]);
        press(&mut view, "/x\n");
        assert!(threads(&view).is_empty());
    }

    #[test]
    fn keys_of_the_filter_are_text() {
        let mut view = View::new(Column::Run, "");
        assert_eq!(press(&mut view, "/WEBq\x08\n"), Action::Draw);
        assert_eq!((view.filter.as_str(), names(&view).len()), ("WEB", 2));
        assert_eq!(press(&mut view, "q"), Action::Quit);
        assert_eq!(press(&mut view, "w"), Action::Write);
        press(&mut view, "h");
        assert!(view.help);
        press(&mut view, "x");
        assert!(!view.help);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut view, "/");
        assert_eq!(view.key(ctrl_c, &rates()), Action::Quit);
    }
}
