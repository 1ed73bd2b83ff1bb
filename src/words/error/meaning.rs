//! What an errno means for a verb: the kernel reuses a dozen numbers for a hundred reasons.
//!
//! Sources: `drivers/infiniband/core/uverbs_cmd.c`, `uverbs_ioctl.c`, `rdma_core.c`, `umem.c`, `verbs.c` and
//! `drivers/infiniband/sw/rxe` of Linux 6.1 to 7.3. A pair without an entry means no more than the errno
//! itself.

use super::{Errno, Verb};

/// What `errno` means when `verb` fails with it, as one clause.
pub(super) fn of(verb: Verb, errno: Errno) -> Option<&'static str> {
    by_verb(verb, errno).or_else(|| match errno {
        Errno::ACCESS if is_never_written(verb) => None,
        _ => in_general(errno),
    })
}

/// Whether it goes without write(2): by netlink, sysfs, open(2), mmap(2), read(2), a socket, or an allocator.
fn is_never_written(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::ListDevices
            | Verb::FindDevice
            | Verb::OpenDevice
            | Verb::ImportDevice
            | Verb::QueryResources
            | Verb::AddLink
            | Verb::DeleteLink
            | Verb::QueryPkey
            | Verb::QueryGid
            | Verb::QueryGidTable
            | Verb::MapQueue
            | Verb::GetAsyncEvent
            | Verb::GetCqEvent
            | Verb::AllocBuffer
            | Verb::SharePd
            | Verb::AllocShpd
    )
}

/// What the errno that usually means removal means of a device that is still there.
pub(super) const FAILED_BY_DEVICE: &str = "the device has failed the command";

/// Whether a verb fails with it because its device has been removed. `ENODEV` often refers to another device:
/// a network device, or the RDMA device that an address should lead to.
pub(super) fn is_removal(verb: Verb, errno: Errno) -> bool {
    match errno {
        Errno::IO => true,
        // The kernel has closed the identifier (`ucma_get_ctx` in drivers/infiniband/core/ucma.c).
        Errno::NXIO => is_of_an_identifier(verb),
        Errno::NODEV => matches!(
            verb,
            Verb::QueryResources
                | Verb::QueryPort
                | Verb::QueryPkey
                | Verb::QueryGid
                | Verb::QueryGidTable
                | Verb::Connect
                | Verb::Accept
                | Verb::Listen
                | Verb::GetCmEvent
                | Verb::Disconnect
                | Verb::InitQpAttr
        ),
        _ => false,
    }
}

/// Whether it is a command to the connection manager about an existing identifier.
fn is_of_an_identifier(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::BindAddr
            | Verb::ResolveAddr
            | Verb::ResolveRoute
            | Verb::ResolveService
            | Verb::QueryId
            | Verb::SetOption
            | Verb::Connect
            | Verb::Listen
            | Verb::GetRequest
            | Verb::Accept
            | Verb::Reject
            | Verb::Disconnect
            | Verb::InitQpAttr
            | Verb::Notify
            | Verb::JoinMulticast
    )
}

