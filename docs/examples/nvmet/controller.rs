//! A controller: what a host has of the disk from its Connect on, over one queue of administration and some
//! for reads and writes.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uverbs::aio::Control;
use zerocopy::{FromZeros, IntoBytes};

use super::disk::{BLOCK_LOG, Disk};
use super::wire::{
    self, BlockFormat, Command, Descriptor, Health, NAME, PAGE, Status, feature, identify, log,
    property,
};

/// Commands in a queue at most.
pub(crate) const DEPTH: u16 = 128;
/// Queues for reads and writes at most.
const QUEUES: u16 = 4;
/// Bytes of data that fit into a capsule of such a queue, behind the command.
pub(crate) const IN_CAPSULE: usize = 4096;
/// Bytes of a transfer at most, in pages as a power of two.
const MOST_DATA_LOG: u8 = 5;
pub(crate) const MOST_DATA: usize = PAGE << MOST_DATA_LOG;
/// Requests for asynchronous events that are held.
const EVENT_REQUESTS: usize = 4;
/// The version of the specification: 1.4.
const VERSION: u32 = 0x0001_0400;
/// The number of the only namespace.
const NAMESPACE: u32 = 1;

/// What a command gives: a number, and perhaps data for the host.
pub(crate) struct Outcome {
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

impl Outcome {
    pub(crate) const DONE: Self = Self::of(0);

    pub(crate) const fn of(result: u64) -> Self {
        Self {
            result,
            data: Vec::new(),
        }
    }

    fn data(data: &[u8]) -> Self {
        Self {
            result: 0,
            data: data.to_vec(),
        }
    }
}

pub(crate) struct Controller {
    pub(crate) id: u16,
    /// The host's name, and that of the subsystem.
    pub(crate) host: String,
    subsystem: String,
    /// The properties that the host sets and reads. Relaxed throughout: they guard no memory.
    configuration: AtomicU32,
    /// Queues for reads and writes that the host has asked for; relaxed, as before.
    queues: AtomicU16,
    /// Requests for asynchronous events that wait for one; relaxed, as before.
    event_requests: AtomicUsize,
    /// How long the host may be silent; none if forever.
    patience: Mutex<Option<Duration>>,
    heard: Mutex<Instant>,
    /// What ends the connections of its queues.
    connections: Mutex<Vec<Control>>,
}

impl Controller {
    pub(crate) fn new(id: u16, host: String, subsystem: String, patience: u32) -> Self {
        Self {
            id,
            host,
            subsystem,
            configuration: AtomicU32::new(0),
            queues: AtomicU16::new(0),
            event_requests: AtomicUsize::new(0),
            patience: Mutex::new(milliseconds(patience)),
            heard: Mutex::new(Instant::now()),
            connections: Mutex::default(),
        }
    }

    /// Adds a queue, to be ended with the others.
    pub(crate) fn add(&self, connection: Control) {
        lock(&self.connections).push(connection);
    }

    /// Ends all of its queues.
    pub(crate) fn end(&self) {
        for connection in lock(&self.connections).drain(..) {
            // One whose queue pair has gone is over already.
            let _ = connection.fail();
        }
    }

    /// The host has sent something.
    pub(crate) fn heard(&self) {
        *lock(&self.heard) = Instant::now();
    }

    /// Whether it has been silent for longer than it said that it would be.
    pub(crate) fn is_silent(&self) -> bool {
        lock(&self.patience).is_some_and(|patience| lock(&self.heard).elapsed() > patience)
    }

    /// Whether the host has enabled it, and has so many queues.
    pub(crate) fn has_queue(&self, number: u16) -> bool {
        self.is_enabled() && number <= self.queues.load(Ordering::Relaxed)
    }

    fn is_enabled(&self) -> bool {
        self.configuration.load(Ordering::Relaxed) & property::ENABLE != 0
    }

