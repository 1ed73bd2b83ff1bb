//! Direct verbs of ConnectX adapters: commands of users to the device (DEVX), the objects that they create,
//! and the memory and registers of these.
//!
//! The verbs of all devices are commands that the kernel sends to the device. Here a program sends commands
//! of its own, in the device's format ([`layout`]). The kernel checks their numbers, makes queues lie in
//! memory that it has pinned ([`Umem`]), and adds the owner; the device checks the rest. So queues can be
//! created that the kernel does not know, for an agent such as a GPU.
//!
//! What has types here is safe: capabilities ([`Direct::capabilities`]), RoCE addresses, event queues,
//! numbers of protection domains and for connections ([`Direct::reserve_qpns`]), memory, registers ([`Uar`]),
//! keys that cover parts of several regions ([`Direct::gather`]), also by requests
//! ([`Request::gather`](crate::Request::gather)), and memory that the device reaches past the processor
//! ([`Direct::register_data_direct`]). A command as bytes, or a request
//! ([`Request::raw`](crate::Request::raw)), may name memory by numbers, which types cannot track: those
//! functions are `unsafe`, and their contract says what the caller promises instead.
//!
//! Every context of an adapter takes commands if kernel and firmware support them ([`Direct::of`]). Only
//! commands that deal with raw packets or the device as a whole need a privilege. Sources:
//! `drivers/infiniband/hw/mlx5/devx.c` of Linux; manual page: `mlx5dv_devx_obj_create(3)`.
//!
//! ```no_run
//! use uverbs::direct::mlx5::Direct;
//! use uverbs::direct::mlx5::layout::{CmdHcaCap, QueryHcaCapOut, Structure};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = uverbs::open("mlx5_0")?;
//! let direct = Direct::of(&context)?;
//! let general = direct.capabilities()?;
//! println!("at most 2^{} UMEMs", general.get(CmdHcaCap::LOG_MAX_UMEM));
//! # Ok(()) }
//! ```

pub(crate) mod command;
pub(crate) mod data_direct;
mod event;
pub(crate) mod gather;
pub mod layout;
pub(crate) mod object;
mod port;
mod refusal;
mod reserved;
mod uar;
mod umem;

use std::fmt;

pub use event::{Event, EventChannel, EventType};
pub use gather::{GatherError, GatheredKey, Gathers};
pub use object::{DevxObject, VerbsObject};
pub use refusal::{CommandError, Refusal};
pub use reserved::ReservedQpns;
pub use uar::{Uar, UarKind};
pub use umem::{DmabufUmem, Umem};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use self::command::{Answered, General, QueryEqn, QueryPd};
use self::layout::{
    Answer, CmdHcaCap, Header, Input, QueryHcaCapIn, QueryHcaCapOut, QueryRoceAddressIn,
    QueryRoceAddressOut, RoceAddrLayout, RoceCap, Structure,
};
use crate::context::Context;
use crate::driver::OneOf;
pub use crate::driver::mlx5::refusal::Status;
use crate::error::{Error, Result, Subject, Verb};
use crate::pd::Pd;

/// The fewest bytes that the kernel takes for a command and for its answer.
const SHORTEST: usize = 16;
/// The most: their number has 16 bits.
const LONGEST: usize = u16::MAX as usize;

/// A context that takes commands to the device.
#[derive(Clone)]
pub struct Direct {
    context: Context,
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Direct").field(&self.context.name()).finish()
    }
}

