//! All functions, and what decides in which order SRD does things. One lock is enough: it is not about speed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vfio_model::report::Report;
use vfio_model::tap::Tap;

use crate::Config;
use crate::function::Function;

/// All functions of a model.
#[derive(Debug)]
pub(crate) struct Fabric(Mutex<State>);

/// What the lock keeps.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) functions: Vec<Function>,
    pub(crate) chance: Chance,
}

impl Fabric {
    /// A fabric after power-on.
    pub(crate) fn new(config: &Config, report: &Report, tap: &Tap) -> Self {
        let functions = 0..config.functions;
        Self(Mutex::new(State {
            functions: functions
                .map(|number| Function::new(number, report.clone(), tap.clone()))
                .collect(),
            chance: Chance::new(config.seed),
        }))
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers that look like chance and follow from a seed (xorshift64*, George Marsaglia and Sebastiano Vigna).
#[derive(Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// What follows from this seed.
    pub(crate) fn new(seed: u64) -> Self {
        // Zero would stay zero.
        Self(seed.wrapping_mul(2) + 1)
    }

    /// A number below this one, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        number as usize % end
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Puts things in another order.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for end in (2..=things.len()).rev() {
            things.swap(end - 1, self.below(end));
        }
    }
}
