//! Commands to a device that a sandbox refuses, one after the other: by ioctl(2), and by write(2).

use libtest_mimic::Trial;
use support::refused::{Refused, tell};
use support::role::{self, Role};
use support::{
    Device, Result, completion, device, fail, is_full, only_on_rxe, open, skip, test_without_leaks,
};
use uverbs::context::{OpenOptions, Route};
use uverbs::{Access, Caps, ConnectOptions, Inline, Rc};

pub(crate) const ROLES: [Role; 2] = [
    ("each_by_ioctl", || tell(one_of_each(Route::Ioctl))),
    ("each_by_write", || tell(one_of_each(Route::Write))),
];

const ERRNOS: [&str; 3] = ["EPERM", "ENOSYS", "ENOMEM"];

pub(crate) fn tests() -> Vec<Trial> {
    let by_ioctl = ERRNOS.map(|errno| {
        let name = format!("refused::each_command_with_{}", errno.to_lowercase());
        test_without_leaks(name, move || each("ioctl", errno))
    });
    let by_write = ERRNOS.map(|errno| {
        let name = format!("refused::each_write_with_{}", errno.to_lowercase());
        test_without_leaks(name, move || {
            only_on_rxe("elsewhere rings and registers are made by commands that only ioctl has")?;
            each("write", errno)
        })
    });
    by_ioctl.into_iter().chain(by_write).collect()
}

/// Catches a command whose failure is not told or told of another verb, an object that is left, and a process
/// that hangs or panics.
fn each(call: &str, errno: &str) -> Result {
    if !is_full() {
        return skip("a process for each command: a part of `cargo vm test --full`");
    }
    if matches!(device(), Device::Efa) {
        return skip("the role's queue pair is a reliable connection, which an EFA lacks");
    }
    let file = uverbs::device::find(device().name())?.path();
    let file = file.ok_or("the device has no file")?;
    // By write(2) the whole table of GIDs is some thousand reads of sysfs, each of which strace stops at.
    let best = open()?.best_gid(1)?.map(|(index, _)| index.to_string());
    let mut arguments = vec![device().name()];
    arguments.extend(best.as_deref());
    let refused = Refused {
        role: &format!("each_by_{call}"),
        arguments: &arguments,
        call,
        file: Some(&file),
        errno,
    };
    refused.each(12)
}

/// Makes one object of each kind, uses them and lets them go.
fn one_of_each(route: Route) -> Result {
    let words = role::words()?;
    let [device, index @ ..] = &words[..] else {
        return fail("a device");
    };
    let options = ConnectOptions {
        gid_index: index.first().map(|index| index.parse()).transpose()?,
        ..ConnectOptions::default()
    };
    let device = uverbs::device::find(device)?;
    let context = OpenOptions::new().route(route).open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_channel()?;
    let mut cq = context.cq(16).channel(&channel).create()?;
    let srq = pd.srq(16).create()?;
    let mr = pd.register(vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let mr = mr.map_err(|failed| failed.error)?;
    let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let endpoint = qp.endpoint_with(&options)?;
    qp.connect_with(&endpoint, &options)?;
    // The doorbell is a command of soft-RoCE.
    let written = qp.one(1).write(Inline(b"here"), mr.remote().slice(..4)?);
    written.map_err(uverbs::Error::from)?;
    completion(&mut cq)?.ok()?;
    qp.reset()?;
    cq.resize(32)?;
    qp.destroy().map_err(|failed| failed.error)?;
    mr.deregister().map_err(|failed| failed.error)?;
    srq.destroy().map_err(|failed| failed.error)?;
    cq.destroy().map_err(|failed| failed.error)?;
    drop(channel);
    pd.dealloc().map_err(|failed| failed.error)?;
    Ok(())
}
