//! Prints the lines of code of `src`, or of another folder, by the folders in it: without blank lines,
//! comments, documentation and tests.

use std::path::PathBuf;
use std::{env, io};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| checks::workspace().join("src"));
    let areas = checks::lines::by_area(&folder)?;
    for (area, lines) in &areas {
        println!("{lines:7} {area}");
    }
    println!("{:7} together", areas.values().sum::<usize>());
    Ok(())
}
