//! The objects that the driver makes on a function, one kind in each file, with the commands on them.

pub(crate) mod cq;
pub(crate) mod dct;
pub(crate) mod ece;
pub(crate) mod eq;
pub(crate) mod memic;
pub(crate) mod mkey;
pub(crate) mod multicast;
pub(crate) mod page;
pub(crate) mod qp;
pub(crate) mod reserved;
pub(crate) mod rq;
pub(crate) mod sq;
pub(crate) mod srq;
pub(crate) mod umem;
