//! What the device can do, as GET_FEATURE tells it.

use crate::admin::{Answer, Status};
use crate::event::GROUPS;
use crate::fields::put;
use crate::function::{COMPLETION_QUEUES, EVENT_QUEUES, Function, OTHERS, QUEUE_PAIRS, REGIONS};
use crate::server::DOORBELLS;

/// The largest message of a SEND.
pub(crate) const MTU: usize = 8928;
/// The largest READ and WRITE.
pub(crate) const MAX_RDMA: u32 = 1 << 26;
/// How many slices a SEND and a receive may have; READ and WRITE have one.
pub(crate) const MAX_SLICES: usize = 2;
/// The most requests of a send queue, with 64 bytes each; half as many have 128.
pub(crate) const MAX_SEND_DEPTH: u32 = 1024;
/// The most descriptors of a receive queue.
pub(crate) const MAX_RECEIVE_DEPTH: u32 = 4096;
/// The most entries of a completion queue.
pub(crate) const MAX_CQ_DEPTH: u32 = 1 << 15;
/// Bytes of the largest send ring.
pub(crate) const MAX_LLQ: u32 = 64 << 10;
/// Inline bytes of a request of 64 and of 128 bytes.
pub(crate) const INLINE: u16 = 32;
pub(crate) const INLINE_WIDE: u16 = 80;
/// Entries of each event queue: more than there are completion queues.
pub(crate) const EQ_DEPTH: u32 = 512;
/// Pages of regions: any power of two from 4 KiB to 1 GiB.
pub(crate) const PAGE_SIZES: u64 = 0x7fff_f000;

/// READ, retries for want of receive requests, polling for data in steps of 128 bytes, WRITE, WRITE with
/// immediate data that consumes no request, ids of 64 bits.
const CAPABILITIES: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 10;

/// Numbers of features.
pub(crate) const DEVICE: u8 = 1;
pub(crate) const ASYNC_EVENTS: u8 = 2;
const NETWORK: u8 = 3;
const QUEUES: u8 = 4;
const HINTS: u8 = 5;
pub(crate) const HOST: u8 = 6;
const EVENT_QUEUE: u8 = 7;
const QUEUES_2: u8 = 9;
const FEATURES: [u8; 8] = [
    DEVICE,
    ASYNC_EVENTS,
    NETWORK,
    QUEUES,
    HINTS,
    HOST,
    EVENT_QUEUE,
    QUEUES_2,
];

/// In what the generations of the adapter differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rings of a completion queue.
    pub(crate) sub_cqs: u16,
    /// How many blocks of 64 bytes may be stored between two doorbells; 0 for any number.
    pub(crate) batch: u16,
    /// The least number of requests of a send queue; 0 for any number.
    pub(crate) min_send_depth: u16,
    /// A queue pair gets the number of one that is gone, its pages and its ring, as soon as they are free.
    pub(crate) reuses_numbers: bool,
}

impl Limits {
    /// The limits of a function: functions with even numbers have few, those with odd numbers all. Those
    /// with even numbers give numbers again at once.
    pub(crate) fn of(number: u16) -> Self {
        match number % 2 {
            0 => Self {
                sub_cqs: 1,
                batch: 0,
                min_send_depth: 0,
                reuses_numbers: true,
            },
            _ => Self {
                sub_cqs: 2,
                batch: 16,
                min_send_depth: 32,
                reuses_numbers: false,
            },
        }
    }
}

/// Answers GET_FEATURE.
///
/// # Errors
/// If there is no such feature.
pub(crate) fn get(function: &Function, feature: u8, answer: &mut Answer) -> Result<(), Status> {
    let limits = function.limits;
    let mut words = |at: usize, words: &[u32]| {
        for (index, word) in words.iter().enumerate() {
            put(answer, at + 4 * index, &word.to_le_bytes());
        }
    };
    match feature {
        DEVICE => {
            let features = FEATURES.iter().fold(0, |bits, feature| bits | 1 << feature);
            let page_sizes = [PAGE_SIZES as u32, (PAGE_SIZES >> 32) as u32];
            words(0, &[features, 0, page_sizes[0], page_sizes[1]]);
            // The versions of firmware, commands and device; the BAR of doorbells; bits of physical and
            // virtual addresses.
            words(16, &[1, 1, 1, DOORBELLS | 48 << 16 | 57 << 24]);
            words(32, &[CAPABILITIES, MAX_RDMA]);
            // Gbit/s.
            words(48, &[200]);
            let guid = 0x0002_efa0_0000_0001 + u64::from(function.number);
            put(answer, 40, &guid.to_be_bytes());
        }
        ASYNC_EVENTS => words(0, &[GROUPS, function.objects.events.enabled]),
        NETWORK => {
            words(16, &[MTU as u32]);
            put(answer, 0, &function.gid());
        }
        QUEUES => {
            let (min, slices) = (u32::from(limits.min_send_depth), MAX_SLICES as u32);
            words(
                0,
                &[
                    QUEUE_PAIRS,
                    MAX_SEND_DEPTH,
                    INLINE.into(),
                    MAX_RECEIVE_DEPTH,
                    COMPLETION_QUEUES,
                    MAX_CQ_DEPTH,
                    u32::from(limits.sub_cqs) | min << 16,
                    slices | slices << 16,
                    REGIONS,
                    u32::MAX >> 12,
                    OTHERS,
                    OTHERS,
                    MAX_LLQ,
                    1 | u32::from(limits.batch) << 16,
                ],
            );
        }
        QUEUES_2 => words(0, &[INLINE_WIDE.into()]),
        EVENT_QUEUE => words(0, &[EVENT_QUEUES, EQ_DEPTH, 1]),
        // The driver's own time limits are good enough.
        HINTS => {}
        _ => return Err(Status::IllegalParameter),
    }
    Ok(())
}
