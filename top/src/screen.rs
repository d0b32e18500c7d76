// SPDX-License-Identifier: GPL-2.0-only
//! The screen, drawn.

use crate::bottom;
use crate::columns::{Column, counted};
use crate::grid::{Grid, fitted, joined};
use crate::shown::Shown;
use crate::table::Table;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// Smaller ones show a line that says so.
const LEAST: (u16, u16) = (20, 6);

const HEAD: u16 = 3;

/// Lines for them, at most.
const MOST_NOTES: usize = 3;
const MOST_THREADS: usize = 9;

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
    let grid = Grid::of(shown, area.width);
    let table = Table::of(shown, &grid);
    let room = usize::from(area.height - HEAD - 2);
    let notes = bottom::notes(shown, area.width, (room / 5).min(MOST_NOTES));
    // A quarter of what VMs have, and what they leave.
    let left = room.saturating_sub(table.height() + notes.len());
    let most = (room / 4).max(left).min(MOST_THREADS);
    let threads = bottom::threads(shown, &grid, most);
    let heights = [HEAD, 1, 0, threads.len() as u16, notes.len() as u16, 1];
    let mut parts = heights.map(Constraint::Length);
    parts[2] = Constraint::Min(0);
    let [head, titles, body, below, noted, foot] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(head_lines(shown, area.width)), head);
    frame.render_widget(Paragraph::new(title_line(shown, &grid)), titles);
    frame.render_widget(Paragraph::new(table.lines(body.height)), body);
    frame.render_widget(Paragraph::new(threads), below);
    frame.render_widget(Paragraph::new(notes), noted);
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
        (None, Err(why)) => {
            let vms = &shown.rates.vms;
            let polls = vms.is_empty() || vms.iter().any(|vm| vm.poll.is_some());
            let none = "%POLL: KVM's debugfs is not readable";
            vec![why.clone(), if polls { String::new() } else { none.to_owned() }]
        }
        (None, Ok(_)) => vec!["scx_baton has just come".to_owned()],
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    vec![
        Line::styled(joined(&first, width), bold),
        Line::from(joined(&second, width)),
        Line::from(joined(&third, width)),
    ]
}

