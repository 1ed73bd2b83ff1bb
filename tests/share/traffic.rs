//! Traffic over a protection domain, with every payload looked at.

use uverbs::{Access, Caps, Completion, Cq, Mr, Pd, Qp, Rc, RemoteSlice};

use crate::Outcome;

const LENGTH: usize = 3000;

/// All that remote peers may do.
pub(crate) fn open_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Two connected queue pairs on one PD, with their memory.
pub(crate) struct Pair {
    here: Qp<Rc>,
    there: Qp<Rc>,
    cq: Cq,
    source: Mr<Vec<u8>>,
    target: Mr<Vec<u8>>,
    round: u8,
}

impl Pair {
    pub(crate) fn new(pd: &Pd) -> Outcome<Self> {
        let cq = pd.context().create_cq(64)?;
        let mut here = pd.create_qp::<Rc>(&cq, Caps::default())?;
        let mut there = pd.create_qp::<Rc>(&cq, Caps::default())?;
        let (a, b) = (here.endpoint()?, there.endpoint()?);
        here.connect(&b)?;
        there.connect(&a)?;
        Ok(Self {
            here,
            there,
            cq,
            source: pd.register(vec![0; LENGTH], open_access())?,
            target: pd.register(vec![0; LENGTH], open_access())?,
            round: 0,
        })
    }

    /// One message, one WRITE and one READ, each with bytes of its own.
    pub(crate) fn round(&mut self) -> Outcome {
        self.send()?;
        let target = self.target.remote();
        self.write_to(target)?;
        self.check_target("written")?;
        self.read_from(target)
    }

    fn pattern(&mut self) -> Vec<u8> {
        self.round = self.round.wrapping_add(1);
        let salt = self.round;
        (0..LENGTH)
            .map(|at| (at as u8).wrapping_mul(7) ^ salt)
            .collect()
    }

    fn fill_source(&mut self) -> Outcome {
        let pattern = self.pattern();
        Ok(self.source.write_at(0, &pattern)?)
    }

    fn send(&mut self) -> Outcome {
        self.fill_source()?;
        let mut receive = self.there.recv();
        // SAFETY: `target` is not touched until the completion of the receive has been polled.
        unsafe { receive.post(1, self.target.slice(..)?)? };
        receive.ring()?;
        let mut batch = self.here.send();
        // SAFETY: `source` stays as it is until the completion has been polled.
        unsafe { batch.send(self.source.slice(..)?)?.signaled(2) };
        batch.ring()?;
        self.complete(2)?;
        self.check_target("received")
    }

    /// Writes the bytes of a new round to memory of anybody's.
    pub(crate) fn write_to(&mut self, target: RemoteSlice) -> Outcome {
        self.fill_source()?;
        let mut batch = self.here.send();
        // SAFETY: `source` stays as it is until the completion has been polled.
        unsafe {
            batch
                .write(self.source.slice(..)?, target.slice(..LENGTH as u64)?)?
                .signaled(3)
        };
        batch.ring()?;
        self.complete(1)
    }

    /// Reads what was written last back from anybody's memory, and looks at it.
    pub(crate) fn read_from(&mut self, from: RemoteSlice) -> Outcome {
        let mut expected = vec![0; LENGTH];
        self.source.read_at(0, &mut expected)?;
        self.source.write_at(0, &vec![0; LENGTH])?;
        let mut batch = self.here.send();
        // SAFETY: `source` is not touched until the completion has been polled.
        unsafe {
            batch
                .read(self.source.slice(..)?, from.slice(..LENGTH as u64)?)?
                .signaled(4)
        };
        batch.ring()?;
        self.complete(1)?;
        check("read back", &self.source, &expected)
    }

    fn check_target(&self, what: &str) -> Outcome {
        let mut expected = vec![0; LENGTH];
        self.source.read_at(0, &mut expected)?;
        check(what, &self.target, &expected)
    }

    fn complete(&mut self, count: usize) -> Outcome {
        complete(&mut self.cq, count)
    }
}

fn check(what: &str, mr: &Mr<Vec<u8>>, expected: &[u8]) -> Outcome {
    let mut bytes = vec![0; LENGTH];
    mr.read_at(0, &mut bytes)?;
    match bytes == expected {
        true => Ok(()),
        false => Err(format!("the bytes that were {what} are not those that were sent").into()),
    }
}

/// Takes so many completions, all of which have to be good.
pub(crate) fn complete(cq: &mut Cq, count: usize) -> Outcome {
    let mut done = 0;
    while done < count {
        for completion in &mut cq.poll()? {
            Completion::result(&completion)?;
            done += 1;
        }
    }
    Ok(())
}

/// Some rounds of traffic over a PD.
pub(crate) fn over(pd: &Pd) -> Outcome {
    let mut pair = Pair::new(pd)?;
    (0..10).try_for_each(|_| pair.round())
}
