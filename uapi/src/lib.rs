//! The Linux kernel's uverbs userspace ABI as data.
#![no_std]
