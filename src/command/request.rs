//! A request as a value: an ioctl method, its attributes and the bytes that they point to.
//!
//! It is built on the stack, in the form in which the kernel reads it, so that a command costs little in
//! addition to the system call: no allocation, nothing is copied twice, and if the compiler sees which
//! attributes there are, they are plain stores. Addresses point into the request's own bytes, and a note for
//! each says which bytes. So a request can be moved, compared, printed and replayed: if it has been moved,
//! its addresses are set again before the call. The kernel's answer is written into the same value. A write
//! command has this form too: it is the method `INVOKE_WRITE` with its core and driver parts as attributes
//! ([`super::write`] converts it to a buffer for write(2)).

use std::fmt;
use std::os::fd::RawFd;

use arrayvec::ArrayVec;
use smallvec::SmallVec;
use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, IoctlHdr, UHW_IN, UHW_OUT};
use uverbs_uapi::{attr, cmd, method, names, object};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::bytes::{Bytes, Piece};

/// The attributes of a request whose ids are the same for every command.
const CORE_IN: u16 = attr::invoke_write::CORE_IN;
const CORE_OUT: u16 = attr::invoke_write::CORE_OUT;
const WRITE_CMD: u16 = attr::invoke_write::WRITE_CMD;

/// An input of up to this many bytes is in the attribute itself.
const INLINE: usize = 8;

/// Room for attributes: no method has more.
const ATTRIBUTES: usize = 24;

/// Entries of the table by which attributes are found.
const PLACES: usize = 32;

/// The entry for an attribute's id: the ids of a method's attributes and of its driver's begin at two
/// different numbers.
#[inline]
fn place(id: u16) -> usize {
    usize::from(id ^ (id >> 8)) % PLACES
}

/// The defect of a kernel's answer.
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

/// Driver-private data of a command: its input, and room for the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverData {
    input: SmallVec<[u8; 64]>,
    output_len: usize,
    /// Attributes that only the driver has.
    attributes: SmallVec<[(u16, DriverAttr); 1]>,
}

/// The content of a driver's own attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each driver has its own ways of these")]
pub(crate) enum DriverAttr {
    U32(u32),
    U64(u64),
    /// The handle of an existing object.
    Handle(u32),
    /// An open file descriptor.
    Fd(RawFd),
    Input(Box<[u8]>),
    /// Room for an answer of this number of bytes, at most 65,535.
    Output(u16),
}

#[allow(dead_code, reason = "each driver has its own ways of these")]
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

    /// Whether there is neither input nor output.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty() && self.output_len == 0 && self.attributes.is_empty()
    }

    /// Adds an attribute of the driver's own. The command can then only be sent by its native method.
    pub(crate) fn with(mut self, id: u16, value: DriverAttr) -> Self {
        self.attributes.push((id, value));
        self
    }

    /// Adds a struct in an attribute that a newer kernel introduced, if `value` is some, like [`Self::with`].
    pub(crate) fn with_struct<T: IntoBytes + Immutable>(self, id: u16, value: Option<T>) -> Self {
        match value {
            Some(value) => self.with(id, DriverAttr::Input(value.as_bytes().into())),
            None => self,
        }
    }
}

/// The driver-private part of an answer.
pub(crate) type DriverReply = SmallVec<[u8; 64]>;

/// Reads a driver's private answer as its struct.
pub(crate) fn driver_reply<T: FromBytes>(reply: &DriverReply) -> Result<T, Malformed> {
    T::read_from_prefix(reply)
        .map(|(value, _)| value)
        .map_err(|_| Malformed::Short(UHW_OUT))
}

/// The content of an attribute, which its form alone does not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// The handle of an existing object.
    Handle,
    /// An open file descriptor.
    Fd,
    /// Room for a new handle or file descriptor from the kernel; all ones until then.
    New,
    /// A number: an input of 32 or 64 bits, or a constant that the kernel reads as 64 bits.
    Number,
    /// An input of at most eight bytes.
    Small,
    /// An input of more than eight bytes, in a piece of the request's own.
    Input,
    /// Room for an output in a piece of the request's own.
    Output,
}

/// The data about an attribute that its form does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    kind: Kind,
    /// The piece that an input or an output lies in.
    piece: Piece,
}

