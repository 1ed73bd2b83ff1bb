//! The way of a queue pair's packets: its UDP source port, its physical port, and whether data are written in
//! order.

use libtest_mimic::Trial;
use serde_json::json;
use support::{Control, Device, Pair, Result, Setup, device, fail, open, same, says, talk, test};
use uverbs::qp::DataOrder;
use uverbs::{
    Cause, Qp, QpState, Rc, Uc, Ud,
    transport::{Connected, Peer, Reaches, StaticTransport},
};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 4] = [
        ("ways::udp_source_port", udp_source_port),
        ("ways::lag_port", lag_port),
        ("ways::data_in_order", data_in_order),
        ("ways::only_while_sending", only_while_sending),
    ];
    tests.map(|(name, run)| test(name, run)).into()
}

/// Whether the device has ways to choose from: Ethernet ports of mlx5.
fn has_ways() -> bool {
    device() == Device::Mlx5 { roce: true }
}

/// What the adapter has of a queue pair.
fn told(qpn: u32, what: &str) -> Result<u64> {
    let fields = json!({"function": 0, "qpn": qpn});
    let answer = Control::open()?.ask("ways", fields)?;
    Ok(answer[what].as_u64().ok_or("the adapter does not say")?)
}

fn refused<T>(result: uverbs::Result<T>, what: &str) -> Result {
    match result {
        Err(error) if error.is_unsupported() => says(&error, &[what]),
        Err(error) => fail(format!("another error: {error}")),
        Ok(_) => fail("it was to be refused"),
    }
}

/// Catches a port that does not reach the device, one that changes something else, and a device without such
/// ports that takes one.
fn udp_source_port() -> Result {
    fn of<T: StaticTransport + Connected + Reaches<Peer>>() -> Result {
        let mut pair = Pair::<T>::new()?;
        if !has_ways() {
            return refused(pair.a.qp.set_udp_source_port(0xc123), "UDP source ports");
        }
        let qpn = pair.a.qp.qpn();
        for port in [0xc123, 0xffff] {
            pair.a.qp.set_udp_source_port(port)?;
            same(told(qpn, "udp_source_port")?, port.into(), "the port")?;
        }
        same(pair.a.qp.query()?.state, QpState::RTS, "the state")?;
        talk::sends(&mut pair)
    }
    of::<Rc>()?;
    of::<Uc>()
}

/// Catches a port that does not reach the device, and one that the device does not have.
fn lag_port() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    if !has_ways() {
        let what = match device().is_mlx5() {
            true => "bonded",
            false => "LAG",
        };
        refused(pair.a.qp.lag_port(), what)?;
        return refused(pair.a.qp.set_lag_port(1), what);
    }
    for port in [1, 2, 1] {
        pair.a.qp.set_lag_port(port)?;
        same(told(pair.a.qp.qpn(), "lag_port")?, port.into(), "the port")?;
        let lag = pair.a.qp.lag_port()?;
        same(
            (lag.configured, lag.active),
            (Some(port), Some(port)),
            "ports",
        )?;
    }
    for port in [0, 3] {
        match pair.a.qp.set_lag_port(port) {
            Err(error) => says(&error, &["modify_qp_lag_port", "ports 1 to 2"])?,
            Ok(()) => return fail(format!("port {port} was taken")),
        }
    }
    same(
        pair.a.qp.lag_port()?.configured,
        Some(1),
        "the port afterwards",
    )?;
    talk::sends(&mut pair)
}

/// Catches a promise that nobody makes, and one that is made and not told.
fn data_in_order() -> Result {
    let promised = match device().is_mlx5() {
        true => DataOrder::Whole,
        false => DataOrder::Any,
    };
    let pair = Pair::<Rc>::new()?;
    same(pair.a.qp.data_order()?, promised, "connected")?;
    let context = open()?;
    let pair = Pair::<Ud>::datagram_on(&context, &Setup::default())?;
    same(pair.a.qp.data_order()?, DataOrder::Any, "datagrams")?;
    let cq = context.create_cq(1)?;
    let qp = pair.pd.qp(&cq).create::<Rc>()?;
    same(qp.data_order()?, DataOrder::Any, "before it is connected")
}

/// Catches changes of a queue pair that the device would refuse without a word.
fn only_while_sending() -> Result {
    let context = open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let mut qp: Qp<Rc> = pd.qp(&cq).create()?;
    let changed = [qp.set_udp_source_port(0xc000), qp.set_lag_port(1)];
    for changed in changed {
        match changed {
            Err(error) if matches!(error.cause(), Cause::Invalid(_)) => {
                says(&error, &["RESET", "RTS"])?;
            }
            other => return fail(format!("{other:?}")),
        }
    }
    Ok(())
}
