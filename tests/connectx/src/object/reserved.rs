//! Numbers that no queue pair has (RESERVED_QPN): the one kind of objects without commands of their own that
//! the model has.

use crate::command::Status;
use crate::function::Function;
use crate::layout::cmd;

/// The kind, and its bit among those that the model tells of.
pub(crate) const KIND: u64 = 0x2c;
/// The binary logarithm of the numbers of an object, which are no fewer.
pub(crate) const LOG_NUMBERS: u32 = 3;
/// Where they begin: behind those of queue pairs.
pub(crate) const FIRST: u32 = 1 << 17;

/// Executes CREATE_GENERAL_OBJECT: an object stands for the numbers from its own on.
///
/// # Errors
/// If the command is of no context, of another kind, or for fewer numbers or more.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    check(input)?;
    if cmd::LOG_OBJ_RANGE.get32(input) != LOG_NUMBERS {
        return Err(Status::BadParameter);
    }
    let place = function.objects.reserved.insert(cmd::UID.get32(input))?;
    cmd::OBJ_ID.set(output, u64::from(FIRST + (place << LOG_NUMBERS)));
    Ok(())
}

/// Executes DESTROY_GENERAL_OBJECT.
///
/// # Errors
/// If the context has no such object.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    check(input)?;
    let number = cmd::OBJ_ID.get32(input);
    let behind = number.checked_sub(FIRST).ok_or(Status::BadResource)?;
    let place = behind >> LOG_NUMBERS;
    let owner = *function.objects.reserved.get(place)?;
    if owner != cmd::UID.get32(input) || place << LOG_NUMBERS != behind {
        return Err(Status::BadResource);
    }
    function.objects.reserved.remove(place).map(drop)
}

fn check(input: &[u8]) -> Result<(), Status> {
    match cmd::UID.get(input) != 0 && cmd::OBJ_TYPE.get(input) == KIND {
        true => Ok(()),
        false => Err(Status::BadParameter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{execute, opcode};
    use crate::fixture;

    fn status(function: &mut Function, name: &str, fields: [u64; 4]) -> (u64, u32) {
        let mut input = [0; 32];
        let [uid, kind, log, number] = fields;
        cmd::OPCODE.set(&mut input, opcode(name).unwrap().into());
        cmd::UID.set(&mut input, uid);
        cmd::OBJ_TYPE.set(&mut input, kind);
        cmd::LOG_OBJ_RANGE.set(&mut input, log);
        cmd::OBJ_ID.set(&mut input, number);
        let output = execute(function, &input, 16);
        (cmd::STATUS.get(&output), cmd::OBJ_ID.get32(&output))
    }

    #[test]
    fn numbers_are_of_one_context() {
        const CREATE: &str = "CREATE_GENERAL_OBJECT";
        const DESTROY: &str = "DESTROY_GENERAL_OBJECT";
        let mut function = fixture::function();
        let contexts = &mut function.objects.contexts;
        let (ours, other) = (contexts.insert(()).unwrap(), contexts.insert(()).unwrap());
        let (ours, other) = (u64::from(ours), u64::from(other));
        let log = u64::from(LOG_NUMBERS);
        let bad = |status: Status| (u64::from(status.code()), 0);
        for wrong in [
            [0, KIND, log, 0],
            [ours, 0xc, log, 0],
            [ours, KIND, log - 1, 0],
        ] {
            let answer = status(&mut function, CREATE, wrong);
            assert_eq!(answer, bad(Status::BadParameter), "{wrong:?}");
        }
        let (done, first) = status(&mut function, CREATE, [ours, KIND, log, 0]);
        let (_, second) = status(&mut function, CREATE, [other, KIND, log, 0]);
        assert_eq!((done, second - first), (0, 1 << LOG_NUMBERS));
        for (uid, number) in [(other, first), (ours, first + 1), (ours, second), (ours, 1)] {
            let answer = status(&mut function, DESTROY, [uid, KIND, 0, number.into()]);
            assert_eq!(answer, bad(Status::BadResource), "{number:#x} of {uid}");
        }
        let own = [ours, KIND, 0, first.into()];
        assert_eq!(status(&mut function, DESTROY, own).0, 0);
        assert_eq!(
            status(&mut function, DESTROY, own),
            bad(Status::BadResource)
        );
    }
}
