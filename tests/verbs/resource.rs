//! The objects on a device as the library and the command line tell them, beside what iproute2's
//! `rdma resource` tells, with objects of this process, of others and of the kernel.

use std::process::Command;
use std::sync::mpsc;

use libtest_mimic::Trial;
use serde_json::Value;
use support::program::uverbs;
use support::{Pair, Result, device, fail, open, same, skip, test};
use uverbs::{Access, QpState, Rc, qp::QpType, resource::ResourceOwner};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("resource::own_objects", own_objects),
        test("resource::of_a_later_thread", of_a_later_thread),
        test("resource::as_iproute2_tells", as_iproute2_tells),
        test("resource::the_kernels_objects", the_kernels_objects),
    ]
}

/// Catches fields that are mixed up, and objects of one kind that are told as another's.
fn own_objects() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mr = pair.pd.register(vec![0u8; 12345], Access::REMOTE_READ)?;
    let srq = pair.pd.srq(7).create()?;
    let b = pair.pd.qp(&pair.b.cq).srq(&srq).create::<Rc>()?;
    let device = pair.context.device().clone();
    let resources = device.resources()?;
    // The kernel names the thread that made an object.
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let me = ResourceOwner::Process(thread as u32);
    let pds = resources.pds()?;
    let Some(pd) = pds.iter().find(|pd| pd.owner == me) else {
        return fail(format!("the PD is not among {pds:?}"));
    };
    // What the tests share may have opened the device as well.
    let contexts = resources.contexts()?;
    let mut own = contexts.iter().filter(|context| context.owner == me);
    let Some(context) = own.find(|context| Some(context.ctxn) == pd.ctxn) else {
        return fail(format!("the context of {pd:?} is not among {contexts:?}"));
    };
    // Three QPs, an SRQ, the region and one of each side.
    same(pd.users, 7, "the PD's users")?;
    let mrs = resources.mrs()?;
    let Some(found) = mrs.iter().find(|mr| (&mr.owner, mr.length) == (&me, 12345)) else {
        return fail(format!("the MR is not among {mrs:?}"));
    };
    same(found.pdn, Some(pd.pdn), "the MR's PD")?;
    // The guest runs tests as an administrator.
    same(found.lkey, Some(mr.lkey().0), "the MR's local key")?;
    let mut sizes: Vec<_> = resources
        .cqs()?
        .into_iter()
        .filter(|cq| cq.owner == me)
        .map(|cq| (cq.cqe, cq.users, cq.ctxn))
        .collect();
    sizes.sort_unstable();
    let capacity = match support::device().is_rxe() {
        // The kernel's ring is twice as large.
        true => 2 * pair.a.cq.capacity() + 1,
        false => pair.a.cq.capacity(),
    };
    // A QP counts for its sends and for its receives.
    let expected = [
        (capacity, 2, Some(context.ctxn)),
        (capacity, 4, Some(context.ctxn)),
    ];
    same(&sizes[..], &expected[..], "the CQs")?;
    let qps = resources.qps()?;
    let Some(a) = qps.iter().find(|qp| qp.lqpn == pair.a.qp.qpn()) else {
        return fail(format!("QP {:#x} is not among {qps:?}", pair.a.qp.qpn()));
    };
    let info = pair.a.qp.query()?;
    same(&a.owner, &me, "the QP's owner")?;
    same(
        (a.transport, a.state),
        (QpType::RC, QpState::RTS),
        "type and state",
    )?;
    same(a.rqpn, Some(pair.b.qp.qpn()), "the peer")?;
    same(a.rq_psn, Some(info.rq_psn), "the PSN to receive")?;
    same(a.sq_psn, Some(info.sq_psn), "the PSN to send")?;
    same(a.pdn, Some(pd.pdn), "the QP's PD")?;
    pair.a.qp.fail()?;
    let state = |qpn| {
        let qps = resources.qps()?;
        let found = qps.into_iter().find(|qp| qp.lqpn == qpn);
        Ok::<_, uverbs::Error>(found.map(|qp| qp.state))
    };
    same(state(pair.a.qp.qpn())?, Some(QpState::ERR), "the state")?;
    let srqs = resources.srqs()?;
    let Some(found) = srqs.iter().find(|srq| srq.owner == me) else {
        return skip(format!("this kernel does not tell SRQs: {srqs:?}"));
    };
    same(&found.qps[..], &[b.qpn()..=b.qpn()][..], "the SRQ's QPs")?;
    same(found.pdn, Some(pd.pdn), "the SRQ's PD")?;
    let qpn = b.qpn();
    b.destroy()?;
    same(state(qpn)?, None, "a QP that is gone")
}

