//! GIDs that go, and that come back at another index, as addresses of network interfaces do.

use libtest_mimic::Trial;
use support::{Pair, Result, Setup, fail, open, run, same, says, skip, talk, test, until};
use uverbs::error::Verb;
use uverbs::gid::GidType;
use uverbs::{ConnectOptions, Context, Gid, Rc};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("gids::one_that_goes_and_comes_back", goes)]
}

/// Addresses that nobody has: the one under test, and one that takes its place.
const ADDRESSES: [&str; 2] = ["10.9.0.78/24", "10.9.0.79/24"];

/// An address of a network interface, which goes when this is dropped.
struct Address<'a> {
    text: &'a str,
    interface: &'a str,
}

impl<'a> Address<'a> {
    fn add(text: &'a str, interface: &'a str) -> Result<Self> {
        run(&format!("ip addr add {text} dev {interface}"))?;
        Ok(Self { text, interface })
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        let (text, interface) = (self.text, self.interface);
        // A test that fails is told of, and the next one fails if the address is still there.
        let _ = run(&format!("ip addr del {text} dev {interface}"));
    }
}

/// The index at which the port has the GID of an address, as RoCE v2.
fn index_of(context: &Context, address: &str) -> Result<Option<u8>> {
    let gid: Gid = address.split('/').next().unwrap_or_default().parse()?;
    let table = context.gid_table()?;
    let found = table
        .iter()
        .find(|entry| entry.gid == gid && entry.gid_type == GidType::RoceV2);
    Ok(found.map(|entry| entry.index as u8))
}

/// Waits until the port has an address's GID, and gives its index.
fn comes(context: &Context, address: &str) -> Result<u8> {
    until("the GID", || index_of(context, address))
}

/// The interface with this number.
fn interface(number: u32) -> Result<String> {
    for entry in std::fs::read_dir("/sys/class/net")? {
        let path = entry?.path();
        let read = std::fs::read_to_string(path.join("ifindex")).unwrap_or_default();
        if read.trim() == number.to_string() {
            let name = path.file_name().unwrap_or_default();
            return Ok(name.to_string_lossy().into_owned());
        }
    }
    fail(format!("there is no interface {number}"))
}

/// Catches a connection and a path by an index that holds another GID meanwhile than the one that the peer
/// was told: the peer would answer to that.
fn goes() -> Result {
    let mut pair = Pair::<Rc>::unconnected(&open()?, &Setup::default())?;
    let context = pair.context.clone();
    let Some((best, _)) = context.best_gid(1)? else {
        return skip("the port is named by its LID");
    };
    let interface = interface(context.query_gid(1, best.into())?.netdev_ifindex)?;
    let [moving, other] = ADDRESSES;
    let address = Address::add(moving, &interface)?;
    let index = comes(&context, moving)?;
    let options = ConnectOptions {
        gid_index: Some(index),
        ..ConnectOptions::default()
    };
    let known = options.clone().queried(&context)?;
    let (a, b) = (
        pair.a.qp.endpoint_with(&options)?,
        pair.b.qp.endpoint_with(&known)?,
    );
    let path = context.path_to(&a, &known)?;
    same(path.sgid_index, index, "the path's index")?;

    drop(address);
    until("the GID's end", || {
        Ok(index_of(&context, moving)?.is_none().then_some(()))
    })?;
    let told = "no longer has the GID";
    let Err(gone) = context.path_to(&a, &known) else {
        return fail("a path from a GID that is gone");
    };
    says(&gone, &["10.9.0.78", told])?;
    let Err(gone) = pair.a.qp.connect_with(&b, &options) else {
        return fail("a connection from a GID that is gone");
    };
    same(gone.verb(), Verb::ModifyQp, "the verb")?;
    says(&gone, &["10.9.0.78", told, "a new endpoint"])?;

    // Whatever is free first.
    let _other = Address::add(other, &interface)?;
    same(comes(&context, other)?, index, "the index of the other")?;
    let _address = Address::add(moving, &interface)?;
    let moved = comes(&context, moving)?;
    same(moved != index, true, "it is elsewhere")?;
    let path = context.path_to(&a, &known)?;
    same(path.sgid_index, moved, "the path's index")?;
    pair.a.qp.connect_with(&b, &known)?;
    pair.b.qp.connect_with(&a, &known)?;
    talk::sends(&mut pair)
}
