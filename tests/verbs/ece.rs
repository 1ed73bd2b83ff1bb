//! Enhanced connection establishment: what is offered, what is asked for, and what comes of it.

use libtest_mimic::Trial;
use support::{Pair, Result, completion, device, fail, open, same, skip, test};
use uverbs::{
    Access, Inline, Qp, Rc, Uc, Ud, WcOpcode,
    qp::{Ece, QpType},
    transport::{Connected, Peer, Reaches, StaticTransport},
};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 4] = [
        ("ece::rc", agreed::<Rc>),
        ("ece::uc", agreed::<Uc>),
        ("ece::ud", datagrams),
        ("ece::another_vendor", another_vendor),
    ];
    tests.map(|(name, run)| test(name, run)).into()
}

/// The vendor of mlx5's devices.
const VENDOR: u32 = 0x15b3;
/// The version of the options, and one that the software adapter does not have.
const VERSION: u32 = 0x1000_0000;
const UNKNOWN: u32 = 1 << 6;

fn only_mlx5() -> Result {
    match device().is_mlx5() {
        true => Ok(()),
        false => skip("soft-RoCE has no such options; `lacking::ece` looks at the refusal"),
    }
}

/// What a queue pair has: options of this vendor.
fn options<T: StaticTransport>(qp: &Qp<T>) -> Result<u32> {
    let ece = qp.query_ece()?;
    same(ece.vendor_id, VENDOR, "the vendor")?;
    Ok(ece.options)
}

fn ece(options: u32) -> Ece {
    Ece {
        vendor_id: VENDOR,
        options,
    }
}

/// Catches options that do not reach the device, an answer of its that is lost, and a connection that no
/// longer works: both ends go through what a connection manager does.
fn agreed<T: StaticTransport + Connected + Reaches<Peer>>() -> Result {
    only_mlx5()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let (mut a_cq, mut b_cq) = (context.create_cq(15)?, context.create_cq(15)?);
    let mut a = pd.qp(&a_cq).create::<T>()?;
    let mut b = pd.qp(&b_cq).create::<T>()?;
    let offered = options(&a)?;
    let expected = match T::QP_TYPE {
        QpType::RC => VERSION | 0b11,
        _ => VERSION | 0b01,
    };
    same(offered, expected, "what is offered")?;

    let (from, to) = (a.endpoint()?, b.endpoint()?);
    // The passive side: it asks for what it was sent, as far as its device has it.
    b.set_ece(ece(offered | UNKNOWN))?;
    same(options(&b)?, 0, "before the device was told")?;
    b.connect(&from)?;
    let agreed = options(&b)?;
    same(agreed, offered, "what the device has left of it")?;
    a.set_ece(ece(agreed & !1))?;
    a.connect(&to)?;
    same(options(&a)?, agreed & !1, "what was agreed on")?;

    let inbox = pd.register(vec![0; 100], Access::LOCAL_WRITE)?;
    let mut batch = b.recv_batch();
    batch.post(1, inbox.slice(..)?)?;
    batch.ring();
    let mut batch = a.batch();
    batch.signaled(2).send(Inline(b"agreed"))?;
    batch.ring()?;
    completion(&mut a_cq)?.is(WcOpcode::SEND)?;
    completion(&mut b_cq)?.is(WcOpcode::RECV)?;
    let mut text = [0; 6];
    inbox.read_at(0, &mut text)?;
    same(text, *b"agreed", "the message")?;

    a.reset()?;
    same(options(&a)?, offered, "after a reset")?;
    // Of another version nothing is understood.
    a.set_ece(ece(0x2000_0001))?;
    a.connect(&to)?;
    same(options(&a)?, 0, "options of another version")
}

/// Catches options that are told with a change of the state that is not the one of a connection.
fn datagrams() -> Result {
    only_mlx5()?;
    let context = open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(15)?);
    let mut qp = pd.qp(&cq).create::<Ud>()?;
    same(options(&qp)?, VERSION | 1, "what is offered")?;
    qp.set_ece(ece(VERSION | 1))?;
    qp.activate(7, &uverbs::ConnectOptions::default())?;
    same(options(&qp)?, VERSION | 1, "what the device uses")
}

/// Catches options that mean something else to this device, which pass for its own.
fn another_vendor() -> Result {
    only_mlx5()?;
    let mut pair = Pair::<Rc>::new()?;
    let foreign = Ece {
        vendor_id: 0x02c9,
        options: VERSION,
    };
    let Err(refused) = pair.a.qp.set_ece(foreign) else {
        return fail("options of another vendor");
    };
    same(
        refused.to_string().contains("vendor 0x2c9"),
        true,
        &refused.to_string(),
    )?;
    same(options(&pair.a.qp)?, VERSION | 0b11, "what was there")
}