impl Direct {
    /// The direct verbs of a context.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported): the device is no ConnectX adapter, or the context
    /// was created without commands, since kernel or firmware lacks them. An imported context is accepted,
    /// but the kernel may refuse its commands.
    pub fn of(context: &Context) -> Result<Self> {
        let lacks = |what: &'static str| {
            let subject = Subject::named("device", context.name());
            Err(Error::unsupported(Verb::DevxGeneralCmd, subject, what))
        };
        match context.driver() {
            OneOf::Mlx5(device) if device.takes_commands() => Ok(Self {
                context: context.clone(),
            }),
            OneOf::Mlx5(_) => lacks("commands of the device's own (DEVX)"),
            #[allow(unreachable_patterns, reason = "there may be no other driver")]
            _ => lacks("direct verbs of ConnectX adapters"),
        }
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Gives the device a command that concerns no object, as bytes. Its answer is in `output`, even if the
    /// device refuses.
    ///
    /// The kernel passes commands on that query something, and those with the numbers 0xb00 to 0xcff.
    ///
    /// # Errors
    ///
    /// [`CommandError::Device`] if the device refuses. Otherwise the kernel refuses: it does not pass the
    /// command on (`EINVAL`). Or the input or the output has fewer than 16 bytes, or more than 65,535.
    ///
    /// # Safety
    ///
    /// The command only affects objects whose owners expect it. It has no effect on memory that somebody has
    /// a reference to, and none on objects of others.
    pub unsafe fn command(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        self.ask(input, output)
    }

    fn ask(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        let subject = || Subject::the("device");
        let lengths = lengths(Verb::DevxGeneralCmd, subject, input, output);
        let command = General {
            input,
            output: lengths?,
        };
        let answer = self.context.fd().execute(&command)?;
        take((Verb::DevxGeneralCmd, subject), input, &answer, output)
    }

    /// Executes a command that queries something.
    fn asked<I: Input>(&self, command: &I) -> Result<I::Output> {
        let mut output = I::Output::new_zeroed();
        self.ask(command.as_bytes(), output.as_mut_bytes())?;
        Ok(output)
    }

    fn capability(&self, kind: u64) -> Result<QueryHcaCapOut> {
        /// The current capabilities, not the device's limits.
        const CURRENT: u64 = 1;
        let mut command = QueryHcaCapIn::new();
        command.set(QueryHcaCapIn::OP_MOD, kind << 1 | CURRENT);
        self.asked(&command)
    }

    /// What the device can do.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn capabilities(&self) -> Result<CmdHcaCap> {
        let answer = self.capability(0)?;
        Ok(*answer.inner(QueryHcaCapOut::GENERAL))
    }

    /// What the device's RoCE ports can do.
    ///
    /// # Errors
    ///
    /// The device refuses, as it does if its ports are InfiniBand ones.
    pub fn roce_capabilities(&self) -> Result<RoceCap> {
        let answer = self.capability(4)?;
        Ok(*answer.inner(QueryHcaCapOut::ROCE))
    }

    /// An entry of the GID table of a RoCE port, in the device's format. The index is the kernel's.
    ///
    /// # Errors
    ///
    /// The device refuses: it has no such entry, or its ports are InfiniBand ones.
    pub fn roce_address(&self, port: u8, index: u16) -> Result<RoceAddrLayout> {
        let mut command = QueryRoceAddressIn::new();
        if port > 0xf {
            let why = format!("port {port}: ports are numbered to 15");
            return Err(Error::invalid(
                Verb::DevxGeneralCmd,
                Subject::the("device"),
                why,
            ));
        }
        command
            .set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, index.into())
            .set(QueryRoceAddressIn::VHCA_PORT_NUM, port.into());
        let answer = self.asked(&command)?;
        Ok(*answer.inner(QueryRoceAddressOut::ROCE_ADDRESS))
    }

    /// The number of the event queue of a completion vector, for completion queues.
    ///
    /// # Errors
    ///
    /// There is no such vector. Manual page: `mlx5dv_devx_query_eqn(3)`.
    #[doc(alias = "mlx5dv_devx_query_eqn")]
    pub fn eqn(&self, vector: u32) -> Result<u32> {
        self.context.fd().execute(&QueryEqn(vector))
    }

    /// The device's number of a protection domain, for objects in it.
    ///
    /// # Errors
    ///
    /// The domain belongs to another context, or the kernel is older than 5.9.
    pub fn pdn(&self, pd: &Pd) -> Result<u32> {
        let subject = || Subject::numbered("PD", pd.handle().0.into());
        let parts = [("the PD", Some(pd.context()))];
        self.context.check_parts(Verb::InitObj, subject, parts)?;
        let told = self.context.fd().execute(&QueryPd(pd.handle()))?;
        domain_number(told, subject)
    }
}

