//! The fallback from way to way on a file that is no uverbs device: its ioctl is ENOTTY, as on kernels before
//! the uverbs ioctl, and the test can read what is written to it.

use std::os::fd::OwnedFd;

use uverbs_uapi::cmd;
use uverbs_uapi::handle::XrcdHandle;
use uverbs_uapi::write::CmdHdr;
use zerocopy::FromBytes;

use crate::command::samples::*;
use crate::command::{
    AllocAsyncFd, AllocPd, Command, CommandFd, DriverAttr, OpenQp, QueryQp, Route,
};
use crate::error::{Errno, Verb};

fn file(route: Route) -> (OwnedFd, CommandFd) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (read, CommandFd::new(write, 14, route))
}

/// The number of the one command that was written.
fn written(read: &OwnedFd) -> u32 {
    let mut buffer = [0; 512];
    let length = rustix::io::read(read, &mut buffer).unwrap();
    let (header, _) = CmdHdr::read_from_prefix(&buffer).unwrap();
    assert_eq!(
        usize::from(header.in_words) * 4,
        length,
        "one write a command"
    );
    header.command
}

#[test]
fn a_file_without_the_ioctl_gets_write_commands() {
    let (read, fd) = file(Route::Best);
    for _ in 0..2 {
        // Nothing answers, so the room for the answer is unchanged.
        fd.execute(&create_cq()).unwrap();
        assert_eq!(written(&read), 18);
        fd.execute(&AllocPd::default()).unwrap();
        assert_eq!(written(&read), 3);
    }
}

#[test]
fn what_has_no_write_command_is_not_supported_then() {
    let (_read, fd) = file(Route::Best);
    let error = fd.execute(&AllocAsyncFd).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert_eq!(error.verb(), Verb::AllocAsyncFd);
}

#[test]
fn where_write_is_not_allowed_nothing_is_written() {
    let (read, fd) = file(Route::Ioctl);
    let error = fd.execute(&create_cq()).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    drop(fd);
    assert_eq!(rustix::io::read(&read, &mut [0; 8]).unwrap(), 0);
}

#[test]
fn the_kernels_refusal_comes_with_verb_object_and_errno() {
    let (read, fd) = file(Route::Write);
    drop(read);
    let command = QueryQp {
        qp: QP,
        attr_mask: 1,
    };
    let error = fd.execute(&command).unwrap_err();
    assert_eq!(error.verb(), QueryQp::VERB);
    assert_eq!(error.errno(), Some(Errno::PIPE));
    assert!(error.to_string().contains("119"), "{error}");
}

#[test]
fn a_command_with_attributes_of_the_drivers_own_is_not_sent_without_them() {
    let mut command = create_cq();
    command.driver = command.driver.with(0x1007, DriverAttr::U32(0x1_0000));
    for route in [Route::Best, Route::Write] {
        let (read, fd) = file(route);
        let error = fd.execute(&command).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        drop(fd);
        assert_eq!(rustix::io::read(&read, &mut [0; 8]).unwrap(), 0);
    }
}

#[test]
fn what_was_created_with_an_answer_that_makes_no_sense_is_destroyed() {
    let (read, fd) = file(Route::Write);
    // Nothing answers, so the opened queue pair seems to have the number 0.
    let command = OpenQp {
        xrcd: XrcdHandle(1),
        qpn: 17,
        user_handle: 0,
    };
    let error = fd.execute(&command).unwrap_err();
    assert_eq!(error.verb(), Verb::OpenQp);
    let mut buffer = [0; 512];
    let length = rustix::io::read(&read, &mut buffer).unwrap();
    let mut rest = &buffer[..length];
    let mut commands = Vec::new();
    while let Ok((header, _)) = CmdHdr::read_from_prefix(rest) {
        commands.push(header.command);
        rest = &rest[usize::from(header.in_words) * 4..];
    }
    assert_eq!(commands, [cmd::OPEN_QP, cmd::DESTROY_QP]);
}
