//! Only the library says what a request does with a buffer, and whether it was posted.

use uverbs::aio::{Op, Post, Qp, Read, Sent};
use uverbs::buf::Buf;
use uverbs::{LocalSlice, PostError, Rc, RemoteSlice};

fn keep_the_slice(qp: &mut Qp<Rc>, buf: Buf) -> (Op<Sent<Buf>>, Option<LocalSlice<'static>>) {
    let mut kept = None;
    let op = qp.post(buf, |request, slices| {
        kept = Some(slices[0]);
        request.send(slices)
    });
    (op, kept)
}

fn deny_what_was_posted(post: &mut impl Post<Rc>, buf: Buf, from: RemoteSlice) -> Op<Read> {
    post.post(buf, |request, slices| {
        request.read(slices, from)?;
        Err(PostError::ForeignPd)
    })
}

fn main() {}
