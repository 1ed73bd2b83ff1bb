//! The device's structures: commands, their answers, and the contexts of objects in them.
//!
//! A structure is a type that consists of its bytes. Its fields are constants of that type, with the names of
//! the kernel's header `include/linux/mlx5/mlx5_ifc.h` in capitals. Bits are counted from the first byte's
//! highest, as in that header. Not every field of the header is here, only those that commands of users need.
//!
//! ```
//! use uverbs::direct::mlx5::layout::{CreateCqIn, Cqc, Input, Structure};
//! let mut command = CreateCqIn::new();
//! command.inner_mut(CreateCqIn::CQ_CONTEXT).set(Cqc::LOG_CQ_SIZE, 6).set(Cqc::UAR_PAGE, 0x10);
//! assert_eq!(command.inner(CreateCqIn::CQ_CONTEXT).get(Cqc::LOG_CQ_SIZE), 6);
//! ```

mod capability;
mod dct;
mod general;
mod memory;
mod queue;
mod queue_pair;
#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;

pub use capability::{
    CmdHcaCap, CmdHcaCap2, QueryHcaCapIn, QueryHcaCapOut, QueryRoceAddressIn, QueryRoceAddressOut,
    RoceAddrLayout, RoceCap,
};
pub use dct::{CreateDctIn, CreateDctOut, Dctc};
pub use general::{GeneralObjInCmdHdr, GeneralObjOutCmdHdr};
pub use memory::{CreateMkeyIn, CreateMkeyOut, Klm, Mkc, QueryMkeyIn, QueryMkeyOut};
pub use queue::{
    Cqc, CreateCqIn, CreateCqOut, CreateRmpIn, CreateRmpOut, QueryCqIn, QueryCqOut, Rmpc, Wq,
};
pub use queue_pair::{
    Ads, CreateQpIn, CreateQpOut, Init2rtrQpIn, Qp2errIn, Qp2rstIn, QpModifyOut, Qpc, QueryQpIn,
    QueryQpOut, Rst2initQpIn, Rtr2rtsQpIn, Rts2rtsQpIn,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A field of a structure of the type `L`.
pub struct Field<L> {
    bit: usize,
    width: usize,
    of: PhantomData<fn() -> L>,
}

impl<L> Field<L> {
    /// A field with this number of bits, from this bit on. Its name is chosen by this library.
    pub(crate) const fn new(bit: usize, width: usize) -> Self {
        Self {
            bit,
            width,
            of: PhantomData,
        }
    }

    /// The first bit, counted from the structure's first byte's highest.
    pub const fn bit(self) -> usize {
        self.bit
    }

    /// Bits.
    pub const fn width(self) -> usize {
        self.width
    }
}

impl<L> Clone for Field<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Field<L> {}

impl<L> fmt::Debug for Field<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{}", self.bit, self.width)
    }
}

/// A structure of the type `P` inside one of the type `L`.
pub struct Inner<L, P> {
    /// Its first byte.
    at: usize,
    of: PhantomData<fn() -> (L, P)>,
}

impl<L, P> Inner<L, P> {
    pub(crate) const fn new(bit: usize) -> Self {
        Self {
            at: bit / 8,
            of: PhantomData,
        }
    }
}

impl<L, P> Clone for Inner<L, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, P> Copy for Inner<L, P> {}

impl<L, P> fmt::Debug for Inner<L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.at * 8)
    }
}

/// The bits of a byte that belong to a field: by how many bits they are shifted, and how many they are.
fn in_byte(bit: usize, width: usize, byte: usize) -> (usize, usize) {
    let first = bit.max(byte * 8) - byte * 8;
    let last = (bit + width - 1).min(byte * 8 + 7) - byte * 8;
    (7 - last, last - first + 1)
}

