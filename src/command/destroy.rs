//! Destroying objects: the kernel's methods for it all look alike.

use uverbs_uapi::handle::{AhHandle, CqHandle, MrHandle, PdHandle, QpHandle, SrqHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};
use zerocopy::{Immutable, IntoBytes};

use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// The ids of a destroy method.
struct Native {
    object: u16,
    method: u16,
    /// The attribute with the object's handle.
    handle: u16,
    /// The attribute with room for the answer, where there is one.
    answer: Option<u16>,
}

/// Writes a destroy command: all there is to it is the object's handle. `core` and `R` are those of the write command;
/// the method's answer is the same struct.
#[inline]
fn destroy<C: IntoBytes + Immutable, R>(
    request: &mut Request,
    spelling: Spelling,
    native: Native,
    handle: u32,
    command: u32,
    core: &C,
) {
    match spelling {
        Spelling::Native => {
            request
                .method(native.object, native.method)
                .handle(native.handle, handle);
            if let Some(answer) = native.answer {
                request.output(answer, size_of::<R>());
            }
        }
        Spelling::Write => {
            request.write_command::<_, R>(command, core);
        }
    }
}

/// Frees a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeallocPd(pub(crate) PdHandle);

impl Command for DeallocPd {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DeallocPd;

    fn subject(&self) -> Subject {
        Subject::numbered("PD", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let native = Native {
            object: object::PD,
            method: method::pd::DESTROY,
            handle: attr::destroy_pd::HANDLE,
            answer: None,
        };
        let core = abi::DeallocPd {
            pd_handle: self.0.0,
        };
        destroy::<_, ()>(request, spelling, native, self.0.0, cmd::DEALLOC_PD, &core);
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Deregisters a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeregMr(pub(crate) MrHandle);

impl Command for DeregMr {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DeregMr;

    fn subject(&self) -> Subject {
        Subject::numbered("MR", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let native = Native {
            object: object::MR,
            method: method::mr::DESTROY,
            handle: attr::destroy_mr::HANDLE,
            answer: None,
        };
        let core = abi::DeregMr {
            mr_handle: self.0.0,
        };
        destroy::<_, ()>(request, spelling, native, self.0.0, cmd::DEREG_MR, &core);
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Destroys an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyAh(pub(crate) AhHandle);

impl Command for DestroyAh {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyAh;

    fn subject(&self) -> Subject {
        Subject::numbered("AH", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let native = Native {
            object: object::AH,
            method: method::ah::DESTROY,
            handle: attr::destroy_ah::HANDLE,
            answer: None,
        };
        let core = abi::DestroyAh {
            ah_handle: self.0.0,
        };
        destroy::<_, ()>(request, spelling, native, self.0.0, cmd::DESTROY_AH, &core);
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Destroys a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyCq(pub(crate) CqHandle);

impl Command for DestroyCq {
    /// How many completion events and asynchronous events of the CQ were read.
    type Reply = abi::DestroyCqResp;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let native = Native {
            object: object::CQ,
            method: method::cq::DESTROY,
            handle: attr::destroy_cq::HANDLE,
            answer: Some(attr::destroy_cq::RESP),
        };
        let core = abi::DestroyCq {
            cq_handle: self.0.0,
            ..Default::default()
        };
        destroy::<_, abi::DestroyCqResp>(
            request,
            spelling,
            native,
            self.0.0,
            cmd::DESTROY_CQ,
            &core,
        );
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        match spelling {
            Spelling::Native => answer.answer(attr::destroy_cq::RESP),
            Spelling::Write => answer.response(),
        }
    }
}

/// Destroys a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyQp(pub(crate) QpHandle);

impl Command for DestroyQp {
    /// How many asynchronous events of the QP were read.
    type Reply = abi::DestroyQpResp;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyQp;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let native = Native {
            object: object::QP,
            method: method::qp::DESTROY,
            handle: attr::destroy_qp::HANDLE,
            answer: Some(attr::destroy_qp::RESP),
        };
        let core = abi::DestroyQp {
            qp_handle: self.0.0,
            ..Default::default()
        };
        destroy::<_, abi::DestroyQpResp>(
            request,
            spelling,
            native,
            self.0.0,
            cmd::DESTROY_QP,
            &core,
        );
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        match spelling {
            Spelling::Native => answer.answer(attr::destroy_qp::RESP),
            Spelling::Write => answer.response(),
        }
    }
}

/// Destroys a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroySrq(pub(crate) SrqHandle);

impl Command for DestroySrq {
    /// How many asynchronous events of the SRQ were read.
    type Reply = abi::DestroySrqResp;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroySrq;

    fn subject(&self) -> Subject {
        Subject::numbered("SRQ", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let native = Native {
            object: object::SRQ,
            method: method::srq::DESTROY,
            handle: attr::destroy_srq::HANDLE,
            answer: Some(attr::destroy_srq::RESP),
        };
        let core = abi::DestroySrq {
            srq_handle: self.0.0,
            ..Default::default()
        };
        destroy::<_, abi::DestroySrqResp>(
            request,
            spelling,
            native,
            self.0.0,
            cmd::DESTROY_SRQ,
            &core,
        );
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        match spelling {
            Spelling::Native => answer.answer(attr::destroy_srq::RESP),
            Spelling::Write => answer.response(),
        }
    }
}
