// SPDX-License-Identifier: GPL-2.0-only
//! The screen, drawn.

use crate::columns::{Column, Heat, counted};
use crate::rates::{Parts, Rates, VcpuRates, VmRates};
use crate::sample::Sample;
use crate::view::View;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// All that is shown.
pub struct Shown<'a> {
    pub now: &'a Sample,
    pub rates: &'a Rates,
    pub view: &'a View,
    /// Seconds from one sample to the next, as asked for.
    pub delay: f64,
    pub colors: bool,
    /// Instead of the keys, on the last line.
    pub message: Option<&'a str>,
}

/// Smaller ones show a line that says so.
const LEAST: (u16, u16) = (20, 6);

const HEAD: u16 = 3;

pub fn draw(frame: &mut Frame, shown: &Shown) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let words = format!("needs {}x{}", LEAST.0, LEAST.1);
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    if shown.view.help {
        frame.render_widget(Paragraph::new(help()), area);
        return;
    }
    let parts = [HEAD, 1, 0, 1].map(|height| match height {
        0 => Constraint::Min(0),
        height => Constraint::Length(height),
    });
    let [head, titles, body, foot] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(head_lines(shown)), head);
    let columns = columns(shown, area.width);
    frame.render_widget(Paragraph::new(title_line(shown, &columns, area.width)), titles);
    draw_vms(frame, shown, &columns, body);
    frame.render_widget(Paragraph::new(foot_line(shown)), foot);
}

fn head_lines(shown: &Shown) -> Vec<Line<'static>> {
    let (host, rates) = (&shown.now.host, &shown.rates.host);
    let vcpus: u32 = shown.now.vms.iter().map(|vm| vm.nr_vcpus).sum();
    let ratio = f64::from(vcpus) / f64::from(host.cpus.max(1));
    let clock = shown.now.wall_s % 86_400;
    let paused = if shown.view.paused { "  PAUSED" } else { "" };
    let first = format!(
        "baton top  {}  {}  {} CPUs, {} VMs, {vcpus} vCPUs ({ratio:.1}:1)  {}  {}s  {:02}:{:02} UTC{paused}",
        host.name,
        host.kernel,
        host.cpus,
        shown.now.vms.len(),
        host.scheduler.to_uppercase(),
        shown.delay,
        clock / 3600,
        clock / 60 % 60
    );
    let pressure = rates.pressure.map(|some| format!("   PSI cpu some {some:.1}"));
    let second = format!(
        "pCPU run {:.1}  idle {:.1}  irq {:.1}  steal {:.1}{}",
        rates.run,
        rates.idle,
        rates.irq,
        rates.steal,
        pressure.unwrap_or_default()
    );
    let third = match (&shown.rates.yields, &shown.now.baton) {
        (Some(y), _) => format!(
            "yields/s {}: obeyed {:.0}% redirected {:.0}% missed {:.0}% refused {:.0}%   lent/s {}   turns/s {} \
             gang {:.0}%",
            counted(y.yields),
            y.obeyed,
            y.redirected,
            y.missed,
            y.refused,
            counted(y.lent),
            counted(y.turns),
            y.gangs
        ),
        (None, Err(why)) => why.clone(),
        (None, Ok(_)) => "scx_baton has just come".to_owned(),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    vec![Line::styled(first, bold), Line::from(second), Line::from(third)]
}