impl Note {
    /// The piece, if the attribute has an address.
    #[inline(always)]
    fn piece(self) -> Option<Piece> {
        matches!(self.kind, Kind::Input | Kind::Output).then_some(self.piece)
    }
}

/// The bytes before the attributes: as long as two of them, so that the header ends where they start.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    /// Not a part of the frame.
    unused: u64,
    header: IoctlHdr,
}

/// The length of the head, in attributes.
const HEAD: usize = size_of::<Head>() / size_of::<IoctlAttr>();

/// A method with its attributes; after the call, with the kernel's answers in them.
///
/// A new one is empty. [`Self::method`] or [`Self::write_command`] starts it, and the other methods add to
/// it, all in place: a request is too large to be moved cheaply.
pub(crate) struct Request {
    /// The frame of the ioctl as the kernel reads it: the head, and after it the attributes. Their addresses
    /// are valid only while the request is where it was made.
    frame: ArrayVec<IoctlAttr, { HEAD + ATTRIBUTES }>,
    /// The kind and the piece of each attribute.
    notes: [Note; ATTRIBUTES],
    /// For each [`place`], the number of its attribute, or of another attribute with the same place.
    places: [u8; PLACES],
    /// Attributes of the driver's own are among them.
    has_driver_attributes: bool,
    /// The address of the bytes when the request was started.
    home: usize,
    /// Inputs and outputs. They are not aligned, since both sides copy them.
    bytes: Bytes,
}

