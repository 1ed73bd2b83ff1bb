//! The measurements on the pages below `docs/`: tables, what made them, and plots. All other text of these
//! pages is written by hand, and stays as it is.
//!
//! The table of a group is the first one in the section whose heading is the group's name. The paragraph
//! behind it says what made it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::table::MISSED;
use super::{Measured, Record, plot, table};

/// The pages of each device, without the ending of their names.
const SOFT_ROCE: [&str; 2] = ["benchmarks", "transfer"];
const ADAPTER: [&str; 2] = ["benchmarks-mlx5", "transfer-mlx5"];

/// How the paragraph begins that says what made a table.
const MADE_BY: &str = "Made by `cargo vm ";

/// The most columns of a line of text.
const WIDTH: usize = 110;

/// Replaces the tables that were measured, on the pages of the device, and draws the plots of these pages
/// anew. Says which groups are on no page.
///
/// # Errors
/// If a plot cannot be drawn, or a page cannot be read or written.
pub(crate) fn write(workspace: &Path, measured: &[Measured], has_adapter: bool) -> Result<()> {
    let docs = workspace.join("docs");
    let groups = || {
        let all = measured.iter();
        all.flat_map(|run| {
            let groups = table::groups(&run.records).into_iter();
            groups.map(move |(group, records)| (group, records, run.made_by()))
        })
    };
    let mut of_none: Vec<&str> = groups().map(|(group, ..)| group).collect();
    for name in if has_adapter { ADAPTER } else { SOFT_ROCE } {
        let (path, before) = page(workspace, name)?;
        let mut page = before.clone();
        for (group, records, made_by) in groups() {
            let Some(with) = with_table(&page, group, &table::markdown(&records), &made_by) else {
                continue;
            };
            page = with;
            of_none.retain(|other| *other != group);
            draw(&docs.join(name), group, &records)?;
        }
        if page != before {
            fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    for group in of_none {
        eprintln!(
            "vm: no page of this device has a section {:?}",
            title(group)
        );
    }
    Ok(())
}

/// The rows that miss a goal now and not in the tables of the device's pages. A group that has no table there
/// is not compared.
///
/// # Errors
/// If a page cannot be read.
pub(crate) fn newly_missed(
    workspace: &Path,
    measured: &[Measured],
    has_adapter: bool,
) -> Result<Vec<String>> {
    let mut missed = Vec::new();
    for name in if has_adapter { ADAPTER } else { SOFT_ROCE } {
        let (_, page) = page(workspace, name)?;
        for record in measured.iter().flat_map(|run| &run.records) {
            let misses = record.goal.as_ref().is_some_and(|goal| !goal.met);
            if misses && told_as_missed(&page, record) == Some(false) {
                missed.push(format!("{}: {}", record.group, record.row));
            }
        }
    }
    Ok(missed)
}

/// Whether the table of the record's group says that this row misses its goal; nothing if there is no table.
fn told_as_missed(page: &str, record: &Record) -> Option<bool> {
    let lines: Vec<&str> = page.lines().collect();
    let section = &lines[section(&lines, &record.group)?..];
    let section = &section[..length(section, |line| !line.starts_with("## "))];
    let says = |line: &&str| {
        let mut cells = line.trim_end_matches('|').split('|').map(str::trim);
        cells.nth(1) == Some(&*record.row)
            && cells.next_back().is_some_and(|it| it.ends_with(MISSED))
    };
    Some(section.iter().any(says))
}

/// The line behind the heading of a group's section.
fn section(lines: &[&str], group: &str) -> Option<usize> {
    let heading = format!("## {}", title(group));
    Some(1 + lines.iter().position(|line| **line == *heading)?)
}

/// The file of a page, and its text.
fn page(workspace: &Path, name: &str) -> Result<(PathBuf, String)> {
    let path = workspace.join("docs").join(format!("{name}.md"));
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok((path, text))
}

/// The heading of a group's section.
fn title(group: &str) -> String {
    let (first, rest) = group.split_at(group.len().min(1));
    first.to_uppercase() + rest
}

/// Draws a group's plot, if it is of those that have one, to the directory of its page.
fn draw(directory: &Path, group: &str, records: &[&Record]) -> Result<()> {
    let Some(svg) = plot::plot(group, records)? else {
        return Ok(());
    };
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let path = directory.join(plot::file(group));
    fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))
}

/// The page with another table in the group's section; nothing if it has no such section.
fn with_table(page: &str, group: &str, table: &str, made_by: &str) -> Option<String> {
    let lines: Vec<&str> = page.lines().collect();
    let first = section(&lines, group)?;
    let section = &lines[first..];
    let section = &section[..length(section, |line| !line.starts_with("## "))];
    let text = length(section, |line| !line.starts_with('|'));
    let old = text + length(&section[text..], |line| line.starts_with('|'));
    // The old table goes, with the paragraph behind it if that says what made it.
    let behind = &section[old..];
    let made = usize::from(behind.first() == Some(&""));
    let old = match behind.get(made) {
        Some(line) if line.starts_with(MADE_BY) => {
            old + made + length(&behind[made..], |line| !line.is_empty())
        }
        _ => old,
    };
    let mut new: Vec<&str> = lines[..first + text].to_vec();
    while new.last() == Some(&"") {
        new.pop();
    }
    new.push("");
    new.extend(table.lines());
    new.push("");
    let made_by = wrapped(made_by);
    new.extend(made_by.lines());
    let rest = &lines[first + old..];
    if rest.first().is_some_and(|line| !line.is_empty()) {
        new.push("");
    }
    new.extend(rest);
    Some(new.join("\n") + "\n")
}