/// As many as there is room for, the first ones first. Those that nobody knows are left out.
fn columns(shown: &Shown, width: u16) -> Vec<Column> {
    let is_known = |column: &Column| {
        let vms = &shown.rates.vms;
        let always = [Column::Name, Column::Vcpus, Column::Run, Column::Ready].contains(column);
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

fn name_width(columns: &[Column], width: u16) -> usize {
    let others: u16 = columns.iter().skip(1).map(|column| column.width()).sum();
    width.saturating_sub(others).into()
}

fn title_line(shown: &Shown, columns: &[Column], width: u16) -> Line<'static> {
    let of = if shown.view.sum { " (sum of vCPUs)" } else { " (mean of vCPUs)" };
    let name = name_width(columns, width);
    let cell = |column: &Column| {
        let style = match *column == shown.view.sort {
            true => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            false => Style::new().add_modifier(Modifier::REVERSED),
        };
        let sorted = if *column == shown.view.sort { "*" } else { "" };
        let title = format!("{sorted}{}", column.title());
        let text = match column {
            Column::Name => fitted(&format!("{title}{of}"), name),
            _ => format!("{title:>width$}", width = usize::from(column.width())),
        };
        Span::styled(text, style)
    };
    Line::from(columns.iter().map(cell).collect::<Vec<_>>())
}

/// Exactly so wide, cut or filled.
fn fitted(text: &str, width: usize) -> String {
    let cut: String = text.chars().take(width).collect();
    format!("{cut:<width$}")
}

fn draw_vms(frame: &mut Frame, shown: &Shown, columns: &[Column], area: Rect) {
    let vms = shown.view.vms(shown.rates);
    if vms.is_empty() {
        let words = match (shown.rates.vms.is_empty(), shown.view.filter.as_str()) {
            (true, _) => "no VM runs".to_owned(),
            (false, filter) => format!("no VM has '{filter}' in its name: Esc shows all"),
        };
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    let selected = shown.view.place(shown.rates).unwrap_or(0);
    let mut lines = Vec::new();
    let mut selected_line = 0;
    for (place, vm) in vms.iter().enumerate() {
        if place == selected {
            selected_line = lines.len();
        }
        lines.push(vm_line(shown, columns, vm, area.width, place == selected));
        if shown.view.opened.contains(&vm.key) {
            lines.push(about_line(vm));
            lines.extend(vm.vcpus.iter().map(|vcpu| vcpu_line(shown, columns, vcpu, area.width)));
        }
    }
    // The selected one stands in the middle, unless all that is above or below it fits.
    let height = usize::from(area.height);
    let most = lines.len().saturating_sub(height);
    let first = selected_line.saturating_sub(height / 2).min(most);
    frame.render_widget(Paragraph::new(lines.split_off(first)), area);
}

fn styled(shown: &Shown, text: String, heat: Heat) -> Span<'static> {
    let style = match (heat, shown.colors) {
        (Heat::Fine, _) => Style::new(),
        (Heat::Warm, true) => Style::new().fg(Color::Yellow),
        (Heat::Hot, true) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        (_, false) => Style::new().add_modifier(Modifier::BOLD),
    };
    Span::styled(text, style)
}

fn vm_line(
    shown: &Shown,
    columns: &[Column],
    vm: &VmRates,
    width: u16,
    is_selected: bool,
) -> Line<'static> {
    let name = name_width(columns, width);
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

fn vcpu_line(shown: &Shown, columns: &[Column], vcpu: &VcpuRates, width: u16) -> Line<'static> {
    let name = name_width(columns, width);
    let cell = |column: &Column| {
        let width = usize::from(column.width());
        let Parts { wait, .. } = vcpu.parts;
        let pcpu = if vcpu.cpu >= 0 { format!("  pCPU {}", vcpu.cpu) } else { String::new() };
        match column {
            Column::Name => Span::raw(fitted(&format!("   vCPU {}{pcpu}", vcpu.id), name)),
            Column::Spin => Span::raw(format!("  wait {}", crate::columns::percent(wait))),
            _ => {
                let figure = column.part(&vcpu.parts).map(crate::columns::percent);
                let text = format!("{:>width$}", figure.unwrap_or_default());
                styled(shown, text, column.heat(&vcpu.parts))
            }
        }
    };
    Line::from(columns.iter().map(cell).collect::<Vec<_>>())
}

fn foot_line(shown: &Shown) -> Line<'static> {
    let view = shown.view;
    if let Some(message) = shown.message {
        return Line::from(message.to_owned());
    }
    if view.types {
        return Line::from(format!("VMs with: {}_   Enter: done  Esc: all", view.filter));
    }
    let filter = match view.filter.as_str() {
        "" => String::new(),
        filter => format!("with '{filter}', Esc: all  "),
    };
    Line::from(format!("{filter}q quit  Enter vCPUs  <> sort  R reverse  / filter  n sum  h help"))
}

fn help() -> Vec<Line<'static>> {
    let keys = [
        ("up, down, j, k", "another VM"),
        ("Enter", "its vCPUs, or no longer"),
        ("<, >, R", "sort by another column, the other way round"),
        ("/, Esc", "VMs with a part of a name, all"),
        ("n", "sum of vCPUs, or their mean"),
        ("Space", "stand still, go on"),
        ("w", "write the last minute (--write FILE)"),
        ("q", "quit"),
    ];
    let column = |column: &Column| (column.title(), column.meaning());
    let line = |(key, words): (&str, &str)| Line::from(format!("{key:<15} {words}"));
    let mut lines: Vec<Line> = keys.into_iter().map(line).collect();
    lines.push(Line::default());
    lines.extend(Column::ALL.iter().map(column).map(line));
    lines
}