impl Request {
    /// An empty request.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            frame: ArrayVec::new(),
            notes: [Note {
                kind: Kind::Handle,
                piece: 0,
            }; ATTRIBUTES],
            places: [0; PLACES],
            has_driver_attributes: false,
            home: 0,
            bytes: Bytes::new(),
        }
    }

    /// True until it has been started.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    /// Whether it has attributes of the driver's own, which only a native method can have.
    #[inline]
    pub(crate) fn has_driver_attributes(&self) -> bool {
        self.has_driver_attributes
    }

    /// Starts a request for one of the kernel's ioctl methods.
    #[inline(always)]
    pub(crate) fn method(&mut self, object: u16, method: u16) -> &mut Self {
        debug_assert!(self.frame.is_empty(), "a request has one method");
        let head = Head {
            unused: 0,
            header: IoctlHdr {
                object_id: object,
                method_id: method,
                ..IoctlHdr::default()
            },
        };
        let head: [IoctlAttr; HEAD] = zerocopy::transmute!(head);
        for part in head {
            self.frame.push(part);
        }
        self.home = self.bytes.home();
        self
    }

    /// Starts a request for a write command: its core struct in, and room for its response `R`.
    ///
    /// For commands without the extended flag `core` starts with the response pointer if the command has a
    /// response. Its value does not matter, since it is set before sending.
    /// A struct that an array follows is given as its bytes.
    #[inline(always)]
    pub(crate) fn write_command<C: IntoBytes + Immutable + ?Sized, R>(
        &mut self,
        command: u32,
        core: &C,
    ) -> &mut Self {
        self.method(object::DEVICE, method::device::INVOKE_WRITE)
            .constant(WRITE_CMD, u64::from(command))
            .bytes(CORE_IN, core.as_bytes());
        if size_of::<R>() > 0 {
            self.output(CORE_OUT, size_of::<R>());
        }
        self
    }

    /// Adds the handle of an existing object.
    #[inline(always)]
    pub(crate) fn handle(&mut self, id: u16, handle: u32) -> &mut Self {
        self.push(Kind::Handle, id, 0, u64::from(handle))
    }

    /// Adds an open file descriptor.
    #[inline(always)]
    pub(crate) fn fd(&mut self, id: u16, fd: RawFd) -> &mut Self {
        self.push(Kind::Fd, id, 0, fd as i64 as u64)
    }

    /// Adds an open file descriptor if there is one.
    #[inline(always)]
    pub(crate) fn fd_if_any(&mut self, id: u16, fd: Option<RawFd>) -> &mut Self {
        match fd {
            Some(fd) => self.fd(id, fd),
            None => self,
        }
    }

    /// Adds room for a new object's handle or file descriptor from the kernel.
    #[inline(always)]
    pub(crate) fn new_object(&mut self, id: u16) -> &mut Self {
        self.push(Kind::New, id, 0, u64::MAX)
    }

    /// Adds a constant: an enumeration value, which the kernel requires to have exactly 64 bits.
    #[inline(always)]
    pub(crate) fn constant(&mut self, id: u16, value: u64) -> &mut Self {
        self.u64(id, value)
    }

    /// Adds an input of 32 bits or a set of flags.
    #[inline(always)]
    pub(crate) fn u32(&mut self, id: u16, value: u32) -> &mut Self {
        self.push(Kind::Number, id, 4, first_bytes(&value.to_ne_bytes()))
    }

    /// Adds an input of 64 bits.
    #[inline(always)]
    pub(crate) fn u64(&mut self, id: u16, value: u64) -> &mut Self {
        self.push(Kind::Number, id, 8, value)
    }

    /// Adds an input struct.
    #[inline(always)]
    pub(crate) fn input<T: IntoBytes + Immutable>(&mut self, id: u16, value: &T) -> &mut Self {
        self.bytes(id, value.as_bytes())
    }

    /// Adds an input array of at most 65,535 bytes.
    pub(crate) fn array<T: IntoBytes + Immutable>(&mut self, id: u16, values: &[T]) -> &mut Self {
        self.bytes(id, values.as_bytes())
    }

    /// Adds room for an output of `len` bytes, at most 65,535.
    #[inline(always)]
    pub(crate) fn output(&mut self, id: u16, len: usize) -> &mut Self {
        let piece = self.bytes.zeros(len);
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        self.push_piece(Kind::Output, id, len, piece)
    }

    /// Adds the driver's private part, if there is any.
    #[inline(always)]
    pub(crate) fn driver(&mut self, data: &DriverData) -> &mut Self {
        match data.is_empty() {
            true => self,
            false => self.driver_data(data),
        }
    }

    #[inline(always)]
    fn driver_data(&mut self, data: &DriverData) -> &mut Self {
        if !data.input.is_empty() {
            self.bytes(UHW_IN, &data.input);
        }
        if data.output_len > 0 {
            self.output(UHW_OUT, data.output_len);
        }
        for (id, value) in &data.attributes {
            self.has_driver_attributes = true;
            match value {
                DriverAttr::U32(value) => self.u32(*id, *value),
                DriverAttr::U64(value) => self.u64(*id, *value),
                DriverAttr::Handle(handle) => self.handle(*id, *handle),
                DriverAttr::Fd(fd) => self.fd(*id, *fd),
                DriverAttr::Input(bytes) => self.bytes(*id, bytes),
                DriverAttr::Output(len) => self.output(*id, usize::from(*len)),
            };
        }
        self
    }

    /// Adds room for an output of the driver's own, of `len` bytes.
    pub(crate) fn driver_output(&mut self, id: u16, len: usize) -> &mut Self {
        self.has_driver_attributes = true;
        self.output(id, len)
    }

    // Inlined, so that the compiler knows the number of bytes.
    #[inline(always)]
    fn bytes(&mut self, id: u16, bytes: &[u8]) -> &mut Self {
        let len = bytes.len() as u16;
        debug_assert_eq!(
            usize::from(len),
            bytes.len(),
            "inputs are structs of the ABI"
        );
        if bytes.len() <= INLINE {
            return self.push(Kind::Small, id, len, first_bytes(bytes));
        }
        let piece = self.bytes.copy(bytes);
        self.push_piece(Kind::Input, id, len, piece)
    }

    #[inline(always)]
    fn push_piece(&mut self, kind: Kind, id: u16, len: u16, piece: Piece) -> &mut Self {
        let address = self.bytes.address(piece);
        self.push_noted(Note { kind, piece }, id, len, address)
    }

    #[inline(always)]
    fn push(&mut self, kind: Kind, id: u16, len: u16, data: u64) -> &mut Self {
        self.push_noted(Note { kind, piece: 0 }, id, len, data)
    }

    #[inline(always)]
    fn push_noted(&mut self, note: Note, id: u16, len: u16, data: u64) -> &mut Self {
        let flags = match id {
            UHW_IN | UHW_OUT => AttrFlags::empty(),
            _ => AttrFlags::MANDATORY,
        };
        let number = self.count();
        self.places[place(id)] = number as u8;
        self.notes[number] = note;
        self.frame.push(IoctlAttr {
            attr_id: id,
            len,
            flags: flags.bits(),
            attr_data: 0,
            data,
        });
        self
    }

    /// The number of its attributes.
    #[inline(always)]
    fn count(&self) -> usize {
        self.frame.len().saturating_sub(HEAD)
    }

    fn header(&self) -> IoctlHdr {
        match self.frame.first_chunk::<HEAD>() {
            Some(head) => {
                let head: Head = zerocopy::transmute!(*head);
                head.header
            }
            None => IoctlHdr::default(),
        }
    }

    /// The attributes with their notes.
    #[inline]
    fn attributes(&self) -> impl Iterator<Item = (&IoctlAttr, Note)> {
        let attributes = self.frame.iter().skip(HEAD);
        attributes.zip(self.notes.iter().copied())
    }

    #[inline]
    fn find(&self, id: u16) -> Option<(&IoctlAttr, Note)> {
        let number = usize::from(self.places[place(id)]);
        match (self.frame.get(HEAD + number), self.notes.get(number)) {
            (Some(attribute), Some(note)) if attribute.attr_id == id => Some((attribute, *note)),
            _ => self.search(id),
        }
    }

    /// An attribute whose entry in the table another attribute has.
    #[cold]
    fn search(&self, id: u16) -> Option<(&IoctlAttr, Note)> {
        self.attributes()
            .find(|(attribute, _)| attribute.attr_id == id)
    }

    /// The bytes of an input or an output.
    #[inline]
    fn bytes_of(&self, piece: Piece, attribute: &IoctlAttr) -> &[u8] {
        let bytes = self.bytes.get(piece, attribute.len.into());
        bytes.unwrap_or_default()
    }
}

