//! Random numbers that a seed repeats, for the tests that compare the library with a model.
//!
//! `UVERBS_MODEL_SEED` repeats a run, `UVERBS_MODEL_STEPS` sets its length.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::Result;

/// The same numbers for the same seed, everywhere, and others for each other seed.
#[derive(Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(..bound)
    }
}

/// The seed and the number of steps of a run, which it prints.
///
/// # Errors
/// If the environment has something else than numbers.
pub fn seed_and_steps(usual: usize) -> Result<(u64, usize)> {
    let seed = match env::var("UVERBS_MODEL_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64,
    };
    let steps = match env::var("UVERBS_MODEL_STEPS") {
        Ok(steps) => steps.parse()?,
        Err(_) => usual,
    };
    println!("model: UVERBS_MODEL_SEED={seed} UVERBS_MODEL_STEPS={steps}");
    Ok((seed, steps))
}
