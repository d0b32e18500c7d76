// SPDX-License-Identifier: GPL-2.0-only
//! The screen, drawn.

use crate::columns::{Column, Heat, counted};
use crate::rates::{Rates, VcpuRates, VmRates};
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
    frame.render_widget(Paragraph::new(head_lines(shown, area.width)), head);
    let columns = columns(shown, area.width);
    frame.render_widget(Paragraph::new(title_line(shown, &columns, area.width)), titles);
    draw_vms(frame, shown, &columns, body);
    frame.render_widget(Paragraph::new(foot_line(shown)), foot);
}

fn head_lines(shown: &Shown, width: u16) -> Vec<Line<'static>> {
    let (host, rates) = (&shown.now.host, &shown.rates.host);
    let vcpus: u32 = shown.now.vms.iter().map(|vm| vm.nr_vcpus).sum();
    let ratio = f64::from(vcpus) / f64::from(host.cpus.max(1));
    let clock = shown.now.wall_s % 86_400;
    let of =
        format!("{} CPUs, {} VMs, {vcpus} vCPUs ({ratio:.1}:1)", host.cpus, shown.now.vms.len());
    let first = [
        format!("baton top  {}", host.name),
        host.scheduler.to_uppercase(),
        if shown.view.paused { "PAUSED".into() } else { String::new() },
        of,
        format!("{:02}:{:02} UTC", clock / 3600, clock / 60 % 60),
        format!("{}s", shown.delay),
        host.kernel.clone(),
    ];
    let second = [
        format!("pCPU run {:.1}  idle {:.1}", rates.run, rates.idle),
        format!("irq {:.1}", rates.irq),
        format!("steal {:.1}", rates.steal),
        rates.pressure.map(|some| format!("PSI cpu some {some:.1}")).unwrap_or_default(),
    ];
    let third = match (&shown.rates.yields, &shown.now.baton) {
        (Some(y), _) => vec![
            format!("yields/s {}: obeyed {:.0}%", counted(y.yields), y.obeyed),
            format!("redirected {:.0}%", y.redirected),
            format!("missed {:.0}%", y.missed),
            format!("refused {:.0}%", y.refused),
            format!("turns/s {}", counted(y.turns)),
            format!("gang {:.0}%", y.gangs),
            format!("lent/s {}", counted(y.lent)),
        ],
        (None, Err(why)) => vec![why.clone()],
        (None, Ok(_)) => vec!["scx_baton has just come".to_owned()],
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    vec![
        Line::styled(joined(&first, width), bold),
        Line::from(joined(&second, width)),
        Line::from(joined(&third, width)),
    ]
}