/// At most eight bytes in the order in which the kernel reads them from an attribute: from its first byte on,
/// whatever the byte order (`uverbs_copy_from` in `include/rdma/uverbs_ioctl.h`).
#[inline]
fn first_bytes(bytes: &[u8]) -> u64 {
    let mut data = [0; INLINE];
    data[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(data)
}

/// The kernel's answers.
impl Request {
    /// The handle of the object that was created, whatever the rest of the answer says. A write command
    /// returns it in the first word of its response, unless it is an extended one.
    pub(super) fn created(&self) -> Option<u32> {
        match self.write_number() {
            Some(command) if command & cmd::FLAG_EXTENDED == 0 => self.response().ok(),
            Some(_) => None,
            None => {
                let mut attributes = self.attributes();
                let (handle, _) = attributes.find(|(_, note)| note.kind == Kind::New)?;
                self.new_handle(handle.attr_id).ok()
            }
        }
    }

    /// The handle of the object that the command created.
    #[inline]
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

    #[inline]
    fn new_value(&self, id: u16) -> Result<u64, Malformed> {
        match self.find(id) {
            Some((attribute, note)) if note.kind == Kind::New && attribute.data != u64::MAX => {
                Ok(attribute.data)
            }
            _ => Err(Malformed::Missing(id)),
        }
    }

    /// The bytes of an output; zeros after what the kernel wrote.
    #[inline]
    pub(crate) fn answer_bytes(&self, id: u16) -> Result<&[u8], Malformed> {
        match self.find(id) {
            Some((attribute, note)) if note.kind == Kind::Output && is_written(attribute) => {
                Ok(self.bytes_of(note.piece, attribute))
            }
            _ => Err(Malformed::Missing(id)),
        }
    }

    /// An output, as its struct.
    #[inline]
    pub(crate) fn answer<T: FromBytes>(&self, id: u16) -> Result<T, Malformed> {
        let bytes = self.answer_bytes(id)?;
        T::read_from_prefix(bytes)
            .map(|(value, _)| value)
            .map_err(|_| Malformed::Short(id))
    }

    /// The response of a write command.
    #[inline]
    pub(crate) fn response<T: FromBytes>(&self) -> Result<T, Malformed> {
        self.answer(CORE_OUT)
    }

    /// The driver's private answer to `asked`; empty if none was requested or given.
    #[inline]
    pub(crate) fn driver_reply(&self, asked: &DriverData) -> DriverReply {
        if asked.output_len == 0 {
            return SmallVec::new();
        }
        match self.answer_bytes(UHW_OUT) {
            Ok(bytes) => SmallVec::from_slice(bytes),
            Err(_) => SmallVec::new(),
        }
    }
}

/// Whether the kernel has written an output.
#[inline]
fn is_written(attribute: &IoctlAttr) -> bool {
    AttrFlags::from_bits_retain(attribute.flags).contains(AttrFlags::VALID_OUTPUT)
}

/// Preparing the system call, and taking its result.
impl Request {
    /// Completes the frame for the kernel: the header, and addresses that point into the request where it is
    /// now.
    ///
    /// The addresses are valid until the request is moved or changed.
    #[inline(always)]
    pub(super) fn arm(&mut self, driver_id: u32) {
        if self.home != self.bytes.home() {
            self.aim();
        }
        let attributes = self.count();
        if let Some(head) = self.frame.first_chunk_mut::<HEAD>() {
            let head: &mut Head = zerocopy::transmute_mut!(head);
            head.header.length =
                (size_of::<IoctlHdr>() + attributes * size_of::<IoctlAttr>()) as u16;
            head.header.num_attrs = attributes as u16;
            head.header.driver_id = driver_id;
        }
    }

    /// Sets the addresses in a request that has been moved.
    #[cold]
    fn aim(&mut self) {
        self.home = self.bytes.home();
        for (attribute, note) in self.frame.iter_mut().skip(HEAD).zip(self.notes) {
            if let Some(piece) = note.piece() {
                attribute.data = self.bytes.address(piece);
            }
        }
    }

    /// The address of the frame.
    #[inline]
    pub(super) fn frame(&mut self) -> *mut u8 {
        let head = self.frame.as_mut_ptr().cast::<u8>();
        head.wrapping_add(size_of::<Head>() - size_of::<IoctlHdr>())
    }

    /// The frame as the kernel reads it.
    #[cfg(test)]
    pub(super) fn frame_bytes(&self) -> &[u8] {
        &self.frame.as_bytes()[size_of::<Head>() - size_of::<IoctlHdr>()..]
    }

    /// An attribute in the frame.
    #[cfg(test)]
    pub(super) fn attribute(&mut self, id: u16) -> Option<&mut IoctlAttr> {
        let mut attributes = self.frame.iter_mut().skip(HEAD);
        attributes.find(|attribute| attribute.attr_id == id)
    }

    /// The number of the write command, if this is one.
    pub(super) fn write_number(&self) -> Option<u32> {
        match self.find(WRITE_CMD) {
            Some((command, note)) if note.kind == Kind::Number && self.is_write_command() => {
                Some(command.data as u32)
            }
            _ => None,
        }
    }

    fn is_write_command(&self) -> bool {
        let header = self.header();
        (header.object_id, header.method_id) == (object::DEVICE, method::device::INVOKE_WRITE)
    }

    /// A write command's core struct and its driver's private input.
    pub(super) fn write_inputs(&self) -> (&[u8], &[u8]) {
        let bytes = |id| match self.find(id) {
            Some((attribute, note)) => match note.kind {
                Kind::Input => self.bytes_of(note.piece, attribute),
                Kind::Small => &attribute.data.as_bytes()[..usize::from(attribute.len)],
                _ => &[],
            },
            None => &[],
        };
        (bytes(CORE_IN), bytes(UHW_IN))
    }

    /// The room for a write command's response and for its driver's private output, in bytes.
    pub(super) fn write_outputs(&self) -> (usize, usize) {
        let room = |id| match self.find(id) {
            Some((attribute, note)) if note.kind == Kind::Output => usize::from(attribute.len),
            _ => 0,
        };
        (room(CORE_OUT), room(UHW_OUT))
    }

    /// Takes the response that write(2) wrote.
    pub(super) fn absorb_response(&mut self, core: &[u8], driver: &[u8]) {
        let Self {
            frame,
            notes,
            bytes,
            ..
        } = self;
        for (attribute, note) in frame.iter_mut().skip(HEAD).zip(notes.iter()) {
            let source = match (attribute.attr_id, note.kind) {
                (CORE_OUT, Kind::Output) => core,
                (UHW_OUT, Kind::Output) => driver,
                _ => continue,
            };
            let len = source.len().min(usize::from(attribute.len));
            if let Some(output) = bytes.get_mut(note.piece, len) {
                output.copy_from_slice(&source[..len]);
            }
            attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
        }
    }

    /// Forgets the handles that the kernel has written: there are no new objects.
    pub(super) fn forget_new(&mut self) {
        for (attribute, note) in self.frame.iter_mut().skip(HEAD).zip(&self.notes) {
            if note.kind == Kind::New {
                attribute.data = u64::MAX;
            }
        }
    }

    /// Fills every output with bytes from `source`, as a kernel that answers nonsense would.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn scramble(&mut self, mut source: impl FnMut() -> u64) {
        for (attribute, note) in self.frame.iter_mut().skip(HEAD).zip(&self.notes) {
            match note.kind {
                Kind::New if !source().is_multiple_of(4) => {
                    attribute.data = source() >> (source() % 64);
                }
                Kind::Output if !source().is_multiple_of(8) => {
                    attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
                }
                _ => {}
            }
        }
        for (attribute, note) in self.frame.iter().skip(HEAD).zip(&self.notes) {
            if note.kind != Kind::Output {
                continue;
            }
            let len = usize::from(attribute.len);
            let output = self.bytes.get_mut(note.piece, len).unwrap();
            output.fill_with(|| source() as u8);
        }
    }
}

