//! A client: reads the server's memory by itself, and asks the server to change it.

use std::net::SocketAddr;

use tokio::task::JoinHandle;
use uverbs::aio::tokio::within;
use uverbs::aio::{self, Connection, Post, Wait};
use uverbs::buf::Pool;
use uverbs::cm::{self, Params};
use uverbs::{Caps, Rc, RemoteSlice};

use super::table::{self, BUCKET, Found, MOST};
use super::{MESSAGE, PATIENCE, Result};

pub(crate) struct Client {
    connection: Connection<Rc>,
    pool: Pool,
    /// The server's memory.
    memory: RemoteSlice,
    gets: u64,
    torn: u64,
    pump: JoinHandle<uverbs::Error>,
}

impl Client {
    pub(crate) async fn connect(server: SocketAddr) -> Result<Self> {
        let way = within(PATIENCE, cm::resolve::<Rc>(server)?.start()?).await?;
        let context = way.device()?.open()?;
        let pd = context.alloc_pd()?;
        let cq = aio::Cq::new(&context, 256)?;
        let pump = tokio::spawn(aio::tokio::serve(cq.clone(), Wait::default()));
        let qp = cq.create_qp(&pd, Caps::default())?;
        let connecting = qp.connect_to(way, &Params::default(), b"")?;
        let connection = within(PATIENCE, connecting).await?;
        // The server has put it into its acceptance; behind it are zeros.
        let memory = connection.private_data().first_chunk();
        Ok(Self {
            memory: RemoteSlice::from_bytes(*memory.ok_or("the server does not say where")?),
            pool: Pool::on(&pd).sizes([MESSAGE, BUCKET]).build()?,
            connection,
            gets: 0,
            torn: 0,
            pump,
        })
    }

    /// Reads the bucket of a key, again if it was changed meanwhile, and looks for the key in it.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let bucket = self.memory.slot(table::bucket(key), BUCKET)?;
        let mut buf = self.pool.get(BUCKET).await?;
        self.gets += 1;
        loop {
            let (read, bytes) = self.connection.qp().read(buf, bucket).await;
            read?;
            match table::look(&bytes, key) {
                Found::Value(value) => return Ok(Some(value)),
                Found::Nothing => return Ok(None),
                Found::Torn => self.torn += 1,
            }
            buf = bytes;
        }
    }

    pub(crate) async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.ask(key, Some(value)).await? {
            true => Ok(()),
            false => Err("the bucket is full, or the value too long".into()),
        }
    }

    /// False if there is no such key.
    pub(crate) async fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.ask(key, None).await
    }

    async fn ask(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        if key.len() > 255.min(MOST) {
            return Err("the key is too long".into());
        }
        let mut request = self.pool.get(MESSAGE).await?;
        request.extend_from_slice(&[key.len() as u8])?;
        request.extend_from_slice(key)?;
        if let Some(value) = value {
            // A mark, so that an empty value is not none.
            request.extend_from_slice(&[1])?;
            request.extend_from_slice(value)?;
        }
        let answer = self.pool.get(1).await?;
        // Both are under way at once, and the receive first.
        let answered = self.connection.qp().recv(answer);
        self.connection.qp().send(request).await.0?;
        let (received, answer) = answered.await;
        received?;
        Ok(answer.first() == Some(&1))
    }

    /// Ends the connection, and tells how many GETs there were and how often one was read once more.
    pub(crate) async fn leave(mut self) -> Result<(u64, u64)> {
        self.connection.disconnect().await?;
        self.pump.abort();
        Ok((self.gets, self.torn))
    }
}
