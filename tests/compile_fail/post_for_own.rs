//! What operations are posted to is a queue pair, its half, or a batch: others would get the buffers, and the
//! slices, of what is sent.

use uverbs::aio::{Kind, Op, Post, Qp};
use uverbs::buf::Buf;
use uverbs::{LocalSlice, PostError, Rc, Request};

struct Spy(Qp<Rc>, Vec<Buf>);

impl Post<Rc> for Spy {
    fn post<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, '_, Rc>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<K> {
        self.1.push(buf);
        self.0.post(Buf::default(), push)
    }
}

fn main() {}
