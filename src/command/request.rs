//! A request as a value: an ioctl method, its attributes and the bytes that they point to.
//!
//! Pointers are kept as offsets into the request's own bytes until the moment of the system call, so a
//! request can be moved, compared, printed and replayed. The kernel's answer is written into the same
//! value. A write command has this shape too: it is the method `INVOKE_WRITE` with its core and driver
//! parts as attributes ([`super::write`] turns that into a buffer for write(2)).

use std::fmt;
use std::os::fd::RawFd;

use smallvec::{SmallVec, smallvec};
use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, UHW_IN, UHW_OUT};
use uverbs_uapi::{attr, method, names, object};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The attributes of a request whose ids are the same for every command.
const CORE_IN: u16 = attr::invoke_write::CORE_IN;
const CORE_OUT: u16 = attr::invoke_write::CORE_OUT;
const WRITE_CMD: u16 = attr::invoke_write::WRITE_CMD;

/// Up to this many bytes an input travels inside the attribute itself.
const INLINE: usize = 8;

/// Room that most commands do with. It is on the heap because a request is moved with each attribute that is
/// added: two allocations cost less than moving the room.
const USUAL_ATTRIBUTES: usize = 12;
const USUAL_BYTES: usize = 256;

/// What is wrong with a kernel's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The kernel did not write an output that the reply needs.
    Missing(u16),
    /// A handle or file descriptor is out of range.
    OutOfRange(u16, u64),
    /// An output is shorter than its struct.
    Short(u16),
    /// A value contradicts another or the request; the text says which.
    Contradicts(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Missing(id) => write!(f, "attribute {id:#x} was not written"),
            Malformed::OutOfRange(id, value) => {
                write!(f, "attribute {id:#x} holds {value:#x}, which is no handle")
            }
            Malformed::Short(id) => write!(f, "attribute {id:#x} is too short"),
            Malformed::Contradicts(what) => f.write_str(what),
        }
    }
}

/// Driver-private data of a command: what goes in, and how much may come out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverData {
    input: SmallVec<[u8; 64]>,
    output_len: usize,
    /// An attribute of the driver's own, with a value of 32 bits.
    extra: Option<(u16, u32)>,
}

impl DriverData {
    /// Input `input`, and no output.
    pub(crate) fn input<I: IntoBytes + Immutable>(input: &I) -> Self {
        Self {
            input: SmallVec::from_slice(input.as_bytes()),
            ..Self::default()
        }
    }

    /// No input, and room for an output of type `O`.
    pub(crate) fn output<O>() -> Self {
        Self {
            output_len: size_of::<O>(),
            ..Self::default()
        }
    }

    /// Input `input`, and room for an output of type `O`.
    pub(crate) fn exchange<I: IntoBytes + Immutable, O>(input: &I) -> Self {
        Self {
            output_len: size_of::<O>(),
            ..Self::input(input)
        }
    }

    /// Adds an attribute of the driver's own, which only the native spelling has.
    pub(crate) fn with(self, id: u16, value: u32) -> Self {
        Self {
            extra: Some((id, value)),
            ..self
        }
    }
}

/// What a driver answered privately.
pub(crate) type DriverReply = SmallVec<[u8; 64]>;

/// Reads a driver's private answer as its struct.
pub(crate) fn driver_reply<T: FromBytes>(reply: &DriverReply) -> Result<T, Malformed> {
    T::read_from_prefix(reply)
        .map(|(value, _)| value)
        .map_err(|_| Malformed::Short(UHW_OUT))
}

/// One attribute of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attribute {
    id: u16,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// The handle of an existing object.
    Handle(u32),
    /// An open file descriptor.
    Fd(RawFd),
    /// Where the kernel puts a new handle or file descriptor.
    New(Option<u64>),
    /// A constant that the kernel reads as 64 bits.
    Const(u64),
    /// An input of at most eight bytes, or flags.
    Small { data: u64, len: u16 },
    /// An input of more than eight bytes.
    Input { at: usize, len: u16 },
    /// Room for an output.
    Output { at: usize, len: u16, written: bool },
}

/// A method with its attributes; after the call, with the kernel's answers in them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Request {
    object: u16,
    method: u16,
    attributes: Vec<Attribute>,
    bytes: Vec<u8>,
}

