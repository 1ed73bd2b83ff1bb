//! Reading what apt prints: status lines, package descriptions, planned downloads.

/// A package as its suite offers it.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    /// The version.
    pub(crate) version: String,
    /// Names of the packages it depends on, the first of each group of alternatives.
    pub(crate) depends: Vec<String>,
}

/// A package's file, as the lists describe it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Archive {
    /// The file's name.
    pub(super) name: String,
    /// Its size in bytes.
    pub(super) size: u64,
}

/// The percentage in a status line (`dlstatus:FILES:PERCENT:TEXT`), none for other lines.
pub(super) fn percent(line: &str) -> Option<f32> {
    let mut parts = line
        .strip_prefix("dlstatus:")
        .or_else(|| line.strip_prefix("pmstatus:"))?
        .split(':');
    parts.nth(1)?.parse().ok()
}

/// Reads version and dependencies from what `apt-cache show` prints, the first stanza if there are several.
pub(super) fn parse_show(text: &str) -> Option<Offered> {
    let stanza = text.split("\n\n").next()?;
    let field = |name: &str| {
        stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let depends = field("Depends")
        .unwrap_or_default()
        .split(',')
        .filter_map(|group| {
            let first = group.split('|').next()?.split_whitespace().next()?;
            Some(first.to_owned())
        });
    Some(Offered {
        version: field("Version")?.to_owned(),
        depends: depends.collect(),
    })
}

/// Reads a line of `apt-get --print-uris`: `'ADDRESS' FILE SIZE HASH`.
pub(super) fn parse_uri_line(line: &str) -> Option<Archive> {
    let mut words = line.strip_prefix('\'')?.split_once("' ")?.1.split(' ');
    Some(Archive {
        name: words.next()?.to_owned(),
        size: words.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines() {
        assert_eq!(
            percent("dlstatus:1:78.7487:Retrieving file 1 of 1"),
            Some(78.7487)
        );
        assert_eq!(percent("Fetched 70.3 MB in 4s"), None);
    }

    #[test]
    fn file_and_size_of_a_planned_download() {
        let line =
            "'http://mirror.test/pool/k/kmod_30_amd64.deb' kmod_30_amd64.deb 95180 SHA256:aa";
        assert_eq!(
            parse_uri_line(line),
            Some(Archive {
                name: "kmod_30_amd64.deb".to_owned(),
                size: 95180
            })
        );
        assert_eq!(parse_uri_line("Reading package lists..."), None);
    }

    #[test]
    fn version_and_dependencies() {
        let text = "Package: linux-image-amd64\nVersion: 7.2.12-1~bpo13+1\n\
                    Depends: dracut | initramfs-tools (>= 0.120), linux-image-7.2.12+deb13-amd64 (= 7.2.12-1~bpo13+1)\n\nPackage: other\n";
        let offered = parse_show(text).expect("a stanza");
        assert_eq!(offered.version, "7.2.12-1~bpo13+1");
        assert_eq!(
            offered.depends,
            ["dracut", "linux-image-7.2.12+deb13-amd64"]
        );
    }
}
