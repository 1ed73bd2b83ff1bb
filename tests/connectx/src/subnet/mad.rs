//! Requests to the administrator as they are in their packets, and the packets of its answers.

use crate::layout::Field;
use crate::layout::mad::{self, Component};

/// The class of the administrator's packets, `IB_MGMT_CLASS_SUBN_ADM`, and its version.
pub(super) const CLASS: u64 = 3;
pub(super) const CLASS_VERSION: u64 = 2;
/// The version of what all management packets have.
pub(super) const BASE_VERSION: u64 = 1;
/// The bit of a method that makes it an answer.
const RESPONSE: u64 = 0x80;

/// Why a request is not done, as the status of the answer says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Status {
    /// Its version is another one.
    BadVersion = 0x0004,
    /// There is no such method.
    UnsupportedMethod = 0x0008,
    /// The method does not go with the attribute, or there is no such attribute.
    UnsupportedAttribute = 0x000c,
    /// The attribute's modifier is none that there is.
    BadValue = 0x001c,
    /// It would take more than there is.
    NoResources = 0x0100,
    /// What it gives does not go together.
    RequestInvalid = 0x0200,
    /// Nothing is like that.
    NoRecords = 0x0300,
    /// More than the one that was asked for.
    TooManyRecords = 0x0400,
    /// No port or group has that GID.
    InvalidGid = 0x0500,
    /// It does not give what it has to.
    InsufficientComponents = 0x0600,
    /// Not for that port to ask.
    Denied = 0x0700,
}

/// What is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Method {
    Get = 0x01,
    Set = 0x02,
    GetTable = 0x12,
    Delete = 0x15,
}

impl Method {
    fn from_code(code: u64) -> Option<Self> {
        let all = [Self::Get, Self::Set, Self::GetTable, Self::Delete];
        all.into_iter().find(|method| *method as u64 == code)
    }

    /// The method of the answer, which for a change is that of a question.
    fn of_answer(self) -> u64 {
        let asked = if self == Self::Set { Self::Get } else { self };
        asked as u64 | RESPONSE
    }
}

/// A request, with the packet that it came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    packet: &'a [u8; mad::LENGTH],
}

impl<'a> Request<'a> {
    /// A packet as a request, unless it is none that anybody answers: it is too short, of another class, an
    /// answer itself, or with a key that is not the manager's.
    pub(super) fn read(packet: &'a [u8]) -> Option<Self> {
        let packet: &[u8; mad::LENGTH] = packet.try_into().ok()?;
        let is_for_us = mad::MGMT_CLASS.get(packet) == CLASS;
        let is_answer = mad::METHOD.get(packet) & RESPONSE != 0;
        // The manager has no key, and trusts nobody who has one.
        let has_key = mad::SM_KEY.is_set(packet);
        (is_for_us && !is_answer && !has_key).then_some(Self { packet })
    }

    /// What is asked, of which attribute.
    ///
    /// # Errors
    /// If the versions are others, or there is no such method.
    pub(super) fn asks(&self) -> Result<(Method, u64), Status> {
        if mad::BASE_VERSION.get(self.packet) != BASE_VERSION
            || mad::CLASS_VERSION.get(self.packet) != CLASS_VERSION
        {
            return Err(Status::BadVersion);
        }
        let method = Method::from_code(mad::METHOD.get(self.packet));
        let method = method.ok_or(Status::UnsupportedMethod)?;
        // None of the attributes has a modifier.
        if mad::ATTR_MOD.is_set(self.packet) {
            return Err(Status::BadValue);
        }
        Ok((method, mad::ATTR_ID.get(self.packet)))
    }

