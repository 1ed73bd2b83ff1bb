//! Nobody else's type is a transport.

use uverbs::{Qp, RdmaWrite};

struct Dc;

fn number(_: &Qp<Dc>) {}

fn write<T: RdmaWrite>() {}

fn main() {
    write::<Dc>();
}
