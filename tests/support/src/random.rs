//! Random numbers that a seed repeats, for the tests that compare the library with a model.
//!
//! `UVERBS_MODEL_SEED` repeats a run, `UVERBS_MODEL_STEPS` sets its length.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Result;

/// Marsaglia's xorshift: the same numbers for the same seed, everywhere, and others for each other seed. A
/// generator of a library takes minutes where a test fills whole rings, without optimization in an emulator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        // The last step of splitmix64, which takes each seed to another state.
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The only state that xorshift does not leave is 0.
        Self((state ^ state >> 31).max(1))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
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
