//! Completions as values, and waiting for them.

use uverbs::{Completion, Cq, WcOpcode, WcStatus};

use super::{Result, until};

/// What a completion said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) vendor_err: u32,
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) grh: bool,
}

impl From<Completion<'_>> for Wc {
    fn from(completion: Completion<'_>) -> Self {
        Self {
            wr_id: completion.wr_id(),
            status: completion.status(),
            vendor_err: completion.vendor_err(),
            opcode: completion.opcode(),
            byte_len: completion.byte_len(),
            qp_num: completion.qp_num(),
            src_qp: completion.src_qp(),
            imm: completion.imm(),
            grh: completion.has_grh(),
        }
    }
}

impl Wc {
    /// The completion, if it is a success.
    pub(crate) fn ok(self) -> Result<Self> {
        match self.status {
            WcStatus::SUCCESS => Ok(self),
            _ => Err(format!("failed: {self:?}").into()),
        }
    }
}

/// The next completion, of whatever status.
pub(crate) fn completion(cq: &mut Cq) -> Result<Wc> {
    until("a completion", || {
        Ok(cq.poll()?.iter().next().map(Wc::from))
    })
}

/// The next `count` completions, of whatever status.
pub(crate) fn completions(cq: &mut Cq, count: usize) -> Result<Vec<Wc>> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let left = count - all.len();
        let what = format!("{left} of {count} completions, after {:?}", all.last());
        all.push(until(&what, || Ok(cq.poll()?.iter().next().map(Wc::from)))?);
    }
    Ok(all)
}

/// Fails if there is a completion.
pub(crate) fn nothing(cq: &mut Cq) -> Result {
    match cq.poll()?.iter().next().map(Wc::from) {
        None => Ok(()),
        Some(wc) => Err(format!("unexpected: {wc:?}").into()),
    }
}
