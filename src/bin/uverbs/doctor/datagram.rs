//! A ping by a datagram, and its answer.
//!
//! The client looks up the server's queue pair and sends its own address with the lookup; then it sends a
//! datagram, and the server sends the same bytes back.

use std::net::SocketAddr;
use std::time::Duration;

use uverbs::cm::{self, Pending, Request, Resolve};
use uverbs::grh::GRH_LENGTH;
use uverbs::wc::Completion;
use uverbs::{Access, Ah, Caps, ConnectOptions, Context, Cq, Endpoint, Inline, Mr, Pd, Qp, Ud};

use crate::failure::{Failure, Kind, Result, Unanswered};
use crate::pingpong::exchange;

/// The bytes that are sent and come back.
const WORDS: &[u8] = b"uverbs doctor: ping";

const RECV: u64 = 1;
const SEND: u64 = 2;

/// Memory and queues of a side.
struct End {
    qp: Qp<Ud>,
    inbox: Mr<Vec<u8>>,
    cq: Cq,
    pd: Pd,
    options: ConnectOptions,
}

impl End {
    /// With a queue pair that `activate` makes ready, and a posted receive.
    fn new(
        context: &Context,
        port: u8,
        activate: impl FnOnce(&mut Qp<Ud>) -> uverbs::Result<()>,
    ) -> uverbs::Result<Self> {
        let channel = context.create_channel()?;
        let cq = context.cq(2).channel(&channel).create()?;
        let pd = context.alloc_pd()?;
        let mut qp = pd.create_qp::<Ud>(&cq, Caps::default())?;
        activate(&mut qp)?;
        let inbox = pd.register(vec![0; GRH_LENGTH + WORDS.len()], Access::LOCAL_WRITE)?;
        let mut batch = qp.recv_batch();
        batch.post(RECV, inbox.slice(..)?)?;
        batch.ring();
        Ok(Self {
            qp,
            inbox,
            cq,
            pd,
            options: ConnectOptions {
                port,
                ..ConnectOptions::default()
            },
        })
    }

    fn endpoint(&self) -> uverbs::Result<Endpoint> {
        self.qp.endpoint_with(&self.options)
    }

    fn send(&mut self, words: &[u8], path: &Ah, qpn: u32, qkey: u32) -> uverbs::Result<()> {
        let to = path.to(qpn, qkey);
        self.qp.one(SEND).to(to).send(Inline(words))?;
        Ok(())
    }

    /// Polls completions up to the one of this request, which must have succeeded.
    fn completed(&mut self, wr_id: u64, patience: Duration) -> Result<Completion> {
        loop {
            let completion = self
                .cq
                .wait(patience)?
                .and_then(|mut all| all.iter().next());
            let Some(completion) = completion else {
                let text = format!("no datagram has come for {patience:?}");
                return Err(Failure::new(Kind::Peer, text));
            };
            completion
                .result()
                .map_err(|error| Failure::new(Kind::Failed, error))?;
            if completion.wr_id() == wr_id {
                return Ok(completion);
            }
        }
    }

    /// The bytes of the next received datagram.
    fn received(&mut self, patience: Duration) -> Result<Vec<u8>> {
        let length = self.completed(RECV, patience)?.byte_len() as usize;
        let mut words = vec![0; length.saturating_sub(GRH_LENGTH)];
        self.inbox
            .read_at(GRH_LENGTH, &mut words)
            .map_err(|error| Failure::new(Kind::Failed, error))?;
        Ok(words)
    }
}

/// Sends a datagram to a server and waits for it to come back.
pub(super) fn ping(to: SocketAddr, patience: Duration) -> Result<(), Unanswered> {
    let resolving = cm::resolve::<Ud>(to).and_then(Resolve::start)?;
    let way = resolving.within(patience).map_err(Unanswered::of_peer)?;
    let context = way.device()?.open()?;
    let mut end = End::new(&context, way.port(), |qp| way.activate(qp))?;
    let question = exchange::question(&end.endpoint()?).map_err(Failure::from)?;
    let found = way
        .look_up(&question)?
        .within(patience)
        .map_err(Unanswered::of_peer)?;
    let path = end.pd.create_ah(found.path())?;
    end.send(WORDS, &path, found.qpn(), found.qkey())?;
    match end.received(patience)? == WORDS {
        true => Ok(()),
        false => Err(Failure::new(Kind::Check, "the datagram came back changed").into()),
    }
}

/// Answers a client's lookup, and sends its datagram back.
pub(super) fn answer(request: Request<Ud>, patience: Duration) -> Result<()> {
    let Ok(client) = exchange::asked(request.private_data()) else {
        request.reject(&[])?;
        return Err(Failure::new(Kind::Peer, "a question that is no ping"));
    };
    let context = request.device()?.open()?;
    let mut end = End::new(&context, request.port(), |qp| request.activate(qp))?;
    let path = context.path_to(&client, &end.options)?;
    let path = end.pd.create_ah(&path)?;
    // All datagrams of the connection manager have the same Q_Key.
    let qkey = end.qp.query()?.qkey;
    request
        .answer_with(&end.qp, &[])
        .map_err(uverbs::Error::from)?;
    let words = end.received(patience)?;
    end.send(&words, &path, client.qpn, qkey)?;
    // The queue pair must live until the answer has been sent.
    end.completed(SEND, patience).map(drop)
}
