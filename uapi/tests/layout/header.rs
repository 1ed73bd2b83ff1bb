//! Lists what C headers declare: members of structs, enumerators, constants defined by macros.
//!
//! It reads the output of the preprocessor, and only as much of C as the kernel's headers for user space use:
//! no bit fields, no function pointers, no nested declarators.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

/// The declarations of some headers.
#[derive(Default)]
pub(crate) struct Declared {
    /// Structs, `name`, and their members, `name.member`. Arrays of unknown length are left out.
    pub(crate) paths: BTreeSet<String>,
    /// Enumerators and constants defined by macros.
    pub(crate) constants: BTreeSet<String>,
}

impl Declared {
    /// Reads the output of `cc -E -dD`; only lines that come from one of `headers` count.
    pub(crate) fn parse(text: &str, headers: &[&str]) -> Self {
        let mut declared = Self::default();
        let mut code = String::new();
        let mut wanted = false;
        for line in text.lines() {
            if let Some(file) = line_marker(line) {
                wanted = headers
                    .iter()
                    .any(|header| file.ends_with(&format!("/{header}")));
            } else if let Some(define) = line.strip_prefix("#define ") {
                declared
                    .constants
                    .extend(constant(define).filter(|_| wanted));
            } else if wanted && !line.starts_with('#') {
                code.push_str(line);
                code.push('\n');
            }
        }
        Parser::new(&code).declarations(&mut declared);
        declared
    }
}

/// The file of a line marker: `# 12 "file" 2`.
fn line_marker(line: &str) -> Option<&str> {
    line.strip_prefix("# ")?.split('"').nth(1)
}

/// The name of a macro that has a value and no arguments.
fn constant(define: &str) -> Option<String> {
    let (name, value) = define.split_once(' ')?;
    (!name.contains('(') && !value.trim().is_empty()).then(|| name.to_owned())
}

/// A member of a struct or union.
#[derive(Clone)]
struct Member {
    /// Empty for an anonymous struct or union.
    name: String,
    members: Vec<Member>,
    unknown_length: bool,
}

impl Member {
    /// The paths of this member and of its members.
    fn paths(&self, prefix: &str, paths: &mut BTreeSet<String>) {
        // The empty struct belongs to the kernel's macro for an array of unknown length.
        if self.unknown_length || self.name.starts_with("__empty_") {
            return;
        }
        let path = match self.name.as_str() {
            "" => prefix.to_owned(),
            name => format!("{prefix}.{name}"),
        };
        for member in &self.members {
            member.paths(&path, paths);
        }
        paths.insert(path);
    }
}

struct Parser {
    tokens: Peekable<IntoIter<String>>,
}

impl Parser {
    fn new(code: &str) -> Self {
        Self {
            tokens: tokens(code).into_iter().peekable(),
        }
    }

    fn declarations(&mut self, declared: &mut Declared) {
        while let Some(token) = self.tokens.next() {
            match token.as_str() {
                "struct" | "union" => self.aggregate(declared),
                "enum" => {
                    self.tag();
                    if self.accept("{") {
                        self.enumerators(&mut declared.constants);
                    }
                }
                _ => {}
            }
        }
    }

    /// A struct or union at the top, if this is its definition.
    fn aggregate(&mut self, declared: &mut Declared) {
        let name = self.tag();
        if !name.is_empty() && self.accept("{") {
            for member in self.members() {
                member.paths(&name, &mut declared.paths);
            }
            declared.paths.insert(name);
        }
    }

    /// Members up to the closing brace.
    fn members(&mut self) -> Vec<Member> {
        let mut all = Vec::new();
        while !self.accept("}") {
            let Some(token) = self.tokens.next() else {
                break;
            };
            let mut inner = Vec::new();
            if matches!(token.as_str(), "struct" | "union") {
                self.tag();
                if self.accept("{") {
                    inner = self.members();
                }
            }
            all.extend(self.declarators(&inner));
        }
        all
    }

    /// The declarations of one member declaration, up to its semicolon: an empty one before it is an
    /// anonymous struct or union.
    fn declarators(&mut self, members: &[Member]) -> Vec<Member> {
        let rest: Vec<String> = self
            .tokens
            .by_ref()
            .take_while(|token| token != ";")
            .collect();
        rest.split(|token| token == ",")
            .map(|tokens| declarator(tokens, members))
            .collect()
    }

    /// Names of enumerators up to the closing brace.
    fn enumerators(&mut self, names: &mut BTreeSet<String>) {
        while !self.accept("}") {
            let Some(name) = self.tokens.next() else {
                break;
            };
            names.insert(name);
            self.skip_value();
        }
    }

    /// The value of an enumerator, and the comma after it.
    fn skip_value(&mut self) {
        let mut depth = 0;
        while let Some(token) = self.tokens.next_if(|token| depth > 0 || token != "}") {
            match token.as_str() {
                "(" => depth += 1,
                ")" => depth -= 1,
                "," if depth == 0 => break,
                _ => {}
            }
        }
    }

    /// The tag of a struct, union or enum, if it has one.
    fn tag(&mut self) -> String {
        self.tokens
            .next_if(|token| is_word(token))
            .unwrap_or_default()
    }

    fn accept(&mut self, token: &str) -> bool {
        self.tokens.next_if(|next| next == token).is_some()
    }
}

/// The member of `type name`, `name`, `name[4]` or `name[]`.
fn declarator(tokens: &[String], members: &[Member]) -> Member {
    let end = tokens
        .iter()
        .position(|token| token == "[")
        .unwrap_or(tokens.len());
    let length = tokens[end..].iter().find(|token| *token != "[");
    Member {
        name: tokens[..end].last().cloned().unwrap_or_default(),
        members: members.to_vec(),
        unknown_length: length.is_some_and(|token| token == "]" || token == "0"),
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits code into words and single signs; attributes are left out.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut attribute = None;
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (token, tail) = rest.split_at(length.max(first.len_utf8()));
        rest = tail.trim_start();
        match (&mut attribute, token) {
            (None, "__attribute__") => attribute = Some(0),
            (None, "__extension__") => {}
            (None, _) => tokens.push(token.to_owned()),
            (Some(depth), "(") => *depth += 1,
            (Some(depth), ")") => {
                *depth -= 1;
                if *depth == 0 {
                    attribute = None;
                }
            }
            (Some(_), _) => {}
        }
    }
    tokens
}
