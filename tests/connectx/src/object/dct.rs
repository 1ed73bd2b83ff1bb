//! DC targets: what messages of DC initiators go to. A target has an access key, which each message carries,
//! and receives from a shared receive queue.
//!
//! The driver makes one when it has all of its attributes. It ends one in two steps: a target that is drained
//! takes no more messages, an event says that none is on its way any more, and then it can be destroyed.

use crate::command::Status;
use crate::engine::inline;
use crate::function::Function;
use crate::layout::{Field, cmd, dctc};
use crate::object::ece;
use crate::object::eq::{self, Event};
use crate::object::qp::Transport;

/// How far a target is, by the header's names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// It takes messages.
    Active = 0,
    /// It takes none.
    Drained = 2,
}

/// A DC target.
#[derive(Debug)]
pub(crate) struct Target {
    context: Vec<u8>,
    state: State,
}

impl Target {
    /// A field of the context.
    pub(crate) fn field(&self, field: Field) -> u64 {
        field.get(&self.context)
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> u32 {
        dctc::PD.get32(&self.context)
    }

    /// The completion queue of what is received.
    pub(crate) fn cqn(&self) -> u32 {
        dctc::CQN.get32(&self.context)
    }

    /// The shared receive queue.
    pub(crate) fn srqn(&self) -> u32 {
        dctc::SRQN.get32(&self.context)
    }

    /// The number by which the provider finds who has received.
    pub(crate) fn user_index(&self) -> u32 {
        dctc::USER_INDEX.get32(&self.context)
    }

    /// Whether it takes messages.
    pub(crate) fn is_active(&self) -> bool {
        self.state == State::Active
    }

    /// Whether messages with this key are for it.
    pub(crate) fn has_key(&self, key: u64) -> bool {
        self.field(dctc::DC_ACCESS_KEY) == key
    }
}

/// Executes CREATE_DCT.
///
/// # Errors
/// If the context is one that the model cannot serve, or names objects that are not there.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    const ECE: Field = Field::new(0x1e0, 32);
    let context = input
        .get(cmd::CONTEXT..cmd::CONTEXT + dctc::SIZE)
        .ok_or(Status::BadInputLength)?;
    let target = Target {
        context: context.to_vec(),
        state: State::Active,
    };
    function.check_pd(target.pd())?;
    let entries = function.objects.cqs.get(target.cqn())?.stride();
    let srq = function.objects.srqs.get(target.srqn())?;
    let mtus = 1..=5;
    // Payloads go before the half of an entry that counts.
    let room = inline::asked_by_target(&target);
    let has_room = room.is_ok_and(|room| room.is_none() || entries == 128);
    // Queues of XRC report to a completion queue themselves.
    let serves = srq.xrc().is_none()
        && srq.is_for(cmd::UID.get(input))
        && mtus.contains(&target.field(dctc::MTU))
        && target.field(dctc::PORT) == 1
        && has_room;
    if !serves {
        return Err(Status::BadParameter);
    }
    let granted = ece::granted(Transport::Dc, ECE.get32(context));
    let number = function.objects.dcts.insert(target)?;
    cmd::OBJECT.set(output, number.into());
    cmd::ECE_GRANTED.set(output, granted.into());
    Ok(())
}

/// Executes DRAIN_DCT: no message is ever half received, so the target is drained at once.
///
/// # Errors
/// If there is no such target, or it is drained already.
pub(crate) fn drain(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let number = cmd::OBJECT.get32(input);
    let target = function.objects.dcts.get_mut(number)?;
    if !target.is_active() {
        return Err(Status::BadResourceState);
    }
    target.state = State::Drained;
    eq::notify_about(function, Event::DctDrained, number);
    Ok(())
}

/// Executes DESTROY_DCT.
///
/// # Errors
/// If there is no such target, or it has not been drained.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let number = cmd::OBJECT.get32(input);
    if function.objects.dcts.get(number)?.is_active() {
        return Err(Status::BadResourceState);
    }
    function.objects.dcts.remove(number).map(drop)
}

/// Answers QUERY_DCT.
///
/// # Errors
/// If there is no such target.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let target = function.objects.dcts.get(cmd::OBJECT.get32(input))?;
    let mut context = target.context.clone();
    dctc::STATE.set(&mut context, target.state as u64);
    for (to, from) in output.iter_mut().skip(cmd::CONTEXT).zip(context) {
        *to = from;
    }
    Ok(())
}