/// The number of a protection domain as the kernel tells it, if it fits into the structures of commands.
fn domain_number(told: u32, subject: impl Fn() -> Subject) -> Result<u32> {
    const BITS: u32 = 24;
    match told >> BITS {
        0 => Ok(told),
        _ => {
            let what = format!("the number {told:#x}, which has more than {BITS} bits");
            Err(Error::malformed(Verb::InitObj, subject(), what))
        }
    }
}

/// Checks the lengths of a command and of its answer, and returns that of the answer.
fn lengths(
    verb: Verb,
    subject: impl Fn() -> Subject,
    input: &[u8],
    output: &[u8],
) -> Result<usize> {
    for (name, length) in [("command", input.len()), ("answer", output.len())] {
        if !(SHORTEST..=LONGEST).contains(&length) {
            let why = format!("a {name} of {length} bytes: {SHORTEST} to {LONGEST} are possible");
            return Err(Error::invalid(verb, subject(), why));
        }
    }
    Ok(output.len())
}

/// Takes the device's answer to a command that this verb gave it.
fn take(
    (verb, subject): (Verb, impl Fn() -> Subject),
    input: &[u8],
    answer: &Answered,
    output: &mut [u8],
) -> Result<(), CommandError> {
    output.fill(0);
    for (to, from) in output.iter_mut().zip(answer) {
        *to = *from;
    }
    let (head, _) = Answer::read_from_prefix(output).unwrap_or_default();
    match Status(head.get(Answer::STATUS) as u8) {
        Status(0) => Ok(()),
        status => Err(CommandError::Device {
            refusal: Refusal {
                opcode: opcode(input),
                status,
                syndrome: head.get(Answer::SYNDROME) as u32,
            },
            verb,
            subject: subject(),
        }),
    }
}

/// The number of a command.
fn opcode(input: &[u8]) -> u16 {
    match Header::read_from_prefix(input) {
        Ok((header, _)) => header.get(Header::OPCODE) as u16,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_also_if_it_is_a_refusal() {
        let input = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut output = [0xff; 20];
        let given = || (Verb::DevxObjQuery, || Subject::numbered("object", 7));
        let done: Answered = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3].into();
        assert_eq!(take(given(), &input, &done, &mut output), Ok(()));
        assert_eq!(output[9..12], [1, 2, 3]);
        assert_eq!(output[12..], [0; 8], "what the device did not write");
        let refused: Answered = [5, 0, 0, 0, 0, 0x2b, 0xc7, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0].into();
        let expected = Refusal {
            opcode: 0x400,
            status: Status::BAD_RES_ERR,
            syndrome: 0x2b_c71f,
        };
        let error = take(given(), &input, &refused, &mut output).unwrap_err();
        assert_eq!(error.refusal(), Some(expected));
        let text = Error::from(error).to_string();
        assert!(text.contains("devx_obj_query on object 7"), "{text}");
        assert_eq!(output[0], 5);
    }

    /// Would catch a number that no command has room for: setting such a field panics.
    #[test]
    fn a_number_of_a_domain_has_24_bits() {
        let number = |told| domain_number(told, || Subject::numbered("PD", 3));
        assert_eq!(number(0xff_ffff), Ok(0xff_ffff));
        let error = number(0x100_0000).unwrap_err().to_string();
        for part in ["init_obj", "PD 3", "0x1000000"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn lengths_that_the_kernel_refuses_are_refused_before() {
        let subject = || Subject::the("device");
        let check = |input: usize, output: usize| {
            let verb = Verb::DevxGeneralCmd;
            lengths(verb, subject, &vec![0; input], &vec![0; output]).is_ok()
        };
        assert!(check(16, 16) && check(65_535, 65_535));
        assert!(!check(15, 16) && !check(16, 15));
        assert!(!check(65_536, 16) && !check(16, 65_536));
    }
}
