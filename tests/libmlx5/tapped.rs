//! What the model saw of one run, as entries with fields.

use serde_json::Value;

use support::Result;

use crate::fields::{self, Fields};
use crate::list::{self, Kind, Request, Step};
use crate::names::Names;

/// A request, or a ring of a doorbell.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What it is, in words: the step that it comes from.
    pub(crate) what: String,
    pub(crate) fields: Fields,
}

/// The function of [`DEVICE`](crate::DEVICE), as the tap has it.
const FUNCTION: u64 = 0;

/// Behind the words of a doorbell whose request goes on at the start of its ring.
pub(crate) const WRAPS: &str = ", goes on at the start of the ring";

/// All of a run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) sends: Vec<Entry>,
    pub(crate) receives: Vec<Entry>,
    pub(crate) doorbells: Vec<Entry>,
    /// How many inline requests went on at their ring's start.
    pub(crate) wrapped: usize,
}

/// Sorts the tap's records.
pub(crate) fn read(records: &Value, kind: Kind, steps: &[Step], names: &Names) -> Result<Run> {
    let records = records.as_array().ok_or("the tap has no list")?;
    // Numbers are a function's own: another may have the same, and traffic of the IP stack at any time.
    let own = records
        .iter()
        .filter(|record| record["function"] == FUNCTION);
    let records: &[Value] = &own.cloned().collect::<Vec<_>>();
    let of = |name: &'static str, field: &'static str| {
        let is_it = move |record: &&Value| {
            let number = record[field].as_u64().unwrap_or_default() as u32;
            record["kind"] == name && names.queue_pairs.contains(&number)
        };
        records.iter().filter(is_it)
    };
    let mut run = Run {
        sends: Vec::new(),
        receives: Vec::new(),
        doorbells: Vec::new(),
        wrapped: 0,
    };
    let mut labels = sends(steps).into_iter();
    for record in of("send", "qpn") {
        if record["malformed"].is_string() {
            return Err(format!("a malformed request: {record}").into());
        }
        let what = labels
            .next()
            .ok_or_else(|| format!("more requests than were posted: {record}"))?;
        let bytes = bytes(record, "bytes")?;
        if what.contains("INLINE") && wraps(record, &bytes) {
            run.wrapped += 1;
        }
        run.sends.push(Entry {
            what,
            fields: fields::send(&bytes, kind == Kind::Ud, names)?,
        });
    }
    if let Some(what) = labels.next() {
        return Err(format!("not seen: {what}").into());
    }
    run.receives = receives(records, kind, steps, names)?;
    run.doorbells = doorbells(records, steps, names)?;
    Ok(run)
}

/// The receive requests, as messages took them.
fn receives(records: &[Value], kind: Kind, steps: &[Step], names: &Names) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut posted = [0, 1, list::SHARED].map(|queue| received(steps, queue).into_iter());
    for record in records {
        let number = record["queue"].as_u64().unwrap_or_default() as u32;
        let queue = match record["kind"].as_str() {
            Some("receive") => names.queue_pairs.iter().position(|qpn| *qpn == number),
            // The number of a shared queue is the kernel's secret; there is only one.
            Some("shared_receive") if kind == Kind::Shared => Some(list::SHARED),
            _ => None,
        };
        let Some(queue) = queue else {
            continue;
        };
        let what = posted[queue].next();
        let mut fields = fields::link(&bytes(record, "link")?, names)?;
        fields.push(("index".to_owned(), record["index"].to_string()));
        fields.extend(fields::receive(&bytes(record, "bytes")?, names)?);
        entries.push(Entry {
            what: what
                .ok_or_else(|| format!("more receive requests than were posted: {record}"))?,
            fields,
        });
    }
    match posted.iter_mut().find_map(Iterator::next) {
        Some(what) => Err(format!("not seen: {what}").into()),
        None => Ok(entries),
    }
}

