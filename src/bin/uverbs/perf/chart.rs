//! A plot of columns in the terminal.

/// Columns and rows of the plot.
const COLUMNS: usize = 72;
const ROWS: usize = 8;

/// Eighths of a row.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How points in one column are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// By their mean.
    Mean,
    /// By the last.
    Last,
}

/// The plot of points, in the order of their x, as lines; `label` writes an x.
pub(super) fn draw(points: &[(f64, f64)], column: Column, label: impl Fn(f64) -> String) -> String {
    let (Some(&(first, _)), Some(&(last, _))) = (points.first(), points.last()) else {
        return "nothing was measured".into();
    };
    let heights = heights(points, column, (first, last));
    let top = heights.iter().copied().fold(0.0, f64::max);
    let mut text = String::new();
    for row in (0..ROWS).rev() {
        let mark = match row + 1 == ROWS {
            true => format!("{top:.0}"),
            false => String::new(),
        };
        text.push_str(&format!("{mark:>12} ┤"));
        let line = heights.iter().map(|height| {
            let eighths = height / top.max(f64::MIN_POSITIVE) * (8 * ROWS) as f64;
            // Every value above 0 is visible.
            let eighths = eighths.ceil() as usize;
            BLOCKS[eighths.saturating_sub(8 * row).min(8)]
        });
        text.push_str(line.collect::<String>().trim_end());
        text.push('\n');
    }
    let (first, last) = (label(first), label(last));
    let width = COLUMNS - first.chars().count().min(COLUMNS);
    text.push_str(&format!("{:>12} └{first}{last:>width$}", 0));
    text
}

fn heights(points: &[(f64, f64)], column: Column, (first, last): (f64, f64)) -> Vec<f64> {
    let width = (last - first).max(f64::MIN_POSITIVE);
    let mut columns: Vec<Vec<f64>> = vec![Vec::new(); COLUMNS];
    for &(x, y) in points {
        let at = ((x - first) / width * COLUMNS as f64) as usize;
        columns[at.min(COLUMNS - 1)].push(y);
    }
    let mut before = 0.0;
    let heights = columns.into_iter().map(|ys| {
        let height = match (column, ys.last()) {
            (Column::Mean, Some(_)) => ys.iter().sum::<f64>() / ys.len() as f64,
            (Column::Last, Some(last)) => *last,
            // A column without points repeats the one before. A gap in the data has points, which are 0.
            (_, None) => before,
        };
        before = height;
        height
    });
    heights.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: &[(f64, f64)], column: Column) -> Vec<Vec<char>> {
        let text = draw(points, column, |x| format!("{x:.1}"));
        text.lines().map(|line| line.chars().collect()).collect()
    }

    /// Catches a plot in which a gap is filled.
    #[test]
    fn a_gap_is_seen() {
        let rate = |at: i32| if (300..320).contains(&at) { 0.0 } else { 100.0 };
        let points: Vec<(f64, f64)> = (0..720).map(|at| (f64::from(at), rate(at))).collect();
        let lines = drawn(&points, Column::Mean);
        assert_eq!(lines.len(), ROWS + 1);
        for line in &lines[..ROWS] {
            let gap = line[14 + 31];
            assert_eq!((line[14], gap), ('█', ' '), "{line:?}");
        }
    }

    #[test]
    fn shares_rise_in_steps() {
        let lines = drawn(&[(0.0, 50.0), (1.0, 100.0)], Column::Last);
        assert_eq!((lines[ROWS - 1][14], lines[ROWS - 1][14 + 40]), ('█', '█'));
        assert_eq!(lines[0].len(), 14 + COLUMNS);
        assert_eq!((lines[0][14 + 40], lines[0][14 + COLUMNS - 1]), (' ', '█'));
    }

    #[test]
    fn one_point_and_none_have_a_plot() {
        assert_eq!(drawn(&[(3.0, 1.0)], Column::Mean).len(), ROWS + 1);
        assert_eq!(drawn(&[(3.0, 0.0)], Column::Mean).len(), ROWS + 1);
        assert_eq!(drawn(&[], Column::Mean).len(), 1);
    }
}
