//! The rings of mlx5 over plain memory, with a test in the device's place: it reads requests where they were written
//! and writes completions. Registers are a page of memory as well.

mod completions;
mod device;
mod inline;
mod lives;
mod requests;
mod threads;
