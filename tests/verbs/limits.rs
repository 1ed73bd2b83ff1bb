//! Limits and refusals of the control path: the error says which limit, before the kernel is asked where that
//! can be.

use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, setrlimit};
use support::{ALL, Pair, Result, Setup, device, open, role, same, says, talk, test};
use uverbs::{
    Access, AddressVector, Caps, Cause, Error, QpState, Rc, Uc,
    error::{Errno, Verb},
    mr::RegisterError,
    qp::QpAttr,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("limits::completion_queue_sizes", completion_queue_sizes),
        test("limits::completion_vectors", completion_vectors),
        test("limits::queue_pair_capacities", queue_pair_capacities),
        test(
            "limits::access_that_contradicts_itself",
            access_that_contradicts_itself,
        ),
        test(
            "limits::memory_that_is_not_mapped",
            memory_that_is_not_mapped,
        ),
        test("limits::locked_memory_runs_out", || {
            role::in_process("locked_memory_runs_out")
        }),
        test("limits::descriptors_run_out", || {
            role::in_process("descriptors_run_out")
        }),
        test(
            "limits::attributes_of_a_transition",
            attributes_of_a_transition,
        ),
        test(
            "limits::a_gid_index_that_does_not_exist",
            a_gid_index_that_does_not_exist,
        ),
        test(
            "limits::a_port_that_does_not_exist",
            a_port_that_does_not_exist,
        ),
        test("limits::objects_of_two_contexts", objects_of_two_contexts),
    ]
}

pub(crate) const ROLES: [role::Role; 2] = [
    ("locked_memory_runs_out", locked_memory_runs_out),
    ("descriptors_run_out", descriptors_run_out),
];

/// The error of a result that must be one.
fn refused<T>(what: &str, result: uverbs::Result<T>) -> Result<Error> {
    result
        .err()
        .ok_or_else(|| format!("accepted: {what}").into())
}

/// Catches a bare EINVAL where the device's limit could be told, and a ring that is allocated before the
/// limit is asked for: 64 GB of it fail for another reason.
fn completion_queue_sizes() -> Result {
    let context = open()?;
    let max = context.query_device()?.max_cqe;
    for entries in [0, max + 1, 1_000_000_000, u32::MAX] {
        let error = refused("the CQ", context.create_cq(entries))?;
        same(error.verb(), Verb::CreateCq, "the verb")?;
        same(error.errno(), Some(Errno::INVAL), "the errno")?;
        says(&error, &["create_cq", &format!("max_cqe is {max}")])?;
    }
    for entries in [1, max] {
        context.create_cq(entries)?.destroy()?;
    }
    Ok(())
}

/// Catches a vector that is not passed on.
fn completion_vectors() -> Result {
    let context = open()?;
    let vectors = context.num_comp_vectors();
    context.cq(4).comp_vector(vectors - 1).create()?;
    let error = refused("the CQ", context.cq(4).comp_vector(vectors).create())?;
    says(&error, &["completion vector"])
}

/// Catches a bare EINVAL for capacities, and capacities that are cut in silence.
fn queue_pair_capacities() -> Result {
    let context = open()?;
    let limits = context.query_device()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(4)?;
    let caps = Caps::default();
    for caps in [
        Caps {
            max_send_wr: limits.max_qp_wr + 1,
            ..caps
        },
        Caps {
            max_recv_wr: limits.max_qp_wr + 1,
            ..caps
        },
        Caps {
            max_send_sge: limits.max_sge + 1,
            ..caps
        },
        Caps {
            max_recv_sge: limits.max_sge + 1,
            ..caps
        },
        Caps {
            max_inline_data: 1 << 20,
            ..caps
        },
    ] {
        let error = match pd.create_qp::<Rc>(&cq, caps) {
            // An adapter's own limits for each kind of queue are the wider ones.
            Ok(qp) if device().is_mlx5() && has(qp.caps(), caps) => continue,
            other => refused("the QP", other)?,
        };
        same(error.verb(), Verb::CreateQp, "the verb")?;
        let told = format!("max_qp_wr {}, max_sge {}", limits.max_qp_wr, limits.max_sge);
        says(&error, &[&told])?;
    }
    let caps = Caps {
        max_send_sge: limits.max_sge,
        max_recv_sge: limits.max_sge,
        ..caps
    };
    let granted = pd.create_qp::<Uc>(&cq, caps)?.caps();
    if !has(granted, caps) {
        return Err(format!("asked for {caps:?}, got {granted:?}").into());
    }
    // The PD goes only when nothing is left on it: the refused ones left nothing.
    pd.dealloc()?;
    Ok(())
}

