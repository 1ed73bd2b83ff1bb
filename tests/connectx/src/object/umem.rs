//! Memory that a user's context has given a number (UMEM): queues that users make by commands of their own
//! lie in it, and their doorbell records.
//!
//! What the pages' entries allow is not looked at: it bounds what keys on them could do, and there are none.

use std::sync::Arc;

use crate::command::Status;
use crate::function::Function;
use crate::layout::{cmd, umem};
use crate::pages::{ADAPTER_PAGE_SHIFT, Pages};

/// Bytes of a doorbell record.
const RECORD: usize = 8;
/// The unit in which a queue lies in it, in bytes.
const UNIT: u64 = 64;

/// Such memory.
#[derive(Debug)]
pub(crate) struct UserMemory {
    uid: u16,
    pages: Pages,
    /// Queues have copies.
    used: Arc<()>,
}

impl UserMemory {
    /// The context that it is of.
    pub(crate) fn uid(&self) -> u16 {
        self.uid
    }

    /// The pages from that offset on, for a queue.
    ///
    /// # Errors
    /// If no queue can lie there.
    pub(crate) fn part(&self, offset: u64) -> Result<Pages, Status> {
        match offset.is_multiple_of(UNIT) {
            true => Ok(self.pages.part(offset, &self.used)),
            false => Err(Status::BadParameter),
        }
    }

    /// The doorbell record at that offset.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn record(&self, offset: u64) -> Result<Record, Status> {
        let found = match offset.is_multiple_of(RECORD as u64) {
            true => self.pages.locate(offset, RECORD).ok(),
            false => None,
        };
        let (address, _) = found.ok_or(Status::BadParameter)?;
        Ok(Record {
            address,
            _used: Some(Arc::clone(&self.used)),
        })
    }
}

/// Where a doorbell record lies.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The bus address.
    pub(crate) address: u64,
    _used: Option<Arc<()>>,
}

impl Record {
    /// One at a bus address.
    pub(crate) fn at(address: u64) -> Self {
        Self {
            address,
            _used: None,
        }
    }
}

impl Function {
    /// Such memory by its number, for a command of that context.
    ///
    /// # Errors
    /// If the context has none of that number.
    pub(crate) fn user_memory(&self, uid: u64, number: u64) -> Result<&UserMemory, Status> {
        let number = u32::try_from(number).map_err(|_| Status::BadResource)?;
        let found = self.objects.umems.get(number)?;
        match u64::from(found.uid) == uid {
            true => Ok(found),
            false => Err(Status::BadResource),
        }
    }
}

/// Executes CREATE_UMEM.
///
/// # Errors
/// If the command is of no context, or its list of pages is short.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let uid = cmd::UID.get(input) as u16;
    let header = input.get(cmd::CONTEXT..).ok_or(Status::BadInputLength)?;
    let list = header.get(umem::MTT..).ok_or(Status::BadInputLength)?;
    let shift = umem::LOG_PAGE_SIZE.get32(header) + ADAPTER_PAGE_SHIFT;
    let offset = umem::PAGE_OFFSET.get(header);
    if uid == 0 || offset >= 1 << shift {
        return Err(Status::BadParameter);
    }
    let count = umem::NUM_OF_MTT.get(header);
    let bytes = count
        .checked_mul(8)
        .and_then(|bytes| usize::try_from(bytes).ok());
    let list = bytes.and_then(|bytes| list.get(..bytes));
    let list = list.filter(|list| !list.is_empty());
    let list = list.ok_or(Status::BadInputLength)?;
    let memory = UserMemory {
        uid,
        pages: Pages::from_byte(list, shift, offset),
        used: Arc::default(),
    };
    cmd::OBJECT.set(output, function.objects.umems.insert(memory)?.into());
    Ok(())
}

/// Executes DESTROY_UMEM.
///
/// # Errors
/// If the context has no such memory, or queues lie in it.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let number = cmd::OBJECT.get32(input);
    let memory = function.user_memory(cmd::UID.get(input), number.into())?;
    if Arc::strong_count(&memory.used) > 1 {
        return Err(Status::ResourceBusy);
    }
    function.objects.umems.remove(number).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::execute;
    use crate::fixture;

    const CREATE: u64 = 0xa08;
    const DESTROY: u64 = 0xa0a;

    /// The status of a command by a context.
    fn status(function: &mut Function, opcode: u64, uid: u64, body: &[u8]) -> (u64, u32) {
        let mut input = vec![0; cmd::CONTEXT];
        cmd::OPCODE.set(&mut input, opcode);
        cmd::UID.set(&mut input, uid);
        input.extend(body);
        if opcode == DESTROY {
            input.truncate(cmd::CONTEXT);
            cmd::OBJECT.set(&mut input, body[0].into());
        }
        let output = execute(function, &input, 16);
        (cmd::STATUS.get(&output), cmd::OBJECT.get32(&output))
    }

    fn body(pages: &[u64], offset: u64) -> Vec<u8> {
        let mut body = vec![0; umem::MTT];
        umem::NUM_OF_MTT.set(&mut body, pages.len() as u64);
        umem::PAGE_OFFSET.set(&mut body, offset);
        body.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
        body
    }

    #[test]
    fn memory_is_of_one_context_and_stays_while_it_is_used() {
        let mut function = fixture::function();
        let contexts = &mut function.objects.contexts;
        let (ours, other) = (contexts.insert(()).unwrap(), contexts.insert(()).unwrap());
        let (ours, other) = (u64::from(ours), u64::from(other));
        let bad = |status: Status| u64::from(status.code());
        let list = body(&[0x2001, 0x1001], 0x40);
        assert_eq!(
            status(&mut function, CREATE, 0, &list).0,
            bad(Status::BadParameter)
        );
        let (done, number) = status(&mut function, CREATE, ours, &list);
        assert_eq!(done, 0);
        let short = &list[..list.len() - 8];
        assert_eq!(
            status(&mut function, CREATE, ours, short).0,
            bad(Status::BadInputLength)
        );
        let behind = body(&[0x2001], 0x1000);
        assert_eq!(
            status(&mut function, CREATE, ours, &behind).0,
            bad(Status::BadParameter)
        );

        let memory = function.user_memory(ours, number.into()).unwrap();
        let record = memory.record(0xfc0).unwrap();
        assert_eq!(record.address, 0x1000);
        assert!(memory.record(0xfb8).is_ok());
        assert!(memory.record(0xfb4).is_err(), "it is not aligned");
        assert!(memory.record(0x1fc0).is_err(), "it lies behind the pages");
        assert!(memory.part(0x20).is_err());
        assert_eq!(memory.part(0x40).unwrap().locate(0, 8).unwrap().0, 0x2080);
        let destroy = [number as u8];
        assert_eq!(
            status(&mut function, DESTROY, other, &destroy).0,
            bad(Status::BadResource)
        );
        assert_eq!(
            status(&mut function, DESTROY, ours, &destroy).0,
            bad(Status::ResourceBusy)
        );
        drop(record);
        assert_eq!(status(&mut function, DESTROY, ours, &destroy).0, 0);
        assert_eq!(
            status(&mut function, DESTROY, ours, &destroy).0,
            bad(Status::BadResource)
        );
        assert_eq!(
            status(&mut function, CREATE, 99, &list).0,
            bad(Status::BadParameter)
        );
    }
}
