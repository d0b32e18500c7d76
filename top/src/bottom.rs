// SPDX-License-Identifier: GPL-2.0-only
//! What stands below the VMs: threads of the host that work for them, and doctor's findings.

use crate::columns::{Column, percent};
use crate::grid::{Grid, fitted, styled};
use crate::notes::{self, About};
use crate::rates::{Parts, ThreadRates, VmRates};
use crate::shown::Shown;

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use std::collections::BTreeMap;

/// A title and a line for each thread, the busiest first; `most` lines. None, if there is no room
/// for figures.
pub fn threads(shown: &Shown, grid: &Grid, most: usize) -> Vec<Line<'static>> {
    let close = shown.view.close(shown.rates);
    let mut all: Vec<(&VmRates, &ThreadRates)> = close
        .into_iter()
        .flat_map(|vm| vm.threads.iter().map(move |thread| (vm, thread)))
        .collect();
    if all.is_empty() || most < 2 || !grid.columns.contains(&Column::Run) {
        return Vec::new();
    }
    let busy = |thread: &ThreadRates| thread.run + thread.ready;
    all.sort_by(|(_, a), (_, b)| busy(b).total_cmp(&busy(a)).then(a.tid.cmp(&b.tid)));
    let count = all.len();
    all.truncate(most - 1);
    let title = match count - all.len() {
        0 => "HOST THREADS".to_owned(),
        _ => format!("HOST THREADS, {} of {count}", all.len()),
    };
    let title = Line::styled(title, Style::new().add_modifier(Modifier::BOLD));
    let lines = all.into_iter().map(|(vm, thread)| thread_line(shown, grid, vm, thread));
    [title].into_iter().chain(lines).collect()
}

fn thread_line(shown: &Shown, grid: &Grid, vm: &VmRates, thread: &ThreadRates) -> Line<'static> {
    let heat = Parts { ready: thread.ready, ..Parts::default() };
    // It has no vCPUs: their column is its name's, too.
    let name = grid.name + usize::from(Column::Vcpus.width());
    let cell = |column: &Column| {
        let width = usize::from(column.width());
        match column {
            Column::Name => Span::raw(fitted(&thread_name(&vm.name, &thread.name, name), name)),
            _ => {
                let figure = column.of_thread(thread).map(percent);
                let text = format!("{:>width$}", figure.unwrap_or_default());
                styled(shown, text, column.heat(&heat))
            }
        }
    };
    let columns = grid.columns.iter().filter(|column| **column != Column::Vcpus);
    Line::from(columns.map(cell).collect::<Vec<_>>())
}

/// Where there is no room for both the VM's name is cut: its threads differ, and it stands above.
fn thread_name(vm: &str, thread: &str, width: usize) -> String {
    let room = width.saturating_sub(2 + thread.chars().count());
    let vm: String = vm.chars().take(room).collect();
    if vm.is_empty() { format!(" {thread}") } else { format!(" {vm} {thread}") }
}

/// At most `most` lines; the last one says how many more findings there are.
pub fn notes(shown: &Shown, width: u16, most: usize) -> Vec<Line<'static>> {
    let mut vms: BTreeMap<&str, About> =
        shown.rates.vms.iter().map(|vm| (vm.name.as_str(), About::Other)).collect();
    for vm in shown.view.vms(shown.rates) {
        let is_open = shown.view.opened.contains(&vm.key);
        let about = if is_open { About::Opened } else { About::Shown };
        let known = vms.entry(&vm.name).or_insert(about);
        *known = about.min(*known);
    }
    let lines = notes::lines(shown.notes, &vms);
    let more = lines.len().saturating_sub(most);
    let last = lines.len().min(most).saturating_sub(1);
    let line = |(place, line): (usize, &notes::Line)| {
        let more = if place == last { more } else { 0 };
        Line::from(note_line(line, more, usize::from(width)))
    };
    lines.iter().take(most).enumerate().map(line).collect()
}

/// Words at the left, cut where there is little room; at the right, whose they are.
fn note_line(line: &notes::Line, more: usize, width: usize) -> String {
    const WORDS: usize = 30;
    let of = match more {
        0 => format!("doctor: {}", line.id),
        more => format!("doctor: {}, {more} more", line.id),
    };
    // Terminals of 20 columns: what was seen, and no more.
    let of = if of.len() + WORDS > width { String::new() } else { format!("  {of}") };
    let room = width - of.chars().count();
    let words = format!("! {}", line.words);
    if words.chars().count() <= room {
        return format!("{words:<room$}{of}");
    }
    let cut: String = words.chars().take(room.saturating_sub(2)).collect();
    format!("{cut}..{of}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_and_its_finding_is_not() {
        let words = "web-03: vCPUs 5 and 6 may run on CPU 12 alone".to_owned();
        let line = notes::Line { words, id: "vcpu-stack" };
        assert_eq!(
            note_line(&line, 0, 70),
            "! web-03: vCPUs 5 and 6 may run on CPU 12 alone     doctor: vcpu-stack"
        );
        assert_eq!(
            note_line(&line, 2, 64),
            "! web-03: vCPUs 5 and 6 may run on..  doctor: vcpu-stack, 2 more"
        );
        assert_eq!(note_line(&line, 0, 20), "! web-03: vCPUs 5 ..");
        for width in 2..100 {
            assert_eq!(note_line(&line, 7, width).len(), width);
        }
    }

    #[test]
    fn a_thread_keeps_its_name() {
        assert_eq!(thread_name("web", "vhost-4121", 20), " web vhost-4121");
        assert_eq!(thread_name("pg-primary", "vhost-4121", 15), " pg- vhost-4121");
        assert_eq!(thread_name("pg-primary", "vhost-4121", 12), " vhost-4121");
        assert_eq!(thread_name("pg-primary", "vhost-4121", 3), " vhost-4121");
    }
}
