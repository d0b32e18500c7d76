// SPDX-License-Identifier: GPL-2.0-only
//! Figures as pictures (SVG): distributions of latencies, throughput as bars, and what changes with
//! a time or a number as curves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use baton_output::OutFile;
use hdrhistogram::Histogram;
use plotters::prelude::*;

use crate::draw::{COLOURS, add_line, draw, legend, names_below, short, wrong};
use crate::measurements::Gives;
use crate::report::Report;

/// Writes the pictures into the directory, which is made if there is none, and returns their names.
/// A name in front of each report tells whose it is; it may be empty.
///
/// Errors: the directory or a file cannot be written.
pub fn plot(reports: &[(String, Report)], directory: &Path) -> Result<Vec<PathBuf>> {
    baton_output::directory(directory)?;
    let mut files = Vec::new();
    let mut save = |name: &str, svg: Result<String>| -> Result<()> {
        let file = directory.join(format!("{name}.svg"));
        OutFile::open(&file)?.finish(&svg?)?;
        files.push(file);
        Ok(())
    };
    let Some((_, first)) = reports.first() else { return Ok(files) };
    let mut curves: BTreeMap<String, Vec<Curve>> = BTreeMap::new();
    let mut point = |on: &Option<(String, f64)>, label: String, y: f64| {
        let Some((curve, x)) = on else { return };
        let curves = curves.entry(curve.clone()).or_default();
        match curves.iter_mut().find(|known| known.label == label) {
            Some(known) => known.points.push((*x, y)),
            None => curves.push(Curve { label, points: vec![(*x, y)] }),
        }
    };
    for (place, measured) in first.measured.iter().enumerate() {
        let Gives::Latencies(series) = measured.test.gives else {
            for (who, report) in reports {
                let Some(measured) = report.measured.get(place) else { continue };
                if let Some(total) = measured.total() {
                    point(&measured.test.on_curve, label(who, "in a second".into()), total);
                }
            }
            continue;
        };
        let mut lines = Vec::new();
        for (which, name) in series.iter().enumerate() {
            for (who, report) in reports {
                let Some(measured) = report.measured.get(place) else { continue };
                let all = measured.all(which);
                if all.is_empty() {
                    continue;
                }
                let label_there = label(who, measured.test.curve_label(name));
                point(&measured.test.on_curve, label_there, all.value_at_quantile(0.5) as f64);
                lines.push((label(who, name.to_string()), all));
            }
        }
        if !lines.is_empty() {
            save(&measured.test.name, distribution(&measured.test.name, &lines))?;
        }
    }
    for (name, curves) in curves.iter().filter(|(_, curves)| curves[0].points.len() > 1) {
        let file = name.split(':').next().unwrap_or(name);
        save(&format!("curve-{file}"), curve(name, curves))?;
    }
    let rates = throughputs(reports);
    if !rates.is_empty() {
        let names: Vec<&str> = reports.iter().map(|(name, _)| name.as_str()).collect();
        save("throughput", bars(&names, &rates))?;
    }
    Ok(files)
}

struct Curve {
    label: String,
    points: Vec<(f64, f64)>,
}

fn label(who: &str, what: String) -> String {
    if who.is_empty() { what } else { format!("{who}: {what}") }
}

/// 1 µs rather than 1000.
fn time(ns: &f64) -> String {
    match *ns {
        ns if ns >= 1e9 => format!("{} s", short(ns / 1e9)),
        ns if ns >= 1e6 => format!("{} ms", short(ns / 1e6)),
        ns if ns >= 1e3 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ns", short(ns)),
    }
}

/// The scale of quantiles: as many nines as a tail has, 0 to 4.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile.min(0.9999)).log10()
}