/// Addresses are not compared.
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        let attribute = |(attribute, note): (&IoctlAttr, Note)| {
            let data = match note.piece() {
                Some(_) => 0,
                None => attribute.data,
            };
            (IoctlAttr { data, ..*attribute }, note)
        };
        let ids = |request: &Self| {
            let header = request.header();
            (header.object_id, header.method_id)
        };
        ids(self) == ids(other)
            && self
                .attributes()
                .map(attribute)
                .eq(other.attributes().map(attribute))
            && self.bytes == other.bytes
    }
}

impl Eq for Request {}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The request as a line of text: object, method, attributes by name with their values.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IoctlHdr {
            object_id,
            method_id,
            ..
        } = self.header();
        match self.write_number() {
            Some(command) => match names::command_name(command) {
                Some(name) => write!(f, "write {name}")?,
                None => write!(f, "write {command:#x}")?,
            },
            None => {
                let object = names::object_name(object_id).unwrap_or("object ?");
                let method = names::method_name(object_id, method_id).unwrap_or("method ?");
                write!(f, "{object}.{method}")?;
            }
        }
        for (attribute, note) in self.attributes() {
            if attribute.attr_id == WRITE_CMD && self.write_number().is_some() {
                continue;
            }
            match names::attr_name(object_id, method_id, attribute.attr_id) {
                Some(name) => write!(f, " {name}=")?,
                None => write!(f, " {:#x}=", attribute.attr_id)?,
            }
            self.fmt_value(attribute, note, f)?;
        }
        Ok(())
    }
}

impl Request {
    fn fmt_value(
        &self,
        attribute: &IoctlAttr,
        note: Note,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let IoctlAttr { len, data, .. } = *attribute;
        match note.kind {
            Kind::Handle => write!(f, "#{data}"),
            Kind::Fd => write!(f, "fd {}", data as i64),
            Kind::New if data == u64::MAX => f.write_str("new"),
            Kind::New => write!(f, "new #{data}"),
            Kind::Number if usize::from(len) == size_of::<u32>() => {
                let (value, _) = u32::read_from_prefix(data.as_bytes()).unwrap_or_default();
                write!(f, "{value:#x}")
            }
            Kind::Number => write!(f, "{data:#x}"),
            Kind::Small => fmt_hex(&data.as_bytes()[..usize::from(len)], f),
            Kind::Output if !is_written(attribute) => write!(f, "[{len} bytes]"),
            Kind::Input | Kind::Output => fmt_hex(self.bytes_of(note.piece, attribute), f),
        }
    }
}

/// Bytes in hexadecimal; long runs are truncated.
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
