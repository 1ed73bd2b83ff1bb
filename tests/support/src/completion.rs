//! Completions as values, and waiting for them.

use uverbs::{Completion, Cq, WcOpcode, WcStatus, mr::RemoteKey};

use crate::{Result, fail, same, until};

/// What a completion said; each field is the method of [`Completion`] of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they have their documentation there")]
pub struct Wc {
    pub wr_id: u64,
    pub status: WcStatus,
    pub vendor_err: u32,
    pub opcode: WcOpcode,
    pub byte_len: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub imm: Option<u32>,
    pub invalidated: Option<RemoteKey>,
    pub has_grh: bool,
}

impl From<Completion> for Wc {
    fn from(completion: Completion) -> Self {
        Self {
            wr_id: completion.wr_id(),
            status: completion.status(),
            vendor_err: completion.vendor_err(),
            opcode: completion.opcode(),
            byte_len: completion.byte_len(),
            qp_num: completion.qp_num(),
            src_qp: completion.src_qp(),
            imm: completion.imm(),
            invalidated: completion.invalidated_rkey(),
            has_grh: completion.has_grh(),
        }
    }
}

impl Wc {
    /// The completion, if it is a success.
    ///
    /// # Errors
    /// If it is not.
    pub fn ok(self) -> Result<Self> {
        match self.status {
            WcStatus::SUCCESS => Ok(self),
            _ => fail(format!("failed: {self:?}")),
        }
    }

    /// Fails unless it is the success of this operation.
    ///
    /// # Errors
    /// If it is not.
    #[track_caller]
    pub fn is(self, opcode: WcOpcode) -> Result {
        let should_be = (WcStatus::SUCCESS, opcode);
        same((self.status, self.opcode), should_be, "completion")
    }

    /// Fails unless the request failed with this status.
    ///
    /// # Errors
    /// If it did not.
    #[track_caller]
    pub fn failed(self, status: WcStatus) -> Result {
        same(self.status, status, "status")
    }
}

/// The next completion, of whatever status.
///
/// # Errors
/// If none comes.
pub fn completion(cq: &mut Cq) -> Result<Wc> {
    until("a completion", || poll_one(cq))
}

/// The next `count` completions, of whatever status.
///
/// # Errors
/// If fewer come; the error has the last.
pub fn completions(cq: &mut Cq, count: usize) -> Result<Vec<Wc>> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let left = count - all.len();
        let what = format!("{left} of {count} completions, after {:?}", all.last());
        all.push(until(&what, || poll_one(cq))?);
    }
    Ok(all)
}

/// Fails if there is a completion.
///
/// # Errors
/// If there is one.
pub fn nothing(cq: &mut Cq) -> Result {
    match poll_one(cq)? {
        None => Ok(()),
        Some(wc) => fail(format!("unexpected: {wc:?}")),
    }
}

fn poll_one(cq: &mut Cq) -> Result<Option<Wc>> {
    Ok(cq.poll()?.iter().next().map(Wc::from))
}