impl Request {
    /// A request for one of the kernel's ioctl methods.
    pub(crate) fn method(object: u16, method: u16) -> Self {
        Self {
            object,
            method,
            attributes: Vec::with_capacity(USUAL_ATTRIBUTES),
            bytes: Vec::with_capacity(USUAL_BYTES),
        }
    }

    /// A request for a write command: its core struct in, and room for its response `R`.
    ///
    /// For commands without the extended flag `core` starts with the response pointer where the command
    /// has a response; it may be anything, since it is filled in on the way.
    pub(crate) fn write_command<C: IntoBytes + Immutable, R>(command: u32, core: &C) -> Self {
        let mut request = Self::method(object::DEVICE, method::device::INVOKE_WRITE)
            .constant(WRITE_CMD, u64::from(command))
            .bytes(CORE_IN, core.as_bytes());
        if size_of::<R>() > 0 {
            request = request.output(CORE_OUT, size_of::<R>());
        }
        request
    }

    /// Adds the handle of an existing object.
    pub(crate) fn handle(self, id: u16, handle: u32) -> Self {
        self.push(id, Value::Handle(handle))
    }

    /// Adds an open file descriptor.
    pub(crate) fn fd(self, id: u16, fd: RawFd) -> Self {
        self.push(id, Value::Fd(fd))
    }

    /// Adds the place where the kernel puts a new object's handle or file descriptor.
    pub(crate) fn new_object(self, id: u16) -> Self {
        self.push(id, Value::New(None))
    }

    /// Adds a constant: an enumeration value, which the kernel wants as exactly 64 bits.
    pub(crate) fn constant(self, id: u16, value: u64) -> Self {
        self.push(id, Value::Const(value))
    }

    /// Adds an input of 32 bits or a set of flags.
    pub(crate) fn u32(self, id: u16, value: u32) -> Self {
        self.push(
            id,
            Value::Small {
                data: u64::from(value),
                len: 4,
            },
        )
    }

    /// Adds an input of 64 bits.
    pub(crate) fn u64(self, id: u16, value: u64) -> Self {
        self.push(
            id,
            Value::Small {
                data: value,
                len: 8,
            },
        )
    }

    /// Adds an input struct.
    pub(crate) fn input<T: IntoBytes + Immutable>(self, id: u16, value: &T) -> Self {
        self.bytes(id, value.as_bytes())
    }

    /// Adds an input array of at most 65,535 bytes.
    pub(crate) fn array<T: IntoBytes + Immutable>(self, id: u16, values: &[T]) -> Self {
        self.bytes(id, values.as_bytes())
    }

    /// Adds room for an output of `len` bytes, at most 65,535.
    pub(crate) fn output(mut self, id: u16, len: usize) -> Self {
        let at = self.reserve(len);
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        self.push(
            id,
            Value::Output {
                at,
                len,
                written: false,
            },
        )
    }

    /// Adds the driver's private part, if there is any.
    pub(crate) fn driver(self, data: &DriverData) -> Self {
        let mut request = self;
        if !data.input.is_empty() {
            request = request.bytes(UHW_IN, &data.input);
        }
        if data.output_len > 0 {
            request = request.output(UHW_OUT, data.output_len);
        }
        if let Some((id, value)) = data.extra {
            request = request.u32(id, value);
        }
        request
    }

    fn bytes(mut self, id: u16, bytes: &[u8]) -> Self {
        let len = bytes.len() as u16;
        debug_assert_eq!(
            usize::from(len),
            bytes.len(),
            "inputs are structs of the ABI"
        );
        if bytes.len() <= INLINE && id != CORE_IN {
            let mut data = [0; INLINE];
            data[..bytes.len()].copy_from_slice(bytes);
            return self.push(
                id,
                Value::Small {
                    data: u64::from_ne_bytes(data),
                    len,
                },
            );
        }
        let at = self.reserve(bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.push(id, Value::Input { at, len })
    }

    /// Makes room for `len` zeroed bytes. They are not aligned, since both sides copy them.
    fn reserve(&mut self, len: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        at
    }

    fn push(mut self, id: u16, value: Value) -> Self {
        self.attributes.push(Attribute { id, value });
        self
    }

    fn value(&self, id: u16) -> Option<Value> {
        self.attributes
            .iter()
            .find(|attribute| attribute.id == id)
            .map(|attribute| attribute.value)
    }
}

/// The kernel's answers.
impl Request {
    /// The handle of the object that the command created.
    pub(crate) fn new_handle(&self, id: u16) -> Result<u32, Malformed> {
        let raw = self.new_value(id)?;
        u32::try_from(raw).map_err(|_| Malformed::OutOfRange(id, raw))
    }

