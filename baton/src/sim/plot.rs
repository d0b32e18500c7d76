// SPDX-License-Identifier: GPL-2.0-only
//! Figures of simulations as pictures (SVG).

use anyhow::Result;
use baton_bench::draw::{self, COLOURS, add_line, draw, legend, names_below, wrong};
use baton_sim::outcome::{Outcome, short};
use baton_sim::sweep::Point;
use plotters::prelude::*;

use super::output::Results;

/// One bar of each name, with whiskers from the least to the most.
pub fn bars(title: &str, bars: &[(String, [f64; 3])]) -> Result<String> {
    let top = bars.iter().map(|(_, [_, _, high])| *high).fold(f64::MIN_POSITIVE, f64::max);
    draw(title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..bars.len() as f64, 0.0..top * 1.1)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_label_formatter(&|work| short(*work))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(wrong)?;
        let boxes = bars.iter().enumerate().map(|(place, (_, [middle, ..]))| {
            let left = place as f64 + 0.2;
            Rectangle::new([(left, 0.0), (left + 0.6, *middle)], COLOURS[1].filled())
        });
        chart.draw_series(boxes).map_err(wrong)?;
        let whiskers = bars.iter().enumerate().map(|(place, (_, [_, low, high]))| {
            let x = place as f64 + 0.5;
            PathElement::new([(x, *low), (x, *high)], BLACK.stroke_width(2))
        });
        chart.draw_series(whiskers).map_err(wrong)?;
        let at = |place: usize| chart.backend_coord(&(place as f64 + 0.5, 0.0));
        let labels: Vec<((i32, i32), &str)> =
            bars.iter().enumerate().map(|(place, (name, _))| (at(place), name.as_str())).collect();
        names_below(area, &labels)
    })
}

/// Where the time of each VM's vCPUs goes.
pub fn times(outcome: &Outcome) -> Result<String> {
    const WHERE: [(&str, usize); 5] =
        [("runs", 1), ("spins", 2), ("polls at HLT", 5), ("waits for a pCPU", 4), ("sleeps", 0)];
    let shares = outcome.vms.iter().map(|vm| {
        let vcpus = f64::from(vm.vcpus);
        let runs = (vm.used - vm.spinning - vm.polling).max(0.0);
        let sleeps = (vcpus - vm.used - vm.ready).max(0.0);
        [runs, vm.spinning, vm.polling, vm.ready, sleeps].map(|pcpus| pcpus / vcpus)
    });
    let shares: Vec<[f64; 5]> = shares.collect();
    let title = format!("Where the vCPUs' time goes under {}", outcome.scheduler);
    draw(&title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            // Room for the legend.
            .build_cartesian_2d(0.0..shares.len() as f64 * 1.35, 0.0..1.0)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(wrong)?;
        for (kind, (name, colour)) in WHERE.iter().enumerate() {
            let colour = COLOURS[*colour];
            let boxes = shares.iter().enumerate().map(|(vm, shares)| {
                let below: f64 = shares[..kind].iter().sum();
                let (left, right) = (vm as f64 + 0.15, vm as f64 + 0.85);
                Rectangle::new([(left, below), (right, below + shares[kind])], colour.filled())
            });
            let series = chart.draw_series(boxes).map_err(wrong)?;
            series.label(*name).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 16, y + 5)], colour.filled())
            });
        }
        let at = |vm: usize| chart.backend_coord(&(vm as f64 + 0.5, 0.0));
        let vms: Vec<String> = (0..shares.len()).map(|vm| format!("VM {vm}")).collect();
        let labels: Vec<((i32, i32), &str)> =
            vms.iter().enumerate().map(|(vm, name)| (at(vm), name.as_str())).collect();
        names_below(area, &labels)?;
        legend(&mut chart)
    })
}

/// The work of all VMs over the first key if its values are numbers, a line for each of the others'
/// combinations; else bars.
pub fn points(points: &[Point], results: &Results) -> Result<String> {
    let done = points.iter().zip(results).filter_map(|(point, result)| {
        let ((key, value), rest) = point.split_first()?;
        let rest: Vec<String> =
            rest.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        Some((key, value, rest.join(", "), result.as_ref()?.as_ref().ok()?.rate()))
    });
    let done: Vec<(&String, &String, String, f64)> = done.collect();
    let key = done.first().map_or(String::new(), |(key, ..)| key.to_string());
    let numbers = done.iter().map(|(_, value, ..)| value.parse::<f64>().ok());
    let title = format!("Work a second of all VMs by {key}");
    match numbers.collect::<Option<Vec<f64>>>() {
        Some(xs) if xs.iter().any(|x| *x != xs[0]) => {
            let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
            for ((_, _, label, y), x) in done.iter().zip(xs) {
                match lines.iter_mut().find(|(known, _)| known == label) {
                    Some((_, line)) => line.push((x, *y)),
                    None => lines.push((label.clone(), vec![(x, *y)])),
                }
            }
            curves(&title, &mut lines)
        }
        _ => {
            let bar = |(_, value, rest, work): &(&String, &String, String, f64)| {
                let name =
                    if rest.is_empty() { value.to_string() } else { format!("{value}, {rest}") };
                (name, [*work; 3])
            };
            bars(&title, &done.iter().map(bar).collect::<Vec<_>>())
        }
    }
}

fn curves(title: &str, lines: &mut [(String, Vec<(f64, f64)>)]) -> Result<String> {
    let all = || lines.iter().flat_map(|(_, line)| line);
    let low = all().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
    let high = all().map(|(x, _)| *x).fold(f64::NEG_INFINITY, f64::max);
    let top = all().map(|(_, y)| *y).fold(f64::MIN_POSITIVE, f64::max);
    for (_, line) in lines.iter_mut() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    draw(title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(low..high, 0.0..top * 1.1)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .x_label_formatter(&|x| draw::short(*x))
            .y_label_formatter(&|y| short(*y))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(wrong)?;
        for (place, (label, line)) in lines.iter().enumerate() {
            add_line(&mut chart, place, label, line.clone())?;
        }
        if lines.len() > 1 { legend(&mut chart) } else { Ok(()) }
    })
}
