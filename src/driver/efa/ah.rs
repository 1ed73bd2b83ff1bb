//! Address handles.
//!
//! The device has one for each GID of a protection domain: some devices give its number again when it is
//! created once more, newer ones refuse. To destroy it aborts the requests of all who use it. The kernel's
//! driver counts the users since Linux 7.3 only, so this one counts those of its context.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uverbs_uapi::efa as abi;
use uverbs_uapi::handle::{AhHandle, PdHandle};

use crate::command::{Command, CommandFd, CreateAh, DriverData};
use crate::driver::answer;
use crate::error::{Result, Verb};

/// The address handles of a context.
#[derive(Debug, Default)]
pub(super) struct AddressHandles(Mutex<HashMap<Way, Known>>);

/// What distinguishes address handles. An EFA has one port with one GID; paths from others have an address
/// handle of their own, which the kernel refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Way {
    pd: PdHandle,
    port: u8,
    sgid_index: u8,
    dgid: Option<[u8; 16]>,
}

impl Way {
    fn of(command: &CreateAh) -> Self {
        let path = &command.attributes;
        Self {
            pd: command.pd,
            port: path.port_num,
            sgid_index: path.grh.sgid_index,
            dgid: (path.is_global != 0).then_some(path.grh.dgid),
        }
    }
}

/// An address handle that the kernel has.
#[derive(Clone, Copy, Debug)]
struct Known {
    handle: AhHandle,
    /// The device's number, which requests have.
    number: u16,
    users: usize,
}

impl AddressHandles {
    fn lock(&self) -> MutexGuard<'_, HashMap<Way, Known>> {
        // Its contents are consistent after every statement, so a panic elsewhere did no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an address handle, or adds a user to the one that there is.
    pub(super) fn create(&self, fd: &CommandFd, command: CreateAh) -> Result<(AhHandle, u16)> {
        self.add(Way::of(&command), || create(fd, command))
    }

    /// Adds a user; the first one creates the address handle, by `create`. The lock is held meanwhile, and
    /// also while one is destroyed: otherwise the device could get the two commands in the other order.
    fn add(
        &self,
        way: Way,
        create: impl FnOnce() -> Result<(AhHandle, u16)>,
    ) -> Result<(AhHandle, u16)> {
        let mut all = self.lock();
        if let Some(known) = all.get_mut(&way) {
            known.users += 1;
            return Ok((known.handle, known.number));
        }
        let (handle, number) = create()?;
        let known = Known {
            handle,
            number,
            users: 1,
        };
        all.insert(way, known);
        Ok((handle, number))
    }

    /// Removes a user, and with the last one the address handle, by `destroy`. If that fails, the user stays.
    pub(super) fn destroy(
        &self,
        handle: AhHandle,
        destroy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut all = self.lock();
        let found = all.iter_mut().find(|(_, known)| known.handle == handle);
        let Some((way, known)) = found else {
            return destroy();
        };
        if known.users > 1 {
            known.users -= 1;
            return Ok(());
        }
        // It is not among them during the command: if a subscriber of traces panics, nobody knows whether it
        // was destroyed, and nobody may get it any more.
        let (way, known) = (*way, *known);
        all.remove(&way);
        destroy().inspect_err(|_| _ = all.insert(way, known))
    }
}

fn create(fd: &CommandFd, mut command: CreateAh) -> Result<(AhHandle, u16)> {
    command.driver = DriverData::output::<abi::CreateAhResp>();
    let reply = fd.execute(&command)?;
    let answer = answer(Verb::CreateAh, || command.subject(), &reply.driver);
    let abi::CreateAhResp {
        efa_address_handle, ..
    } = answer.inspect_err(|_| fd.abandon(reply.handle))?;
    Ok((reply.handle, efa_address_handle))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use uverbs_uapi::types::{AhAttr, GlobalRoute};

    use super::*;
    use crate::error::{Errno, Error, Subject};

    fn way(pd: u32, last: u8, flow_label: u32) -> Way {
        let mut dgid = [0; 16];
        dgid[15] = last;
        Way::of(&CreateAh {
            pd: PdHandle(pd),
            attributes: AhAttr {
                grh: GlobalRoute {
                    dgid,
                    flow_label,
                    ..GlobalRoute::default()
                },
                is_global: 1,
                port_num: 1,
                ..AhAttr::default()
            },
            driver: DriverData::default(),
        })
    }

    fn refused() -> Result<()> {
        let subject = Subject::numbered("AH", 1);
        Err(Error::os(Verb::DestroyAh, subject, Errno::BUSY))
    }

    /// Would catch a second command for the same GID, and one that destroys the address handle of others.
    #[test]
    fn the_device_has_one_for_each_gid_of_a_domain() {
        let handles = AddressHandles::default();
        let commands = Cell::new(0);
        let create = |way| {
            let add = || {
                commands.set(commands.get() + 1);
                Ok((AhHandle(commands.get()), 100 + commands.get() as u16))
            };
            handles.add(way, add).unwrap()
        };
        assert_eq!(create(way(1, 1, 0)), (AhHandle(1), 101));
        assert_eq!(create(way(1, 1, 9)), (AhHandle(1), 101));
        assert_eq!(create(way(1, 2, 0)), (AhHandle(2), 102));
        assert_eq!(create(way(2, 1, 0)), (AhHandle(3), 103));
        let unexpected = || panic!("it has another user");
        handles.destroy(AhHandle(1), unexpected).unwrap();
        // A refusal leaves it with its last user.
        handles.destroy(AhHandle(1), refused).unwrap_err();
        assert_eq!(create(way(1, 1, 0)), (AhHandle(1), 101));
        handles.destroy(AhHandle(1), unexpected).unwrap();
        handles.destroy(AhHandle(1), || Ok(())).unwrap();
        assert_eq!(create(way(1, 1, 0)), (AhHandle(4), 104));
    }

    /// Would catch an address handle that another user gets after it was destroyed.
    #[test]
    fn nobody_gets_one_that_may_be_destroyed() {
        let handles = AddressHandles::default();
        let add = |number| handles.add(way(1, 1, 0), || Ok((AhHandle(number), number as u16)));
        assert_eq!(add(1).unwrap(), (AhHandle(1), 1));
        let destroy = || handles.destroy(AhHandle(1), || panic!("a subscriber of traces"));
        catch_unwind(AssertUnwindSafe(destroy)).unwrap_err();
        assert_eq!(add(2).unwrap(), (AhHandle(2), 2));
    }
}
