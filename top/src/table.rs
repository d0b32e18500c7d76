// SPDX-License-Identifier: GPL-2.0-only
//! The rows of VMs, and what an opened one shows below its row.

use crate::columns::{Column, percent};
use crate::grid::{Grid, fitted, joined, styled};
use crate::history::{SECONDS, Trace};
use crate::rates::{VcpuRates, VmRates};
use crate::shown::Shown;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// Fewer seconds of a vCPU than this are not worth their place.
const LEAST_SECONDS: usize = 10;

/// What there is to show; its lines are made when it is known which are seen.
pub struct Table<'a> {
    shown: &'a Shown<'a>,
    grid: &'a Grid,
    vms: Vec<&'a VmRates>,
    /// The place of the selected VM among them.
    selected: usize,
}

impl<'a> Table<'a> {
    pub fn of(shown: &'a Shown, grid: &'a Grid) -> Table<'a> {
        let selected = shown.view.place(shown.rates).unwrap_or(0);
        Table { shown, grid, vms: shown.view.vms(shown.rates), selected }
    }

    /// Lines that it would have, if there were room for all.
    pub fn height(&self) -> usize {
        self.vms.iter().map(|vm| self.height_of(vm)).sum::<usize>().max(1)
    }

    fn height_of(&self, vm: &VmRates) -> usize {
        let history = self.shown.history.of(&vm.key);
        match self.shown.view.opened.contains(&vm.key) {
            true => 2 + usize::from(history.is_some()) + vm.vcpus.len(),
            false => 1,
        }
    }

    /// So many of them, with the selected VM in the middle, unless all that is above or below it
    /// fits.
    pub fn lines(&self, height: u16) -> Vec<Line<'static>> {
        if self.vms.is_empty() {
            let Shown { now, rates, view, .. } = self.shown;
            let words = match (rates.vms.is_empty(), &view.filter) {
                (true, _) if now.vms.is_empty() => "no VM runs".to_owned(),
                // Figures need two samples.
                (true, _) => String::new(),
                (false, filter) => format!("no VM has '{filter}' in its name: Esc shows all"),
            };
            return vec![words.into()];
        }
        let height = usize::from(height);
        let before =
            self.vms.iter().take(self.selected).map(|vm| self.height_of(vm)).sum::<usize>();
        let most = self.height().saturating_sub(height);
        let mut skipped = before.saturating_sub(height / 2).min(most);
        let mut lines = Vec::new();
        for (place, vm) in self.vms.iter().enumerate() {
            if lines.len() >= height {
                break;
            }
            match skipped.checked_sub(self.height_of(vm)) {
                Some(rest) => skipped = rest,
                None => {
                    lines.extend(self.lines_of(vm, place == self.selected).drain(skipped..));
                    skipped = 0;
                }
            }
        }
        lines
    }

    fn lines_of(&self, vm: &VmRates, is_selected: bool) -> Vec<Line<'static>> {
        let Table { shown, grid, .. } = self;
        let mut lines = vec![vm_line(shown, grid, vm, is_selected)];
        if shown.view.opened.contains(&vm.key) {
            let history = shown.history.of(&vm.key);
            lines.push(about_line(vm));
            lines.extend(history.map(|of| history_line(&of.vm, grid.width)));
            lines.extend(vm.vcpus.iter().map(|vcpu| {
                let trace = history.and_then(|of| of.vcpu(vcpu.id));
                vcpu_line(shown, grid, vcpu, trace)
            }));
        }
        lines
    }
}

fn vm_line(shown: &Shown, grid: &Grid, vm: &VmRates, is_selected: bool) -> Line<'static> {
    let cell = |column: &Column| {
        let text = column.text(vm, shown.view.sum);
        let heat = column.heat(&vm.parts);
        match column {
            Column::Name => {
                let mark = if is_selected { ">" } else { " " };
                let style = match is_selected {
                    true => Style::new().add_modifier(Modifier::BOLD),
                    false => Style::new(),
                };
                Span::styled(fitted(&format!("{mark}{text}"), grid.name), style)
            }
            _ => {
                styled(shown, format!("{text:>width$}", width = usize::from(column.width())), heat)
            }
        }
    };
    Line::from(grid.columns.iter().map(cell).collect::<Vec<_>>())
}

fn about_line(vm: &VmRates) -> Line<'static> {
    let more = vm.more.as_ref().map(|more| {
        let policy = if more.spread { "spread" } else { "gang" };
        format!("  weight {}  policy: {policy}", more.weight)
    });
    let what = match vm.pid {
        0 => vm.key.clone(),
        pid => format!("process {pid}"),
    };
    Line::from(format!("  {what}{}", more.unwrap_or_default()))
}

/// %RDY of the last minute.
fn history_line(trace: &Trace, width: u16) -> Line<'static> {
    const BEGIN: usize = "  %RDY 60 s  ".len();
    const END: usize = "  max 100".len();
    let room = usize::from(width).saturating_sub(BEGIN);
    let (seconds, most) = match room.saturating_sub(END) {
        0..LEAST_SECONDS => (room.min(SECONDS), None),
        room => (room.min(SECONDS), trace.most(room.min(SECONDS))),
    };
    let most = most.map(|most| format!("  max {most:.0}")).unwrap_or_default();
    Line::from(format!("  %RDY {seconds:>2} s  {}{most}", trace.signs(seconds)))
}

/// Its %RDY of the last minute stands where a vCPU has no figures.
fn vcpu_line(shown: &Shown, grid: &Grid, vcpu: &VcpuRates, trace: Option<&Trace>) -> Line<'static> {
    let wide = |column: &Column| match column {
        Column::Name => grid.name,
        _ => usize::from(column.width()),
    };
    let is_free = |column: &&Column| {
        !matches!(column, Column::Name | Column::Vcpus) && column.part(&vcpu.parts).is_none()
    };
    let free: usize = grid.columns.iter().filter(is_free).map(wide).sum();
    let rest = usize::from(grid.width).saturating_sub(grid.columns.iter().map(wide).sum());
    let signs = |room: usize| {
        let seconds = room.saturating_sub(2).min(SECONDS);
        let trace = trace.filter(|_| seconds >= LEAST_SECONDS);
        trace.map(|trace| format!("  {}", trace.signs(seconds))).unwrap_or_default()
    };
    let mut cells = Vec::new();
    let mut gap = (free >= rest).then(|| format!("{:<free$}", signs(free)));
    for column in &grid.columns {
        let width = wide(column);
        cells.push(match column {
            Column::Name => {
                let pcpu = if vcpu.cpu >= 0 { format!("on {}", vcpu.cpu) } else { String::new() };
                let parts = [format!("  vCPU {}", vcpu.id), pcpu];
                Span::raw(fitted(&joined(&parts, grid.name as u16), grid.name))
            }
            // The first of them takes the place of all: they stand side by side.
            column if is_free(&column) && free >= rest => Span::raw(gap.take().unwrap_or_default()),
            _ => {
                let figure = column.part(&vcpu.parts).map(percent);
                let text = format!("{:>width$}", figure.unwrap_or_default());
                styled(shown, text, column.heat(&vcpu.parts))
            }
        });
    }
    if free < rest {
        cells.push(Span::raw(signs(rest)));
    }
    Line::from(cells)
}