/// How many lines there are before the first one that is not such a one.
fn length(lines: &[&str], is_such: impl Fn(&str) -> bool) -> usize {
    let end = lines.iter().position(|line| !is_such(line));
    end.unwrap_or(lines.len())
}

/// A paragraph in lines that are not too long.
fn wrapped(text: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped += word;
        column += width;
    }
    wrapped
}

impl Measured {
    /// The paragraph that says what made a table.
    fn made_by(&self) -> String {
        format!(
            "{MADE_BY}{}`, on Linux {}, QEMU with {}.",
            self.command.join(" "),
            self.kernel,
            self.accelerator
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::records;

    const PAGE: &str = "# Page\n\nOf a kind.\n\n## One\n\nAbout it.\n\n| a |\n|---|\n| 1 |\n\nMade by `cargo vm x`,\non y.\n\n\
        More.\n\n## Two\n\nNothing yet.\n";

    fn workspace() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// A page without what is measured.
    fn by_hand(page: &str) -> Vec<&str> {
        let mut left = Vec::new();
        let mut is_made = false;
        for line in page.lines() {
            is_made = !line.is_empty() && (is_made || line.starts_with(MADE_BY));
            if !is_made && !line.starts_with('|') {
                left.push(line);
            }
        }
        left.dedup_by(|a, b| a.is_empty() && b.is_empty());
        left
    }

    #[test]
    fn a_table_takes_the_place_of_the_old_one() {
        let page = with_table(PAGE, "one", "| b |\n|---|\n| 2 |", "Made by `cargo vm z`.");
        let expected = PAGE
            .replace("| a |", "| b |")
            .replace("| 1 |", "| 2 |")
            .replace("cargo vm x`,\non y.", "cargo vm z`.");
        assert_eq!(page.as_deref(), Some(&*expected));
        let page = with_table(PAGE, "two", "| c |", "Made by `cargo vm z`.");
        let expected = PAGE.to_owned() + "\n| c |\n\nMade by `cargo vm z`.\n";
        assert_eq!(page.as_deref(), Some(&*expected));
        assert_eq!(with_table(PAGE, "three", "| c |", "Made"), None);
        // The first table of a section that is not the last one.
        let page = with_table(
            "## Two\n\nNot yet.\n\n## Three\n",
            "two",
            "| c |",
            "Made by `cargo vm z`.",
        );
        let expected = "## Two\n\nNot yet.\n\n| c |\n\nMade by `cargo vm z`.\n\n## Three\n";
        assert_eq!(page.as_deref(), Some(expected));
    }

    /// Catches a row that has come above its bound and is not told, and one that is told again and again.
    #[test]
    fn a_row_that_misses_its_goal_is_told_unless_the_page_does() {
        let line = |row: &str, met: bool| {
            format!(
                r#"{{"group":"one","row":"{row}","unit":"u","values":{{}},"ratio":1,"against":"a","goal":{{"text":"g","met":{met}}}}}"#
            )
        };
        let lines = [line("a", true), line("b", false), line("c", false)].join("\n");
        let [a, b, c] = records(&lines).unwrap().try_into().unwrap();
        let page = with_table(PAGE, "one", &table::markdown(&[&a, &b]), "Made").unwrap();
        assert_eq!(told_as_missed(&page, &a), Some(false));
        assert_eq!(told_as_missed(&page, &b), Some(true));
        assert_eq!(told_as_missed(&page, &c), Some(false));
        let elsewhere = Record {
            group: "three".into(),
            ..c
        };
        assert_eq!(told_as_missed(&page, &elsewhere), None);
    }

    #[test]
    fn what_made_a_table_fits_into_lines() {
        let text = wrapped(&"word ".repeat(60));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 60);
        assert!(text.lines().count() < 4, "{text}");
    }

    /// Catches a page that would need a hand after it was written: its tables are where they are looked for,
    /// each says what made it, and no text is lost.
    #[test]
    fn the_pages_take_new_tables_and_keep_their_text() {
        for name in SOFT_ROCE.into_iter().chain(ADAPTER) {
            let path = workspace().join("docs").join(format!("{name}.md"));
            let page = fs::read_to_string(&path).unwrap();
            let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
            let headings: Vec<&str> = headings.collect();
            let mut new = page.clone();
            for heading in &headings {
                let group = heading[..1].to_lowercase() + &heading[1..];
                let line = format!(
                    r#"{{"group":"{group}","row":"r","unit":"u","values":{{"uverbs":7}},"ratio":1,"against":"a","goal":null}}"#
                );
                let record = records(&line).unwrap().remove(0);
                let made_by = format!("{MADE_BY}of {group}`.");
                let table = table::markdown(&[&record]);
                new = with_table(&new, &group, &table, &made_by).unwrap();
                assert!(new.contains(&format!("{table}\n\n{made_by}\n")), "{new}");
                if plot::plot(&group, &[&record]).unwrap().is_some() {
                    let image = format!("]({name}/{})", plot::file(&group));
                    assert!(page.contains(&image), "{name} does not show {image}");
                }
            }
            let tables = headings.len();
            let count = |text: &str, what: &str| {
                let lines = text.lines();
                lines.filter(|line| line.starts_with(what)).count()
            };
            assert_eq!(count(&new, "|-"), tables, "{new}");
            assert_eq!(count(&new, MADE_BY), tables, "{new}");
            assert_eq!(count(&page, MADE_BY), tables, "{name}");
            assert_eq!(by_hand(&new), by_hand(&page), "{name}");
        }
    }
}
