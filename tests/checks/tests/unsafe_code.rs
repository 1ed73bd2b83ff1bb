//! How often each file of the library says `unsafe`, beside the snapshot `unsafe.txt`: who adds a place that
//! a reader must check says so.

use std::fs;
use std::str::FromStr;

use proc_macro2::{TokenStream, TokenTree};

use checks::{compare, sources, workspace};

/// How often the keyword stands in code: comments, documentation and strings do not count.
fn count(tokens: TokenStream) -> usize {
    let of_one = |token| match token {
        TokenTree::Ident(word) => usize::from(word == "unsafe"),
        TokenTree::Group(group) => count(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => 0,
    };
    tokens.into_iter().map(of_one).sum()
}

#[test]
fn unsafe_code_is_where_it_was() {
    let root = workspace();
    let mut lines = Vec::new();
    let mut all = 0;
    for path in sources(&root.join("src")).unwrap() {
        let text = fs::read_to_string(&path).unwrap();
        let tokens = TokenStream::from_str(&text);
        let count = count(tokens.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        let name = path.strip_prefix(&root).unwrap().display();
        if count > 0 {
            lines.push(format!("{name} {count}"));
        }
        all += count;
    }
    lines.sort();
    lines.push(format!("all {all}"));
    compare("unsafe.txt", &lines).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn only_code_counts() {
    let text =
        "/// unsafe\nunsafe fn f() { g(\"unsafe\"); unsafe { g() } } // unsafe\nfn unsafe_g() {}";
    assert_eq!(count(TokenStream::from_str(text).unwrap()), 2);
}
