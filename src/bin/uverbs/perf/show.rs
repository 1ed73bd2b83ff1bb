//! A result as text: tables, lines of CSV, and plots in the terminal.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::chart::{self, Column};
use super::conditions::Conditions;
use super::plan::Goal;
use super::record::{Record, Run, write};
use super::recorder::sum;
use super::svg;
use crate::failure::{Failure, Kind, Result};
use crate::output;

/// How a result is shown.
#[derive(Clone, Debug, Args)]
pub(super) struct Output {
    /// Print JSON, with histograms and the rate over time
    #[arg(long)]
    json: bool,

    /// Print a line of comma-separated values for each measurement
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Draw the rate over time, and the share of times up to each, in the terminal
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    plot: bool,

    /// Draw them, and what depends on the size, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Output {
    /// Whether the output is for a person.
    pub(super) fn is_for_people(&self) -> bool {
        !self.json && !self.csv
    }

    /// The file of plots, if one is requested.
    pub(super) fn svg(&self) -> Option<&PathBuf> {
        self.svg.as_ref()
    }

    /// Shows a result, also if its plots cannot be written: it may have taken long.
    pub(super) fn show(&self, record: &Record) -> Result<()> {
        let drawn = match &self.svg {
            Some(path) => svg::draw(record).and_then(|svg| write(path, svg.as_bytes())),
            None => Ok(()),
        };
        drawn.and(self.print(record))
    }

    fn print(&self, record: &Record) -> Result<()> {
        if self.json {
            let value =
                serde_json::to_value(record).map_err(|error| Failure::new(Kind::Failed, error))?;
            return output::json(&value);
        }
        if self.csv {
            return csv(record);
        }
        conditions(record)?;
        tables(record)?;
        if self.plot {
            output::raw(plots(record).as_bytes())?;
        }
        Ok(())
    }
}

/// A line for each side.
fn conditions(record: &Record) -> Result<()> {
    for (side, conditions) in [("client", &record.client), ("server", &record.server)] {
        let Conditions {
            host,
            device,
            driver,
            firmware,
            port,
            gid_index,
            gid,
            gid_type,
            active_mtu,
            kernel,
            processor,
            cpus,
            governor,
            ..
        } = conditions;
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let gid = match (gid_index, gid) {
            (Some(index), Some(gid)) => format!("GID {index} {gid} ({})", known(gid_type)),
            _ => "no GID".into(),
        };
        output::line(output::Foreign(&format!(
            "{side}: {host}, {device} port {port} ({}, firmware {}), {gid}, MTU {}, Linux {kernel}, {cpus} × {}, governor {}",
            known(driver),
            known(firmware),
            output::or_dash(*active_mtu),
            known(processor),
            known(governor),
        )))?;
    }
    Ok(())
}

fn tables(record: &Record) -> Result<()> {
    for goal in [Goal::Latency, Goal::Bandwidth] {
        let runs: Vec<&Run> = record
            .runs
            .iter()
            .filter(|run| run.plan.goal == goal)
            .collect();
        if runs.is_empty() {
            continue;
        }
        output::line("")?;
        match goal {
            Goal::Latency => latency(&runs)?,
            Goal::Bandwidth => bandwidth(&runs)?,
        }
    }
    let checked = sum(record.runs.iter().map(|run| run.summary.checked));
    if record.runs.iter().any(|run| run.plan.check) {
        output::line(format_args!(
            "\n{checked} messages checked: every byte as it was sent"
        ))?;
    }
    for run in &record.runs {
        if let Some(lost) = run.summary.lost.filter(|lost| *lost > 0) {
            output::line(format_args!("{}: {lost} messages were lost", run.title()))?;
        }
    }
    Ok(())
}

/// Round trips in microseconds.
fn latency(runs: &[&Run]) -> Result<()> {
    let header = [
        "ROUND TRIP µs",
        "SIZE",
        "MIN",
        "MEDIAN",
        "99%",
        "99.9%",
        "99.99%",
        "MAX",
        "TRIPS",
        "CPU µs",
    ];
    let rows = runs.iter().map(|run| {
        let it = &run.summary;
        [
            run.plan.name(),
            run.plan.size.to_string(),
            short(it.min),
            short(it.median),
            short(it.p99),
            short(it.p999),
            short(it.p9999),
            short(it.max),
            it.messages.to_string(),
            short(it.cpu),
        ]
    });
    output::table(header, rows.collect())
}

fn bandwidth(runs: &[&Run]) -> Result<()> {
    let header = [
        "BANDWIDTH",
        "SIZE",
        "MESSAGES/s",
        "Gb/s",
        "OF PORT",
        "OF PCI",
        "LEAST",
        "BATCH µs",
        "MAX µs",
        "CPU µs",
        "PEER'S",
    ];
    let percent =
        |share: Option<f64>| share.map_or_else(|| "-".into(), |share| format!("{share:.1}%"));
    let rows = runs.iter().map(|run| {
        let it = &run.summary;
        [
            run.plan.name(),
            run.plan.size.to_string(),
            short(it.rate),
            short(it.bits / 1e9),
            percent(it.of_port),
            percent(it.of_pci),
            format!("{:.0}%", it.least_interval),
            short(it.median),
            short(it.max),
            short(it.cpu),
            short(it.server_cpu),
        ]
    });
    output::table(header, rows.collect())
}

/// Four digits, or more if there are more before the decimal point.
fn short(number: f64) -> String {
    let digits = match number.abs() {
        number if number >= 1000.0 => 0,
        number if number >= 100.0 => 1,
        number if number >= 10.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

/// The plan and the summary, by their names in JSON.
fn csv(record: &Record) -> Result<()> {
    for (number, run) in record.runs.iter().enumerate() {
        let mut fields = Vec::new();
        for part in [
            serde_json::to_value(&run.plan),
            serde_json::to_value(&run.summary),
        ] {
            let part = part.map_err(|error| Failure::new(Kind::Failed, error))?;
            fields.extend(part.as_object().cloned().unwrap_or_default());
        }
        let line = |cells: Vec<String>| output::line(cells.join(","));
        if number == 0 {
            line(fields.iter().map(|(name, _)| name.clone()).collect())?;
        }
        line(fields.iter().map(|(_, value)| cell(value)).collect())?;
    }
    Ok(())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{value} {name}"));
            fields.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// The plots of all runs, for a terminal.
pub(super) fn plots(record: &Record) -> String {
    let mut text = String::new();
    for run in &record.runs {
        let title = run.title();
        let rates = chart::draw(&run.rates(), Column::Mean, |x| format!("{x:.2}"));
        text.push_str(&format!("\n{title}: messages/s over seconds\n{rates}\n"));
        let times = run.times().cumulative();
        // The longest times are few and far from the others: logarithms bring them together.
        let point =
            |&(time, share): &(u64, f64)| ((time.max(1) as f64 / 1e3).log10(), share * 100.0);
        let points: Vec<(f64, f64)> = times.iter().map(point).collect();
        let shares = chart::draw(&points, Column::Last, |x| short(10_f64.powf(x)));
        text.push_str(&format!("\n{title}: % of times up to µs\n{shares}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (number, text) in [
            (0.1234, "0.123"),
            (1.0, "1.000"),
            (12.345, "12.35"),
            (999.94, "999.9"),
            (123456.7, "123457"),
        ] {
            assert_eq!(short(number), text);
        }
    }
}