/// Whether a queue pair holds what was asked for.
fn has(granted: Caps, asked: Caps) -> bool {
    granted.max_send_wr >= asked.max_send_wr
        && granted.max_recv_wr >= asked.max_recv_wr
        && granted.max_send_sge >= asked.max_send_sge
        && granted.max_recv_sge >= asked.max_recv_sge
        && granted.max_inline_data >= asked.max_inline_data
}

/// Catches access flags that are refused by the kernel only, with EINVAL for a reason; and memory that is not
/// given back.
fn access_that_contradicts_itself() -> Result {
    let pd = open()?.alloc_pd()?;
    for access in [
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
        ALL - Access::LOCAL_WRITE,
    ] {
        let Err(RegisterError { memory, error }) = pd.register(vec![3_u8; 100], access) else {
            return Err(format!("accepted: {access:?}").into());
        };
        same(memory, vec![3; 100], "the memory")?;
        // Not `Cause::Os`: the kernel was not asked.
        match error.cause() {
            Cause::Invalid(why) => says(why, &["local write"])?,
            other => return Err(format!("refused by {other:?}").into()),
        }
    }
    let nothing = pd
        .register(Vec::<u8>::new(), Access::LOCAL_WRITE)
        .err()
        .ok_or("accepted")?;
    says(&nothing, &["no bytes"])?;
    let read_only: &'static [u8] = b"constant";
    let error = pd
        .register(read_only, Access::LOCAL_WRITE)
        .err()
        .ok_or("accepted")?;
    says(&error, &["read-only"])?;
    pd.register(read_only, Access::REMOTE_READ)?;
    let memory = vec![0_u8; 100];
    let misplaced = memory.as_ptr().addr() as u64 + 1;
    let error = pd
        .register_at(memory, misplaced, ALL)
        .err()
        .ok_or("accepted")?;
    says(&error, &["another offset in its page"])
}

/// Catches a lost EFAULT.
fn memory_that_is_not_mapped() -> Result {
    let pd = open()?.alloc_pd()?;
    let address =
        std::ptr::NonNull::new(std::ptr::without_provenance_mut(0x10000)).ok_or("null")?;
    // SAFETY: the registration fails, so that nobody accesses the memory, which does not exist.
    let memory = unsafe { uverbs::mr::RawMemory::new(address, 4096) };
    let error = pd
        .register(memory, Access::LOCAL_WRITE)
        .err()
        .ok_or("accepted")?
        .error;
    same(error.errno(), Some(Errno::FAULT), "the errno")?;
    says(&error, &["reg_mr", "not mapped"])
}

/// Catches ENOMEM without the limit that is the reason nearly always. In a process of its own, which gives up
/// the privilege to lock memory without a limit.
fn locked_memory_runs_out() -> Result {
    const LIMIT: u64 = 65536;
    let context = uverbs::open(&role::device()?)?;
    let pd = context.alloc_pd()?;
    setrlimit(
        Resource::Memlock,
        Rlimit {
            current: Some(LIMIT),
            maximum: Some(LIMIT),
        },
    )?;
    rustix::thread::set_capabilities(
        None,
        rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        },
    )?;
    let Err(RegisterError { memory, error }) =
        pd.register(vec![1_u8; 1 << 20], Access::LOCAL_WRITE)
    else {
        return Err("more memory was pinned than may be locked".into());
    };
    same(error.errno(), Some(Errno::NOMEM), "the errno")?;
    same(error.io_kind(), std::io::ErrorKind::OutOfMemory, "the kind")?;
    says(&error, &["reg_mr", "RLIMIT_MEMLOCK", &LIMIT.to_string()])?;
    // What fits still works, and the memory came back.
    pd.register(memory[..8192].to_vec(), Access::LOCAL_WRITE)?;
    Ok(())
}

/// Catches an EMFILE without words, and a context that is broken by it.
fn descriptors_run_out() -> Result {
    let context = uverbs::open(&role::device()?)?;
    let mut fillers = Vec::new();
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(32),
            maximum: Some(32),
        },
    )?;
    while let Ok(filler) = std::fs::File::open("/dev/null") {
        fillers.push(filler);
    }
    let error = refused("the channel", context.create_channel())?;
    same(error.errno(), Some(Errno::MFILE), "the errno")?;
    says(&error, &["create_comp_channel", "RLIMIT_NOFILE"])?;
    let error = refused(
        "the context",
        uverbs::OpenOptions::new().open(context.device()),
    )?;
    same(error.errno(), Some(Errno::MFILE), "the errno")?;
    says(&error, &["RLIMIT_NOFILE"])?;
    // The first object that has events needs a descriptor for them.
    let error = refused("the CQ", context.create_cq(4))?;
    says(&error, &["RLIMIT_NOFILE"])?;
    drop(fillers);
    context.create_channel()?;
    let mut pair = Pair::<Rc>::on(&context, &Setup::default())?;
    talk::sends(&mut pair)
}

