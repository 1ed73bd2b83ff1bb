//! Requests as the trace prints them.

use uverbs_uapi::handle::PdHandle;

use crate::command::samples::*;
use crate::command::{AllocPd, Command, Destroy, DriverData, Request};

fn text(command: &impl Command, spelling: Spelling) -> String {
    request(command, spelling).unwrap().to_string()
}

#[test]
fn a_method_is_told_by_the_names_of_object_method_and_attributes() {
    assert_eq!(
        text(&Destroy(PdHandle(7)), Spelling::Native),
        "PD.DESTROY HANDLE=#7"
    );
    assert_eq!(
        text(&create_cq(), Spelling::Native),
        "CQ.CREATE HANDLE=new CQE=0x40 USER_HANDLE=0x100000005 COMP_VECTOR=0x1 RESP_CQE=[4 bytes] \
         COMP_CHANNEL=fd 9 EVENT_FD=fd 8 UHW_OUT=[16 bytes]"
    );
}

#[test]
fn a_write_command_is_told_by_its_name() {
    assert_eq!(
        text(&AllocPd::default(), Spelling::Write),
        "write ALLOC_PD CORE_IN=[0000000000000000 8 bytes] CORE_OUT=[4 bytes]"
    );
    let mut command = modify_qp();
    assert!(text(&command, Spelling::Write).starts_with("write MODIFY_QP CORE_IN=[eeee"));
    command.driver = DriverData::output::<u64>();
    assert!(text(&command, Spelling::Write).starts_with("write EX_MODIFY_QP"));
}

#[test]
fn what_has_no_name_is_told_by_its_number() {
    let mut request = Request::new();
    request.method(0xfff, 0xffe).u32(0xffd, 1);
    assert_eq!(request.to_string(), "object ?.method ? 0xffd=0x1");
    let mut request = Request::new();
    request.write_command::<_, ()>(0xffff, &0u64);
    assert!(request.to_string().starts_with("write 0xffff"));
}
