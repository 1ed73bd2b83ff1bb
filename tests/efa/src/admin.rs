//! The admin queue: where commands are, how they are checked, and how they are answered.

use vfio_model::memory::Unmapped;

use crate::command::{COMMANDS, Command};
use crate::fields::{Fields, put};
use crate::function::Function;

/// What a command is answered with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Status {
    NoResources = 1,
    BadOpcode = 2,
    Malformed = 4,
    IllegalParameter = 5,
    Busy = 7,
}

/// Bytes of an answer, and of what is before a command's own part in it.
const ANSWER: usize = 64;
pub(crate) const ANSWER_HEADER: usize = 8;

/// A command's own part of an answer.
pub(crate) type Answer = [u8; ANSWER - ANSWER_HEADER];

/// Where the queue is, and what was taken and answered.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) commands: u64,
    pub(crate) answers: u64,
    depth: u16,
    entry: usize,
    answer_depth: u16,
    vector: u32,
    pub(crate) is_masked: bool,
    taken: u16,
    answered: u16,
}

impl Queue {
    /// Takes the register with the form of commands.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn set_commands(&mut self, caps: u32) -> Result<(), String> {
        let (depth, entry) = (caps as u16, (caps >> 16) as usize);
        if !depth.is_power_of_two() || ![64, 128].contains(&entry) {
            return Err(format!(
                "an admin queue of {depth} commands of {entry} bytes"
            ));
        }
        (self.depth, self.entry) = (depth, entry);
        (self.taken, self.answered) = (0, 0);
        Ok(())
    }

    /// Takes the register with the form of answers.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn set_answers(&mut self, caps: u32) -> Result<(), String> {
        let (depth, entry) = (caps as u16, caps >> 16 & 0xff);
        self.vector = caps >> 24;
        if depth != self.depth || entry != ANSWER as u32 {
            return Err(format!(
                "an admin queue of {depth} answers of {entry} bytes"
            ));
        }
        self.answer_depth = depth;
        Ok(())
    }

    /// The place of an entry, and its phase.
    fn place(base: u64, count: u16, depth: u16, entry: usize) -> (u64, u8) {
        let (round, index) = (count / depth, count % depth);
        (
            base + u64::from(index) * entry as u64,
            u8::from(round % 2 == 0),
        )
    }
}

/// Executes commands up to this count of all that were ever posted.
pub(crate) fn run(function: &mut Function, posted: u32) {
    let queue = &function.objects.admin;
    let (posted, count) = (posted as u16, (posted as u16).wrapping_sub(queue.taken));
    if queue.answer_depth == 0 || count > queue.depth {
        function.violation(format_args!(
            "the admin doorbell has {posted:#x} for {count} commands"
        ));
        return;
    }
    if function.faults.failed {
        return;
    }
    for _ in 0..count {
        if let Err(unmapped) = next(function) {
            function.violation(format_args!(
                "the admin queue is not in memory: {unmapped:x?}"
            ));
            return;
        }
    }
}

/// Executes one command.
fn next(function: &mut Function) -> Result<(), Unmapped> {
    let queue = &mut function.objects.admin;
    let (place, phase) = Queue::place(queue.commands, queue.taken, queue.depth, queue.entry);
    let mut bytes = vec![0; queue.entry];
    queue.taken = queue.taken.wrapping_add(1);
    function.memory.read(place, &mut bytes)?;
    let id = u16::from_le_bytes([bytes[0], bytes[1]]);
    let opcode = bytes[2];
    let command = COMMANDS.iter().find(|command| command.opcode == opcode);
    let name = command.map_or("an unknown command", |command| command.name);
    let number = function.number;
    function
        .report
        .trace(|| format!("function {number}: {name} {:02x?}", &bytes[..]));
    let mut answer = [0; ANSWER - ANSWER_HEADER];
    let status = match command {
        None => {
            function.violation(format_args!("there is no command {opcode}"));
            Err(Status::BadOpcode)
        }
        Some(command) => match header(&bytes, phase, command) {
            Err(wrong) => {
                function.violation(format_args!("{name}: {wrong}"));
                Err(Status::Malformed)
            }
            Ok(()) if function.faults.failing.take(&opcode) => Err(Status::NoResources),
            Ok(()) => execute(function, command, &bytes, &mut answer),
        },
    };
    if let Err(status) = status {
        function
            .report
            .trace(|| format!("function {number}: {name} fails: {status:?}"));
    }
    if function.faults.unanswered.take(&opcode) {
        return Ok(());
    }
    let status = status.map_or_else(|status| status as u8, |()| 0);
    self::answer(function, id, status, &answer)
}

/// Bytes of a command before its own part: 4 in the short form, and in the long one a checksum and the part's
/// version besides.
fn header_length(bytes: &[u8]) -> usize {
    if bytes.len() == 64 { 4 } else { 12 }
}

/// Checks what is before a command's own part.
fn header(bytes: &[u8], phase: u8, command: &Command) -> Result<(), String> {
    let mut fields = Fields::new(&bytes[..header_length(bytes)]);
    let id = fields.u16(0);
    if id >= 1 << 12 {
        return Err(format!("its id is {id:#x}"));
    }
    fields.u8(2);
    if fields.bits8(3, 1) != phase {
        return Err("its phase is wrong".to_owned());
    }
    fields.bits8(3, command.flags);
    if bytes.len() == 128 {
        let checksum = fields.u16(4);
        let mut zeroed = bytes.to_vec();
        zeroed[4..6].fill(0);
        if checksum != crc16(&zeroed) {
            return Err(format!("its checksum is {checksum:#x}"));
        }
    }
    fields.rest_is_zero()
}

/// Executes a command that has the right form so far. Its own part is checked when all of it that has a
/// meaning was read.
fn execute(
    function: &mut Function,
    command: &Command,
    bytes: &[u8],
    answer: &mut Answer,
) -> Result<(), Status> {
    let mut own = Fields::new(&bytes[header_length(bytes)..]);
    let done = (command.handler)(function, &mut own, bytes[3], answer);
    // Who has refused it may not have read it all.
    if done.is_ok()
        && let Err(wrong) = own.rest_is_zero()
    {
        function.violation(format_args!("{}: {wrong}", command.name));
    }
    done
}

/// Writes an answer, its phase last, and tells the driver.
fn answer(function: &mut Function, id: u16, status: u8, own: &Answer) -> Result<(), Unmapped> {
    /// Where the phase is.
    const FLAGS: usize = 3;
    let queue = &mut function.objects.admin;
    let (place, phase) = Queue::place(queue.answers, queue.answered, queue.answer_depth, ANSWER);
    queue.answered = queue.answered.wrapping_add(1);
    let mut bytes = [0; ANSWER];
    put(&mut bytes, 0, &id.to_le_bytes());
    bytes[2] = status;
    bytes[FLAGS] = phase;
    put(&mut bytes, ANSWER_HEADER, own);
    let checksum = crc16(&bytes);
    put(&mut bytes, 4, &checksum.to_le_bytes());
    let memory = &function.memory;
    memory.write(place, &bytes[..FLAGS])?;
    memory.write(place + 4, &bytes[4..])?;
    memory.write(place + FLAGS as u64, &bytes[FLAGS..4])?;
    if !queue.is_masked {
        function.vectors.raise(queue.vector);
    }
    Ok(())
}

/// The checksum of commands and answers, over an entry whose own field for it is zero.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| match crc & 1 {
            0 => crc >> 1,
            _ => crc >> 1 ^ 0xa001,
        })
    };
    !bytes.iter().fold(0xffff, step)
}
