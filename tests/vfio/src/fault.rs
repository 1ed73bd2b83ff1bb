//! Commands that fail because a test has asked for it.

/// Commands that fail, by a model's own name for them, and how many times more.
#[derive(Debug)]
pub struct Failing<C>(Vec<(C, u32)>);

impl<C> Default for Failing<C> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<C: PartialEq> Failing<C> {
    /// Lets a command fail so many times from now on.
    pub fn set(&mut self, command: C, count: u32) {
        self.0.retain(|(failing, _)| *failing != command);
        self.0.push((command, count));
    }

    /// Whether a command is to fail; that is one time less then.
    pub fn take(&mut self, command: &C) -> bool {
        let mut failing = self.0.iter_mut();
        match failing.find(|(failing, left)| failing == command && *left > 0) {
            Some((_, left)) => {
                *left -= 1;
                true
            }
            None => false,
        }
    }
}
