//! The device under test, and what tests must know of its ways: soft-RoCE, or the adapter of
//! `cargo vm test --hca`.
//!
//! A test says what verbs do; where devices differ by right, it asks here, so that each difference is told in
//! one place.

use uverbs::{
    AddressVector, Context,
    alloc::{Purpose, ResourceType},
    query::DeviceCapFlags,
};

use crate::{Result, fail};

/// A device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Soft-RoCE.
    Rxe,
    /// The software ConnectX under the kernel's mlx5 driver, with Ethernet or InfiniBand ports.
    Mlx5 {
        /// Whether its ports are Ethernet ones.
        roce: bool,
    },
    /// The software EFA under the kernel's efa driver.
    Efa,
}

/// Why a test of allocators cannot run.
const NOT_PLACED: &str = "the rings of an EFA are the kernel's and the device's";

/// The device under test, which is the guest's. `VM_HCA` tells of an adapter, as `connectx=2,roce` or
/// `efa=2`.
pub fn device() -> Device {
    match std::env::var("VM_HCA") {
        Ok(hca) if hca.starts_with("efa") => Device::Efa,
        Ok(hca) => Device::Mlx5 {
            roce: hca.split(',').any(|word| word == "roce"),
        },
        Err(_) => Device::Rxe,
    }
}

impl Device {
    /// Whether it is soft-RoCE.
    pub fn is_rxe(self) -> bool {
        self == Self::Rxe
    }

    /// Whether it is the software ConnectX.
    pub fn is_mlx5(self) -> bool {
        matches!(self, Self::Mlx5 { .. })
    }

    /// Inline bytes that every queue pair may ask for.
    pub fn inline(self) -> u32 {
        match self {
            Self::Rxe | Self::Mlx5 { .. } => 64,
            Self::Efa => 32,
        }
    }

    /// The name of the guest's first device.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe0",
            Self::Mlx5 { .. } => "mlx5_0",
            Self::Efa => "efa_0",
        }
    }

    /// Whether peers are named by GIDs. On InfiniBand they are named by LIDs, and datagrams come without a
    /// network header.
    pub fn has_gids(self) -> bool {
        self != Self::Mlx5 { roce: false }
    }

    /// Whether rdma-core's provider has raw packets on it, which this library and the model do not have.
    pub fn has_raw_packets(self) -> bool {
        self == Self::Mlx5 { roce: true }
    }

    /// Whether completions of datagrams tell that there is a global route header before the data. An EFA
    /// writes as many bytes there, and nobody says what they are.
    pub fn tells_headers(self) -> bool {
        match self {
            Self::Rxe | Self::Mlx5 { .. } => self.has_gids(),
            Self::Efa => false,
        }
    }

    /// Whether a request that fails takes those behind it with it, and the queue pair out of its state.
    pub fn fails_as_a_whole(self) -> bool {
        self != Self::Efa
    }

    /// Whether it has multicast groups.
    pub fn has_multicast(self) -> bool {
        self != Self::Efa
    }

    /// Whether its contexts can be imported.
    pub fn can_be_imported(self) -> bool {
        self != Self::Efa
    }

    /// Whether it has a clock of its own.
    pub fn has_clock(self) -> bool {
        self.is_mlx5()
    }

    /// The ring of a completion queue.
    pub fn cq_ring(self) -> ResourceType {
        match self {
            Self::Rxe => ResourceType::RXE_CQ,
            Self::Mlx5 { .. } => ResourceType::MLX5_CQ,
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// The ring of a shared receive queue.
    pub fn srq_ring(self) -> ResourceType {
        match self {
            Self::Rxe => ResourceType::RXE_SRQ,
            Self::Mlx5 { .. } => ResourceType::MLX5_SRQ,
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// What an allocator is asked for when a completion queue is created, in this order.
    pub fn cq_buffers(self) -> &'static [ResourceType] {
        match self {
            Self::Rxe => &[ResourceType::RXE_CQ],
            Self::Mlx5 { .. } => &[ResourceType::MLX5_CQ, ResourceType::MLX5_DBR],
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// What an allocator is asked for when a queue pair with receives of its own is created, in this order.
    pub fn qp_buffers(self) -> &'static [ResourceType] {
        match self {
            Self::Rxe => &[ResourceType::RXE_SEND, ResourceType::RXE_RECV],
            Self::Mlx5 { .. } => &[ResourceType::MLX5_QP, ResourceType::MLX5_DBR],
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// What an allocator is asked for when a queue pair that receives from a shared queue is created, in this
    /// order.
    pub fn qp_buffers_with_srq(self) -> &'static [ResourceType] {
        match self {
            Self::Rxe => &[ResourceType::RXE_SEND],
            Self::Mlx5 { .. } => &[ResourceType::MLX5_QP, ResourceType::MLX5_DBR],
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// What an allocator is asked for when a shared receive queue is created, in this order.
    pub fn srq_buffers(self) -> &'static [ResourceType] {
        match self {
            Self::Rxe => &[ResourceType::RXE_SRQ],
            Self::Mlx5 { .. } => &[ResourceType::MLX5_SRQ, ResourceType::MLX5_DBR],
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// Whether its driver gives a shared receive queue another size: mlx5's kernel driver has no such
    /// command.
    pub fn resizes_srqs(self) -> bool {
        self.is_rxe()
    }

    /// What the allocator's buffers are for: soft-RoCE maps the kernel's rings over them, hardware uses them
    /// as they are.
    pub fn purpose(self) -> Purpose {
        match self {
            Self::Rxe => Purpose::Place,
            Self::Mlx5 { .. } => Purpose::Memory,
            Self::Efa => panic!("{NOT_PLACED}"),
        }
    }

    /// How many completions beyond its capacity a completion queue holds before it overflows. Hardware has
    /// one spare entry. Soft-RoCE's ring is twice as large as asked for.
    pub fn spare_completions(self, capacity: u32) -> u64 {
        match self {
            Self::Rxe => u64::from(capacity) + 1,
            Self::Mlx5 { .. } => 1,
            Self::Efa => 0,
        }
    }
}

/// Opens the device under test: by its name, since an adapter's function that was away and came back is the
/// last in the list.
///
/// # Errors
/// If there is none, or it cannot be opened.
pub fn open() -> Result<Context> {
    Ok(uverbs::open(device().name())?)
}

/// Whether the device has all of these capabilities.
///
/// # Errors
/// If it cannot be asked.
pub fn has(context: &Context, capability: DeviceCapFlags) -> Result<bool> {
    Ok(context.query_device()?.capabilities.contains(capability))
}

/// The version of the running kernel, as (7, 2).
pub fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Registers a region once. The kernel's mlx5 driver creates a completion queue of its own at the first
/// registration, which would look like one that a test has left behind.
///
/// # Errors
/// If nothing can be registered.
pub fn settle(name: &str) -> Result {
    if !device().is_mlx5() {
        return Ok(());
    }
    let pd = uverbs::open(name)?.alloc_pd()?;
    pd.register(vec![0u8; 64], uverbs::Access::LOCAL_WRITE)?;
    Ok(())
}

/// The device's path to itself.
///
/// # Errors
/// If its port has no GID where one is needed, or cannot be asked.
pub fn own_path(context: &Context) -> Result<AddressVector> {
    if let Some((index, gid)) = context.best_gid(1)? {
        return Ok(AddressVector::global(1, index, gid));
    }
    if device().has_gids() {
        return fail("the port has no GID");
    }
    Ok(AddressVector::local(1, context.query_port(1)?.lid))
}
