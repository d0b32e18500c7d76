// SPDX-License-Identifier: GPL-2.0-only
//! What all pictures (SVG) have in common.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Told apart by people with any colour vision (Okabe and Ito).
pub const COLOURS: [RGBColor; 6] = [
    RGBColor(0x55, 0x5a, 0x62),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
];

const SIZE: (u32, u32) = (860, 480);

/// Names below a chart would run into each other beyond this many.
const MOST_NAMES: usize = 24;

/// Draws into memory; what can go wrong there is the drawing alone.
pub fn draw(
    title: &str,
    body: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(wrong)?;
        let rest = area.margin(8, 0, 0, 0).titled(title, ("sans-serif", 19)).map_err(wrong)?;
        body(&rest)?;
        area.present().map_err(wrong)?;
    }
    Ok(svg)
}

pub fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// One digit behind the point, if it says anything.
pub fn short(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{:.1}", value).replace(".0", "") }
}

pub type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

pub fn add_line<'a, 'b, X, Y>(
    chart: &mut Chart<'a, 'b, X, Y>,
    place: usize,
    label: &str,
    points: Vec<(f64, f64)>,
) -> Result<()>
where
    X: plotters::coord::ranged1d::Ranged<ValueType = f64>,
    Y: plotters::coord::ranged1d::Ranged<ValueType = f64>,
{
    let colour = COLOURS[place % COLOURS.len()];
    let style = colour.stroke_width(2);
    chart
        .draw_series(points.iter().map(|at| Circle::new(*at, 2, colour.filled())))
        .map_err(wrong)?;
    chart
        .draw_series(LineSeries::new(points, style))
        .map_err(wrong)?
        .label(label)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    Ok(())
}

pub fn legend<'a, 'b: 'a, X, Y>(chart: &mut Chart<'a, 'b, X, Y>) -> Result<()>
where
    X: plotters::coord::ranged1d::Ranged<ValueType = f64>,
    Y: plotters::coord::ranged1d::Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.85))
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(wrong)
}

/// Below the axis, under each of these points of the chart. Its coordinates are those of the whole
/// picture, the area's begin below the title. Too many are left out.
pub fn names_below(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    names: &[((i32, i32), &str)],
) -> Result<()> {
    if names.len() > MOST_NAMES {
        return Ok(());
    }
    let above = area.get_pixel_range().1.start;
    let font = ("sans-serif", 12).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
    for ((x, y), name) in names {
        let text = Text::new(name.to_string(), (*x, y - above + 8), font.clone());
        area.draw(&text).map_err(wrong)?;
    }
    Ok(())
}
