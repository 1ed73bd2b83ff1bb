//! Nobody else's type is a transport.

use uverbs::{transport::RdmaWrite, Qp};

struct Dc;

fn number(_: &Qp<Dc>) {}

fn write<T: RdmaWrite>() {}

fn main() {
    write::<Dc>();
}
