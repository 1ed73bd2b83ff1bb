use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::{CqHandle, DmHandle, PdHandle};
use uverbs_uapi::types::Sge;

use super::queues::{Cq, CqBacking, SendQueue, create_qp};
use super::{Sample, device};
use crate::alloc::ResourceType;
use crate::command::{
    AllocDm, CommandFd, CreateCq, CreateSrq, CreateXrcTarget, DriverData, QpSpec, RegDmabufMr,
    RegMr, ReregMr, Route, SrqKind,
};
use crate::device::DriverId;
use crate::driver::contract::{self, Driver as _, SendQueue as _, sending};
use crate::driver::{ContextOptions, CqParts, Device, Driver, Listed, QpName, has_qp};
use crate::error::{Error, Result, Verb};
use crate::work::{
    DataOrder, DatagramTo, Destination, Operation, Operations, Payload, PdTag, PostError, Remote,
    RemoteKey,
};

/// A context of a file that takes no commands: whatever is asked of the kernel fails.
fn context() -> (Arc<CommandFd>, Device) {
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    let fd = CommandFd::new(file, Sample::ID.0, Route::Best);
    (Arc::new(fd), Sample::wrap(Arc::new(Sample::default())))
}

/// Fails unless the call was refused by name, without a command to the kernel.
#[track_caller]
fn refused<T>(result: Result<T>, verb: Verb, name: &str) {
    let error = result.map(drop).unwrap_err();
    lacking(&error, verb, name);
}

#[track_caller]
fn lacking(error: &Error, verb: Verb, name: &str) {
    assert!(error.is_unsupported(), "{error}");
    assert_eq!((error.verb(), error.errno()), (verb, None), "{error}");
    assert!(error.to_string().contains(name), "{error}");
    assert!(error.to_string().contains("driver for"), "{error}");
}

fn cq(flags: u32) -> CreateCq {
    CreateCq {
        cqe: 1,
        user_handle: 1,
        channel: None,
        comp_vector: 0,
        flags,
        event_fd: None,
        driver: DriverData::default(),
    }
}

#[test]
fn it_is_chosen_by_its_number_and_version() {
    let driver = Driver::select(Sample::ID, 3, "sample0").unwrap();
    let fd = context().0;
    // This one makes a context, and so the kernel is asked.
    let options = ContextOptions {
        write_combining: true,
    };
    let error = driver.get_context(&fd, options).map(drop).unwrap_err();
    assert_eq!(error.verb(), Verb::GetContext);
    assert!(error.errno().is_some(), "{error}");

    let error = Driver::select(Sample::ID, 5, "sample0").unwrap_err();
    assert!(
        error.to_string().contains("this build speaks 3 to 4"),
        "{error}"
    );
    let error = Driver::select(DriverId(0x5b), 3, "sample0").unwrap_err();
    assert!(
        error.to_string().contains("a driver for driver 91 devices"),
        "{error}"
    );
}

#[test]
fn what_every_kernel_has_goes_to_the_kernel() {
    let (fd, device) = context();
    let error = device.alloc_pd(&fd).unwrap_err();
    assert!(error.errno().is_some(), "{error}");
    device.import_pd(&fd, PdHandle(1)).unwrap();
}