/// Catches objects that the command line tells as another process's, since not the first thread made them.
fn of_a_later_thread() -> Result {
    const BYTES: usize = 77 << 10;
    let program = uverbs()?;
    let pd = open()?.alloc_pd()?;
    let (tell, made) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let pd = &pd;
    std::thread::scope(|scope| -> Result {
        scope.spawn(move || {
            let mr = pd.register(vec![0_u8; BYTES], Access::LOCAL_WRITE);
            let _ = tell.send(mr);
            // Of a thread that has ended the kernel tells nothing: this one waits for the end of the test.
            let _ = ended.recv();
        });
        let _end = end;
        let _mr = made.recv()??;
        let own = std::process::id();
        let words = format!("resource mr --json -p {own}");
        let regions = objects(Command::new(&program).args(words.split(' ')))?;
        let is_it = |region: &&serde_json::Map<String, Value>| region["mrlen"] == BYTES;
        let Some(region) = regions.iter().find(is_it) else {
            return fail(format!("{words}: {regions:?}"));
        };
        same(region["pid"].as_u64(), Some(own.into()), "the process")?;
        let counts = ["statistic", "object", "--json", "-d", device().name()];
        let counts = objects(Command::new(&program).args(counts))?;
        let of_own = counts.iter().filter(|count| count["pid"] == own);
        let bytes = of_own.filter(|count| count["counter"] == "registered_bytes");
        let bytes: Vec<u64> = bytes.filter_map(|count| count["value"].as_u64()).collect();
        let has_it = matches!(bytes[..], [bytes] if bytes >= BYTES as u64);
        same(has_it, true, &format!("{counts:?}"))
    })
}

/// The process of a thread, and the process's name.
fn process_of(thread: u64) -> Result<(u64, String)> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let pid = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let pid = pid.ok_or("no process")?.trim().parse()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
    Ok((pid, name.trim().to_owned()))
}

/// Objects as a program printed them, each with its fields.
fn objects(command: &mut Command) -> Result<Vec<serde_json::Map<String, Value>>> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return fail(format!("{command:?}: {said}"));
    }
    // iproute2 prints nothing at all where there are none.
    if output.stdout.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(objects) => Ok(objects),
        Err(error) => {
            let text = String::from_utf8_lossy(&output.stdout);
            fail(format!("{command:?}: {error}: {text}"))
        }
    }
}

/// Catches objects that are left out, told twice or told with other values than the kernel's own tool has for
/// them.
fn as_iproute2_tells() -> Result {
    let program = uverbs()?;
    let pair = Pair::<Rc>::new()?;
    let _mr = pair.pd.register(vec![0u8; 100], Access::REMOTE_READ)?;
    let srq = pair.pd.srq(7).create()?;
    let _more: Vec<_> = (0..3)
        .map(|_| pair.pd.qp(&pair.b.cq).srq(&srq).create::<Rc>())
        .collect::<uverbs::Result<_>>()?;
    for (kind, key) in [
        ("pd", "pdn"),
        ("mr", "mrn"),
        ("cq", "cqn"),
        ("qp", "lqpn"),
        ("ctx", "ctxn"),
        ("srq", "srqn"),
    ] {
        let mut theirs =
            objects(Command::new("rdma").args(["-j", "-d", "resource", "show", kind]))?;
        let mut ours = objects(Command::new(&program).args(["resource", kind, "--json"]))?;
        for object in &mut theirs {
            object.remove("ifindex");
            // iproute2 prints the thread that made the object.
            if let Some(thread) = object.get("pid").and_then(Value::as_u64) {
                let (pid, name) = process_of(thread)?;
                object.insert("pid".into(), pid.into());
                object.insert("comm".into(), name.into());
            }
            // iproute2 prints the last QP number of an SRQ as the name of its process.
            if kind == "srq" {
                object.remove("comm");
            }
        }
        for object in &mut ours {
            for (name, value) in object.iter_mut() {
                // iproute2 prints keys without what says that they are hexadecimal.
                if name.ends_with("key")
                    && let Some(key) = value.as_str()
                {
                    *value = key.trim_start_matches("0x").into();
                }
            }
            if kind == "srq" {
                object.remove("comm");
                // Where no QP is, iproute2 leaves the list out.
                object.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
            }
        }
        let by_number = |object: &serde_json::Map<String, Value>| object[key].as_u64();
        theirs.sort_by_key(by_number);
        ours.sort_by_key(by_number);
        if theirs.is_empty() {
            println!("iproute2 shows no {kind} here");
        }
        same(&ours, &theirs, kind)?;
    }
    let counts = objects(Command::new("rdma").args(["-j", "resource", "show"]))?;
    let Some(counts) = counts
        .into_iter()
        .find(|object| object["ifname"] == pair.context.name())
    else {
        return fail("rdma does not show the device");
    };
    for count in pair.context.device().resources()?.summary()? {
        let theirs = counts.get(&count.kind).and_then(Value::as_u64);
        // An iproute2 that is older than the kernel leaves out what it does not know.
        same(theirs.unwrap_or(count.count), count.count, &count.kind)?;
    }
    Ok(())
}

/// Catches the kernel's own queue pair being told as a process's, or with a transport that makes no sense.
fn the_kernels_objects() -> Result {
    let resources = uverbs::device::find(device().name())?.resources()?;
    let qps = resources.qps()?;
    let Some(gsi) = qps.iter().find(|qp| qp.lqpn == 1) else {
        return skip(format!("this kernel has no GSI QP on rxe: {qps:?}"));
    };
    same(gsi.transport, QpType(1), "the transport")?;
    same(gsi.owner.pid(), None, "the process")?;
    match &gsi.owner {
        ResourceOwner::Kernel(name) => same(name.as_str(), "ib_core", "the owner"),
        other => fail(format!("{other:?}")),
    }
}
