//! Checks that numbers have the names of the kernel's headers.

use uverbs_uapi::enums::{AsyncEventType, Mtu, QpType, Rate, WcStatus};
use uverbs_uapi::names::{attr_name, command_name, method_name, object_name};
use uverbs_uapi::{attr, cmd, ioctl, method, mlx5, object};

#[test]
fn core_ids_have_names() {
    assert_eq!(object_name(object::COMP_CHANNEL), Some("COMP_CHANNEL"));
    assert_eq!(method_name(object::CQ, method::cq::CREATE), Some("CREATE"));
    let name = attr_name(object::CQ, method::cq::CREATE, attr::create_cq::COMP_VECTOR);
    assert_eq!(name, Some("COMP_VECTOR"));
}

#[test]
fn the_same_number_means_something_else_on_each_method() {
    let name = |object, method| attr_name(object, method, 0);
    assert_eq!(
        name(object::DEVICE, method::device::INVOKE_WRITE),
        Some("CORE_IN")
    );
    assert_eq!(name(object::PD, method::pd::DESTROY), Some("HANDLE"));
}

#[test]
fn driver_data_is_named_where_a_method_carries_it() {
    let name = |method| attr_name(object::CQ, method, ioctl::UHW_IN);
    assert_eq!(name(method::cq::CREATE), Some("UHW_IN"));
    assert_eq!(name(method::cq::DESTROY), None);
}

#[test]
fn driver_ids_are_named_as_those_of_mlx5() {
    assert_eq!(object_name(mlx5::object::UAR), Some("UAR"));
    let name = attr_name(
        object::CQ,
        method::cq::CREATE,
        mlx5::attr::create_cq::UAR_INDEX,
    );
    assert_eq!(name, Some("UAR_INDEX"));
}

#[test]
fn commands_have_names_with_their_flag() {
    assert_eq!(command_name(cmd::CREATE_CQ), Some("CREATE_CQ"));
    assert_eq!(command_name(cmd::EX_CREATE_CQ), Some("EX_CREATE_CQ"));
    assert_eq!(command_name(cmd::FLAG_EXTENDED | cmd::ALLOC_PD), None);
}

#[test]
fn unknown_ids_have_none() {
    assert_eq!(object_name(999), None);
    assert_eq!(method_name(999, 0), None);
    assert_eq!(method_name(object::COMP_CHANNEL, 0), None);
    assert_eq!(attr_name(object::PD, method::pd::DESTROY, 31), None);
}

#[test]
fn enums_print_their_name_or_their_number() {
    assert_eq!(
        format!("{:?}", WcStatus::RNR_RETRY_EXC_ERR),
        "IBV_WC_RNR_RETRY_EXC_ERR"
    );
    assert_eq!(format!("{:?}", QpType(77)), "QpType(77)");
    assert_eq!(Rate::GBPS_2_5.name(), Some("IBV_RATE_2_5_GBPS"));
    assert_eq!(WcStatus(13).text(), Some("RNR retry counter exceeded"));
    assert_eq!(AsyncEventType(1000).text(), None);
}

#[test]
fn mtu_knows_its_bytes_and_nothing_else() {
    assert_eq!(Mtu::MTU_256.bytes(), Some(256));
    assert_eq!(Mtu::MTU_4096.bytes(), Some(4096));
    assert_eq!(Mtu(0).bytes(), None);
    assert_eq!(Mtu(6).bytes(), None);
}
