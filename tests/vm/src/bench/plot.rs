//! Plots of the measurements, as SVG: an operation's times or rates over the size of its messages.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::RGBColor;

use super::Record;

const SIZE: (u32, u32) = (720, 420);

/// The groups that are plotted.
const PLOTTED: [&str; 2] = ["latency, ", "rate, "];

/// Ours is a line, the other one circles, so that both are seen where they fall together.
const PROGRAMS: [&str; 2] = ["uverbs", "rdma-core"];

const COLORS: [RGBColor; 3] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x2a, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
];

/// The points of an operation: bytes, and what was measured.
struct Series {
    operation: String,
    points: [Vec<(f64, f64)>; 2],
}

/// The plot of a group of records, as SVG; nothing if it is not of the groups that have one.
///
/// # Errors
/// If it cannot be drawn.
pub(crate) fn plot(group: &str, records: &[&Record]) -> Result<Option<String>> {
    if !PLOTTED.iter().any(|plotted| group.starts_with(plotted)) {
        return Ok(None);
    }
    let unit = records.first().map_or("", |record| record.unit.as_str());
    draw(group, unit, &series(records)).map(Some)
}

/// The name of the file with a group's plot.
pub(crate) fn file(group: &str) -> String {
    group.replace(", ", "-") + ".svg"
}

/// The points of each operation. A row without a size has none.
fn series(records: &[&Record]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for record in records {
        let (operation, _) = record.row.split_once(" of ").unwrap_or((&record.row, ""));
        let index = match all.iter().position(|series| series.operation == operation) {
            Some(index) => index,
            None => {
                all.push(Series {
                    operation: operation.to_owned(),
                    points: Default::default(),
                });
                all.len() - 1
            }
        };
        for (program, points) in PROGRAMS.into_iter().zip(&mut all[index].points) {
            let bytes = record
                .details
                .get(program)
                .and_then(|details| details["bytes"].as_f64());
            points.extend(bytes.zip(record.values.get(program).copied()));
        }
    }
    all
}

/// The least and the most of some numbers, a little apart from them.
fn range(numbers: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (least, most) = numbers.fold((f64::MAX, 1.0_f64), |(least, most), number| {
        (least.min(number), most.max(number))
    });
    least.min(most).max(1e-3) / 1.5..most * 1.5
}

fn draw(title: &str, unit: &str, series: &[Series]) -> Result<String> {
    let failed = |error| anyhow!("drawing {title}: {error}");
    let points = || {
        series
            .iter()
            .flat_map(|series| series.points.iter().flatten())
    };
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    draw_on(
        &area,
        (title, unit),
        (
            range(points().map(|point| point.0)),
            range(points().map(|point| point.1)),
        ),
        series,
    )
    .and_then(|()| area.present().map_err(|error| anyhow!("{error}")))
    .map_err(failed)?;
    drop(area);
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_on(
    area: &Area<'_>,
    (title, unit): (&str, &str),
    (sizes, values): (std::ops::Range<f64>, std::ops::Range<f64>),
    series: &[Series],
) -> Result<()> {
    let text = |error: DrawingAreaErrorKind<_>| anyhow!("{error}");
    area.fill(&WHITE).map_err(text)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc(unit)
        .x_label_formatter(&|bytes| format!("{bytes:.0}"))
        .y_label_formatter(&|value| format!("{value}"))
        .light_line_style(WHITE)
        .draw()
        .map_err(text)?;
    for (series, color) in series.iter().zip(COLORS.into_iter().cycle()) {
        let [ours, theirs] = &series.points;
        chart
            .draw_series(LineSeries::new(ours.iter().copied(), color.stroke_width(2)))
            .map_err(text)?
            .label(format!("{}, {}", series.operation, PROGRAMS[0]))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        chart
            .draw_series(theirs.iter().map(|point| Circle::new(*point, 5, color)))
            .map_err(text)?
            .label(format!("{}, {}", series.operation, PROGRAMS[1]))
            .legend(move |(x, y)| Circle::new((x + 8, y), 5, color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()
        .map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::records;

    const LINES: &str = r#"{"group":"latency, polling","row":"WRITE of 2 B","unit":"us","values":{"uverbs":28.5,"rdma-core":28.8},"ratio":0.99,"against":"rdma-core","goal":null,"details":{"uverbs":{"bytes":2},"rdma-core":{"bytes":2}}}
{"group":"latency, polling","row":"WRITE of 64 B","unit":"us","values":{"uverbs":29.5,"rdma-core":29.8},"ratio":0.99,"against":"rdma-core","goal":null,"details":{"uverbs":{"bytes":64},"rdma-core":{"bytes":64}}}
{"group":"control","row":"PD","unit":"us","values":{"uverbs":1.0},"ratio":null,"against":"rdma-core","goal":null}"#;

    #[test]
    fn rows_with_sizes_are_a_line_and_circles() {
        let records = records(LINES).unwrap();
        let [rows @ .., other] = &records[..] else {
            panic!("{records:?}")
        };
        assert!(plot("control", &[other]).unwrap().is_none());
        let rows: Vec<&Record> = rows.iter().collect();
        let svg = plot("latency, polling", &rows).unwrap().unwrap();
        assert_eq!(file("latency, polling"), "latency-polling.svg");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["WRITE, uverbs", "WRITE, rdma-core", "bytes of a message"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        // Two points and the legend's.
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn a_range_holds_all_numbers() {
        let range = range([2.0, 64.0].into_iter());
        assert!(range.contains(&2.0) && range.contains(&64.0));
    }
}
