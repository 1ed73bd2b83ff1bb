//! Regions that go while requests are in flight that name them.

use uverbs::mr::Memory;
use uverbs::{Access, Cause, LocalSlice, Mr, Pd};

use super::Result;
use super::figures::Figures;

/// What freed memory is filled with. No message has it from its first byte on.
const GONE: u8 = 0xdb;

/// Memory that is overwritten when it is freed: a request that still needs it sends what is no message.
struct Fleeting(Vec<u8>);

// SAFETY: a vector's elements stay where they are as long as nothing is pushed, which nobody does.
unsafe impl Memory for Fleeting {
    fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Fleeting {
    fn drop(&mut self) {
        self.0.fill(GONE);
        // Otherwise the compiler may leave out what nobody on this side reads.
        std::hint::black_box(&self.0);
    }
}

/// A region for one message, which nobody keeps until it has arrived.
pub(crate) struct Loan(Mr<Fleeting>);

impl Loan {
    /// A region with this message.
    pub(crate) fn new(pd: &Pd, message: &[u8]) -> Result<Self> {
        let memory = Fleeting(message.to_vec());
        Ok(Self(pd.register(memory, Access::empty())?))
    }

    /// All of it.
    pub(crate) fn slice(&self) -> Result<LocalSlice<'_>> {
        Ok(self.0.slice(..)?)
    }

    /// Lets it go; only once the request is finished may it really be gone.
    pub(crate) fn end(self, figures: &mut Figures) -> Result {
        match self.0.deregister() {
            Ok(_) => figures.add("regions that went behind their request", 1),
            Err(refused) if matches!(refused.error.cause(), Cause::Busy(_)) => {
                drop(refused.object);
                figures.add(UNDER_WAY, 1);
            }
            Err(refused) => return Err(refused.error.into()),
        }
        Ok(())
    }
}

/// Regions that were dropped while their request was in flight.
pub(crate) const UNDER_WAY: &str = "regions dropped under way";
