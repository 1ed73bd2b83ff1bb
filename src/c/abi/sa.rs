//! Paths in the subnet administrator's form (`<infiniband/sa.h>`).

use std::ffi::c_int;
use std::mem::offset_of;

use super::port::ibv_gid;

/// Numbers of 16 bits and the flow label are in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

const _: () = {
    assert!(size_of::<ibv_sa_path_rec>() == 64);
    assert!(offset_of!(ibv_sa_path_rec, flow_label) == 40);
    assert!(offset_of!(ibv_sa_path_rec, pkey) == 54);
    assert!(offset_of!(ibv_sa_path_rec, preference) == 63);
};
