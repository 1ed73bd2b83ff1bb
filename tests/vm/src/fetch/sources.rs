//! The machine's own apt sources: where its Debian mirror is, and how it is trusted.
//!
//! Both forms are read (sources.list(5)): one line for each entry in `*.list`, deb822 stanzas in `*.sources`.
//! Written is deb822 only. Nothing here knows the address of a mirror: without an entry for Debian's archive
//! there is no fetch.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Debian's suites that can stand in an apt source as the base of a release.
const BASE_SUITES: [&str; 11] = [
    "buster",
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// What an entry of the apt sources has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Packages that are compiled.
    Binary,
    /// What they are made of.
    Source,
}

impl Kind {
    /// Its name in the field `Types`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Binary => "deb",
            Self::Source => "deb-src",
        }
    }
}

/// One entry of the apt sources.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Source {
    /// Addresses of the archive.
    pub(crate) uris: Vec<String>,
    /// Suites, such as `bookworm` and `bookworm-updates`.
    pub(crate) suites: Vec<String>,
    /// Components, such as `main`.
    pub(crate) components: Vec<String>,
    /// All other fields, by their deb822 names: the keyring, architectures, and whatever apt learns yet.
    pub(crate) options: Vec<(String, String)>,
}

impl Source {
    /// Whether this is an entry of Debian's archive itself (not of its security updates, not of a third
    /// party).
    fn is_archive(&self) -> bool {
        self.suites
            .iter()
            .any(|suite| BASE_SUITES.contains(&suite.as_str()))
            && self.components.iter().any(|component| component == "main")
            && self.uris.iter().any(|uri| !uri.starts_with("cdrom:"))
    }

    /// The same archive with other suites, for packages of this architecture or for source packages, as a
    /// deb822 stanza.
    pub(crate) fn stanza(&self, kind: Kind, architecture: &str, suites: &[&str]) -> String {
        let uris: Vec<&str> = self
            .uris
            .iter()
            .map(String::as_str)
            .filter(|uri| !uri.starts_with("cdrom:"))
            .collect();
        let mut text = format!(
            "Types: {}\nURIs: {}\nSuites: {}\nComponents: {}\nArchitectures: {architecture}\n",
            kind.word(),
            uris.join(" "),
            suites.join(" "),
            self.components.join(" ")
        );
        let own = |name: &str| name.eq_ignore_ascii_case("Architectures");
        for (name, value) in self.options.iter().filter(|(name, _)| !own(name)) {
            text.push_str(&format!("{name}: {value}\n"));
        }
        text
    }
}

/// Finds the entry of Debian's archive for the release that the machine runs, or else for any release.
pub(crate) fn debian_archive(sources: &[Source], codename: &str) -> Option<Source> {
    let archives = || sources.iter().filter(|source| source.is_archive());
    archives()
        .find(|source| source.suites.iter().any(|suite| suite == codename))
        .or_else(|| archives().next())
        .cloned()
}

/// Reads all sources of the machine: `sources.list`, `*.list` and `*.sources`, as apt does.
///
/// # Errors
/// If a file that apt would read cannot be read.
pub(crate) fn read(main: &Path, parts: &Path) -> Result<Vec<Source>> {
    let mut files = vec![main.to_path_buf()];
    if let Ok(entries) = fs::read_dir(parts) {
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        names.sort();
        files.extend(names);
    }
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let parse = match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => parse_list,
            Some("sources") => parse_deb822,
            _ => continue,
        };
        let text = fs::read_to_string(file)
            .with_context(|| format!("reading the apt sources in {}", file.display()))?;
        sources.extend(parse(&text));
    }
    Ok(sources)
}

/// Parses the one-line form: `deb [option=value ...] URI SUITE COMPONENT...`. What is not such a line is
/// passed over.
pub(crate) fn parse_list(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_list_line).collect()
}

fn parse_list_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        uris: vec![words.next()?],
        suites: vec![words.next()?],
        components: words.collect(),
        options: options
            .split_whitespace()
            .filter_map(one_line_option)
            .collect(),
    })
}