/// The rings of doorbells, with how much of the request was copied behind the first 8 bytes.
fn doorbells(records: &[Value], steps: &[Step], names: &Names) -> Result<Vec<Entry>> {
    let mut rung: Vec<Entry> = Vec::new();
    let mut copied = Vec::new();
    let mut posts = posts(steps).into_iter();
    // The model may see the doorbell when the next request is posted already, since it may carry one out with
    // the one before: the record is then that of a later request. But it always is where a request ends.
    let mut ends = Vec::new();
    let mut wrapped = Vec::new();
    for record in records.iter().filter(|record| record["kind"] == "send") {
        let number = record["qpn"].as_u64().unwrap_or_default() as u32;
        let bytes = bytes(record, "bytes")?;
        let end = end(&bytes).map(|end| (number, end));
        ends.extend(end);
        if wraps(record, &bytes) {
            wrapped.extend(end);
        }
    }
    for record in records {
        let number = record["qpn"].as_u64().unwrap_or_default() as u32;
        if !names.queue_pairs.contains(&number) {
            continue;
        }
        if record["kind"] == "doorbell" {
            let head = bytes(record, "bytes")?;
            let mut fields = fields::doorbell(&head, names)?;
            let counter = record["record"].as_u64().unwrap_or(u64::MAX);
            let told = match end(&head) {
                Some(end) if end == counter || ends.contains(&(number, counter)) => {
                    "the end of a request".to_owned()
                }
                _ => counter.to_string(),
            };
            fields.push(("record".to_owned(), told));
            let register = record["register"].as_u64().unwrap_or_default();
            fields.push(("register".to_owned(), format!("{register:#x}")));
            let mut what = posts
                .next()
                .ok_or_else(|| format!("more doorbells than were rung: {record}"))?;
            if end(&head).is_some_and(|end| wrapped.contains(&(number, end))) {
                what.push_str(WRAPS);
            }
            rung.push(Entry { what, fields });
            copied.push(0);
        } else if record["kind"] == "blue_flame"
            && let Some(last) = copied.last_mut()
        {
            *last += bytes(record, "bytes")?.len();
        }
    }
    if let Some(what) = posts.next() {
        return Err(format!("no doorbell for {what}").into());
    }
    for (entry, copied) in rung.iter_mut().zip(copied) {
        entry.fields.push(("copied".to_owned(), copied.to_string()));
    }
    Ok(rung)
}

/// Whether a request goes on at the start of its ring.
fn wraps(record: &Value, bytes: &[u8]) -> bool {
    let blocks = record["blocks"].as_u64().unwrap_or(1).max(1);
    let first = record["index"].as_u64().unwrap_or_default() % blocks;
    first + (bytes.len() as u64).div_ceil(64) > blocks
}

/// The index of the block behind a request, of which at least the first 8 bytes are given.
fn end(request: &[u8]) -> Option<u64> {
    let [_, high, low, _, _, _, _, units, ..] = *request else {
        return None;
    };
    let index = u16::from_be_bytes([high, low]);
    Some(index.wrapping_add(u16::from(units).div_ceil(4)).into())
}

/// The requests of a list in words, in their order.
fn sends(steps: &[Step]) -> Vec<String> {
    let of_step = |step: &Step| match step {
        Step::Bind { .. } | Step::Gather { .. } | Step::Raw => vec![words(step)],
        Step::Post { qp, requests, .. } => requests
            .iter()
            .map(|request| in_words(*qp, request))
            .collect(),
        Step::Address(_) | Step::Receive { .. } => Vec::new(),
    };
    steps.iter().flat_map(of_step).collect()
}

/// The receive requests of a queue in words, in their order.
fn received(steps: &[Step], queue: usize) -> Vec<String> {
    let of_queue = |step: &Step| match step {
        Step::Receive { queue: to, slices } if *to == queue => {
            let lengths: Vec<String> = slices
                .iter()
                .map(|(_, length)| length.to_string())
                .collect();
            Some(lengths.join(", "))
        }
        _ => None,
    };
    let lists = steps.iter().filter_map(of_queue).enumerate();
    lists
        .map(|(index, lengths)| {
            format!("receive request {index} of queue {queue}: {lengths} bytes")
        })
        .collect()
}

/// The doorbells of a list in words, in their order.
fn posts(steps: &[Step]) -> Vec<String> {
    let is_post = |step: &&Step| {
        matches!(
            step,
            Step::Bind { .. } | Step::Gather { .. } | Step::Raw | Step::Post { .. }
        )
    };
    steps.iter().filter(is_post).map(words).collect()
}

fn words(step: &Step) -> String {
    match step {
        Step::Post { qp, requests, .. } => {
            let requests: Vec<String> = requests
                .iter()
                .map(|request| in_words(*qp, request))
                .collect();
            requests.join("; ")
        }
        Step::Bind { window, .. } => format!("BIND_MW of type 1, {window:?}"),
        other => format!("{other:?}"),
    }
}

fn in_words(qp: usize, request: &Request) -> String {
    let slices = match request.is_inline() {
        true => format!("{} bytes", request.slices[0].1),
        false => format!("{} slices", request.slices.len()),
    };
    let flags: Vec<&str> = request.flags.iter_names().map(|(name, _)| name).collect();
    let to = match request.address {
        Some(address) => format!(" to address {address}"),
        None => String::new(),
    };
    format!(
        "{:?} on {qp}{to}, {slices}, {}",
        request.opcode,
        flags.join("|")
    )
}

fn bytes(record: &Value, field: &str) -> Result<Vec<u8>> {
    let text = record[field].as_str().ok_or("a record without bytes")?;
    let digits = text.as_bytes().chunks(2);
    let byte =
        |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits)?, 16).map_err(Into::into);
    digits.map(byte).collect()
}
