//! The macros that declare numbers. A number, its documentation and its name are in one line, so that
//! [`crate::names`] and the layout test cannot miss one.

/// Constants of an id space, and `IDS`, the table of all of them. `=>` gives the kernel's name if it differs
/// from the constant's.
macro_rules! ids {
    ($ty:ty, $prefix:literal;
     $($(#[$meta:meta])* $name:ident = $value:expr $(=> $kernel_name:literal)?;)*) => {
        $($(#[$meta])* pub const $name: $ty = $value;)*

        /// All ids of this module with their names.
        pub const IDS: $crate::names::Ids = $crate::names::Ids {
            prefix: $prefix,
            ids: &[$(($name as u32, kernel_name!($name $($kernel_name)?)),)*],
        };
    };
}

/// The kernel's name of a constant.
macro_rules! kernel_name {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $kernel_name:literal) => {
        $kernel_name
    };
}

/// A number of the ABI, with names for the values known here. `@within` gives values that only the kernel
/// uses, with its names: they never reach user space.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident, $prefix:literal;
     $($(#[$value_meta:meta])* $value_name:ident = $value:literal $(=> $kernel_name:literal)?;)*
     $(@within { $($(#[$own_meta:meta])* $own:ident = $own_value:literal => $own_name:literal;)* })?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$value_meta])* pub const $value_name: Self = Self($value);)*
            $($($(#[$own_meta])* pub const $own: Self = Self($own_value);)*)?

            /// The values known here with their names.
            pub const IDS: $crate::names::Ids = $crate::names::Ids {
                prefix: $prefix,
                ids: &[$(($value, kernel_name!($value_name $($kernel_name)?)),)*],
            };

            /// The name of the value in C programs or in the kernel, if it is known here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!($prefix, kernel_name!($value_name $($kernel_name)?))),)*
                    $($($own_value => Some($own_name),)*)?
                    _ => None,
                }
            }
        }

        /// The name, or the type and the number if there is none.
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }

        impl From<u8> for $name {
            fn from(value: u8) -> Self {
                Self(value.into())
            }
        }

        impl From<u32> for $name {
            fn from(value: u32) -> Self {
                Self(value)
            }
        }

        impl From<$name> for u32 {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}
