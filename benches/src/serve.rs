//! A process that does timed work when it is asked: so two programs can take turns without starting anew.
//!
//! A request is a line, `transfer OPERATION SIZE BATCH polling|events|awake MAX_SAMPLES MAX_MS` or
//! `control WHAT MAX_SAMPLES MAX_MS`. The answer is a line of nanoseconds, one number for each time that the
//! work was done, or a line that starts with `error`. `rdma_core.c` understands the same. This program's
//! answer to `control` has the library's and the bare calls' numbers by turns; and it alone understands
//! `awaited park|adaptive|spin MAX_SAMPLES MAX_MS`.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::control::Control;
use crate::transfer::Transfer;
use crate::waits::Waits;

/// How long to go on with one kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    samples: usize,
    time: Duration,
}

impl Until {
    /// Does the work until it was done often enough or took long enough, and gives the nanoseconds of each
    /// time.
    ///
    /// # Errors
    /// Those of the work.
    pub fn sample(self, mut work: impl FnMut() -> Result<()>) -> Result<Vec<u64>> {
        let mut begun = self.begin();
        while begun.goes_on() {
            let before = Instant::now();
            work()?;
            begun.note(before.elapsed());
        }
        Ok(begun.samples())
    }

    /// Begins work that is not a function.
    pub(crate) fn begin(self) -> Begun {
        Begun {
            samples: Vec::with_capacity(self.samples),
            started: Instant::now(),
            until: self,
        }
    }

    fn parse(samples: &str, milliseconds: &str) -> Result<Self> {
        Ok(Self {
            samples: samples.parse()?,
            time: Duration::from_millis(milliseconds.parse()?),
        })
    }
}

/// Work that has begun.
pub(crate) struct Begun {
    until: Until,
    started: Instant,
    samples: Vec<u64>,
}

impl Begun {
    /// Whether it is to be done once more.
    pub(crate) fn goes_on(&self) -> bool {
        self.samples.len() < self.until.samples && self.started.elapsed() < self.until.time
    }

    /// Notes how long it took once.
    pub(crate) fn note(&mut self, time: Duration) {
        self.samples.push(time.as_nanos() as u64);
    }

    /// The nanoseconds of each time.
    pub(crate) fn samples(self) -> Vec<u64> {
        self.samples
    }
}

/// Answers requests until the end of standard input.
///
/// # Errors
/// If the device cannot be opened or standard output is closed. Work that fails is answered with its error.
pub fn run(device: &str) -> Result<()> {
    let context = uverbs::open(device)?;
    let mut transfer = Transfer::new(&context)?;
    let mut control = Control::new(&context)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["transfer", operation, size, batch, wait, samples, time] => {
                Until::parse(samples, time).and_then(|until| {
                    let (size, batch) = (size.parse()?, batch.parse()?);
                    transfer.run(operation.parse()?, size, batch, wait.parse()?, until)
                })
            }
            ["control", what, samples, time] => {
                Until::parse(samples, time).and_then(|until| control.run(what.parse()?, until))
            }
            ["awaited", way, samples, time] => Until::parse(samples, time)
                .and_then(|until| Waits::new(&context)?.run(way.parse()?, until)),
            _ => bail!("do not understand {line:?}"),
        };
        let mut output = io::stdout().lock();
        match answer {
            Ok(samples) => {
                let words: Vec<String> = samples.iter().map(u64::to_string).collect();
                writeln!(output, "{}", words.join(" "))?;
            }
            Err(error) => writeln!(output, "error {error:#}")?,
        }
        output.flush()?;
    }
    Ok(())
}
