//! `uverbs resource`: the objects on the devices, of all processes, as `rdma resource` shows them.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use uverbs::uapi::enums::SrqType;
use uverbs::uapi::names::Ids;
use uverbs::{
    QpState,
    qp::{MigState, QpType},
    resource::{ResourceOwner, Resources},
};

use crate::complete;
use crate::failure::{self, Failure, Result};
use crate::files::Files;
use crate::output;
use crate::owner::Owner;
use crate::select;

const NOTES: &str = "\
Names are those of `rdma resource`. The kernel shows keys to administrators only, its own objects in the
initial PID namespace, and of processes those of the PID namespace. Of a process it names the thread that
created the object: PID is that thread's process, and empty if the thread has ended.

";

/// Show the objects on the devices: their owners, and how they are related.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// The kind of object; by default the number of objects of each kind
    #[arg(value_enum, default_value_t = Kind::Summary)]
    kind: Kind,

    /// The device; all by default
    #[arg(short, long, add = complete::devices())]
    device: Option<String>,

    /// Show only the objects of this process
    #[arg(short, long)]
    pid: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Summary,
    Pd,
    Mr,
    Cq,
    Qp,
    Srq,
    Ctx,
    #[value(alias = "cm_id")]
    CmId,
}

/// An object: its fields, with the names of `rdma`, in order.
type Object = Vec<(&'static str, Value)>;

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.kind == Kind::Summary && options.pid.is_some() {
        let text =
            "--pid needs a kind of object: the numbers of objects are those of all processes";
        return Err(Failure::new(failure::Kind::Usage, text));
    }
    let files = Files::of_this_host();
    let mut devices = Vec::new();
    for device in select::devices(options.device.as_deref())? {
        let resources = device.resources()?;
        let objects = match objects(&resources, options.kind) {
            // It has gone since it was listed.
            Err(error) if error.is_device_gone() && options.device.is_none() => continue,
            objects => objects?,
        };
        for (owner, mut object) in objects {
            object.insert(0, ("ifname", device.name().into()));
            if let Some(owner) = owner {
                let owner = Owner::of(&files, &owner);
                if options.pid.is_some() && options.pid != owner.pid {
                    continue;
                }
                object.push(("pid", owner.pid.into()));
                object.push(("comm", owner.comm.into()));
            }
            devices.push(object);
        }
    }
    if options.json {
        let of_object = |object: Object| -> Map<String, Value> {
            let known = object.into_iter().filter(|(_, value)| !value.is_null());
            known
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        };
        return output::json(&devices.into_iter().map(of_object).collect());
    }
    show(&devices)
}

/// The identifiers of the connection manager, for `uverbs cm`.
pub(crate) fn cm_ids(device: Option<&str>, pid: Option<u32>, json: bool) -> Result<()> {
    run(&Options {
        kind: Kind::CmId,
        device: device.map(str::to_owned),
        pid,
        json,
    })
}

/// The objects of a kind with their owners; a count has no owner.
fn objects(
    resources: &Resources,
    kind: Kind,
) -> uverbs::Result<Vec<(Option<ResourceOwner>, Object)>> {
    Ok(match kind {
        Kind::Summary => {
            let counts = resources.summary()?.into_iter();
            let object = |count: uverbs::resource::ResourceCount| {
                vec![("kind", count.kind.into()), ("count", count.count.into())]
            };
            counts.map(|count| (None, object(count))).collect()
        }
        Kind::Pd => listed(resources.pds()?, |pd| {
            let object = vec![
                ("pdn", pd.pdn.into()),
                ("local_dma_lkey", hexadecimal(pd.local_dma_lkey)),
                ("unsafe_global_rkey", hexadecimal(pd.unsafe_global_rkey)),
                ("users", pd.users.into()),
                ("ctxn", pd.ctxn.into()),
            ];
            (pd.owner, object)
        }),
        Kind::Mr => listed(resources.mrs()?, |mr| {
            let object = vec![
                ("mrn", mr.mrn.into()),
                ("rkey", hexadecimal(mr.rkey)),
                ("lkey", hexadecimal(mr.lkey)),
                ("mrlen", mr.length.into()),
                ("pdn", mr.pdn.into()),
            ];
            (mr.owner, object)
        }),
        Kind::Cq => listed(resources.cqs()?, |cq| {
            let object = vec![
                ("cqn", cq.cqn.into()),
                ("cqe", cq.cqe.into()),
                ("users", cq.users.into()),
                ("poll-ctx", cq.poll_context.map(poll_context).into()),
                ("adaptive-moderation", cq.adaptive_moderation.into()),
                ("ctxn", cq.ctxn.into()),
            ];
            (cq.owner, object)
        }),
        Kind::Qp => listed(resources.qps()?, |qp| {
            let object = vec![
                ("port", qp.port.into()),
                ("lqpn", qp.lqpn.into()),
                ("rqpn", qp.rqpn.into()),
                ("type", transport(qp.transport).into()),
                ("state", short(QpState::IDS, qp.state.0).into()),
                ("rq-psn", qp.rq_psn.into()),
                ("sq-psn", qp.sq_psn.into()),
                (
                    "path-mig-state",
                    qp.path_mig_state
                        .map(|state| short(MigState::IDS, state.0))
                        .into(),
                ),
                ("pdn", qp.pdn.into()),
            ];
            (qp.owner, object)
        }),
        Kind::Srq => listed(resources.srqs()?, |srq| {
            let ranges = srq
                .qps
                .iter()
                .map(|range| match range.end() - range.start() {
                    0 => range.start().to_string(),
                    _ => format!("{}-{}", range.start(), range.end()),
                });
            let lqpn: Vec<_> = ranges.collect();
            let object = vec![
                ("srqn", srq.srqn.into()),
                (
                    "type",
                    srq.kind.map(|kind| short(SrqType::IDS, kind.0)).into(),
                ),
                ("lqpn", lqpn.into()),
                ("pdn", srq.pdn.into()),
                ("cqn", srq.cqn.into()),
            ];
            (srq.owner, object)
        }),
        Kind::Ctx => listed(resources.contexts()?, |context| {
            (context.owner, vec![("ctxn", context.ctxn.into())])
        }),
        Kind::CmId => listed(resources.cm_ids()?, |id| {
            let address = |address: Option<std::net::SocketAddr>| {
                Value::from(address.map(|address| address.to_string()))
            };
            let object = vec![
                ("cm-idn", id.cm_idn.into()),
                ("port", id.port.into()),
                ("lqpn", id.lqpn.into()),
                ("qp-type", id.transport.map(transport).into()),
                ("state", connection_state(id.state).into()),
                ("ps", port_space(id.port_space).into()),
                ("src-addr", address(id.source)),
                ("dst-addr", address(id.destination)),
            ];
            (id.owner, object)
        }),
    })
}

