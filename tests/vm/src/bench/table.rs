//! Records as tables, for the terminal and for a page.

use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table};

use super::{Measured, Record};

/// The order of columns; a table has those that one of its rows has.
const COLUMNS: [&str; 12] = [
    "agent",
    "uverbs, aio",
    "uverbs",
    "uverbs, 99%",
    "uverbs, arena",
    "uverbs, static",
    "rdma-core",
    "rdma-core, 99%",
    "rdma-core, ibv_wr_*",
    "perftest",
    "perftest, 99%",
    "bare calls",
];

/// How the cell of a goal ends that was missed.
pub(super) const MISSED: &str = ": NO";

/// All tables, each under its name, for a terminal.
pub(crate) fn all(measured: &[Measured]) -> String {
    let groups = measured.iter().flat_map(|run| groups(&run.records));
    let tables = groups.map(|(name, records)| format!("\n{name}\n{}\n", table(&records, NOTHING)));
    tables.collect()
}

/// A table in Markdown.
pub(crate) fn markdown(records: &[&Record]) -> String {
    table(records, ASCII_MARKDOWN).to_string()
}

/// The records by group, in the order in which they came.
pub(crate) fn groups(records: &[Record]) -> Vec<(&str, Vec<&Record>)> {
    let mut groups: Vec<(&str, Vec<&Record>)> = Vec::new();
    for record in records {
        match groups.iter_mut().find(|(name, _)| *name == record.group) {
            Some((_, rows)) => rows.push(record),
            None => groups.push((&record.group, vec![record])),
        }
    }
    groups
}

fn table(records: &[&Record], preset: &str) -> Table {
    let columns: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|column| {
            records
                .iter()
                .any(|record| record.values.contains_key(*column))
        })
        .collect();
    let mut header = vec!["", "unit"];
    header.extend(&columns);
    header.extend(["ratio", "over", "goal"]);
    let mut table = Table::new();
    table.load_preset(preset).set_header(&header);
    for record in records {
        table.add_row(cells(record, &columns));
    }
    for index in 2..columns.len() + 3 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn cells(record: &Record, columns: &[&str]) -> Vec<String> {
    let mut cells = vec![record.row.clone(), record.unit.clone()];
    cells.extend(columns.iter().map(|column| {
        let value = record.values.get(*column);
        value.map_or_else(String::new, |value| number(*value))
    }));
    cells.push(
        record
            .ratio
            .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
    );
    cells.push(record.against.clone());
    let skipped = record
        .details
        .get("skipped")
        .and_then(|reason| reason.as_str());
    cells.push(match (&record.goal, skipped) {
        (_, Some(reason)) => format!("skipped: {reason}"),
        (Some(goal), None) if goal.met => format!("{}: yes", goal.text),
        (Some(goal), None) => format!("{}{MISSED}", goal.text),
        (None, None) => String::new(),
    });
    cells
}

/// A number with as many digits as it is worth.
fn number(value: f64) -> String {
    if value.fract() == 0.0 || value >= 1000.0 {
        format!("{value:.0}")
    } else if value < 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::records;

    const LINES: &str = r#"{"group":"g","row":"a","unit":"calls","values":{"uverbs":3.0,"bare calls":6.5},"ratio":0.46,"against":"bare calls","goal":{"text":"at most half","met":true}}
{"group":"g","row":"b","unit":"us","values":{},"ratio":null,"against":"bare calls","goal":null,"details":{"skipped":"no memory"}}"#;

    #[test]
    fn a_table_has_the_columns_that_rows_have_and_says_what_was_skipped() {
        let records = records(LINES).unwrap();
        let groups = groups(&records);
        assert_eq!(groups.len(), 1);
        let text = markdown(&groups[0].1);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        assert_eq!(
            lines[0],
            [
                "",
                "",
                "unit",
                "uverbs",
                "bare calls",
                "ratio",
                "over",
                "goal",
                ""
            ]
        );
        assert_eq!(
            lines[2],
            [
                "",
                "a",
                "calls",
                "3",
                "6.5",
                "0.46",
                "bare calls",
                "at most half: yes",
                ""
            ]
        );
        assert_eq!(
            lines[3],
            [
                "",
                "b",
                "us",
                "",
                "",
                "",
                "bare calls",
                "skipped: no memory",
                ""
            ]
        );
    }
}
