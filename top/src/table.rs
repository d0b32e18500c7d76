// SPDX-License-Identifier: GPL-2.0-only
//! The rows of VMs, and what an opened one shows below its row.

use crate::columns::{Column, Heat, percent};
use crate::history::{SECONDS, Trace};
use crate::rates::{VcpuRates, VmRates};
use crate::screen::Shown;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Fewer seconds of a vCPU than this are not worth their place.
const LEAST_SECONDS: usize = 10;

pub struct Table {
    pub lines: Vec<Line<'static>>,
    /// Where the selected VM stands.
    pub selected: usize,
}

impl Table {
    pub fn of(shown: &Shown, columns: &[Column], width: u16) -> Table {
        let vms = shown.view.vms(shown.rates);
        if vms.is_empty() {
            let words = match (shown.rates.vms.is_empty(), shown.view.filter.as_str()) {
                (true, _) => "no VM runs".to_owned(),
                (false, filter) => format!("no VM has '{filter}' in its name: Esc shows all"),
            };
            return Table { lines: vec![words.into()], selected: 0 };
        }
        let place = shown.view.place(shown.rates).unwrap_or(0);
        let mut table = Table { lines: Vec::new(), selected: 0 };
        for (at, vm) in vms.iter().enumerate() {
            if at == place {
                table.selected = table.lines.len();
            }
            table.lines.push(vm_line(shown, columns, vm, width, at == place));
            if shown.view.opened.contains(&vm.key) {
                table.lines.push(about_line(vm));
                let history = shown.history.of(&vm.key);
                table.lines.extend(history.map(|of| history_line(&of.vm, width)));
                let vcpus = vm.vcpus.iter().map(|vcpu| {
                    let trace = history.and_then(|of| of.vcpu(vcpu.id));
                    vcpu_line(shown, columns, vcpu, trace, width)
                });
                table.lines.extend(vcpus);
            }
        }
        table
    }

    /// So many of its lines, with the selected one in the middle, unless all that is above or below
    /// it fits.
    pub fn around_selected(mut self, height: u16) -> Vec<Line<'static>> {
        let height = usize::from(height);
        let most = self.lines.len().saturating_sub(height);
        self.lines.split_off(self.selected.saturating_sub(height / 2).min(most))
    }
}

fn vm_line(
    shown: &Shown,
    columns: &[Column],
    vm: &VmRates,
    width: u16,
    is_selected: bool,
) -> Line<'static> {
    let name = name_width(shown, columns, width);
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
                Span::styled(fitted(&format!("{mark}{text}"), name), style)
            }
            _ => {
                styled(shown, format!("{text:>width$}", width = usize::from(column.width())), heat)
            }
        }
    };
    Line::from(columns.iter().map(cell).collect::<Vec<_>>())
}

fn about_line(vm: &VmRates) -> Line<'static> {
    let more = vm.more.as_ref().map(|more| {
        let policy = if more.spread { "spread" } else { "gang" };
        format!("  weight {}  policy: {policy}", more.weight)
    });
    Line::from(format!("  {}{}", vm.key, more.unwrap_or_default()))
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
fn vcpu_line(
    shown: &Shown,
    columns: &[Column],
    vcpu: &VcpuRates,
    trace: Option<&Trace>,
    width: u16,
) -> Line<'static> {
    let name = name_width(shown, columns, width);
    let wide = |column: &Column| match column {
        Column::Name => name,
        _ => usize::from(column.width()),
    };
    let is_free = |column: &&Column| {
        !matches!(column, Column::Name | Column::Vcpus) && column.part(&vcpu.parts).is_none()
    };
    let free: usize = columns.iter().filter(is_free).map(wide).sum();
    let rest = usize::from(width).saturating_sub(columns.iter().map(wide).sum());
    let signs = |room: usize| {
        let seconds = room.saturating_sub(2).min(SECONDS);
        let trace = trace.filter(|_| seconds >= LEAST_SECONDS);
        trace.map(|trace| format!("  {}", trace.signs(seconds))).unwrap_or_default()
    };
    let mut cells = Vec::new();
    let mut gap = (free >= rest).then(|| format!("{:<free$}", signs(free)));
    for column in columns {
        let width = wide(column);
        cells.push(match column {
            Column::Name => {
                let pcpu = if vcpu.cpu >= 0 { format!("on {}", vcpu.cpu) } else { String::new() };
                let parts = [format!("  vCPU {}", vcpu.id), pcpu];
                Span::raw(fitted(&joined(&parts, name as u16), name))
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

/// What is left by the others, as long as names need it.
pub fn name_width(shown: &Shown, columns: &[Column], width: u16) -> usize {
    let others: u16 = columns.iter().skip(1).map(|column| column.width()).sum();
    let longest = shown.rates.vms.iter().map(|vm| vm.name.chars().count()).max().unwrap_or(0);
    usize::from(width.saturating_sub(others)).min(longest.max(20) + 2)
}

/// Those that fit, the first one in any case.
pub fn joined(parts: &[String], width: u16) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if line.is_empty() {
            line.push_str(part);
        } else if line.chars().count() + 2 + part.chars().count() <= usize::from(width) {
            line.push_str("  ");
            line.push_str(part);
        }
    }
    line
}

pub fn styled(shown: &Shown, text: String, heat: Heat) -> Span<'static> {
    let style = match (heat, shown.colors) {
        (Heat::Fine, _) => Style::new(),
        (Heat::Warm, true) => Style::new().fg(Color::Yellow),
        (Heat::Hot, true) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        (_, false) => Style::new().add_modifier(Modifier::BOLD),
    };
    Span::styled(text, style)
}

/// Exactly so wide, cut or filled.
pub fn fitted(text: &str, width: usize) -> String {
    let cut: String = text.chars().take(width).collect();
    format!("{cut:<width$}")
}