    /// The file descriptor that the command created.
    pub(crate) fn new_fd(&self, id: u16) -> Result<RawFd, Malformed> {
        let raw = self.new_value(id)?;
        match RawFd::try_from(raw) {
            Ok(fd) if fd >= 0 => Ok(fd),
            _ => Err(Malformed::OutOfRange(id, raw)),
        }
    }

    fn new_value(&self, id: u16) -> Result<u64, Malformed> {
        match self.value(id) {
            Some(Value::New(Some(value))) => Ok(value),
            _ => Err(Malformed::Missing(id)),
        }
    }

    /// What the kernel wrote into an output; zeros where it wrote less than there was room for.
    pub(crate) fn answer_bytes(&self, id: u16) -> Result<&[u8], Malformed> {
        match self.value(id) {
            Some(Value::Output {
                at,
                len,
                written: true,
            }) => Ok(&self.bytes[at..at + usize::from(len)]),
            _ => Err(Malformed::Missing(id)),
        }
    }

    /// An output as its struct.
    pub(crate) fn answer<T: FromBytes>(&self, id: u16) -> Result<T, Malformed> {
        let bytes = self.answer_bytes(id)?;
        T::read_from_prefix(bytes)
            .map(|(value, _)| value)
            .map_err(|_| Malformed::Short(id))
    }

    /// The response of a write command.
    pub(crate) fn response<T: FromBytes>(&self) -> Result<T, Malformed> {
        self.answer(CORE_OUT)
    }

    /// The driver's private answer; empty if none was asked for or given.
    pub(crate) fn driver_reply(&self) -> DriverReply {
        self.answer_bytes(UHW_OUT)
            .map(SmallVec::from_slice)
            .unwrap_or_default()
    }
}

/// The two ends of the system call.
impl Request {
    pub(super) fn object_id(&self) -> u16 {
        self.object
    }

    pub(super) fn method_id(&self) -> u16 {
        self.method
    }

    /// The attributes as the ioctl wants them, with pointers into this request's bytes.
    ///
    /// The pointers are good until the request is moved or changed.
    pub(super) fn attributes(&mut self) -> SmallVec<[IoctlAttr; 16]> {
        let base = self.bytes.as_mut_ptr();
        let mut attributes = smallvec![];
        for attribute in &self.attributes {
            let (len, data) = match attribute.value {
                Value::Handle(handle) => (0, u64::from(handle)),
                Value::Fd(fd) => (0, fd as i64 as u64),
                Value::New(_) => (0, u64::MAX),
                Value::Const(value) => (INLINE as u16, value),
                Value::Small { data, len } => (len, data),
                // An input that the kernel takes inline whatever we call it.
                Value::Input { at, len } if usize::from(len) <= INLINE => {
                    (len, self.inline(at, len))
                }
                Value::Input { at, len } | Value::Output { at, len, .. } => {
                    (len, base.wrapping_add(at).expose_provenance() as u64)
                }
            };
            let flags = match attribute.id {
                UHW_IN | UHW_OUT => AttrFlags::empty(),
                _ => AttrFlags::MANDATORY,
            };
            attributes.push(IoctlAttr {
                attr_id: attribute.id,
                len,
                flags: flags.bits(),
                attr_data: 0,
                data,
            });
        }
        attributes
    }

    fn inline(&self, at: usize, len: u16) -> u64 {
        let mut data = [0; INLINE];
        let len = usize::from(len);
        data[..len].copy_from_slice(&self.bytes[at..at + len]);
        u64::from_ne_bytes(data)
    }

    /// Takes the kernel's answers out of the attributes that it was given.
    pub(super) fn absorb(&mut self, answered: &[IoctlAttr]) {
        for (attribute, answer) in self.attributes.iter_mut().zip(answered) {
            match &mut attribute.value {
                Value::New(value) if answer.data != u64::MAX => *value = Some(answer.data),
                Value::Output { written, .. } => {
                    *written =
                        AttrFlags::from_bits_retain(answer.flags).contains(AttrFlags::VALID_OUTPUT);
                }
                _ => {}
            }
        }
    }

    /// The number of the write command, if this is one.
    pub(super) fn write_number(&self) -> Option<u32> {
        match self.value(WRITE_CMD) {
            Some(Value::Const(command)) if self.method == method::device::INVOKE_WRITE => {
                Some(command as u32)
            }
            _ => None,
        }
    }

