//! A result as plots in one SVG file.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::RGBColor;

use super::plan::Goal;
use super::record::{Record, Run};
use crate::failure::{Failure, Kind, Result};

const SIZE: (u32, u32) = (760, 360);

const COLORS: [RGBColor; 5] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x2a, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0xff, 0x7f, 0x0e),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn failed(error: impl Display) -> Failure {
    Failure::new(Kind::Failed, format_args!("cannot draw: {error}"))
}

/// The plots, one below the other: times and rates over the size if there are several sizes, the rate over
/// time, and the cumulative share of times.
pub(super) fn draw(record: &Record) -> Result<String> {
    let by_size = record.runs.len() > 1;
    let mut text = String::new();
    {
        let rows = 2 + usize::from(by_size);
        let size = (SIZE.0, SIZE.1 * rows as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let areas = root.split_evenly((rows, 1));
        let (of_size, rest) = areas.split_at(usize::from(by_size));
        if let Some(area) = of_size.first() {
            over_size(area, record)?;
        }
        let lines: Vec<Line> = record
            .runs
            .iter()
            .map(|run| Line::new(run, run.rates()))
            .collect();
        plot(
            &rest[0],
            "messages a second over time",
            ("seconds", "messages/s"),
            &lines,
        )?;
        let shares: Vec<Line> = record
            .runs
            .iter()
            .map(|run| Line::new(run, shares(run)))
            .collect();
        plot(
            &rest[1],
            "share of times",
            ("share of all, as 9s", "µs"),
            &shares,
        )?;
        root.present().map_err(failed)?;
    }
    Ok(text)
}

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Line {
    fn new(run: &Run, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: run.title(),
            points,
        }
    }
}

/// Times over their share in 9s: 1 is 90%, 2 is 99%.
fn shares(run: &Run) -> Vec<(f64, f64)> {
    let times = run.times();
    let most = (times.len().max(1) as f64).log10();
    let points = times.cumulative().into_iter().map(|(time, share)| {
        let nines = -(1.0 - share).max(f64::MIN_POSITIVE).log10();
        (nines.min(most), time as f64 / 1e3)
    });
    points.collect()
}

/// Medians of latency or rates of bandwidth over the size of the message, both as powers of ten.
fn over_size(area: &Area<'_>, record: &Record) -> Result<()> {
    let mut lines: Vec<Line> = Vec::new();
    for run in &record.runs {
        let plan = &run.plan;
        let (what, value) = match plan.goal {
            Goal::Latency => ("median µs", run.summary.median),
            Goal::Bandwidth => ("Gb/s", run.summary.bits / 1e9),
        };
        let name = format!("{} {}, {what}", plan.transport, plan.operation);
        let point = (f64::from(plan.size).log10(), value.max(1e-9).log10());
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
            }),
        }
    }
    plot(
        area,
        "over the size",
        ("bytes, as powers of 10", "as powers of 10"),
        &lines,
    )
}

/// The smallest and the largest number, and 0; the range is never empty.
fn range(numbers: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    // With others, an axis has no end.
    let finite = numbers.filter(|number| number.is_finite());
    let (least, most) = finite.fold((0.0_f64, 0.0_f64), |(least, most), number| {
        (least.min(number), most.max(number))
    });
    least..if most > least {
        most + (most - least) * 0.05
    } else {
        1.0
    }
}

fn plot(area: &Area<'_>, title: &str, (x, y): (&str, &str), lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(
            range(points().map(|point| point.0)),
            range(points().map(|point| point.1)),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .draw()
        .map_err(failed)?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        let series = LineSeries::new(line.points.iter().copied(), color);
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], *color);
        let drawn = chart.draw_series(series).map_err(failed)?;
        drawn.label(line.name.clone()).legend(legend);
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::LowerRight)
        .draw()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{round, run};
    use super::*;

    /// Catches a plot without lines, and a plot that only some results have.
    #[test]
    fn every_result_can_be_drawn() {
        let one = run(vec![round(1..=1000), round(1..=1000)]);
        let nothing = run(vec![round([])]);
        for runs in [
            vec![one.clone()],
            vec![one.clone(), one],
            vec![nothing],
            vec![],
        ] {
            let count = runs.len();
            let text = draw(&Record {
                runs,
                ..Record::default()
            });
            let text = text.unwrap();
            assert!(text.starts_with("<svg") && text.contains("messages/s"));
            assert_eq!(
                text.matches("over the size").count(),
                usize::from(count > 1)
            );
        }
    }
}