fn title_line(shown: &Shown, grid: &Grid) -> Line<'static> {
    let of = if shown.view.sum { ", sum of" } else { ", mean of" };
    let cell = |column: &Column| {
        let style = match *column == shown.view.sort {
            true => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            false => Style::new().add_modifier(Modifier::REVERSED),
        };
        let sorted = if *column == shown.view.sort { "*" } else { "" };
        let title = format!("{sorted}{}", column.title());
        let text = match column {
            Column::Name => fitted(&format!("{title}{of}"), grid.name),
            _ => format!("{title:>width$}", width = usize::from(column.width())),
        };
        Span::styled(text, style)
    };
    Line::from(grid.columns.iter().map(cell).collect::<Vec<_>>())
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
        ("%RDY 60 s", "a sign a second: _, from 1.25 on ., each twice that: , - = * # @"),
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
    use crate::history::History;
    use crate::rates::{
        HostRates, MoreRates, Parts, Rates, ThreadRates, VcpuRates, VmRates, YieldRates,
    };
    use crate::sample::{HostSample, Note, Sample, VmSample, Yields};
    use crate::view::View;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Color;

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
        let (key, name, more) = (name.to_owned(), name.to_owned(), Some(more));
        VmRates { key, name, pid: 0, nr_vcpus, parts, poll: None, more, vcpus, threads: vec![] }
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
        let baton = Ok(Yields::default());
        Sample { at_s: 1.0, wall_s: 50_520, host, baton, vms, notes: None }
    }

    fn rates(vms: Vec<VmRates>) -> Rates {
        let host = HostRates { run: 91.4, idle: 3.1, pressure: Some(38.1), ..HostRates::default() };
        let yields = Some(YieldRates { yields: 8412.0, obeyed: 61.0, ..YieldRates::default() });
        Rates { seconds: 1.0, host, yields, vms }
    }

    /// What is shown beside rates.
    #[derive(Default)]
    struct Beside {
        history: History,
        notes: Vec<Note>,
        without_baton: bool,
    }

    fn drawn(size: (u16, u16), rates: &Rates, view: &View, colors: bool) -> Terminal<TestBackend> {
        drawn_with(size, rates, view, colors, &Beside::default())
    }

    fn drawn_with(
        size: (u16, u16),
        rates: &Rates,
        view: &View,
        colors: bool,
        beside: &Beside,
    ) -> Terminal<TestBackend> {
        let mut now = sample(rates);
        if beside.without_baton {
            now.baton = Err("scx_baton does not run".into());
        }
        let shown = Shown {
            now: &now,
            rates,
            history: &beside.history,
            notes: &beside.notes,
            view,
            delay: 1.0,
            colors,
            message: None,
        };
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

    /// A minute of them, with an opened VM, threads of the host and findings.
    fn all() -> (Rates, View, Beside) {
        let mut rates = three();
        let thread = |tid, name: &str, run, ready| {
            let name = name.to_owned();
            ThreadRates { tid, name, run, ready }
        };
        rates.vms[0].threads = vec![thread(1, "qemu-system-x86", 99.0, 1.0)];
        rates.vms[1].pid = 4121;
        rates.vms[1].vcpus.truncate(2);
        rates.vms[1].threads = vec![
            thread(4121, "qemu-system-x86", 1.5, 0.0),
            thread(4122, "IO iothread1", 11.2, 0.3),
            thread(4130, "vhost-4121", 38.0, 12.4),
        ];
        let mut history = History::default();
        for second in 0..70 {
            let mut then = rates.clone();
            for (place, ready) in [3.0, 1.2 * f64::from(second), 90.0].into_iter().enumerate() {
                then.vms[place].parts.ready = ready;
                then.vms[place].vcpus.iter_mut().for_each(|vcpu| vcpu.parts.ready = ready / 2.0);
            }
            history.add(&then, f64::from(second), f64::from(second) + 1.0);
        }
        let note = |id: &str, title: &str, evidence: &[&str]| {
            let evidence = evidence.iter().map(|line| (*line).to_owned()).collect();
            Note { id: id.into(), title: title.into(), evidence }
        };
        let stacked = ["pg: vCPUs 0 and 1", "web-03: vCPUs 5 and 6 may run on CPU 12 alone"];
        let notes = vec![
            note("rival", "another scheduler", &["scx.service is enabled"]),
            note("ksm", "KSM merges pages", &["ksm/run = 1, 0 pages saved"]),
            note("vcpu-stack", "two vCPUs on one CPU", &stacked),
            note("thp", "huge pages are off", &["transparent_hugepage/enabled = never"]),
        ];
        let mut view = View::new(Column::Run, "");
        view.opened.insert("web-03".into());
        (rates, view, Beside { history, notes, without_baton: false })
    }

    #[test]
    fn an_opened_vm_has_its_history_and_threads_and_findings() {
        let (rates, view, beside) = all();
        let lines = lines(&drawn_with((80, 24), &rates, &view, true, &beside));
        let expected = [
            ">web-03             8   71.2   14.1    6.3     0.0    2.1    0.3    41ms   1,904",
            "  process 4121  weight 100  policy: gang",
            "  %RDY 58 s  =====*****************#################################@@@  max 83",
            "  vCPU 0  on 11         71.2   14.1    6.3     0.0  *************************###",
            "  vCPU 1  on 11         71.2   14.1    6.3     0.0  *************************###",
            " pg                16   64.0    9.8    6.3     0.0    2.1    0.3    41ms   1,904",
        ];
        assert_eq!(lines[4..10], expected, "{lines:#?}");
        let expected = [
            "HOST THREADS",
            " web-03 vhost-4121      38.0   12.4",
            " web-03 IO iothread1    11.2    0.3",
            " web- qemu-system-x86    1.5    0.0",
            "! web-03: vCPUs 5 and 6 may run on CPU 12 alone (+1)          doctor: vcpu-stack",
            "! another scheduler: scx.service is enabled                        doctor: rival",
            "! KSM merges pages: ksm/run = 1, 0 pages saved               doctor: ksm, 1 more",
            "q quit  Enter vCPUs  <> sort  R reverse  / filter  n sum  h help",
        ];
        assert_eq!(lines[16..], expected, "{lines:#?}");
    }

    #[test]
    fn without_an_opened_vm_the_busiest_have_their_threads() {
        let (rates, mut view, beside) = all();
        view.opened.clear();
        let lines = lines(&drawn_with((80, 24), &rates, &view, true, &beside));
        let place = lines.iter().position(|line| line == "HOST THREADS");
        let place = place.expect("it is there");
        assert!(lines[place + 1].starts_with(" pg qemu-system-x86     99.0"), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("%RDY 5")), "{lines:#?}");
        assert!(lines[place + 5].starts_with("! pg: vCPUs 0 and 1 (+1) "), "{lines:#?}");
    }

    /// Without Baton a vCPU's history stands behind its figures.
    #[test]
    fn wide_screens_without_baton() {
        let (mut rates, view, mut beside) = all();
        beside.without_baton = true;
        for vm in &mut rates.vms {
            vm.more = None;
            let forget = |parts: &mut Parts| (parts.costop, parts.throttled) = (None, None);
            forget(&mut vm.parts);
            vm.vcpus.iter_mut().for_each(|vcpu| forget(&mut vcpu.parts));
        }
        let screen = |rates: &Rates| lines(&drawn_with((120, 24), rates, &view, true, &beside));
        let lines = screen(&rates);
        let expected = [
            "VM, mean of             vC  *%RUN   %RDY  %WAIT",
            ">web-03                  8   71.2   14.1    8.4",
            "  process 4121",
            "  %RDY 60 s  =======*****************#################################@@@  max 83",
            "  vCPU 0  on 11              71.2   14.1    8.4  \
             -------=================*********************************###",
        ];
        assert_eq!(lines[3..8], expected, "{lines:#?}");
        // What KVM tells has its column; what nobody tells is said to be missing.
        let none = "scx_baton does not run  %POLL: KVM's debugfs is not readable";
        rates.yields = None;
        assert_eq!(screen(&rates)[2], none);
        rates.vms[2].poll = Some(7.5);
        let lines = screen(&rates);
        assert_eq!(lines[2], "scx_baton does not run");
        assert!(lines[3].contains("  %POLL  %WAIT") && lines[10].contains("    7.5   92.7"));
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
        let (rates, view, beside) = all();
        for width in (2..=140).step_by(3) {
            for height in 1..50 {
                let lines = lines(&drawn_with((width, height), &rates, &view, true, &beside));
                let fits = width >= LEAST.0 && height >= LEAST.1;
                let says = lines.iter().any(|line| line.starts_with(">web-03"));
                assert_eq!(says, fits, "{width}x{height}: {lines:#?}");
                let has = |words: &str| lines.iter().any(|line| line.starts_with(words));
                assert_eq!(has("! web-03: vCPUs"), fits && height >= 10, "{lines:#?}");
                // A column for %RUN.
                let room = width >= 23 && height >= 13;
                assert_eq!(has("HOST THREADS"), room, "{width}x{height}: {lines:#?}");
            }
        }
    }

    #[test]
    fn nothing_to_show_is_said() {
        let mut view = View::new(Column::Run, "");
        let none = lines(&drawn((80, 12), &rates(vec![]), &view, true));
        assert_eq!(none[4], "no VM runs");
        // Of a VM that has just come there are no figures yet.
        let now = sample(&three());
        let (rates, history) = (Rates::default(), History::default());
        let shown = Shown {
            now: &now,
            rates: &rates,
            history: &history,
            notes: &[],
            view: &view,
            delay: 1.0,
            colors: true,
            message: Some("x"),
        };
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &shown)).expect("it can be drawn");
        assert_eq!(lines(&terminal)[4], "");
        view.filter = "nope".into();
        let none = lines(&drawn((80, 12), &three(), &view, true));
        assert_eq!(none[4], "no VM has 'nope' in its name: Esc shows all");
        view.help = true;
        let help = lines(&drawn((80, 24), &three(), &view, true));
        assert!(help.iter().any(|line| line.starts_with("%CSTP")), "{help:#?}");
    }
}