    /// A write command's core struct and its driver's private input.
    pub(super) fn write_inputs(&self) -> (&[u8], SmallVec<[u8; 64]>) {
        let core = match self.value(CORE_IN) {
            Some(Value::Input { at, len }) => &self.bytes[at..at + usize::from(len)],
            _ => &[],
        };
        let driver = match self.value(UHW_IN) {
            Some(Value::Input { at, len }) => {
                SmallVec::from_slice(&self.bytes[at..at + usize::from(len)])
            }
            Some(Value::Small { data, len }) => {
                SmallVec::from_slice(&data.to_ne_bytes()[..usize::from(len)])
            }
            _ => SmallVec::new(),
        };
        (core, driver)
    }

    /// The room for a write command's response and for its driver's private output, in bytes.
    pub(super) fn write_outputs(&self) -> (usize, usize) {
        let room = |id| match self.value(id) {
            Some(Value::Output { len, .. }) => usize::from(len),
            _ => 0,
        };
        (room(CORE_OUT), room(UHW_OUT))
    }

    /// Takes the response that write(2) left behind.
    pub(super) fn absorb_response(&mut self, core: &[u8], driver: &[u8]) {
        for attribute in &mut self.attributes {
            let source = match attribute.id {
                CORE_OUT => core,
                UHW_OUT => driver,
                _ => continue,
            };
            if let Value::Output { at, len, written } = &mut attribute.value {
                let len = source.len().min(usize::from(*len));
                self.bytes[*at..*at + len].copy_from_slice(&source[..len]);
                *written = true;
            }
        }
    }

    /// Fills every output with bytes from `source`, as a kernel that answers nonsense would.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn scramble(&mut self, mut source: impl FnMut() -> u64) {
        for attribute in &mut self.attributes {
            match &mut attribute.value {
                Value::New(value) => {
                    *value = (!source().is_multiple_of(4)).then(|| source() >> (source() % 64))
                }
                Value::Output { written, .. } => *written = !source().is_multiple_of(8),
                _ => {}
            }
        }
        for attribute in &self.attributes {
            if let Value::Output { at, len, .. } = attribute.value {
                self.bytes[at..at + usize::from(len)].fill_with(|| source() as u8);
            }
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The request as a line of text: object, method, attributes by name with their values.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.write_number() {
            Some(command) => match names::command_name(command) {
                Some(name) => write!(f, "write {name}")?,
                None => write!(f, "write {command:#x}")?,
            },
            None => {
                let object = names::object_name(self.object).unwrap_or("object ?");
                let method = names::method_name(self.object, self.method).unwrap_or("method ?");
                write!(f, "{object}.{method}")?;
            }
        }
        for attribute in &self.attributes {
            if attribute.id == WRITE_CMD && self.write_number().is_some() {
                continue;
            }
            match names::attr_name(self.object, self.method, attribute.id) {
                Some(name) => write!(f, " {name}=")?,
                None => write!(f, " {:#x}=", attribute.id)?,
            }
            self.fmt_value(attribute.value, f)?;
        }
        Ok(())
    }
}

impl Request {
    fn fmt_value(&self, value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match value {
            Value::Handle(handle) => write!(f, "#{handle}"),
            Value::Fd(fd) => write!(f, "fd {fd}"),
            Value::New(None) => f.write_str("new"),
            Value::New(Some(value)) => write!(f, "new #{value}"),
            Value::Const(value) | Value::Small { data: value, .. } => write!(f, "{value:#x}"),
            Value::Input { at, len } => fmt_hex(&self.bytes[at..at + usize::from(len)], f),
            Value::Output {
                len,
                written: false,
                ..
            } => write!(f, "[{len} bytes]"),
            Value::Output { at, len, .. } => fmt_hex(&self.bytes[at..at + usize::from(len)], f),
        }
    }
}

/// Bytes in hexadecimal, long runs cut.
fn fmt_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SHOWN: usize = 64;
    f.write_str("[")?;
    for chunk in bytes[..bytes.len().min(SHOWN)].chunks(8) {
        for byte in chunk {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(" ")?;
    }
    match bytes.len() {
        0..=SHOWN => write!(f, "{} bytes]", bytes.len()),
        len => write!(f, "… {len} bytes]"),
    }
}
