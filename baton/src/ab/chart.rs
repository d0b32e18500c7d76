// SPDX-License-Identifier: GPL-2.0-only
//! A report as a bar chart (SVG): share of the ideal, a group for each workload, a bar for each
//! scheduler, whiskers from the worst run to the best.

use std::fmt::Write;

use super::results::{Cell, Report, Row};

const BAR: f64 = 26.0;
const GAP: f64 = 6.0;
const GROUP_GAP: f64 = 44.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 104.0;
const HEIGHT: f64 = 240.0;
const BOTTOM: f64 = 84.0;
const MIN_WIDTH: f64 = 640.0;

/// Told apart by people with any colour vision, on light and on dark (Okabe and Ito's palette); the
/// kernel's own scheduler is grey, ours comes last and strongest.
const COLOURS: [&str; 6] = ["#8a8f98", "#56b4e9", "#e69f00", "#cc79a7", "#0072b2", "#f0e442"];
const BATON: (&str, &str) = ("scx_baton", "#009e73");

const STYLE: &str = "\
    .ground { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif }\
    .title { font-size: 17px; font-weight: 600 } .note, .tick { fill: #59636e; font-size: 12px }\
    .grid { stroke: #d1d9e0 } .ideal { stroke: #59636e; stroke-dasharray: 5 4 }\
    .whisker { stroke: #1f2328; stroke-width: 1.5 } .hung { fill: #cf222e; font-size: 12px }\
    @media (prefers-color-scheme: dark) { .ground { fill: #0d1117 } text { fill: #e6edf3 }\
    .note, .tick { fill: #9198a1 } .grid { stroke: #3d444d } .ideal { stroke: #9198a1 }\
    .whisker { stroke: #e6edf3 } .hung { fill: #ff7b72 } }";

/// `None` if no workload has a share of the ideal.
pub fn render(report: &Report) -> Option<String> {
    let rows: Vec<&Row> = report.workloads.iter().filter(|row| row.ideal.is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    let names = scheduler_names(&rows);
    let group = names.len() as f64 * (BAR + GAP) - GAP;
    // A group is at least as wide as its label, here in a 13 px font with a gap.
    let longest = rows.iter().map(|row| label(row).chars().count()).max().unwrap_or(0);
    let step = (group + GROUP_GAP).max(130.0).max(7.6 * longest as f64 + 14.0);
    let width = (LEFT + step * rows.len() as f64 + 24.0).max(MIN_WIDTH);
    let total_height = TOP + HEIGHT + BOTTOM;
    let top_share =
        rows.iter().flat_map(|row| &row.schedulers).fold(1.0, |top: f64, (_, cell)| match cell {
            Cell::Figures(figures) => top.max(figures.of_ideal_max.unwrap_or(0.0)),
            Cell::Failed { .. } => top,
        });
    // Up to the next quarter, with room for a figure above the highest whisker.
    let scale_top = ((top_share + 0.08) * 4.0).ceil() / 4.0;
    let y = |share: f64| TOP + HEIGHT * (1.0 - share / scale_top);

    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{total_height}\" \
         viewBox=\"0 0 {width} {total_height}\" role=\"img\">\n<title>Share of the ideal \
         throughput by workload and scheduler</title>\n<style>{STYLE}</style>\n<rect \
         class=\"ground\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n"
    );
    titles(&mut svg, report);
    legend(&mut svg, &names);

    for tick in 0..=(scale_top * 4.0) as u32 {
        let share = f64::from(tick) / 4.0;
        let class = if tick == 4 { "ideal" } else { "grid" };
        line(&mut svg, class, (LEFT, y(share)), (width - 16.0, y(share)));
        let label = format!("{:.0} %", share * 100.0);
        text(&mut svg, LEFT - 8.0, y(share) + 4.0, "tick", "end", &label);
    }
    for (index, row) in rows.iter().enumerate() {
        let middle = LEFT + step * (index as f64 + 0.5);
        for (place, name) in names.iter().enumerate() {
            let left = middle - group / 2.0 + place as f64 * (BAR + GAP);
            if let Some((_, cell)) = row.schedulers.iter().find(|(of, _)| of == name) {
                bar(&mut svg, left, colour(&names, place), cell, &y);
            }
        }
        let base = TOP + HEIGHT;
        text(&mut svg, middle, base + 22.0, "label", "middle", label(row));
        text(&mut svg, middle, base + 40.0, "note", "middle", &report.place(row));
    }
    text(
        &mut svg,
        LEFT - 44.0,
        total_height - 14.0,
        "note",
        "start",
        "100 %: what one VM reaches alone, for its fair share of the time",
    );
    svg.push_str("</svg>\n");
    Some(svg)
}

