//! The connection manager connects RC and UC and looks up UD; each has the steps of its own.

use uverbs::cm::{self, Params, Request, Resolved};
use uverbs::transport::{Any, Xrc};
use uverbs::xrcd::XrcTarget;
use uverbs::{Qp, Rc, Result, Ud};

fn resolve() -> Result<()> {
    cm::resolve::<Any>("10.9.0.2:4420").map(drop)
}

fn connect(way: Resolved<Ud>, qp: Qp<Ud>) {
    let _ = way.connect(qp, &Params::default(), b"");
}

fn look_up(way: Resolved<Rc>) -> Result<()> {
    way.look_up(b"").map(drop)
}

fn accept(request: Request<Ud>, qp: Qp<Ud>) {
    let _ = request.accept(qp, &Params::default(), b"");
}

fn answer(request: Request<Rc>, qp: &Qp<Rc>) {
    let _ = request.answer_with(qp, b"");
}

fn another(way: Resolved<Rc>, qp: Qp<Ud>) {
    let _ = way.connect(qp, &Params::default(), b"");
}

fn initiators_do_not_listen() -> Result<()> {
    cm::listen::<Xrc>("10.9.0.2:4420").map(drop)
}

fn targets_do_not_ask() -> Result<()> {
    cm::resolve::<XrcTarget>("10.9.0.2:4420").map(drop)
}

fn accept_with_an_initiator(request: Request<XrcTarget>, qp: Qp<Xrc>) {
    let _ = request.accept(qp, &Params::default(), b"");
}

fn main() {}
