//! Makes the documents a site, in `target/site`: `cargo run --package site`.
//!
//! The pages are the repository's Markdown files under their own paths, so a link leads where it leads in the
//! repository. What they link to besides, such as sources and plots, is copied beside them. The program fails
//! if a document is on no list below, or if a link or an anchor leads nowhere.

mod links;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use mdbook_driver::MDBook;
use mdbook_driver::config::Config;

use self::links::{anchors, references, targets};

/// The parts of the site, with their pages in the order of reading.
const PARTS: [(&str, &[&str]); 5] = [
    (
        "Using it",
        &[
            "README.md",
            "docs/README.md",
            "docs/guide.md",
            "docs/migration.md",
            "docs/first-day.md",
            "docs/running.md",
            "docs/cm.md",
            "docs/aio.md",
            "docs/domains.md",
            "docs/sharing.md",
            "docs/efa.md",
            "docs/c-abi.md",
            "docs/cli.md",
        ],
    ),
    (
        "What it promises",
        &[
            "docs/support.md",
            "docs/safety.md",
            "docs/security.md",
            "SECURITY.md",
            "CHANGELOG.md",
        ],
    ),
    (
        "Measurements",
        &[
            "docs/benchmarks.md",
            "docs/benchmarks-mlx5.md",
            "docs/transfer.md",
            "docs/transfer-mlx5.md",
        ],
    ),
    (
        "How it is made",
        &[
            "docs/architecture.md",
            "docs/glossary.md",
            "docs/soak.md",
            "CONTRIBUTING.md",
        ],
    ),
    (
        "Packages and tools",
        &[
            "uapi/README.md",
            "src/driver/queue/README.md",
            "tests/vm/README.md",
            "tests/connectx/README.md",
            "tests/efa/README.md",
            "tests/fuzz/README.md",
            "tests/clients/ruapc-rdma/README.md",
        ],
    ),
];

fn main() -> Result<()> {
    println!("{}", build()?.join("README.html").display());
    Ok(())
}

/// Builds the site; returns its folder.
fn build() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let target = root.join("target");
    let (sources, site) = (target.join("site-sources"), target.join("site"));
    for folder in [&sources, &site] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
    }
    every_document_is_listed(&root)?;
    gather(&root, &sources)?;
    fs::write(sources.join("SUMMARY.md"), summary(&root)?)?;
    MDBook::load_with_config(&target, config(&site)?)?.build()?;
    nothing_is_broken(&site)?;
    Ok(site)
}

fn pages() -> impl Iterator<Item = &'static str> {
    PARTS.iter().flat_map(|(_, pages)| pages.iter().copied())
}

fn every_document_is_listed(root: &Path) -> Result<()> {
    for file in fs::read_dir(root.join("docs"))? {
        let path = file?.path();
        let page = path.strip_prefix(root)?;
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        ensure!(
            !is_document || pages().any(|listed| Path::new(listed) == page),
            "{}: on no list of {}",
            page.display(),
            file!()
        );
    }
    Ok(())
}

/// Copies the pages, and the files that they link to.
fn gather(root: &Path, sources: &Path) -> Result<()> {
    let mut files: BTreeSet<PathBuf> = pages().map(PathBuf::from).collect();
    for page in pages() {
        let text = fs::read_to_string(root.join(page)).context(page)?;
        let folder = root.join(page).parent().context(page)?.to_owned();
        for target in targets(&text) {
            let path = folder.join(&target).canonicalize();
            let path = path.with_context(|| format!("{page} links to {target}"))?;
            let file = path.strip_prefix(root)?.to_owned();
            let is_page = file.extension().is_some_and(|extension| extension == "md");
            ensure!(
                !is_page || files.contains(&file),
                "{page} links to {target}, which is no page of the site"
            );
            files.insert(file);
        }
    }
    for file in files {
        let copy = sources.join(&file);
        fs::create_dir_all(copy.parent().context("a file is in a folder")?)?;
        fs::copy(root.join(&file), copy).with_context(|| format!("{}", file.display()))?;
    }
    Ok(())
}

/// The table of contents; each page has the title of its first heading.
fn summary(root: &Path) -> Result<String> {
    let mut summary = String::new();
    for (part, pages) in PARTS {
        write!(summary, "# {part}\n\n")?;
        for page in pages {
            let text = fs::read_to_string(root.join(page))?;
            let title = text.lines().find_map(|line| line.strip_prefix("# "));
            writeln!(summary, "- [{}]({page})", title.context(*page)?)?;
        }
        summary.push('\n');
    }
    Ok(summary)
}

fn config(site: &Path) -> Result<Config> {
    let mut config = Config::default();
    config.book.title = Some("uverbs".to_owned());
    config.book.src = "site-sources".into();
    config.build.build_dir = site.to_owned();
    // They would call README.html index.html, under which no link looks for it.
    config.build.use_default_preprocessors = false;
    config.set("output.html.no-section-label", true)?;
    config.set("output.html.print.enable", false)?;
    Ok(config)
}

/// Looks up each link of the site: the file, and the anchor in it.
fn nothing_is_broken(site: &Path) -> Result<()> {
    let mut broken = Vec::new();
    for page in pages() {
        let page = site.join(page).with_extension("html");
        let text = fs::read_to_string(&page).with_context(|| format!("{}", page.display()))?;
        for link in references(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = match file {
                "" => page.clone(),
                file => page.with_file_name(file),
            };
            let leads_there = match anchor {
                "" => path.exists(),
                anchor => fs::read_to_string(&path)
                    .is_ok_and(|text| anchors(&text).any(|there| there == anchor)),
            };
            if !leads_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    /// Would catch a link to what was moved or renamed, an anchor of a heading that has changed, and a
    /// document that nobody finds.
    #[test]
    fn the_site_is_whole() {
        super::build().unwrap();
    }
}
