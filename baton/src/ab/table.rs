// SPDX-License-Identifier: GPL-2.0-only
//! A report as text.

use std::fmt::Write;

use baton_report::columns::aligned;
use baton_testbed::exact::Inputs;

use super::results::{Cell, Figures, Report, Row};

const HEAD: [&str; 7] =
    ["", "median", "spread", "of the ideal (range)", "Jain", "PLE exits", "× EEVDF [95 %]"];

/// An interval whose bounds are that many times apart, in real time, says how busy the machine was.
const NOISE: f64 = 4.0;

/// The whole report; ends with a line break.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    for row in &report.workloads {
        let mut lines = vec![HEAD.map(String::from).to_vec()];
        lines.extend(row.schedulers.iter().filter_map(|(name, cell)| match cell {
            Cell::Figures(figures) => Some(line(name, figures, report.inputs.is_none())),
            Cell::Failed { .. } => None,
        }));
        let _ = writeln!(out, "{}", title(report, row));
        for line in aligned(&lines, false).lines() {
            let _ = writeln!(out, "  {line}");
        }
        for (name, cell) in &row.schedulers {
            let _ = match cell {
                Cell::Failed { error, .. } => writeln!(out, "  {name}: {error}"),
                Cell::Figures(figures) if figures.failed_runs > 0 => writeln!(
                    out,
                    "  {name}: {} of {} runs failed",
                    figures.failed_runs,
                    figures.runs.len()
                ),
                Cell::Figures(_) => Ok(()),
            };
        }
        out.push('\n');
    }
    let _ = writeln!(out, "{}", footer(report));
    out
}

fn title(report: &Report, row: &Row) -> String {
    let ideal = row.ideal.map(|ideal| format!("; ideal {}", figure(ideal))).unwrap_or_default();
    format!("{}, {} ({}{ideal})", row.name, report.place(row), row.unit)
}

/// Whether the interval of the ratio is too wide to say anything.
fn is_noise(figures: &Figures) -> bool {
    let bounds = figures.vs_eevdf.and_then(|versus| Some((versus.low?, versus.high?)));
    bounds.is_some_and(|(low, high)| high > low * NOISE)
}

fn line(name: &str, figures: &Figures, real_time: bool) -> Vec<String> {
    let none = || "–".to_string();
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let share = match (figures.of_ideal, figures.of_ideal_min, figures.of_ideal_max) {
        (Some(of), Some(min), Some(max)) => {
            format!("{} % ({}–{})", percent(of), percent(min), percent(max))
        }
        _ => none(),
    };
    let versus = figures.vs_eevdf.map_or_else(none, |versus| match (versus.low, versus.high) {
        _ if real_time && is_noise(figures) => "noise".to_string(),
        (Some(low), Some(high)) => {
            format!("{} [{}, {}]", figure(versus.ratio), figure(low), figure(high))
        }
        _ => figure(versus.ratio),
    });
    vec![
        name.to_string(),
        figure(figures.total),
        format!("{} %", percent(figures.spread)),
        share,
        figures.jain.map_or_else(none, |jain| format!("{jain:.3}")),
        figures.ple_exits.map_or_else(none, thousands),
        versus,
    ]
}

fn footer(report: &Report) -> String {
    let mut out = conditions(report);
    let cells = report.workloads.iter().flat_map(|row| &row.schedulers);
    let noise = |cell: &Cell| matches!(cell, Cell::Figures(figures) if is_noise(figures));
    if report.inputs.is_none() && cells.into_iter().any(|(_, cell)| noise(cell)) {
        out += &format!(
            "\nnoise: the bounds of the 95 % interval are more than {NOISE} times apart. This \
             machine is too slow or too\nbusy for a figure in real time: run it alone, with more \
             repetitions, or on an exact host (--exact)."
        );
    }
    if let Some(inputs) = &report.inputs {
        let Inputs { machine, emulator, kernel, image, programs, .. } = inputs;
        let _ = write!(
            out,
            "\nAn exact host ({machine}): the same inputs give the same figures. They are, by their \
             SHA-256,\nemulator {}, kernel {}, image {}",
            short(emulator),
            short(kernel),
            short(image),
        );
        for (name, hash) in programs {
            let _ = write!(out, ", {name} {}", short(hash));
        }
        out.push('.');
    }
    out
}

/// As much of a hash as a person compares.
fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

fn conditions(report: &Report) -> String {
    let kernel = if report.kernel.is_empty() { "unknown" } else { &report.kernel };
    let partial = if report.complete { "" } else { " The experiment did not get to its end." };
    let (host, limits) = if report.emulated {
        ("an emulated host", "the schedulers can be compared with each other, the rates are not")
    } else {
        (
            "a host nested under KVM",
            "exits cost more, and PAUSE exits may be missing: rates are not",
        )
    };
    format!(
        "Measured on {host} (kernel {kernel}, {} pCPUs, {} vCPUs a VM, {} s a run, \
         {} full interleaved {}):\n{limits} those of real hardware.{partial}",
        report.pcpus,
        report.vcpus_per_vm,
        report.seconds,
        report.repetitions,
        if report.repetitions == 1 { "repetition" } else { "repetitions" }
    )
}

/// Three digits, or all before the point.
fn figure(value: f64) -> String {
    match value.abs() {
        99.95.. => thousands(value),
        9.995.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Whole, with a comma between thousands.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::results::tests::sample;

    #[test]
    fn figures_are_short() {
        for (value, text) in [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (1234567.0, "1,234,567"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn noise_is_no_figure() {
        let mut report = sample();
        for row in &mut report.workloads {
            for (_, cell) in &mut row.schedulers {
                let Cell::Figures(figures) = cell else { continue };
                if let Some(versus) = &mut figures.vs_eevdf {
                    (versus.low, versus.high) = (Some(0.01), Some(157.0));
                }
            }
        }
        let text = render(&report);
        assert!(!text.contains("157") && text.contains("too slow or too"), "{text}");
        assert!(!render(&sample()).contains("noise"));
    }

    #[test]
    fn every_scheduler_has_its_line() {
        let text = render(&sample());
        assert!(text.contains("barrier, 2 VMs (rounds/s; ideal 1,500)"), "{text}");
        assert!(text.contains("90 % (90–90)"), "{text}");
        assert!(text.contains("2.25 [2.25, 2.25]"), "{text}");
        assert!(text.contains("scx_bad: hung: RCU stall"), "{text}");
        assert!(text.contains("pbzip2, on the host"), "{text}");
        assert!(text.contains("emulated"), "{text}");
        let nested = render(&Report { emulated: false, ..sample() });
        assert!(nested.contains("nested under KVM") && !nested.contains("emulated"), "{nested}");
    }
}