#[test]
fn what_it_leaves_out_is_refused_by_name() {
    let (fd, device) = context();
    let driver = DriverData::default;
    let srq = |kind| CreateSrq {
        kind,
        pd: PdHandle(1),
        max_wr: 1,
        max_sge: 1,
        limit: 0,
        user_handle: 1,
        event_fd: None,
        driver: driver(),
    };
    refused(
        device.create_srq(&fd, srq(SrqKind::Basic), None, None),
        Verb::CreateSrq,
        "shared receive queues",
    );
    let xrc = SrqKind::Xrc {
        xrcd: uverbs_uapi::handle::XrcdHandle(1),
        cq: CqHandle(1),
    };
    refused(
        device.create_srq(&fd, srq(xrc), None, None),
        Verb::CreateSrq,
        "XRC",
    );
    let target = CreateXrcTarget {
        xrcd: uverbs_uapi::handle::XrcdHandle(1),
        user_handle: 1,
        event_fd: None,
        driver: driver(),
    };
    refused(
        device.create_xrc_target(&fd, &target),
        Verb::CreateQp,
        "targets of XRC domains",
    );
    let dm = AllocDm {
        length: 64,
        log_align: 0,
    };
    refused(device.alloc_dm(&fd, &dm), Verb::AllocDm, "device memory");
    refused(
        device.import_dm(&fd, DmHandle(1)),
        Verb::ImportDm,
        "device memory",
    );
    refused(device.null_lkey(), Verb::AllocNullMr, "a null MR");
    refused(device.raw_clock(&fd), Verb::QueryRtValues, "a clock");
    refused(device.wall_clock(&fd), Verb::GetClockInfo, "time of day");
    let qp = QpName {
        handle: uverbs_uapi::handle::QpHandle(1),
        qpn: 1,
    };
    let order = device.data_order(&fd, qp, QpState::RTS);
    assert_eq!(order.unwrap(), DataOrder::Any);
    refused(
        device.set_udp_source_port(&fd, qp, 0xc000),
        Verb::ModifyQpUdpSport,
        "UDP source ports",
    );
    let stream = device.reset_stream(&fd, qp, 1);
    refused(stream, Verb::DciStreamIdReset, "streams of DC");
    let lag = device.lag_port(&fd, qp);
    refused(lag, Verb::QueryQpLagPort, "(LAG)");
    let lag = device.set_lag_port(&fd, qp, 1);
    refused(lag, Verb::ModifyQpLagPort, "(LAG)");
    lacking(&device.without_ece(Verb::QueryEce), Verb::QueryEce, "(ECE)");
    let others = Driver::select(Sample::ID, 3, "sample0").unwrap();
    refused(
        others.query_context(&fd),
        Verb::ImportDevice,
        "contexts of others",
    );
}

/// Would catch a driver that is called with options that it does not know.
#[test]
fn options_that_it_does_not_name_are_refused_before_it_is_asked() {
    let (fd, device) = context();
    let plain = CqParts {
        entry_bytes: None,
        buffers: None,
        for_agent: false,
        follows_requests: true,
    };
    let create = |flags, parts| device.create_cq(&fd, cq(flags), &parts);
    let sized = CqParts {
        entry_bytes: Some(64),
        ..plain
    };
    refused(create(0, sized), Verb::CreateCq, "entries of a chosen size");
    refused(create(1, plain), Verb::CreateCq, "flags of completion");
    let away = CqParts {
        for_agent: true,
        ..plain
    };
    refused(create(0, away), Verb::CreateCq, "for agents");
    let elsewhere = RegMr {
        pd: PdHandle(1),
        address: 0x1000,
        length: 1,
        iova: 0x2000,
        access: 0,
        driver: DriverData::default(),
    };
    let here = RegMr {
        iova: 0x1000,
        ..elsewhere.clone()
    };
    refused(device.reg_mr(&fd, elsewhere), Verb::RegMr, "I/O virtual");
    assert_ne!(device.reg_mr(&fd, here).unwrap().lkey, 0);
    let dmabuf = RegDmabufMr {
        pd: PdHandle(1),
        fd: 0,
        offset: 0,
        length: 1,
        iova: 0,
        access: 0,
        driver: DriverData::default(),
    };
    let registered = device.reg_dmabuf_mr(&fd, &dmabuf);
    refused(registered, Verb::RegDmabufMr, "dma-buf");
    let changed = device.rereg_mr(&fd, &ReregMr(Default::default()));
    refused(changed, Verb::ReregMr, "that change");
}

