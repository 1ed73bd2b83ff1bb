//! Making and destroying objects, by the library and by the bare system calls.

mod bare;
mod frame;
mod memory;

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use uverbs::{
    Access, Caps, ConnectOptions, Context, Cq, Endpoint, Pd, Qp, Rc, mr::RawMemory, qp::Mtu,
};

use self::bare::Bare;
use self::memory::Mapping;
use crate::instructions::row;
use crate::serve::Until;

/// The kinds of object, by their names in requests, whose instructions are counted.
pub const INSTRUCTIONS: [&str; 4] = ["pd", "mr-4k", "cq", "qp"];

/// Entries of the completion queue that is made.
const CQ_ENTRIES: u32 = 256;

/// What is made and destroyed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum What {
    /// A protection domain.
    Pd,
    /// A memory region.
    Mr {
        /// Its length.
        bytes: usize,
        /// Whether it lies in huge pages.
        huge: bool,
    },
    /// A completion queue.
    Cq,
    /// A queue pair, taken to the state RTS.
    Qp,
}

impl FromStr for What {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let pages = |bytes| Self::Mr { bytes, huge: false };
        Ok(match name {
            "pd" => Self::Pd,
            "mr-4k" => pages(4 << 10),
            "mr-1m" => pages(1 << 20),
            "mr-256m" => pages(256 << 20),
            "mr-huge" => Self::Mr {
                bytes: 32 << 20,
                huge: true,
            },
            "cq" => Self::Cq,
            "qp" => Self::Qp,
            _ => bail!("nothing is named {name}"),
        })
    }
}

/// Makes and destroys an object by the library.
#[inline(never)]
#[unsafe(export_name = "op_ours")]
fn op_ours(control: &Control, what: What, memory: (NonNull<u8>, usize)) -> bool {
    control.ours(what, memory).is_ok()
}

/// Makes and destroys an object by the bare calls.
#[inline(never)]
#[unsafe(export_name = "op_bare")]
fn op_bare(control: &Control, what: What, memory: (NonNull<u8>, usize)) -> bool {
    control.bare(what, memory).is_ok()
}

/// What is needed to make objects.
pub struct Control {
    context: Context,
    pd: Pd,
    cq: Cq,
    /// What queue pairs connect to. It never answers, and nothing is sent.
    _peer: Qp<Rc>,
    endpoint: Endpoint,
    options: ConnectOptions,
    bare: Bare,
    /// Memory that is registered; kept from one request to the next.
    memory: Option<(What, Mapping)>,
}

impl Control {
    /// Makes what is needed.
    ///
    /// # Errors
    /// If the device refuses one of its objects.
    pub fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(CQ_ENTRIES)?;
        let peer = pd.create_qp::<Rc>(&cq, Caps::default())?;
        let gid_index = context.best_gid(1)?.map(|(index, _)| index);
        // All is said beforehand, so that connecting queries nothing.
        let options = ConnectOptions {
            gid_index,
            path_mtu: Some(Mtu::MTU_1024),
            ..ConnectOptions::default()
        };
        let endpoint = peer.endpoint_with(&options)?;
        let bare = Bare::new(
            context.as_fd().as_raw_fd(),
            context.driver_id().0,
            &pd,
            &cq,
            &endpoint,
            &options,
        )?;
        Ok(Self {
            context: context.clone(),
            pd,
            cq,
            _peer: peer,
            endpoint,
            options,
            bare,
            memory: None,
        })
    }

    /// Makes and destroys an object by the library and by the bare system calls, turn about, and gives the
    /// nanoseconds of each time: first the library's, then the bare calls', and so on.
    ///
    /// # Errors
    /// If the device refuses the object.
    pub fn run(&mut self, what: What, until: Until) -> Result<Vec<u64>> {
        let memory = self.memory(what)?;
        let mut times = Vec::new();
        let mut is_ours = false;
        // Twice the work for each sample that was asked for.
        for _ in 0..2 {
            times.extend(until.sample(|| {
                is_ours = !is_ours;
                if is_ours {
                    self.ours(what, memory)
                } else {
                    self.bare(what, memory)
                }
            })?);
        }
        Ok(times)
    }

    fn ours(&self, what: What, (address, length): (NonNull<u8>, usize)) -> Result<()> {
        match what {
            What::Pd => self.context.alloc_pd()?.dealloc()?,
            What::Cq => self.context.create_cq(CQ_ENTRIES)?.destroy()?,
            What::Mr { .. } => {
                // SAFETY: the mapping outlives the region, and no request uses it.
                let memory = unsafe { RawMemory::new(address, length) };
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let mr = self
                    .pd
                    .register(memory, access)
                    .map_err(|failed| failed.error)?;
                mr.deregister().map_err(|failed| failed.error)?;
            }
            What::Qp => {
                let mut qp = self.pd.create_qp::<Rc>(&self.cq, Caps::default())?;
                qp.connect_with(&self.endpoint, &self.options)?;
                qp.destroy()?;
            }
        }
        Ok(())
    }

    fn bare(&self, what: What, (address, length): (NonNull<u8>, usize)) -> Result<()> {
        match what {
            What::Pd => self.bare.pd()?,
            What::Cq => self.bare.cq(CQ_ENTRIES)?,
            What::Mr { .. } => self.bare.mr(address, length)?,
            What::Qp => self.bare.qp()?,
        }
        Ok(())
    }

    /// Makes and destroys each kind of object that [`INSTRUCTIONS`] names some times by the library and some
    /// times by the bare calls, for callgrind to count: the phases `NAME` and `NAME-bare`.
    ///
    /// # Errors
    /// If the device refuses an object.
    pub fn instructions(device: &str) -> Result<()> {
        let mut control = Self::new(&uverbs::open(device)?)?;
        for name in INSTRUCTIONS {
            let what = name.parse()?;
            let memory = control.memory(what)?;
            row(name, || {
                ensure!(op_ours(&control, what, memory), "{name} by the library");
                Ok(())
            })?;
            row(&format!("{name}-bare"), || {
                ensure!(op_bare(&control, what, memory), "{name} by bare calls");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The memory to register, all of it present; what is not to be registered gets a page.
    fn memory(&mut self, what: What) -> Result<(NonNull<u8>, usize)> {
        let (bytes, huge) = match what {
            What::Mr { bytes, huge } => (bytes, huge),
            _ => (4096, false),
        };
        if self.memory.as_ref().is_none_or(|(kept, _)| *kept != what) {
            self.memory = None;
            self.memory = Some((what, Mapping::new(bytes, huge)?));
        }
        match &self.memory {
            Some((_, mapping)) => Ok((mapping.address(), bytes)),
            None => bail!("no memory"),
        }
    }
}
