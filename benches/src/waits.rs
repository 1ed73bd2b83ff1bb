//! How long an awaited WRITE takes, by how its completion is waited for.

use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use uverbs::aio::{Cq, Post, Qp, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::{Access, Caps, ConnectOptions, Context, Mr, Rc};

use crate::awaited;
use crate::serve::Until;

/// Bytes of the WRITE.
const WRITE: usize = 64;

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub struct Way(Wait);

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(Self(match name {
            "park" => Wait::Park,
            "adaptive" => Wait::default(),
            "spin" => Wait::Spin(Duration::MAX),
            _ => bail!("no way to wait is named {name}"),
        }))
    }
}

/// A connected pair, whose operations are awaited.
pub struct Waits {
    cq: Cq,
    here: Qp<Rc>,
    // It answers as long as it is there.
    _there: Qp<Rc>,
    target: Mr<Vec<u8>>,
    buf: Option<Buf>,
}

impl Waits {
    /// Connects a pair.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let target = pd.register(vec![0; WRITE], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let pool = Pool::on(&pd).sizes([WRITE]).limit(WRITE).build()?;
        let mut buf = pool.try_get(WRITE)?;
        buf.set_len(WRITE)?;
        let cq = Cq::new(context, 256)?;
        let mut pair: [Qp<Rc>; 2] = [
            cq.create_qp(&pd, Caps::default())?,
            cq.create_qp(&pd, Caps::default())?,
        ];
        let options: ConnectOptions = awaited::options(context)?;
        let [a, b] = [
            pair[0].endpoint_with(&options)?,
            pair[1].endpoint_with(&options)?,
        ];
        pair[0].connect_with(&b, &options)?;
        pair[1].connect_with(&a, &options)?;
        let [here, there] = pair;
        Ok(Self {
            cq,
            here,
            _there: there,
            target,
            buf: Some(buf),
        })
    }

    /// Awaits one WRITE after the other on this thread, and gives the nanoseconds of each.
    ///
    /// # Errors
    /// If a request is refused or fails.
    pub fn run(&mut self, Way(wait): Way, until: Until) -> Result<Vec<u64>> {
        let Self {
            cq,
            here,
            target,
            buf,
            ..
        } = self;
        cq.block_on_with(
            async {
                let mut work = until.begin();
                while work.goes_on() {
                    let Some(bytes) = buf.take() else {
                        bail!("the buffer is gone");
                    };
                    let before = Instant::now();
                    let (result, back) = here.write(bytes, target.remote()).await;
                    work.note(before.elapsed());
                    *buf = Some(back);
                    result?;
                }
                Ok(work.samples())
            },
            wait,
        )?
    }
}
