// SPDX-License-Identifier: GPL-2.0-only
//! Which columns there are on a screen, how wide they are, and what a cell looks like.

use crate::columns::{Column, Heat};
use crate::shown::Shown;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

pub struct Grid {
    pub columns: Vec<Column>,
    /// Of the terminal.
    pub width: u16,
    /// Columns of the terminal that a name has: what is left by the others, as long as names need
    /// it.
    pub name: usize,
}

impl Grid {
    pub fn of(shown: &Shown, width: u16) -> Grid {
        let columns = columns(shown, width);
        let others: u16 = columns.iter().skip(1).map(|column| column.width()).sum();
        let longest = shown.rates.vms.iter().map(|vm| vm.name.chars().count()).max().unwrap_or(0);
        let name = usize::from(width.saturating_sub(others)).min(longest.max(20) + 2);
        Grid { columns, width, name }
    }
}

/// As many as there is room for, the first ones first. Those that nobody knows are left out.
fn columns(shown: &Shown, width: u16) -> Vec<Column> {
    let is_known = |column: &Column| {
        let vms = &shown.rates.vms;
        let always = [Column::Name, Column::Vcpus, Column::Run, Column::Ready, Column::Wait]
            .contains(column);
        let of_baton = || shown.now.baton.is_ok();
        always || of_baton() || vms.iter().any(|vm| column.figure(vm, false).is_some())
    };
    let mut left = width;
    let mut columns = Vec::new();
    for column in Column::ALL.into_iter().filter(is_known) {
        let Some(rest) = left.checked_sub(column.width()) else { break };
        left = rest;
        columns.push(column);
    }
    columns
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
