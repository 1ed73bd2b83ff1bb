//! Each step takes the one before: what has been used is gone, and what is not connected posts nothing.

use uverbs::cm::{Connecting, Connection, Params, Request, Resolved};
use uverbs::{Qp, Rc};

fn connect_twice(way: Resolved<Rc>, one: Qp<Rc>, other: Qp<Rc>) {
    let _ = way.connect(one, &Params::default(), b"");
    let _ = way.connect(other, &Params::default(), b"");
}

fn post_while_connecting(way: Resolved<Rc>, mut qp: Qp<Rc>) {
    let _ = way.connect(qp, &Params::default(), b"");
    qp.batch();
}

fn post_to_what_is_under_way(connecting: &mut Connecting<Qp<Rc>>) {
    connecting.batch();
}

fn accept_and_reject(request: Request<Rc>, qp: Qp<Rc>) {
    let _ = request.accept(qp, &Params::default(), b"");
    let _ = request.reject(b"");
}

fn post_after_the_end(mut connection: Connection<Qp<Rc>>) {
    let _ = connection.disconnect();
    connection.batch();
}

fn disconnect_while_posting(mut connection: Connection<Qp<Rc>>) {
    let batch = connection.batch();
    let _ = connection.disconnect();
    drop(batch);
}

fn main() {}
