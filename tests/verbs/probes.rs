//! The points at which tools watch a program: the notes in this program's file, and the kernel's uprobes on
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use object::{Object, ObjectSection, ObjectSegment, SectionKind};
use rustix::mount::{MountFlags, mount};
use support::{Pair, Result, fail, same, skip, test, until};
use uverbs::{Access, Inline, Rc, RemoteSlice, WcStatus};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "probes::tools_see_what_happens",
        tools_see_what_happens,
    )]
}

/// The points, and how many arguments each has.
const POINTS: [(&str, usize); 6] = [
    ("command", 3),
    ("completion_error", 4),
    ("connected", 1),
    ("event", 2),
    ("region", 3),
    ("region_gone", 1),
];

/// Catches points that are gone or never reached, and arguments that are not what the page says.
fn tools_see_what_happens() -> Result {
    let program = std::env::current_exe()?;
    let notes = notes(&fs::read(&program)?)?;
    let mut arguments: BTreeMap<&str, usize> = BTreeMap::new();
    for note in &notes {
        arguments.insert(&note.name, note.arguments.len());
    }
    let expected = BTreeMap::from(POINTS);
    same(arguments, expected, "the points and their arguments")?;
    if cfg!(not(target_arch = "x86_64")) {
        return skip("the registers of the arguments are read for x86-64 alone");
    }
    let tracing = Tracing::begin(&program, &notes)?;
    let mut pair = Pair::<Rc>::new()?;
    let access = Access::LOCAL_WRITE;
    let mr = pair.pd.register(vec![0_u8; 4321], access)?;
    let (lkey, address) = (mr.lkey().0, mr.iova());
    let nowhere = RemoteSlice {
        address,
        length: 2,
        rkey: mr.rkey(),
    };
    mr.deregister()?;
    let mut batch = pair.a.qp.batch();
    batch.unsignaled(77).write(Inline(b"no"), nowhere)?;
    batch.unsignaled(78).write(Inline(b"no"), nowhere)?;
    batch.ring()?;
    let failed = until("the failure", || {
        let mut completions = pair.a.cq.poll()?;
        Ok((&mut completions)
            .into_iter()
            .next()
            .map(|completion| completion.result().err()))
    })?;
    let status = WcStatus::REM_ACCESS_ERR;
    same(failed.map(|error| error.status), Some(status), "the WRITE")?;
    let (a, b) = (pair.a.qp.qpn(), pair.b.qp.qpn());
    let seen = tracing.end()?;
    let has = |line: String| match seen.iter().any(|seen| seen.ends_with(&line)) {
        true => Ok(()),
        false => fail(format!("{line:?} is not among {seen:#?}")),
    };
    has(format!("connected: {a}"))?;
    has(format!("connected: {b}"))?;
    has(format!("region: {lkey} {address} 4321"))?;
    has(format!("region_gone: {lkey}"))?;
    let status = status.0;
    let error = seen
        .iter()
        .find(|line| line.starts_with(&format!("completion_error: {a} 77 {status} ")));
    if error.is_none() {
        return fail(format!("no failed WRITE in {seen:#?}"));
    }
    let commands = seen.iter().filter(|line| line.starts_with("command: "));
    // A domain, two completion queues, three regions, two queue pairs with three transitions each.
    if commands.count() < 12 {
        return fail(format!("few commands: {seen:#?}"));
    }
    Ok(())
}

/// A point in the program's code.
struct Note {
    name: String,
    /// Where it is in the file.
    offset: u64,
    /// The registers, as the kernel calls them.
    arguments: Vec<String>,
}

