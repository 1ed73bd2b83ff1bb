//! Reads memory that another thread or a device may be writing.

use std::ptr::NonNull;

/// Whether one of the words in `bytes` bytes from `start` on is `word`. For a word that is being written it
/// compares the old or the new value.
///
/// # Safety
///
/// The bytes are readable, and `start` is aligned to 4.
pub(crate) unsafe fn has_word(start: NonNull<u8>, bytes: usize, word: u32) -> bool {
    let words = start.cast::<u32>();
    // SAFETY: by this function's contract. Volatile: the device or the kernel may write the memory, and
    // another thread may fill a slot. That is a race, but a torn word is only compared, and each word is read
    // once.
    (0..bytes / size_of::<u32>()).any(|at| unsafe { words.add(at).read_volatile() } == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_where_it_is() {
        let words = [1_u32, 2, 3, 4];
        let start = NonNull::from(&words).cast();
        // SAFETY: the four words are readable.
        let has = |bytes, word| unsafe { has_word(start, bytes, word) };
        assert!(has(16, 1) && has(16, 4));
        assert!(!has(12, 4) && !has(16, 5) && !has(0, 1));
    }
}
