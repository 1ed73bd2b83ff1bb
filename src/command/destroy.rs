//! Destroying objects: the kernel's methods for it all look alike.

use uverbs_uapi::handle::{AhHandle, CqHandle, MrHandle, PdHandle, QpHandle, SrqHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// A destroy method whose only attribute is the object's handle, with its write command beside it.
fn destroy(
    spelling: Spelling,
    native: (u16, u16, u16),
    handle: u32,
    write: impl FnOnce() -> Request,
) -> Option<Request> {
    let (object, method, attribute) = native;
    Some(match spelling {
        Spelling::Native => Request::method(object, method).handle(attribute, handle),
        Spelling::Write => write(),
    })
}

/// Frees a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeallocPd(pub(crate) PdHandle);

impl Command for DeallocPd {
    type Reply = ();
    const VERB: Verb = Verb::DeallocPd;

    fn subject(&self) -> Subject {
        Subject::numbered("PD", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        let ids = (object::PD, method::pd::DESTROY, attr::destroy_pd::HANDLE);
        destroy(spelling, ids, self.0.0, || {
            Request::write_command::<_, ()>(
                cmd::DEALLOC_PD,
                &abi::DeallocPd {
                    pd_handle: self.0.0,
                },
            )
        })
    }

    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Deregisters a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeregMr(pub(crate) MrHandle);

impl Command for DeregMr {
    type Reply = ();
    const VERB: Verb = Verb::DeregMr;

    fn subject(&self) -> Subject {
        Subject::numbered("MR", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        let ids = (object::MR, method::mr::DESTROY, attr::destroy_mr::HANDLE);
        destroy(spelling, ids, self.0.0, || {
            Request::write_command::<_, ()>(
                cmd::DEREG_MR,
                &abi::DeregMr {
                    mr_handle: self.0.0,
                },
            )
        })
    }

    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Destroys an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyAh(pub(crate) AhHandle);

impl Command for DestroyAh {
    type Reply = ();
    const VERB: Verb = Verb::DestroyAh;

    fn subject(&self) -> Subject {
        Subject::numbered("AH", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        let ids = (object::AH, method::ah::DESTROY, attr::destroy_ah::HANDLE);
        destroy(spelling, ids, self.0.0, || {
            Request::write_command::<_, ()>(
                cmd::DESTROY_AH,
                &abi::DestroyAh {
                    ah_handle: self.0.0,
                },
            )
        })
    }

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
    const VERB: Verb = Verb::DestroyCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        let ids = (object::CQ, method::cq::DESTROY, attr::destroy_cq::HANDLE);
        let request = destroy(spelling, ids, self.0.0, || {
            let core = abi::DestroyCq {
                cq_handle: self.0.0,
                ..Default::default()
            };
            Request::write_command::<_, abi::DestroyCqResp>(cmd::DESTROY_CQ, &core)
        })?;
        Some(match spelling {
            Spelling::Native => {
                request.output(attr::destroy_cq::RESP, size_of::<abi::DestroyCqResp>())
            }
            Spelling::Write => request,
        })
    }

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
    const VERB: Verb = Verb::DestroyQp;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        let ids = (object::QP, method::qp::DESTROY, attr::destroy_qp::HANDLE);
        let request = destroy(spelling, ids, self.0.0, || {
            let core = abi::DestroyQp {
                qp_handle: self.0.0,
                ..Default::default()
            };
            Request::write_command::<_, abi::DestroyQpResp>(cmd::DESTROY_QP, &core)
        })?;
        Some(match spelling {
            Spelling::Native => {
                request.output(attr::destroy_qp::RESP, size_of::<abi::DestroyQpResp>())
            }
            Spelling::Write => request,
        })
    }

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
    const VERB: Verb = Verb::DestroySrq;

    fn subject(&self) -> Subject {
        Subject::numbered("SRQ", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        let ids = (object::SRQ, method::srq::DESTROY, attr::destroy_srq::HANDLE);
        let request = destroy(spelling, ids, self.0.0, || {
            let core = abi::DestroySrq {
                srq_handle: self.0.0,
                ..Default::default()
            };
            Request::write_command::<_, abi::DestroySrqResp>(cmd::DESTROY_SRQ, &core)
        })?;
        Some(match spelling {
            Spelling::Native => {
                request.output(attr::destroy_srq::RESP, size_of::<abi::DestroySrqResp>())
            }
            Spelling::Write => request,
        })
    }

    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        match spelling {
            Spelling::Native => answer.answer(attr::destroy_srq::RESP),
            Spelling::Write => answer.response(),
        }
    }
}