/// Catches a transition that is tried although an attribute is missing or too much: the error names it, and
/// the kernel was not asked.
fn attributes_of_a_transition() -> Result {
    let mut pair = Pair::<Rc>::unconnected(&open()?, &Setup::default())?;
    let qp = &mut pair.a.qp;
    let init = QpAttr {
        state: Some(QpState::INIT),
        port: Some(1),
        pkey_index: Some(0),
        access: Some(ALL),
        ..QpAttr::default()
    };
    let cases = [
        (
            QpAttr {
                port: None,
                access: None,
                ..init.clone()
            },
            ["lacks", "ACCESS_FLAGS", "PORT"],
        ),
        (
            QpAttr {
                qkey: Some(1),
                timeout: Some(1),
                ..init.clone()
            },
            ["does not take", "QKEY", "TIMEOUT"],
        ),
        (
            QpAttr {
                state: Some(QpState::RTS),
                ..init.clone()
            },
            ["no transition", "RESET", "RTS"],
        ),
    ];
    for (attr, words) in cases {
        let error = refused("the transition", qp.modify(&attr))?;
        same(error.verb(), Verb::ModifyQp, "the verb")?;
        same(
            error.io_kind(),
            std::io::ErrorKind::InvalidInput,
            "the kind",
        )?;
        if !matches!(error.cause(), Cause::Invalid(_)) {
            return Err(format!("the kernel was asked: {error}").into());
        }
        says(&error, &words)?;
        same(qp.query()?.state, QpState::RESET, "the state")?;
    }
    // Only the kernel knows this one to be wrong.
    let error = refused(
        "the port",
        qp.modify(&QpAttr {
            port: Some(77),
            ..init.clone()
        }),
    )?;
    same(error.errno(), Some(Errno::INVAL), "the errno")?;
    qp.modify(&init)?;
    same(qp.query()?.state, QpState::INIT, "the state")
}

/// Catches a wrong GID that is found out by a connection that does not work, and a good one that is refused.
fn a_gid_index_that_does_not_exist() -> Result {
    let mut pair = Pair::<Rc>::unconnected(&open()?, &Setup::default())?;
    let length = pair.context.query_port(1)?.gid_tbl_len;
    for entry in pair.context.gid_table()? {
        let alone = pair.context.query_gid(1, entry.index)?;
        same(alone, entry, "the entry alone")?;
    }
    let mut options = uverbs::ConnectOptions::default();
    for index in [200, 255] {
        options.gid_index = Some(index);
        let error = refused("the GID", pair.a.qp.endpoint_with(&options))?;
        same(error.verb(), Verb::QueryGid, "the verb")?;
        says(&error, &["query_gid_ex", &index.to_string()])?;
        let used = pair
            .context
            .gid_table()?
            .iter()
            .any(|entry| entry.index == 0);
        same(used, true, "the first entry is in use")?;
        says(&error, &["these are in use: 0"])?;
        let peer = pair.b.qp.endpoint()?;
        let error = refused("the connection", pair.a.qp.connect_with(&peer, &options))?;
        same(error.verb(), Verb::ModifyQp, "the verb")?;
        let named = format!("no GID with the index {index}");
        if device().has_gids() {
            let qp = format!("QP {:#x}:", pair.a.qp.qpn());
            says(&error, &[&qp, "INIT to", "RTR", &named])?;
        }
        pair.a.qp.reset()?;
        let gid = pair.context.query_gid(1, 0)?.gid;
        let path = AddressVector::global(1, index, gid);
        says(&refused("the AH", pair.pd.create_ah(&path))?, &[&named])?;
    }
    refused("beyond the table", pair.context.query_gid(1, length))?;
    // Nothing is broken.
    pair.connect(&uverbs::ConnectOptions::default())?;
    talk::sends(&mut pair)
}

/// Catches port 0 or a high one that reaches another port's entry.
fn a_port_that_does_not_exist() -> Result {
    let context = open()?;
    for port in [0, 2, 255] {
        let error = refused("the port", context.query_port(port))?;
        same(error.verb(), Verb::QueryPort, "the verb")?;
        says(&error, &[&port.to_string(), "its only port is 1"])?;
    }
    Ok(())
}

/// Catches handles of one context that are used in another, where they name something else.
fn objects_of_two_contexts() -> Result {
    let (one, other) = (open()?, open()?);
    let cq = other.create_cq(4)?;
    let error = refused(
        "the QP",
        one.alloc_pd()?.create_qp::<Rc>(&cq, Caps::default()),
    )?;
    same(
        error.io_kind(),
        std::io::ErrorKind::InvalidInput,
        "the kind",
    )?;
    says(&error, &["another context"])
}
