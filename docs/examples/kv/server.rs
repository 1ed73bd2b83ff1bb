//! The server: a task for each client, which answers what the client cannot do by itself.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{Either, select};
use uverbs::aio::tokio::{Listener, Watch, within};
use uverbs::aio::{self, Op, Post, Qp, Receive, Wait};
use uverbs::buf::Pool;
use uverbs::cm::{self, Params, Request};
use uverbs::{Caps, Pd, Rc};

use super::table::Table;
use super::{MESSAGE, PATIENCE, Result};

/// What all clients have in common.
struct Server {
    pd: Pd,
    cq: aio::Cq,
    pool: Pool,
    table: Mutex<Table>,
}

/// Serves so many clients until they have left, and tells how many requests there were.
pub(crate) async fn run(listener: cm::Listener<Rc>, clients: u64) -> Result<u64> {
    let mut listener = Listener::new(listener);
    let first = listener.accept().await?;
    let server = Arc::new(Server::new(&first)?);
    let pump = tokio::spawn(aio::tokio::serve(server.cq.clone(), Wait::default()));
    let mut tasks = vec![tokio::spawn(serve(Arc::clone(&server), first))];
    for _ in 1..clients {
        let request = listener.accept().await?;
        tasks.push(tokio::spawn(serve(Arc::clone(&server), request)));
    }
    let mut requests = 0;
    for task in tasks {
        requests += task.await??;
    }
    pump.abort();
    Ok(requests)
}

impl Server {
    /// Makes the server on the device that a client has come to.
    fn new(request: &Request<Rc>) -> Result<Self> {
        let context = request.device()?.open()?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            cq: aio::Cq::new(&context, 1024)?,
            pool: Pool::on(&pd).sizes([MESSAGE]).build()?,
            table: Mutex::new(Table::new(&pd)?),
            pd,
        })
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a client asks for: the length of the key, the key, and a value or nothing.
    fn answer(&self, request: &[u8]) -> Result<bool> {
        let (length, rest) = request.split_first().ok_or("an empty request")?;
        let (key, value) = rest
            .split_at_checked(usize::from(*length))
            .ok_or("a short request")?;
        let value = value.split_first().map(|(_, value)| value);
        self.table().set(key, value)
    }
}

async fn serve(server: Arc<Server>, request: Request<Rc>) -> Result<u64> {
    let mut qp = server.cq.create_qp::<Rc>(&server.pd, Caps::default())?;
    // The first receive is there before the client is let in, so that no request finds none.
    qp.init_for_request(&request)?;
    let first = qp.recv(server.pool.get(MESSAGE).await?);
    let memory = server.table().remote().to_bytes();
    let accepting = qp.accept(request, &Params::default(), &memory)?;
    let (mut qp, link) = within(PATIENCE, accepting).await?.into_parts();

    // A client that leaves sends nothing: the connection manager tells.
    let mut requests = 0;
    {
        let mut watch = Watch::new();
        let answering = pin!(answer_all(&server, &mut qp, first, &mut requests));
        let leaving = pin!(link.event_by(&mut watch));
        match select(answering, leaving).await {
            Either::Left((failed, _)) => failed?,
            Either::Right((event, _)) => println!("a client goes: {:?}", event?),
        }
    }
    qp.abort().await?;
    Ok(requests)
}

/// Answers requests for as long as there are any.
async fn answer_all(
    server: &Server,
    qp: &mut Qp<Rc>,
    mut next: Op<Receive>,
    requests: &mut u64,
) -> Result<()> {
    loop {
        let (received, request) = next.await;
        received?;
        *requests += 1;
        next = qp.recv(server.pool.get(MESSAGE).await?);
        let answer = [u8::from(server.answer(&request)?)];
        qp.send_inline(&answer).await?;
    }
}