/// How much of all took how long at most.
fn distribution(title: &str, lines: &[(String, Histogram<u64>)]) -> Result<String> {
    let low = lines.iter().map(|(_, all)| all.min()).min().unwrap_or(1).max(1) as f64;
    let high = lines.iter().map(|(_, all)| all.max()).max().unwrap_or(1).max(2) as f64;
    draw(&format!("{title}: share of all that took at most so long"), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d((low * 0.8..high * 1.25).log_scale(), 0.0..4.0)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .x_label_formatter(&time)
            .y_labels(5)
            .y_label_formatter(&|nines: &f64| match nines.round() as i32 {
                0 => "0".into(),
                1 => "90 %".into(),
                2 => "99 %".into(),
                3 => "99.9 %".into(),
                _ => "99.99 %".into(),
            })
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(wrong)?;
        for (place, (label, all)) in lines.iter().enumerate() {
            let points = all
                .iter_quantiles(2)
                .map(|value| (value.value_iterated_to().max(1) as f64, nines(value.quantile())));
            add_line(&mut chart, place, label, points.collect())?;
        }
        legend(&mut chart)
    })
}

/// Medians over what is on the x axis.
fn curve(title: &str, curves: &[Curve]) -> Result<String> {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let low = all().map(of).fold(f64::INFINITY, f64::min).max(1.0);
        (low, all().map(of).fold(low, f64::max))
    };
    let ((x_low, x_high), (_, y_high)) = (range(|at| at.0), range(|at| at.1));
    let counts = ["slots", "vCPUs", "targets"].iter().any(|what| title.contains(what));
    let is_rate = curves.iter().any(|curve| curve.label.ends_with("in a second"));
    draw(&format!("{title}, median"), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d((x_low * 0.8..x_high * 1.25).log_scale(), 0.0..y_high * 1.1)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .x_label_formatter(&|x| if counts { short(*x) } else { time(x) })
            .y_label_formatter(&|y| if is_rate { short(*y) } else { time(y) })
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(wrong)?;
        for (place, curve) in curves.iter().enumerate() {
            add_line(&mut chart, place, &curve.label, curve.points.clone())?;
        }
        legend(&mut chart)
    })
}

/// A test's name and, for each report, its shares: median, least, most.
type Shares = (String, Vec<Option<(f64, f64, f64)>>);

/// Of the ideal if there is one, else of the first report's median.
fn throughputs(reports: &[(String, Report)]) -> Vec<Shares> {
    let Some((_, first)) = reports.first() else { return Vec::new() };
    let tests = first.measured.iter().enumerate().filter(|(_, m)| m.is_rate());
    tests
        .map(|(place, base)| {
            let shares = reports
                .iter()
                .map(|(_, report)| report.measured.get(place)?.shares(base))
                .collect();
            (base.test.name.clone(), shares)
        })
        .collect()
}

fn bars(names: &[&str], rates: &[Shares]) -> Result<String> {
    let all = rates.iter().flat_map(|(_, shares)| shares.iter().flatten());
    let top = all.map(|share| share.2).fold(1.0, f64::max) * 1.08;
    draw("Throughput: share of the ideal, or of the first; whiskers: least and most", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..rates.len() as f64, 0.0..top)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(wrong)?;
        let width = 0.8 / names.len() as f64;
        for (place, name) in names.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let at = |group: usize| group as f64 + 0.1 + place as f64 * width;
            let shares = rates.iter().enumerate();
            let shares: Vec<(f64, (f64, f64, f64))> =
                shares.filter_map(|(group, (_, all))| Some((at(group), all[place]?))).collect();
            let boxes = shares.iter().map(|(x, (middle, ..))| {
                Rectangle::new([(*x, 0.0), (x + width * 0.9, *middle)], colour.filled())
            });
            let series = chart.draw_series(boxes).map_err(wrong)?;
            if !name.is_empty() {
                series.label(*name).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 16, y + 5)], colour.filled())
                });
            }
            let whiskers = shares.iter().map(|(x, (_, low, high))| {
                let x = x + width * 0.45;
                PathElement::new([(x, *low), (x, *high)], BLACK.stroke_width(2))
            });
            chart.draw_series(whiskers).map_err(wrong)?;
        }
        let at = |group: usize| chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let labels: Vec<((i32, i32), &str)> =
            rates.iter().enumerate().map(|(group, (name, _))| (at(group), name.as_str())).collect();
        names_below(area, &labels)?;
        if names.iter().any(|name| !name.is_empty()) { legend(&mut chart) } else { Ok(()) }
    })
}
