//! Multicast groups.

use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::{cmd, write as abi};

use super::{Command, Decode, Request, nothing};
use crate::error::{Subject, Verb};
use crate::gid::Gid;

/// Attaches a queue pair to a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachMcast {
    pub(crate) qp: QpHandle,
    pub(crate) gid: Gid,
    /// The group's LID; 0 on RoCE.
    pub(crate) mlid: u16,
}

impl Command for AttachMcast {
    type Reply = ();
    const VERB: Verb = Verb::AttachMcast;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.qp.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let Self { qp, gid, mlid } = *self;
        let core = abi::AttachMcast {
            gid: gid.raw(),
            qp_handle: qp.0,
            mlid,
            reserved: 0,
        };
        request.write_command::<_, ()>(cmd::ATTACH_MCAST, &core);
        Some(nothing)
    }
}

/// Detaches a queue pair from a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DetachMcast {
    pub(crate) qp: QpHandle,
    pub(crate) gid: Gid,
    /// The group's LID; 0 on RoCE.
    pub(crate) mlid: u16,
}

impl Command for DetachMcast {
    type Reply = ();
    const VERB: Verb = Verb::DetachMcast;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.qp.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let Self { qp, gid, mlid } = *self;
        let core = abi::DetachMcast {
            gid: gid.raw(),
            qp_handle: qp.0,
            mlid,
            reserved: 0,
        };
        request.write_command::<_, ()>(cmd::DETACH_MCAST, &core);
        Some(nothing)
    }
}