fn listed<T>(
    objects: Vec<T>,
    to_object: impl Fn(T) -> (ResourceOwner, Object),
) -> Vec<(Option<ResourceOwner>, Object)> {
    let listed = objects.into_iter().map(to_object);
    listed
        .map(|(owner, object)| (Some(owner), object))
        .collect()
}

/// Prints a table, without the columns that have no value.
fn show(objects: &[Object]) -> Result<()> {
    let Some(first) = objects.first() else {
        output::complain("there are none, or none that the kernel shows");
        return Ok(());
    };
    let known = |column: &usize| {
        let mut values = objects.iter().map(|object| &object[*column].1);
        values.any(|value| !value.is_null())
    };
    let columns: Vec<usize> = (0..first.len()).filter(known).collect();
    let header = columns.iter().map(|&column| match first[column].0 {
        "ifname" => "DEVICE".to_owned(),
        name => name.to_uppercase(),
    });
    let rows = objects.iter().map(|object| {
        let cells = columns.iter().map(|&column| text(&object[column].1));
        cells.collect()
    });
    output::rows(header.collect(), rows.collect())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => output::Foreign(text).to_string(),
        Value::Array(values) if values.is_empty() => "-".into(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn hexadecimal(key: Option<u32>) -> Value {
    key.map(|key| format!("{key:#x}")).into()
}

fn transport(transport: QpType) -> String {
    match transport {
        QpType(0) => "SMI".into(),
        QpType(1) => "GSI".into(),
        QpType::XRC_SEND => "XRC_INI".into(),
        QpType::XRC_RECV => "XRC_TGT".into(),
        other => short(QpType::IDS, other.0),
    }
}

/// The name of a number, without its prefix in C.
fn short(ids: Ids, number: u32) -> String {
    match ids.name(number) {
        Some(name) => name.to_owned(),
        None => number.to_string(),
    }
}

fn poll_context(number: u8) -> String {
    match number {
        0 => "DIRECT".into(),
        1 => "SOFTIRQ".into(),
        2 => "WORKQUEUE".into(),
        3 => "UNBOUND_WORKQUEUE".into(),
        other => other.to_string(),
    }
}

/// The kernel's `enum rdma_cm_state`.
pub(crate) fn connection_state(number: u8) -> String {
    const NAMES: [&str; 12] = [
        "IDLE",
        "ADDR_QUERY",
        "ADDR_RESOLVED",
        "ROUTE_QUERY",
        "ROUTE_RESOLVED",
        "CONNECT",
        "DISCONNECT",
        "ADDR_BOUND",
        "LISTEN",
        "DEVICE_REMOVAL",
        "DESTROYING",
        "ADDRINFO_QUERY",
    ];
    match NAMES.get(usize::from(number)) {
        Some(name) => (*name).into(),
        None => number.to_string(),
    }
}

/// `enum rdma_ucm_port_space`.
pub(crate) fn port_space(number: u32) -> String {
    match number {
        0x0002 => "IPoIB".into(),
        0x013f => "IB".into(),
        0x0106 => "TCP".into(),
        0x0111 => "UDP".into(),
        other => format!("{other:#x}"),
    }
}