    /// Does a command about properties.
    pub(crate) fn property(&self, command: &Command) -> Result<Outcome, Status> {
        let (offset, value) = (command.word(11), command.word(12));
        match (command.fabrics_kind(), offset) {
            (wire::fabrics::GET_PROPERTY, property::CAPABILITIES) => {
                // Entries of a queue less one; they are in one piece; 7.5 s to become ready; the commands
                // of the specification's own set.
                let capabilities = u64::from(DEPTH - 1) | 1 << 16 | 15 << 24 | 1 << 37;
                Ok(Outcome::of(capabilities))
            }
            (wire::fabrics::GET_PROPERTY, property::VERSION) => Ok(Outcome::of(VERSION.into())),
            (wire::fabrics::GET_PROPERTY, property::CONFIGURATION) => {
                let configuration = self.configuration.load(Ordering::Relaxed);
                Ok(Outcome::of(configuration.into()))
            }
            (wire::fabrics::GET_PROPERTY, property::STATUS) => {
                let configuration = self.configuration.load(Ordering::Relaxed);
                let mut status = 0;
                if configuration & property::ENABLE != 0 {
                    status |= property::READY;
                }
                if configuration & property::SHUTDOWN != 0 {
                    status |= property::SHUT_DOWN;
                }
                Ok(Outcome::of(status.into()))
            }
            (wire::fabrics::SET_PROPERTY, property::CONFIGURATION) => {
                self.configuration.store(value, Ordering::Relaxed);
                Ok(Outcome::DONE)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Does a command of administration. None: it waits for an event, and is not answered.
    pub(crate) fn administer(
        &self,
        command: &Command,
        disk: &Disk,
    ) -> Result<Option<Outcome>, Status> {
        let done = match command.opcode {
            wire::admin::KEEP_ALIVE => Outcome::DONE,
            wire::admin::IDENTIFY => self.identify(command, disk)?,
            wire::admin::GET_LOG_PAGE => log_page(command, disk)?,
            wire::admin::SET_FEATURES => self.set_feature(command)?,
            wire::admin::GET_FEATURES => self.feature(command)?,
            // What is to be aborted ends by itself soon: the bit says that it was not.
            wire::admin::ABORT => Outcome::of(1),
            wire::admin::ASYNC_EVENT_REQUEST => {
                let before = self.event_requests.fetch_add(1, Ordering::Relaxed);
                if before < EVENT_REQUESTS {
                    return Ok(None);
                }
                self.event_requests.fetch_sub(1, Ordering::Relaxed);
                return Err(Status::TOO_MANY_EVENT_REQUESTS);
            }
            _ => return Err(Status::INVALID_OPCODE),
        };
        Ok(Some(done))
    }

    fn identify(&self, command: &Command, disk: &Disk) -> Result<Outcome, Status> {
        let namespace = command.namespace.get();
        match command.word(10).to_le_bytes()[0] {
            identify::CONTROLLER => Ok(Outcome::data(self.description().as_bytes())),
            identify::NAMESPACE if namespace == NAMESPACE => {
                let mut description = wire::Namespace {
                    size: disk.blocks().into(),
                    capacity: disk.blocks().into(),
                    used: disk.blocks().into(),
                    guid: guid(&self.subsystem),
                    ..wire::Namespace::new_zeroed()
                };
                description.block[0] = BlockFormat {
                    bytes: BLOCK_LOG,
                    ..BlockFormat::new_zeroed()
                };
                Ok(Outcome::data(description.as_bytes()))
            }
            // Those with a number above the given one.
            identify::ACTIVE_NAMESPACES => {
                let mut list = [0; PAGE];
                if namespace < NAMESPACE {
                    list[..4].copy_from_slice(&NAMESPACE.to_le_bytes());
                }
                Ok(Outcome::data(&list))
            }
            identify::DESCRIPTORS if namespace == NAMESPACE => {
                let name = guid(&self.subsystem);
                let descriptor = Descriptor {
                    kind: Descriptor::GUID,
                    length: name.len() as u8,
                    reserved: [0; 2],
                };
                let mut list = [descriptor.as_bytes(), &name].concat();
                list.resize(PAGE, 0);
                Ok(Outcome::data(&list))
            }
            identify::NAMESPACE | identify::DESCRIPTORS => Err(Status::INVALID_NAMESPACE),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn description(&self) -> wire::Controller {
        let [a, b, c, d, ..] = guid(&self.subsystem);
        let serial = format!("{:08x}", u32::from_be_bytes([a, b, c, d]));
        let capsule = size_of::<Command>() + IN_CAPSULE;
        wire::Controller {
            serial: wire::padded(&serial, b' '),
            model: wire::padded("uverbs example", b' '),
            firmware: wire::padded(env!("CARGO_PKG_VERSION"), b' '),
            most_data: MOST_DATA_LOG,
            id: self.id.into(),
            version: VERSION.into(),
            kind: 1,
            event_requests: EVENT_REQUESTS as u8 - 1,
            keep_alive: 10.into(),
            command_bytes: 0x66,
            reply_bytes: 0x44,
            commands: DEPTH.into(),
            namespaces: NAMESPACE.into(),
            optional: wire::Controller::WRITE_ZEROES.into(),
            volatile_cache: 1,
            sgls: (wire::Controller::SGLS
                | wire::Controller::KEYED_SGLS
                | wire::Controller::SGL_OFFSETS)
                .into(),
            subsystem: wire::padded::<NAME>(&self.subsystem, 0),
            command_capsule: (capsule as u32 / 16).into(),
            reply_capsule: (size_of::<wire::Reply>() as u32 / 16).into(),
            descriptors: 1,
            ..wire::Controller::new_zeroed()
        }
    }

    fn set_feature(&self, command: &Command) -> Result<Outcome, Status> {
        let value = command.word(11);
        match command.word(10).to_le_bytes()[0] {
            // Less one, for commands and for replies; here a queue has both.
            feature::NUMBER_OF_QUEUES => {
                let asked = (value & 0xffff).min(value >> 16).min(u32::from(QUEUES) - 1);
                self.queues.store(asked as u16 + 1, Ordering::Relaxed);
                Ok(Outcome::of((asked | asked << 16).into()))
            }
            feature::KEEP_ALIVE_TIMER => {
                *lock(&self.patience) = milliseconds(value);
                Ok(Outcome::DONE)
            }
            // No event ever comes, so whatever is asked for is kept.
            feature::ASYNC_EVENTS => Ok(Outcome::DONE),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn feature(&self, command: &Command) -> Result<Outcome, Status> {
        match command.word(10).to_le_bytes()[0] {
            feature::NUMBER_OF_QUEUES => {
                let queues = u64::from(self.queues.load(Ordering::Relaxed).max(1) - 1);
                Ok(Outcome::of(queues | queues << 16))
            }
            feature::KEEP_ALIVE_TIMER => {
                let patience = lock(&self.patience).unwrap_or_default();
                Ok(Outcome::of(patience.as_millis() as u64))
            }
            feature::ASYNC_EVENTS => Ok(Outcome::DONE),
            feature::VOLATILE_WRITE_CACHE => Ok(Outcome::of(1)),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

fn log_page(command: &Command, disk: &Disk) -> Result<Outcome, Status> {
    let words = u64::from(command.word(10) >> 16) | u64::from(command.word(11) & 0xffff) << 16;
    let offset = u64::from(command.word(12)) | u64::from(command.word(13)) << 32;
    let page = match command.word(10).to_le_bytes()[0] {
        log::ERRORS => vec![0; 64],
        log::HEALTH => health(disk).as_bytes().to_vec(),
        log::FIRMWARE => vec![0; 512],
        _ => return Err(Status::INVALID_LOG_PAGE),
    };
    let start = usize::try_from(offset).map_err(|_| Status::INVALID_FIELD)?;
    let mut data = page.get(start..).ok_or(Status::INVALID_FIELD)?.to_vec();
    let length = 4 * (words as usize + 1);
    if length > MOST_DATA {
        return Err(Status::INVALID_FIELD);
    }
    data.resize(length, 0);
    Ok(Outcome { result: 0, data })
}

fn health(disk: &Disk) -> Health {
    let counters = disk.counters();
    let number = |value: u64| [value.into(), 0.into()];
    let units = |bytes: u64| number(bytes.div_ceil(512 * 1000));
    Health {
        spare: 100,
        data_read: units(counters.bytes_read.load(Ordering::Relaxed)),
        data_written: units(counters.bytes_written.load(Ordering::Relaxed)),
        reads: number(counters.reads.load(Ordering::Relaxed)),
        writes: number(counters.writes.load(Ordering::Relaxed)),
        ..Health::new_zeroed()
    }
}

/// The name of the disk in the whole world: the FNV-1a hash of the subsystem's name, which should be as
/// unique.
fn guid(subsystem: &str) -> [u8; 16] {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in subsystem.bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash.to_be_bytes()
}

fn milliseconds(number: u32) -> Option<Duration> {
    (number > 0).then(|| Duration::from_millis(number.into()))
}

/// What is under a lock is whole between any two statements, so a panic elsewhere does no harm to it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