    fn data(&self) -> &'a [u8] {
        &self.packet[mad::DATA..]
    }

    fn has(&self, bit: u32) -> bool {
        mad::COMP_MASK.get(self.packet) >> bit & 1 != 0
    }

    /// A component, if the request gives it.
    pub(super) fn given(&self, component: Component) -> Option<u64> {
        self.has(component.bit)
            .then(|| component.field.get(self.data()))
    }

    /// A GID, if the request gives it.
    pub(super) fn given_gid(&self, (at, bit): (usize, u32)) -> Option<[u8; 16]> {
        let bytes = self.data().get(at..)?.first_chunk::<16>()?;
        self.has(bit).then_some(*bytes)
    }

    /// A component that the request must give.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn needed(&self, component: Component) -> Result<u64, Status> {
        self.given(component).ok_or(Status::InsufficientComponents)
    }

    /// As [`Self::needed`], for a GID.
    ///
    /// # Errors
    /// If the request does not give it.
    pub(super) fn needed_gid(&self, place: (usize, u32)) -> Result<[u8; 16], Status> {
        self.given_gid(place).ok_or(Status::InsufficientComponents)
    }

    /// Whether the request leaves the component open, or gives this value.
    pub(super) fn allows(&self, component: Component, value: u64) -> bool {
        self.given(component).is_none_or(|given| given == value)
    }

    /// Whether the request leaves a quantity open, or its selector and value allow this one. The function
    /// gives the order of the codes.
    pub(super) fn selects(
        &self,
        selector: Component,
        value: Component,
        actual: u64,
        order: impl Fn(u64) -> u64,
    ) -> bool {
        // One without the other says nothing.
        let (Some(selector), Some(value)) = (self.given(selector), self.given(value)) else {
            return true;
        };
        let (actual, value) = (order(actual), order(value));
        match selector {
            GREATER => actual > value,
            LESS => actual < value,
            EXACTLY => actual == value,
            // The best that there is, whatever the value.
            _ => true,
        }
    }

    /// The packet that says why the request is not done; for the rest it is the request's.
    pub(super) fn refused(&self, status: Status) -> [u8; mad::LENGTH] {
        let mut packet = *self.packet;
        let method = Method::from_code(mad::METHOD.get(&packet)).map_or_else(
            || mad::METHOD.get(self.packet) | RESPONSE,
            Method::of_answer,
        );
        mad::METHOD.set(&mut packet, method);
        mad::STATUS.set(&mut packet, status as u64);
        clear_rmpp(&mut packet);
        packet
    }

    /// The packet with all records that were found, each of so many bytes, as the only one of its transfer.
    ///
    /// # Errors
    /// If they do not fit into one packet.
    pub(super) fn answered_with_table(
        &self,
        records: &[Vec<u8>],
        size: usize,
    ) -> Result<[u8; mad::LENGTH], Status> {
        /// A packet with data; active, the first, the last; no time is given.
        const DATA_PACKET: u64 = 1;
        const ONLY: u64 = 0b111;
        const NO_TIME: u64 = 31;
        const UNIT: usize = 8;
        let content = records.concat();
        if content.len() > mad::LENGTH - mad::DATA {
            return Err(Status::NoResources);
        }
        let mut packet = self.answered(Method::GetTable, &content);
        let carried = content.len() + mad::DATA - mad::SA_HEADER;
        for (field, value) in [
            (mad::RMPP_VERSION, 1),
            (mad::RMPP_TYPE, DATA_PACKET),
            (mad::RMPP_RTIME, NO_TIME),
            (mad::RMPP_FLAGS, ONLY),
            (mad::SEG_NUM, 1),
            (mad::PAYLEN_NEWWIN, carried as u64),
            (mad::ATTR_OFFSET, (size / UNIT) as u64),
        ] {
            field.set(&mut packet, value);
        }
        Ok(packet)
    }

    /// The packet with what was asked for, or what a change has come to.
    pub(super) fn answered(&self, method: Method, content: &[u8]) -> [u8; mad::LENGTH] {
        let mut packet = *self.packet;
        mad::METHOD.set(&mut packet, method.of_answer());
        mad::STATUS.set(&mut packet, 0);
        clear_rmpp(&mut packet);
        let data = &mut packet[mad::DATA..];
        data.fill(0);
        for (to, from) in data.iter_mut().zip(content) {
            *to = *from;
        }
        packet
    }
}

/// What selectors say: more than the value, less, or just that.
pub(super) const GREATER: u64 = 0;
pub(super) const LESS: u64 = 1;
pub(super) const EXACTLY: u64 = 2;

fn clear_rmpp(packet: &mut [u8; mad::LENGTH]) {
    let of_rmpp: [Field; 7] = [
        mad::RMPP_VERSION,
        mad::RMPP_TYPE,
        mad::RMPP_RTIME,
        mad::RMPP_FLAGS,
        mad::RMPP_STATUS,
        mad::SEG_NUM,
        mad::PAYLEN_NEWWIN,
    ];
    for field in of_rmpp {
        field.set(packet, 0);
    }
}

/// Rates in units of 100 Mbit/s, by their codes (`enum ib_rate`); 0 if there is no such code.
pub(super) fn speed(rate: u64) -> u64 {
    const SPEEDS: [u64; 24] = [
        0, 0, 25, 100, 300, 50, 200, 400, 600, 800, 1200, 140, 560, 1120, 1680, 250, 1000, 2000,
        3000, 280, 500, 4000, 6000, 8000,
    ];
    let index = usize::try_from(rate).unwrap_or(usize::MAX);
    SPEEDS.get(index).copied().unwrap_or(0)
}

/// Codes that are in order themselves: MTUs and times.
pub(super) fn as_it_is(code: u64) -> u64 {
    code
}