fn by_verb(verb: Verb, errno: Errno) -> Option<&'static str> {
    Some(match (verb, errno) {
        (Verb::ListDevices | Verb::FindDevice, Errno::ACCESS | Errno::PERM) => {
            "a sandbox forbids this process to look for devices"
        }
        (
            Verb::ListDevices | Verb::FindDevice,
            Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT | Errno::CONNREFUSED,
        ) => {
            "the kernel has no RDMA netlink in this network namespace: the module ib_core is not loaded"
        }
        (Verb::OpenDevice, Errno::NOENT) => {
            "the character device has no node in /dev/infiniband (udev, or a container without it)"
        }
        (Verb::OpenDevice, Errno::ACCESS | Errno::PERM) => {
            "this user may not open the character device, or a device cgroup forbids it"
        }
        (Verb::OpenDevice, Errno::NXIO | Errno::NODEV) => {
            "the device has been removed, or it is not in this network namespace"
        }
        (Verb::OpenDevice | Verb::GetContext, Errno::MFILE) => {
            "the process has no file descriptor left (RLIMIT_NOFILE)"
        }
        (Verb::GetContext, Errno::INVAL) => {
            "the file already has a context, or the driver refused the user data"
        }
        (Verb::GetContext, Errno::AGAIN) => {
            "the device is not active at the moment, or the RDMA cgroup's limit of handles is reached (rdma.max)"
        }
        // The cgroup is charged for each object, and that fails only with this errno (`rdmacg_try_charge`).
        (
            Verb::AllocPd
            | Verb::RegMr
            | Verb::RegDmabufMr
            | Verb::RegDmMr
            | Verb::AllocMw
            | Verb::CreateCq
            | Verb::CreateQp
            | Verb::CreateSrq
            | Verb::CreateAh
            | Verb::AllocDm,
            Errno::AGAIN,
        ) => "the RDMA cgroup's limit of objects is reached (rdma.max)",
        (Verb::ImportDevice, Errno::INVAL) => {
            "the file has no context: nobody has opened the device with it"
        }
        (Verb::QueryMr | Verb::ImportMr, Errno::INVAL) => {
            "the handle names an object of another kind, not an MR"
        }
        (Verb::QueryMr | Verb::ImportMr, Errno::NOENT) => {
            "the context has no object with this handle"
        }
        (Verb::SharePd, Errno::ACCESS | Errno::PERM) => {
            "the key is wrong, or the exporter or the socket's mode does not allow this user"
        }
        (Verb::SharePd, Errno::NOENT | Errno::CONNREFUSED) => "there is no offer at this address",
        (Verb::SharePd, Errno::CONNRESET) => "the exporter closed the connection without an answer",
        (Verb::AllocShpd, Errno::ADDRINUSE) => "the address is taken",
        (Verb::AllocShpd, Errno::ACCESS) => "this user may not create a socket in the directory",
        (Verb::AllocShpd, Errno::NOENT) => "the directory does not exist, or /proc is not mounted",
        (Verb::AllocShpd, Errno::PERM) => {
            "another process has replaced the socket, or a sandbox forbids it"
        }
        (Verb::DeallocPd, Errno::BUSY) => {
            "MRs, MWs, AHs, QPs, SRQs or WQs still use the PD, or another holder of the file uses its handle right now"
        }
        (Verb::RegMr | Verb::ReregMr, Errno::NOMEM) => {
            "the memory cannot be pinned (RLIMIT_MEMLOCK), or the kernel or the device has no memory left"
        }
        (Verb::RegMr, Errno::FAULT) => {
            "a part of the range is not mapped, or is mapped for reading only and the access makes the \
             kernel pin it for writing"
        }
        (Verb::RegMr, Errno::INVAL) => {
            "the access flags contradict each other or the device does not have them, or the I/O virtual address has another offset in its page than the address"
        }
        (Verb::RegMr, Errno::PERM) => {
            "pages of the range may not be pinned with this access, or a sandbox (seccomp) forbids the command"
        }
        (Verb::ReregMr, Errno::INVAL) => {
            "no change was requested, the access flags contradict each other, or the new memory is empty"
        }
        (Verb::RegDmabufMr, Errno::INVAL) => {
            "the descriptor is no dma-buf, the range does not lie within it, the access flags contradict each other, the I/O virtual address has another offset in its page than the range, or the device cannot reach the exporter's memory"
        }
        (Verb::RegDmabufMr, Errno::BADF) => "the descriptor is not open",
        // The exporter returns it when the driver maps the pages. mlx5's driver maps them at once.
        (Verb::RegDmabufMr, Errno::NODEV) => "the exporter has revoked the dma-buf",
        (Verb::AdviseMr, Errno::FAULT) => {
            "a slice does not lie within its region, or the process has nothing mapped there"
        }
        (Verb::AdviseMr, Errno::INVAL) => {
            "a slice's key is unknown or belongs to another protection domain, or its region is not paged on demand"
        }
        (Verb::AdviseMr, Errno::PERM) => {
            "the advice is for writing, and a slice's region is not writable"
        }
        (Verb::AllocMw, Errno::INVAL) => "the device lacks this type of memory window",
        (Verb::DeregMr, Errno::BUSY) => {
            "memory windows are bound to the MR, or another holder of the file uses its handle right now"
        }
        (Verb::ReregMr, Errno::BUSY) => "another holder of the file uses its handle right now",
        (Verb::DeregMr, Errno::INVAL) => "memory windows are still bound to the MR",
        (Verb::CreateCq, Errno::INVAL) => {
            "the number of entries is 0 or more than the device's max_cqe, or there is no such completion vector"
        }
        (Verb::ResizeCq, Errno::INVAL) => {
            "the new size is 0, more than the device's max_cqe, or smaller than the completions that wait"
        }
        (Verb::DestroyCq, Errno::BUSY) => {
            "QPs, SRQs or WQs still report to the CQ, or another holder of the file uses its handle right now"
        }
        (Verb::CreateQp, Errno::INVAL) => {
            "a capacity exceeds the device's limits, or the transport needs other attributes"
        }
        (
            Verb::CreateQp | Verb::CreateCq | Verb::ResizeCq | Verb::CreateSrq | Verb::ModifySrq,
            Errno::NOMEM,
        ) => {
            "the queue's memory cannot be pinned (RLIMIT_MEMLOCK), or the kernel or the device has no memory, or no \
             object of this kind, left"
        }
        (Verb::AllocPd | Verb::CreateAh | Verb::AllocMw, Errno::NOMEM) => {
            "the kernel or the device has no memory, or no object of this kind, left"
        }
        (Verb::CreateQp, Errno::NOSYS) => "the device does not have this transport",
        (Verb::ModifyQp, Errno::INVAL) => {
            "an attribute is wrong for this transition, or its value exceeds a limit of the device"
        }
        (Verb::ModifyQp, Errno::NODEV) => {
            "the GID's network device is in another network namespace"
        }
        // rdma_addr_find_l2_eth_by_grh in drivers/infiniband/core/addr.c waits for one second and sends one
        // request.
        (Verb::ModifyQp | Verb::CreateAh, Errno::TIMEDOUT) => {
            "no neighbour answered for the peer's GID within a second (ARP, ND): there is no such host, or a packet was \
             lost and another attempt may succeed"
        }
        (Verb::ModifyQp | Verb::CreateAh, Errno::NETUNREACH) => {
            "there is no route to the peer's GID from the network device of the source GID"
        }
        (Verb::DestroyQp, Errno::BUSY) => {
            "multicast groups are still attached to the QP, or another holder of the file uses its handle right now"
        }
        (Verb::PostSend, Errno::INVAL) => {
            "the QP is not in a state that sends (RTS, SQD, SQE or ERR)"
        }
        (Verb::CreateAh, Errno::INVAL) => {
            "the address vector is wrong: a GID index or port that does not exist, or no GRH on an Ethernet port"
        }
        (Verb::AttachMcast, Errno::INVAL) => {
            "only UD QPs can join a multicast group, and the GID must be a multicast one"
        }
        (Verb::DestroySrq, Errno::BUSY) => {
            "QPs still receive from the SRQ, or another holder of the file uses its handle right now"
        }
        (
            Verb::QueryResources
            | Verb::QueryPort
            | Verb::QueryPkey
            | Verb::QueryGid
            | Verb::QueryGidTable,
            Errno::NODEV,
        ) => "the device has been removed",
        (Verb::QueryPort | Verb::QueryPortSpeed, Errno::INVAL) => "the device has no such port",
        (Verb::QueryGid, Errno::INVAL) => {
            "the GID entry is empty, or the device has no such port or GID index"
        }
        (Verb::QueryGid, Errno::NODATA) => "the GID entry is empty",
        (Verb::OpenXrcd, Errno::AGAIN) => "nobody has the file's XRC domain open",
        (Verb::OpenXrcd, Errno::INVAL) => {
            "the file's XRC domain is already open, but a new one was requested"
        }
        (Verb::CloseXrcd, Errno::BUSY) => {
            "QPs and SRQs are still in the XRC domain, or another holder of the file uses its handle right now"
        }
        (Verb::OpenQp, Errno::INVAL) => "the XRC domain has no target of this number",
        (Verb::CreateQp, Errno::PERM) => {
            "QPs for raw packets need the capability CAP_NET_RAW, and a sandbox (seccomp) may forbid those of any type"
        }
        (Verb::AllocDm, Errno::INVAL) => {
            "the length is 0 or more than the device allocates in one piece, or the device lacks the alignment"
        }
        (Verb::AllocDm, Errno::NOMEM) => "the device has not enough memory left",
        (Verb::FreeDm, Errno::BUSY) => {
            "MRs are still registered in the DM, or another holder of the file uses its handle right now"
        }
        (Verb::RegDmMr, Errno::INVAL) => {
            "the range does not lie within the DM, or the device does not have the access"
        }
        (Verb::CreateId, Errno::INVAL) => "the kernel does not have this port space",
        (Verb::BindAddr | Verb::ResolveAddr, Errno::ADDRNOTAVAIL) => {
            "this host does not have the address, or a wildcard shares the port with it"
        }
        (Verb::BindAddr | Verb::Listen, Errno::ADDRINUSE) => "the address and port are in use",
        (Verb::BindAddr | Verb::ResolveAddr, Errno::NODEV) => {
            "no RDMA device has the address, or its port is down"
        }
        (Verb::BindAddr, Errno::ACCESS) => {
            "ports below 1024 need the capability CAP_NET_BIND_SERVICE"
        }
        (Verb::BindAddr | Verb::ResolveAddr, Errno::AFNOSUPPORT) => {
            "the kernel does not have this family of addresses"
        }
        (Verb::BindAddr | Verb::ResolveAddr, Errno::INVAL) => {
            "a link-local address needs its scope, and both addresses must be of one family"
        }
        (Verb::ResolveAddr, Errno::NETUNREACH | Errno::HOSTUNREACH) => {
            "there is no route to the peer from an RDMA device"
        }
        (Verb::ResolveAddr, Errno::TIMEDOUT) => {
            "no neighbour answered for the peer's address (ARP, ND): there is no such host"
        }
        (Verb::ResolveRoute, Errno::NODEV) => {
            "the route to the peer does not use the device's network interface"
        }
        (Verb::Connect | Verb::Accept | Verb::Disconnect, Errno::TIMEDOUT) => {
            "the peer did not answer"
        }
        (Verb::Connect, Errno::INVAL) => {
            "the identifier is not in a state to connect, or its device has been removed"
        }
        (Verb::Accept | Verb::Reject, Errno::INVAL) => "the peer has given up meanwhile",
        (Verb::Accept, Errno::CONNRESET) => {
            "the peer quit while the connection was being established"
        }
        (Verb::InitQpAttr, Errno::INVAL) => {
            "the identifier is not in a state for this transition: the peer may have given up meanwhile"
        }
        (Verb::Notify, Errno::ISCONN) => "the connection is established already",
        (Verb::JoinMulticast, Errno::NODEV) => "no RDMA device has a route to the group",
        (Verb::JoinMulticast, Errno::NOSYS) => "the device's link layer has no multicast",
        (_, Errno::NXIO) if is_of_an_identifier(verb) => "the device has been removed",
        (
            Verb::Connect
            | Verb::Accept
            | Verb::Listen
            | Verb::GetCmEvent
            | Verb::Disconnect
            | Verb::InitQpAttr,
            Errno::NODEV,
        ) => "the device has been removed",
        (
            Verb::CreateId | Verb::ResolveAddr | Verb::Connect | Verb::Accept | Verb::GetCmEvent,
            Errno::ACCESS,
        ) => {
            "the process's credentials have changed since it opened the file: it forked, or changed its user"
        }
        (Verb::MapQueue, Errno::INVAL) => {
            "the ring has been mapped before, or it belongs to another context"
        }
        (Verb::MapQueue, Errno::AGAIN) => "the pages cannot be locked (RLIMIT_MEMLOCK)",
        _ => return None,
    })
}

fn in_general(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::IO => "the device has been removed",
        // mlx5's driver answers so from when it finds that the device has failed until it has set it up anew.
        Errno::NOLINK => "the device has failed, and its driver sends it no commands",
        Errno::ACCESS => "another process opened this file, and write() is for the opener alone",
        Errno::NOENT => "the kernel knows no object of this kind by this handle",
        Errno::OPNOTSUPP | Errno::NOSYS => "the driver does not have this verb",
        Errno::PROTONOSUPPORT | Errno::NOTTY => "the kernel does not have this method",
        Errno::BUSY => {
            "other objects still use it, or another holder of the file uses its handle right now"
        }
        Errno::MFILE => "the process has no file descriptor left (RLIMIT_NOFILE)",
        Errno::NFILE => "the host has no file descriptor left (fs.file-max)",
        Errno::PERM => {
            "a sandbox (seccomp) or a security module forbids it, or a capability is missing"
        }
        Errno::NOMEM => {
            "the kernel or the device has no memory left, or the cgroup's limit is reached (memory.max)"
        }
        _ => return None,
    })
}
