//! Objects have no lifetimes: they are stored, moved to threads and dropped in any order.

use uverbs::{transport::Any, Cq, Mr, Pd, Qp, Rc, RecvHalf, SendHalf, Ud};

pub struct Session {
    pub pd: Pd,
    pub region: Mr<Vec<u8>>,
    pub completions: Cq,
    pub pair: Qp<Rc>,
}

pub fn two_threads(pair: Qp<Rc>) {
    let (mut send, mut recv): (SendHalf<Rc>, RecvHalf<Rc>) = pair.split();
    std::thread::spawn(move || send.batch().len());
    std::thread::spawn(move || recv.batch().len());
}

pub fn both_halves(pair: &mut Qp<Rc>) -> usize {
    let (send, recv) = pair.halves();
    let (sends, receives) = (send.batch(), recv.batch());
    sends.len() + receives.len()
}

fn is_send_and_sync<T: Send + Sync + 'static>() {}

fn main() {
    is_send_and_sync::<Session>();
    is_send_and_sync::<Mr<uverbs::mr::RawMemory>>();
    is_send_and_sync::<Qp<Any>>();
    is_send_and_sync::<Qp<Ud>>();
    is_send_and_sync::<uverbs::Error>();
}