/// A structure of the device.
pub trait Structure: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The kernel's name, without `mlx5_ifc_` before it and `_bits` after it.
    const NAME: &'static str;

    /// The fields that are here: name, first bit and width.
    const FIELDS: &'static [(&'static str, usize, usize)];

    /// A field's value.
    ///
    /// # Panics
    ///
    /// If the field has more than 64 bits: use [`bytes`](Self::bytes) for those.
    fn get(&self, field: Field<Self>) -> u64 {
        assert!(field.width <= 64, "a field of {} bits", field.width);
        let bytes = self.as_bytes();
        let places = field.bit / 8..=(field.bit + field.width - 1) / 8;
        places.fold(0, |value, place| {
            let (shift, width) = in_byte(field.bit, field.width, place);
            let part = u64::from(bytes[place] >> shift) & ((1 << width) - 1);
            value << width | part
        })
    }

    /// Sets a field.
    ///
    /// # Panics
    ///
    /// If the value has more bits than the field, or the field has more than 64.
    fn set(&mut self, field: Field<Self>, value: u64) -> &mut Self {
        assert!(field.width <= 64, "a field of {} bits", field.width);
        let fits = field.width == 64 || value >> field.width == 0;
        assert!(fits, "{value:#x} in a field of {} bits", field.width);
        let bytes = self.as_mut_bytes();
        let mut left = value;
        for place in (field.bit / 8..=(field.bit + field.width - 1) / 8).rev() {
            let (shift, width) = in_byte(field.bit, field.width, place);
            let mask = (((1_u16 << width) - 1) as u8) << shift;
            bytes[place] = bytes[place] & !mask | (left as u8) << shift & mask;
            left = left.checked_shr(width as u32).unwrap_or(0);
        }
        self
    }

    /// The bytes of a field that consists of whole bytes, such as an address of 128 bits.
    ///
    /// # Panics
    ///
    /// If the field does not consist of whole bytes.
    fn bytes(&self, field: Field<Self>) -> &[u8] {
        assert!(field.bit.is_multiple_of(8) && field.width.is_multiple_of(8));
        &self.as_bytes()[field.bit / 8..][..field.width / 8]
    }

    /// Sets the bytes of a field that consists of whole bytes.
    ///
    /// # Panics
    ///
    /// If the field does not consist of whole bytes, or has another number of them.
    fn set_bytes(&mut self, field: Field<Self>, bytes: &[u8]) -> &mut Self {
        assert!(field.bit.is_multiple_of(8) && field.width == bytes.len() * 8);
        self.as_mut_bytes()[field.bit / 8..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// A structure inside this one.
    fn inner<P: Structure>(&self, inner: Inner<Self, P>) -> &P {
        let bytes = &self.as_bytes()[inner.at..][..size_of::<P>()];
        P::ref_from_bytes(bytes).unwrap_or_else(|_| unreachable!("bytes are aligned and as many"))
    }

    /// A structure inside this one, to change it.
    fn inner_mut<P: Structure>(&mut self, inner: Inner<Self, P>) -> &mut P {
        let bytes = &mut self.as_mut_bytes()[inner.at..][..size_of::<P>()];
        P::mut_from_bytes(bytes).unwrap_or_else(|_| unreachable!("bytes are aligned and as many"))
    }
}

/// The input of a command, which contains the opcode.
pub trait Input: Structure {
    /// The number of the command (`MLX5_CMD_OP_*`).
    const OPCODE: u16;

    /// The answer to the command.
    type Output: Structure;

    /// The command with its opcode, and zeros otherwise.
    fn new() -> Self {
        let mut input = Self::new_zeroed();
        input.as_mut_bytes()[..2].copy_from_slice(&Self::OPCODE.to_be_bytes());
        input
    }
}

/// Declares a structure: its kernel's name, its bytes, its fields as first bit and width, and the structures
/// in it.
macro_rules! structure {
    (
        $(#[$doc:meta])*
        $Name:ident = $kernel:literal, $bytes:literal {
            $($(#[$field_doc:meta])* $FIELD:ident: $bit:literal, $width:literal;)*
            $([$INNER:ident: $Inner:ty = $inner_bit:literal];)*
        }
        $(command $opcode:literal => $Output:ty)?
    ) => {
        $(#[$doc])*
        ///
        #[doc = concat!("`mlx5_ifc_", $kernel, "_bits`, ", stringify!($bytes), " bytes.")]
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(transparent)]
        pub struct $Name([u8; $bytes]);

        impl $Name {
            $(
                $(#[$field_doc])*
                #[doc = concat!("From bit `", stringify!($bit), "` on, bits: ", stringify!($width), ".")]
                pub const $FIELD: crate::direct::mlx5::layout::Field<Self> =
                    crate::direct::mlx5::layout::Field::new($bit, $width);
            )*
            $(
                #[doc = concat!("From bit `", stringify!($inner_bit), "` on.")]
                pub const $INNER: crate::direct::mlx5::layout::Inner<Self, $Inner> =
                    crate::direct::mlx5::layout::Inner::new($inner_bit);
            )*
        }

        impl crate::direct::mlx5::layout::Structure for $Name {
            const NAME: &'static str = $kernel;
            const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $((stringify!($FIELD), $bit, $width),)*
                $((stringify!($INNER), $inner_bit, size_of::<$Inner>() * 8),)*
            ];
        }

        impl Default for $Name {
            fn default() -> Self {
                Self([0; $bytes])
            }
        }

        /// The fields that are not zero.
        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::direct::mlx5::layout::fmt(self, f)
            }
        }

        $(
            impl crate::direct::mlx5::layout::Input for $Name {
                const OPCODE: u16 = $opcode;
                type Output = $Output;
            }
        )?
    };
}
use structure;

fn fmt<L: Structure>(structure: &L, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut shown = f.debug_struct(L::NAME);
    for (name, bit, width) in L::FIELDS {
        let field = Field::new(*bit, *width);
        if *width > 64 {
            let bytes = structure.bytes(field);
            if bytes.iter().any(|byte| *byte != 0) {
                shown.field(name, &bytes);
            }
        } else if structure.get(field) != 0 {
            shown.field(name, &format_args!("{:#x}", structure.get(field)));
        }
    }
    shown.finish_non_exhaustive()
}

structure! {
    /// The header of every command: this one has nothing else.
    Header = "qp_2err_in", 16 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
    }
}

structure! {
    /// The header of every answer: this one has nothing else.
    Answer = "qp_2err_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
    }
}