/// The points of the provider `uverbs` in a file. A note has the address of the point, that of the section
/// `.stapsdt.base` when the note was written and that of a semaphore, each of 8 bytes, and three texts.
fn notes(file: &[u8]) -> Result<Vec<Note>> {
    let file = object::File::parse(file)?;
    let Some(section) = file.section_by_name(".note.stapsdt") else {
        return fail("the program has no points");
    };
    let base = file.section_by_name(".stapsdt.base");
    let base = base.map_or(0, |section| section.address());
    let mut rest = section.data()?;
    let mut notes = Vec::new();
    while rest.len() >= 12 {
        let size =
            |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let (name, length) = (size(0).next_multiple_of(4), size(4));
        let start = 12 + name as usize;
        let note = &rest[start..start + length as usize];
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&note[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let address = number(0).wrapping_add(base.wrapping_sub(number(8)));
        let texts = note[24..].split(|byte| *byte == 0);
        let texts: Vec<String> = texts
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect();
        // The linker drops functions that nobody calls, and keeps their notes: these lead into no code.
        let is_code = |section: &object::Section| {
            let its = section.address()..section.address() + section.size();
            section.kind() == SectionKind::Text && its.contains(&address)
        };
        if texts[0] == "uverbs" && file.sections().any(|section| is_code(&section)) {
            let segment = file.segments().find(|segment| {
                (segment.address()..segment.address() + segment.size()).contains(&address)
            });
            let Some(segment) = segment else {
                return fail(format!("nothing of the file is at {address:#x}"));
            };
            notes.push(Note {
                name: texts[1].clone(),
                offset: address - segment.address() + segment.file_range().0,
                arguments: texts[2].split_whitespace().map(register).collect(),
            });
        }
        rest = &rest[start + (length as usize).next_multiple_of(4)..];
    }
    Ok(notes)
}

/// `-8@%rdi` is `%di` for the kernel, and `-8@%r9` is `%r9`.
fn register(argument: &str) -> String {
    let name = argument.rsplit('%').next().unwrap_or_default();
    let name = match name.strip_prefix('r') {
        Some(old) if !old.starts_with(|first: char| first.is_ascii_digit()) => old,
        _ => name,
    };
    format!("%{name}")
}

/// Uprobes on the points of a program, which go with this.
struct Tracing(&'static Path);

impl Tracing {
    fn begin(program: &Path, notes: &[Note]) -> Result<Self> {
        let root = Path::new("/sys/kernel/tracing");
        if !root.join("uprobe_events").exists() {
            mount("tracefs", root, "tracefs", MountFlags::empty(), None)?;
        }
        let tracing = Self(root);
        let mut events = String::new();
        for (number, note) in notes.iter().enumerate() {
            let (name, program, offset) = (&note.name, program.display(), note.offset);
            events.push_str(&format!("p:uverbs/{name}_{number} {program}:{offset:#x}"));
            for (number, register) in note.arguments.iter().enumerate() {
                events.push_str(&format!(" a{number}={register}:u64"));
            }
            events.push('\n');
        }
        fs::write(root.join("uprobe_events"), events)?;
        fs::write(root.join("events/uverbs/enable"), "1")?;
        Ok(tracing)
    }

    /// What has come: the name of a point and its arguments, one a line.
    fn end(self) -> Result<Vec<String>> {
        let trace = fs::read_to_string(self.0.join("trace"))?;
        let lines = trace.lines().filter(|line| !line.starts_with('#'));
        let seen = lines.filter_map(|line| {
            // `verbs-71 [000] d.... 12.3: event_5: (0x55d0) a0=17 a1=2`
            let (head, arguments) = line.split_once(": (0x")?;
            let (name, _) = head.rsplit_once(": ")?.1.rsplit_once('_')?;
            let arguments = arguments.split_whitespace().skip(1);
            let values: Vec<&str> = arguments
                .filter_map(|argument| Some(argument.split_once('=')?.1))
                .collect();
            Some(format!("{name}: {}", values.join(" ")))
        });
        Ok(seen.collect())
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // Nothing is left to be done if the kernel refuses.
        let _ = fs::write(self.0.join("events/uverbs/enable"), "0");
        let _ = fs::write(self.0.join("uprobe_events"), "");
        let _ = fs::write(self.0.join("trace"), "");
    }
}