/// Turns an option of the one-line form into the deb822 field of the same meaning.
fn one_line_option(option: &str) -> Option<(String, String)> {
    let (name, value) = option.split_once('=')?;
    let name = match name.trim_end_matches(['+', '-']) {
        "arch" => "Architectures".to_owned(),
        "lang" => "Languages".to_owned(),
        "target" => "Targets".to_owned(),
        other => other
            .split('-')
            .map(capitalised)
            .collect::<Vec<_>>()
            .join("-"),
    };
    Some((name, value.replace(',', " ")))
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// Parses deb822 stanzas. Disabled stanzas and those without `deb` among their types are passed over.
pub(crate) fn parse_deb822(text: &str) -> Vec<Source> {
    let without_comments: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    without_comments
        .split(|line| line.trim().is_empty())
        .filter_map(parse_stanza)
        .collect()
}

fn parse_stanza(lines: &[&str]) -> Option<Source> {
    let fields = fields(lines);
    let value = |name: &str| {
        let field = fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name));
        field.map(|(_, value)| value.as_str())
    };
    let words = |name: &str| -> Vec<String> {
        value(name)
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    let enabled = !matches!(value("Enabled"), Some("no" | "false" | "0" | "off"));
    if !enabled || !words("Types").iter().any(|kind| kind == "deb") {
        return None;
    }
    let own = ["Types", "URIs", "Suites", "Components", "Enabled"];
    Some(Source {
        uris: words("URIs"),
        suites: words("Suites"),
        components: words("Components"),
        options: fields
            .iter()
            .filter(|(name, _)| !own.iter().any(|own| own.eq_ignore_ascii_case(name)))
            .cloned()
            .collect(),
    })
}

/// The fields of one stanza; lines that begin with a blank continue the field before (an inline key, for
/// example).
fn fields(lines: &[&str]) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in lines {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_line_entry_with_options() {
        let text = "# comment\ndeb-src http://mirror.test/debian bookworm main\n\
                    deb [arch=amd64,i386 signed-by=/usr/share/keyrings/k.gpg] http://mirror.test/debian bookworm main contrib # end\n";
        let sources = parse_list(text);
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].uris, ["http://mirror.test/debian"]);
        assert_eq!(sources[0].components, ["main", "contrib"]);
        assert_eq!(
            sources[0].options,
            [
                ("Architectures".to_owned(), "amd64 i386".to_owned()),
                (
                    "Signed-By".to_owned(),
                    "/usr/share/keyrings/k.gpg".to_owned()
                )
            ]
        );
    }

    #[test]
    fn deb822_stanzas_comments_and_disabled_ones() {
        let text = "Types: deb deb-src\nURIs: http://mirror.test/debian\n# old address\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /k.gpg\n\nEnabled: no\nTypes: deb\nURIs: http://off.test\nSuites: trixie\nComponents: main\n\n\
                    Types: deb-src\nURIs: http://mirror.test/debian\nSuites: trixie\nComponents: main\n";
        let sources = parse_deb822(text);
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].suites, ["bookworm", "bookworm-updates"]);
        assert_eq!(
            sources[0].options,
            [("Signed-By".to_owned(), "/k.gpg".to_owned())]
        );
    }

    #[test]
    fn an_inline_key_goes_through_unchanged() {
        let text = "Types: deb\nURIs: http://mirror.test/debian\nSuites: trixie\nComponents: main\nSigned-By:\n -----BEGIN-----\n .\n abc\n";
        let stanza = parse_deb822(text)[0].stanza(Kind::Binary, "arm64", &["trixie-backports"]);
        assert!(stanza.contains("Suites: trixie-backports\n"), "{stanza}");
        assert!(
            stanza.ends_with("Signed-By: \n -----BEGIN-----\n .\n abc\n"),
            "{stanza}"
        );
    }

    #[test]
    fn the_archive_is_told_from_security_and_third_parties() {
        let text = "deb http://other.test/apt cloud main\ndeb http://mirror.test/debian-security bookworm-security main\n\
                    deb cdrom:[Debian] bookworm main\ndeb http://old.test/debian bullseye main\n\
                    deb http://mirror.test/debian bookworm main\n";
        let sources = parse_list(text);
        let found = debian_archive(&sources, "bookworm").map(|source| source.uris);
        assert_eq!(found, Some(vec!["http://mirror.test/debian".to_owned()]));
        let fall_back = debian_archive(&sources, "trixie").map(|source| source.uris);
        assert_eq!(fall_back, Some(vec!["http://old.test/debian".to_owned()]));
        assert_eq!(debian_archive(&sources[..2], "bookworm"), None);
    }
}
