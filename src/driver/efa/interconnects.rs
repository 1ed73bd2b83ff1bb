//! By which of its connections with the host's memory the device reaches a region: a method of the kernel
//! driver's own.

use uverbs_uapi::efa::{QueryMrValidity, attr, method};
use uverbs_uapi::handle::MrHandle;
use uverbs_uapi::object;

use crate::command::{Command, Decode, Request};
use crate::error::{Subject, Verb};
use crate::work::Interconnects;

/// Asks for the connections of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query(pub(super) MrHandle);

impl Command for Query {
    type Reply = Interconnects;
    const VERB: Verb = Verb::QueryMr;

    fn subject(&self) -> Subject {
        Subject::numbered("MR", self.0.0.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::query_mr as id;
        request
            .method(object::MR, method::mr::QUERY)
            .handle(id::HANDLE, self.0.0)
            .output(id::RESP_IC_ID_VALIDITY, size_of::<u16>())
            .output(id::RESP_RECV_IC_ID, size_of::<u16>())
            .output(id::RESP_RDMA_READ_IC_ID, size_of::<u16>())
            .output(id::RESP_RDMA_RECV_IC_ID, size_of::<u16>());
        Some(|_, answer| {
            let valid = QueryMrValidity::from_bits_retain(answer.answer(id::RESP_IC_ID_VALIDITY)?);
            let number = |bit, of: u16| valid.contains(bit).then_some(of);
            Ok(Interconnects {
                receive: number(
                    QueryMrValidity::RECV_IC_ID,
                    answer.answer(id::RESP_RECV_IC_ID)?,
                ),
                read: number(
                    QueryMrValidity::RDMA_READ_IC_ID,
                    answer.answer(id::RESP_RDMA_READ_IC_ID)?,
                ),
                rdma_receive: number(
                    QueryMrValidity::RDMA_RECV_IC_ID,
                    answer.answer(id::RESP_RDMA_RECV_IC_ID)?,
                ),
            })
        })
    }
}