fn titles(svg: &mut String, report: &Report) {
    text(
        svg,
        LEFT - 44.0,
        30.0,
        "title",
        "start",
        &format!(
            "Share of the ideal throughput, {} vCPUs a VM on {} {} pCPUs",
            report.vcpus_per_vm,
            report.pcpus,
            if report.emulated { "emulated" } else { "nested" }
        ),
    );
    text(
        svg,
        LEFT - 44.0,
        50.0,
        "note",
        "start",
        &format!(
            "Linux {}; median of {} interleaved repetitions, whiskers: least and most",
            report.kernel, report.repetitions
        ),
    );
}

/// What stands below a workload's bars.
fn label(row: &Row) -> &str {
    row.name.strip_prefix("bench-").unwrap_or(&row.name)
}

/// In the order of their first appearance.
fn scheduler_names(rows: &[&Row]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.schedulers) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn colour(names: &[String], place: usize) -> &'static str {
    if names[place] == BATON.0 { BATON.1 } else { COLOURS[place % COLOURS.len()] }
}

fn legend(svg: &mut String, names: &[String]) {
    let mut x = LEFT - 44.0;
    for (place, name) in names.iter().enumerate() {
        let fill = colour(names, place);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"66\" width=\"14\" height=\"14\" rx=\"3\" fill=\"{fill}\"/>"
        );
        text(svg, x + 20.0, 78.0, "label", "start", name);
        // About the width of the name in a 13 px font.
        x += 44.0 + 7.6 * name.chars().count() as f64;
    }
}

fn bar(svg: &mut String, left: f64, fill: &str, cell: &Cell, y: &impl Fn(f64) -> f64) {
    let middle = left + BAR / 2.0;
    let figures = match cell {
        Cell::Figures(figures) => figures,
        Cell::Failed { error, .. } => {
            let word = if error.starts_with("hung") { "hung" } else { "failed" };
            upright(svg, middle, y(0.0), word, error);
            return;
        }
    };
    let Some(share) = figures.of_ideal else { return };
    let _ = writeln!(
        svg,
        "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{BAR}\" height=\"{:.1}\" fill=\"{fill}\"/>",
        y(share),
        y(0.0) - y(share)
    );
    let mut highest = share;
    if let (Some(low), Some(high)) = (figures.of_ideal_min, figures.of_ideal_max) {
        highest = high;
        line(svg, "whisker", (middle, y(low)), (middle, y(high)));
        for end in [low, high] {
            line(svg, "whisker", (middle - 5.0, y(end)), (middle + 5.0, y(end)));
        }
    }
    text(svg, middle, y(highest) - 5.0, "note", "middle", &format!("{:.0}", share * 100.0));
    if figures.failed_runs > 0 {
        let (failed, runs) = (figures.failed_runs, figures.runs.len());
        upright(svg, middle, y(0.0), &format!("{failed} of {runs} failed"), "");
    }
}

/// What went wrong, upwards from the base line; `why` appears under the mouse.
fn upright(svg: &mut String, middle: f64, base: f64, words: &str, why: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"hung\" transform=\"translate({:.1} {:.1}) rotate(-90)\">{words}\
         <title>{}</title></text>",
        middle + 4.0,
        base - 6.0,
        escape(why)
    );
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, anchor: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(content)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::tests::sample;

    #[test]
    fn shows_shares_and_hangs() {
        let svg = render(&sample()).unwrap();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">90</text>") && svg.contains(">40</text>"), "{svg}");
        assert!(svg.contains(">hung<"), "{svg}");
        assert!(svg.contains("emulated") && !svg.contains("pbzip2"));
    }

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }

    #[test]
    fn nothing_to_show_is_no_chart() {
        let mut report = sample();
        report.workloads.remove(0);
        assert!(render(&report).is_none());
    }
}
