//! Links of a document, and of the page that is made of it.

use pulldown_cmark::{Event, Parser, Tag};

/// The files that a document links to, without anchors.
pub(crate) fn targets(text: &str) -> Vec<String> {
    let links = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url),
        _ => None,
    });
    let files = links.filter(|link| is_local(link));
    let files = files.filter_map(|link| Some(link.split('#').next()?.to_owned()));
    files.filter(|file| !file.is_empty()).collect()
}

fn is_local(link: &str) -> bool {
    !link.contains("://") && !link.starts_with("mailto:")
}

/// What a page refers to on this site.
pub(crate) fn references(html: &str) -> Vec<String> {
    let links = ["href", "src"]
        .into_iter()
        .flat_map(|name| values(html, name));
    links
        .filter(|link| is_local(link))
        .map(str::to_owned)
        .collect()
}

/// The anchors of a page.
pub(crate) fn anchors(html: &str) -> impl Iterator<Item = &str> {
    values(html, "id")
}

/// The values of an attribute. Text of a page has no quotes that are not escaped.
fn values<'t>(html: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let start = format!(" {name}=\"");
    let starts: Vec<_> = html
        .match_indices(&start)
        .map(|(at, start)| at + start.len())
        .collect();
    starts
        .into_iter()
        .filter_map(|at| Some(html[at..].split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a link that is not looked up, and code that is taken for one.
    #[test]
    fn links_are_found() {
        let text =
            "[a](b.md#c) ![plot](d.svg) [e](#f) [g](https://h)\n```\n[i](j.md)\n```\n`[k](l)`";
        assert_eq!(targets(text), ["b.md", "d.svg"]);
        let html = r##"<h1 id="top">x</h1><a href="b.html#c">b</a><img src="d.svg"><a href="https://h">h</a>"##;
        assert_eq!(references(html), ["b.html#c", "d.svg"]);
        assert_eq!(anchors(html).collect::<Vec<_>>(), ["top"]);
    }
}