#[test]
fn types_and_options_of_queue_pairs_that_it_does_not_name_are_refused() {
    let spec = QpSpec {
        pd: PdHandle(1),
        send_cq: CqHandle(1),
        recv_cq: CqHandle(1),
        srq: None,
        qp_type: QpType::RC,
        cap: Default::default(),
        sq_sig_all: false,
        flags: Default::default(),
        user_handle: 1,
        event_fd: None,
    };
    let parts = contract::QpParts::<_, (), ()> {
        send_cq: &(),
        recv_cq: &(),
        srq: None,
        buffers: None,
        thread_domain: None,
        inline_scatter: false,
        out_of_order: false,
        unsolicited_writes: false,
        streams: None,
        for_agent: false,
        service_level: None,
        follows_requests: true,
    };
    let asked = |spec: QpSpec, inline_scatter, out_of_order| {
        let parts = contract::QpParts {
            inline_scatter,
            out_of_order,
            ..parts
        };
        has_qp::<Sample>(&spec, &parts)
    };
    refused(asked(spec, false, false), Verb::CreateQp, "type IBV_QPT_RC");
    let spec = QpSpec {
        qp_type: QpType::DRIVER,
        ..spec
    };
    asked(spec, false, false).unwrap();
    refused(asked(spec, true, false), Verb::CreateQp, "inline scatter");
    refused(asked(spec, false, true), Verb::CreateQp, "out of order");
    let flags = QpCreateFlags::all();
    let flagged = asked(QpSpec { flags, ..spec }, false, false);
    refused(flagged, Verb::CreateQp, "creation flags");
}

#[test]
fn its_queue_pairs_have_what_it_says() {
    let device = context().1;
    assert_eq!(device.operations(QpType::RC), Operations::empty());
    let has = device.operations(QpType::DRIVER);
    assert!(has.contains(Operations::WRITE | Operations::READ));
    assert!(!has.intersects(Operations::WRITE_IMM | Operations::ATOMIC));
}

#[test]
fn its_buffers_have_no_names() {
    let resource = ResourceType::new(Sample::ID, 3);
    assert_eq!(format!("{resource:?}"), "driver 90 resource 3");
}

/// A send queue by itself, with a slice of its memory.
fn queue() -> (SendQueue, Sge) {
    let device = device::Device::default();
    let cq: CqBacking = contract::Cq::backing(&Cq::new(&device, 1));
    let slice = Sge {
        addr: 0x1000,
        length: 1,
        lkey: device.register(0x1000, 1),
    };
    (create_qp(&device, [&cq; 2], [7; 2]).send, slice)
}

#[test]
fn limits_are_those_of_the_operation_and_a_dropped_batch_leaves_nothing() {
    let (mut queue, slice) = queue();
    let remote = Remote {
        address: 0,
        rkey: RemoteKey(0),
    };
    let (send, write) = (Operation::Send, Operation::Write { remote });
    let slices = [slice; 2];
    let start = queue.position();
    let mut batch = sending(&mut queue);
    let mut post = |operation, payload: Payload<'_>| {
        let to = DatagramTo {
            ah: &(),
            qpn: 1,
            qkey: 0,
            pd: PdTag::new(0, 0),
        };
        let to = Some(Destination::Datagram(to));
        batch.write(1, Default::default(), operation, to, payload)
    };
    assert_eq!(post(send, Payload::Sges(&slices)), Ok(()));
    assert_eq!(post(send, Payload::Inline(&[0; 32])), Ok(()));
    let refused = post(write, Payload::Sges(&slices));
    assert_eq!(refused, Err(PostError::TooManySges { given: 2, max: 1 }));
    let refused = post(write, Payload::Inline(b"a"));
    assert_eq!(refused, Err(PostError::InlineTooLong { given: 1, max: 0 }));
    assert_eq!(batch.pending(), 2);
    assert_eq!((queue.position(), queue.in_flight()), (start, 0));
    assert_eq!(queue.ring(start, start), Ok(0));
}