/// Those that fit, the first one in any case.
fn joined(parts: &[String], width: u16) -> String {
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

/// What is left by the others, as long as names need it.
fn name_width(shown: &Shown, columns: &[Column], width: u16) -> usize {
    let others: u16 = columns.iter().skip(1).map(|column| column.width()).sum();
    let longest = shown.rates.vms.iter().map(|vm| vm.name.chars().count()).max().unwrap_or(0);
    usize::from(width.saturating_sub(others)).min(longest.max(20) + 2)
}

fn title_line(shown: &Shown, columns: &[Column], width: u16) -> Line<'static> {
    let of = if shown.view.sum { ", sum of" } else { ", mean of" };
    let name = name_width(shown, columns, width);
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

fn vcpu_line(shown: &Shown, columns: &[Column], vcpu: &VcpuRates, width: u16) -> Line<'static> {
    let name = name_width(shown, columns, width);
    let cell = |column: &Column| {
        let width = usize::from(column.width());
        match column {
            Column::Name => {
                let pcpu = if vcpu.cpu >= 0 { format!("on {}", vcpu.cpu) } else { String::new() };
                let parts = [format!("  vCPU {}", vcpu.id), pcpu];
                Span::raw(fitted(&joined(&parts, name as u16), name))
            }
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
        ("Enter", "its vCPUs, each with the pCPU that it ran on last, or no longer"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{HostRates, MoreRates, Parts, YieldRates};
    use crate::sample::{HostSample, VmSample, Yields};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn vm(name: &str, nr_vcpus: u32, run: f64, ready: f64) -> VmRates {
        let (costop, throttled) = (Some(6.3), Some(0.0));
        let wait = 100.0 - run - ready - 6.3;
        let parts = Parts { run, ready, costop, throttled, wait };
        let more = MoreRates {
            weight: 100,
            spin: 2.1,
            poll: 0.3,
            ipi_wait: 41.0,
            spins: 1904.0,
            boosts: 612.0,
            useful: Some(83.0),
            wake99: Some(1900.0),
            ..MoreRates::default()
        };
        let vcpus = (0..nr_vcpus).map(|id| VcpuRates { id, tid: 7, cpu: 11, parts }).collect();
        VmRates { key: name.into(), name: name.into(), nr_vcpus, parts, more: Some(more), vcpus }
    }

    fn sample(rates: &Rates) -> Sample {
        let host = HostSample {
            name: "kvm-07".into(),
            kernel: "6.17.2".into(),
            cpus: 64,
            scheduler: "baton".into(),
            ..HostSample::default()
        };
        let vm = |vm: &VmRates| VmSample { nr_vcpus: vm.nr_vcpus, ..VmSample::default() };
        let vms = rates.vms.iter().map(vm).collect();
        Sample { at_s: 1.0, wall_s: 50_520, host, baton: Ok(Yields::default()), vms }
    }

    fn rates(vms: Vec<VmRates>) -> Rates {
        let host = HostRates { run: 91.4, idle: 3.1, pressure: Some(38.1), ..HostRates::default() };
        let yields = Some(YieldRates { yields: 8412.0, obeyed: 61.0, ..YieldRates::default() });
        Rates { seconds: 1.0, host, yields, vms }
    }

    fn drawn(size: (u16, u16), rates: &Rates, view: &View, colors: bool) -> Terminal<TestBackend> {
        let now = sample(rates);
        let shown = Shown { now: &now, rates, view, delay: 1.0, colors, message: None };
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &shown)).expect("it can be drawn");
        terminal
    }

    fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
        let buffer = terminal.backend().buffer();
        let line = |y| {
            let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..buffer.area.height).map(line).collect()
    }

    fn three() -> Rates {
        rates(vec![vm("pg", 16, 64.0, 9.8), vm("web-03", 8, 71.2, 14.1), vm("idle", 2, 1.0, 0.0)])
    }

    #[test]
    fn the_screen_of_80_columns() {
        let mut view = View::new(Column::Run, "");
        view.opened.insert("idle".into());
        let lines = lines(&drawn((80, 12), &three(), &view, true));
        let expected = [
            "baton top  kvm-07  BATON  64 CPUs, 3 VMs, 26 vCPUs (0.4:1)  14:02 UTC  1s",
            "pCPU run 91.4  idle 3.1  irq 0.0  steal 0.0  PSI cpu some 38.1",
            "yields/s 8,412: obeyed 61%  redirected 0%  missed 0%  refused 0%  turns/s 0",
            "VM, mean of        vC  *%RUN   %RDY  %CSTP  %MLMTD  %SPIN  %POLL  IPIw/s   PLE/s",
            ">web-03             8   71.2   14.1    6.3     0.0    2.1    0.3    41ms   1,904",
            " pg                16   64.0    9.8    6.3     0.0    2.1    0.3    41ms   1,904",
            " idle               2    1.0    0.0    6.3     0.0    2.1    0.3    41ms   1,904",
            "  idle  weight 100  policy: gang",
            "  vCPU 0  on 11          1.0    0.0    6.3     0.0",
            "  vCPU 1  on 11          1.0    0.0    6.3     0.0",
            "",
            "q quit  Enter vCPUs  <> sort  R reverse  / filter  n sum  h help",
        ];
        assert_eq!(lines, expected, "{lines:#?}");
    }

    #[test]
    fn waiting_is_coloured_where_there_are_colours() {
        let view = View::new(Column::Run, "");
        let is_red = |terminal: &Terminal<TestBackend>| {
            terminal.backend().buffer().content.iter().any(|cell| cell.fg == Color::Red)
        };
        assert!(is_red(&drawn((80, 12), &three(), &view, true)));
        let plain = drawn((80, 12), &three(), &view, false);
        let colours = plain.backend().buffer().content.iter().filter(|c| c.fg != Color::Reset);
        assert_eq!(colours.count(), 0);
    }

    /// Of any size it is drawn, or says what it needs, and the selected VM is on it.
    #[test]
    fn terminals_of_all_sizes() {
        let many = (0..300).map(|n| vm(&format!("vm-{n:03}"), 7, 50.0, 5.0)).collect();
        let many = rates(many);
        let mut view = View::new(Column::Name, "");
        view.selected = Some("vm-250".into());
        for width in (1..200).step_by(7) {
            for height in 1..40 {
                let lines = lines(&drawn((width, height), &many, &view, true));
                let fits = width >= LEAST.0 && height >= LEAST.1;
                let says = lines.iter().any(|line| line.contains(">vm-250"));
                assert_eq!(says, fits, "{width}x{height}: {lines:#?}");
            }
        }
    }

    #[test]
    fn nothing_to_show_is_said() {
        let mut view = View::new(Column::Run, "");
        let none = lines(&drawn((80, 12), &rates(vec![]), &view, true));
        assert_eq!(none[4], "no VM runs");
        view.filter = "nope".into();
        let none = lines(&drawn((80, 12), &three(), &view, true));
        assert_eq!(none[4], "no VM has 'nope' in its name: Esc shows all");
        view.help = true;
        let help = lines(&drawn((80, 24), &three(), &view, true));
        assert!(help.iter().any(|line| line.starts_with("%CSTP")), "{help:#?}");
    }
}
