//! From numbers back to names, so that traces can be read. Names are the kernel's without their
//! common prefix.
//!
//! Numbers of the driver namespace mean something else on each driver; they are named as mlx5's,
//! the only driver here that has any.

use crate::{attr, cmd, ioctl, method, mlx5, object};

/// The ids of one id space with their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// What stands before every name in the kernel's headers.
    pub prefix: &'static str,
    /// Number and name without the prefix, in the order of the numbers.
    pub ids: &'static [(u32, &'static str)],
}

impl Ids {
    /// The name of a number, without the prefix.
    #[must_use]
    pub fn name(&self, id: u32) -> Option<&'static str> {
        self.ids
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, name)| *name)
    }
}

/// An object type with its methods.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The object type.
    pub id: u16,
    /// Its methods, the core's and the driver's.
    pub methods: &'static [Ids],
    /// For each method the attributes, the core's and the driver's.
    pub attrs: &'static [(u16, &'static [Ids])],
}

/// All object types, core and driver.
pub const OBJECT_IDS: &[Ids] = &[object::IDS, mlx5::object::IDS];

/// Name of an object type: `CQ`.
#[must_use]
pub fn object_name(object: u16) -> Option<&'static str> {
    find(OBJECT_IDS, object)
}

/// Name of a method: `CREATE` of a CQ.
#[must_use]
pub fn method_name(object: u16, method: u16) -> Option<&'static str> {
    find(lookup(object)?.methods, method)
}

/// Name of an attribute: `COMP_CHANNEL`.
#[must_use]
pub fn attr_name(object: u16, method: u16, attr: u16) -> Option<&'static str> {
    let (_, attrs) = lookup(object)?.attrs.iter().find(|(id, _)| *id == method)?;
    find(attrs, attr)
}

/// Name of a command of the write interface: `ALLOC_PD`, and `EX_CREATE_CQ` with
/// [`cmd::FLAG_EXTENDED`].
#[must_use]
pub fn command_name(command: u32) -> Option<&'static str> {
    cmd::IDS.name(command)
}

fn find(tables: &[Ids], id: u16) -> Option<&'static str> {
    tables.iter().find_map(|table| table.name(id.into()))
}

fn lookup(object: u16) -> Option<&'static Object> {
    OBJECTS.iter().find(|known| known.id == object)
}

/// Every object type with its methods and their attributes.
pub const OBJECTS: &[Object] = &[
    Object {
        id: object::DEVICE,
        methods: &[method::device::IDS, mlx5::method::device::IDS],
        attrs: &[
            (
                method::device::INVOKE_WRITE,
                &[attr::invoke_write::IDS, ioctl::IDS],
            ),
            (method::device::QUERY_PORT, &[attr::query_port::IDS]),
            (
                method::device::QUERY_PORT_SPEED,
                &[attr::query_port_speed::IDS],
            ),
            (
                method::device::QUERY_COMP_CNTR_CAPS,
                &[attr::query_comp_cntr_caps::IDS],
            ),
            (
                method::device::GET_CONTEXT,
                &[attr::get_context::IDS, ioctl::IDS],
            ),
            (
                method::device::QUERY_CONTEXT,
                &[attr::query_context::IDS, mlx5::attr::query_context::IDS],
            ),
            (method::device::INFO_HANDLES, &[attr::info_handles::IDS]),
            (
                method::device::QUERY_GID_TABLE,
                &[attr::query_gid_table::IDS],
            ),
            (
                method::device::QUERY_GID_ENTRY,
                &[attr::query_gid_entry::IDS],
            ),
            (
                mlx5::method::device::QUERY_PORT,
                &[mlx5::attr::query_port::IDS],
            ),
            (
                mlx5::method::device::GET_DATA_DIRECT_SYSFS_PATH,
                &[mlx5::attr::get_data_direct_sysfs_path::IDS],
            ),
        ],
    },
    Object {
        id: object::PD,
        methods: &[method::pd::IDS, mlx5::method::pd::IDS],
        attrs: &[
            (method::pd::DESTROY, &[attr::destroy_pd::IDS]),
            (mlx5::method::pd::QUERY, &[mlx5::attr::query_pd::IDS]),
        ],
    },
    Object {
        id: object::COMP_CHANNEL,
        methods: &[],
        attrs: &[],
    },
    Object {
        id: object::CQ,
        methods: &[method::cq::IDS],
        attrs: &[
            (
                method::cq::CREATE,
                &[attr::create_cq::IDS, ioctl::IDS, mlx5::attr::create_cq::IDS],
            ),
            (method::cq::DESTROY, &[attr::destroy_cq::IDS]),
        ],
    },
    Object {
        id: object::QP,
        methods: &[method::qp::IDS],
        attrs: &[
            (
                method::qp::CREATE,
                &[attr::create_qp::IDS, ioctl::IDS, mlx5::attr::create_qp::IDS],
            ),
            (method::qp::DESTROY, &[attr::destroy_qp::IDS]),
            (
                method::qp::ATTACH_COMP_CNTR,
                &[attr::qp_attach_comp_cntr::IDS],
            ),
        ],
    },
    Object {
        id: object::SRQ,
        methods: &[method::srq::IDS],
        attrs: &[
            (
                method::srq::CREATE,
                &[
                    attr::create_srq::IDS,
                    ioctl::IDS,
                    mlx5::attr::create_srq::IDS,
                ],
            ),
            (method::srq::DESTROY, &[attr::destroy_srq::IDS]),
        ],
    },
    Object {
        id: object::AH,
        methods: &[method::ah::IDS],
        attrs: &[(method::ah::DESTROY, &[attr::destroy_ah::IDS])],
    },
    Object {
        id: object::MR,
        methods: &[method::mr::IDS],
        attrs: &[
            (method::mr::DM_REG, &[attr::reg_dm_mr::IDS]),
            (method::mr::DESTROY, &[attr::destroy_mr::IDS]),
            (method::mr::ADVISE, &[attr::advise_mr::IDS]),
            (method::mr::QUERY, &[attr::query_mr::IDS]),
            (
                method::mr::REG_DMABUF,
                &[attr::reg_dmabuf_mr::IDS, mlx5::attr::reg_dmabuf_mr::IDS],
            ),
            (method::mr::REG, &[attr::reg_mr::IDS, ioctl::IDS]),
        ],
    },
    Object {
        id: object::MW,
        methods: &[method::mw::IDS],
        attrs: &[(method::mw::DESTROY, &[attr::destroy_mw::IDS])],
    },
    Object {
        id: object::FLOW,
        methods: &[method::flow::IDS, mlx5::method::flow::IDS],
        attrs: &[
            (method::flow::DESTROY, &[attr::destroy_flow::IDS]),
            (mlx5::method::flow::CREATE, &[mlx5::attr::create_flow::IDS]),
            (
                mlx5::method::flow::DESTROY,
                &[mlx5::attr::destroy_flow::IDS],
            ),
        ],
    },
    Object {
        id: object::XRCD,
        methods: &[method::xrcd::IDS],
        attrs: &[(method::xrcd::DESTROY, &[attr::destroy_xrcd::IDS])],
    },
    Object {
        id: object::RWQ_IND_TBL,
        methods: &[method::rwq_ind_tbl::IDS],
        attrs: &[(
            method::rwq_ind_tbl::DESTROY,
            &[attr::destroy_rwq_ind_tbl::IDS],
        )],
    },
    Object {
        id: object::WQ,
        methods: &[method::wq::IDS],
        attrs: &[
            (method::wq::CREATE, &[attr::create_wq::IDS, ioctl::IDS]),
            (method::wq::DESTROY, &[attr::destroy_wq::IDS]),
        ],
    },
    Object {
        id: object::FLOW_ACTION,
        methods: &[method::flow_action::IDS, mlx5::method::flow_action::IDS],
        attrs: &[
            (
                method::flow_action::ESP_CREATE,
                &[
                    attr::create_flow_action_esp::IDS,
                    mlx5::attr::create_flow_action::IDS,
                ],
            ),
            (
                method::flow_action::ESP_MODIFY,
                &[attr::modify_flow_action_esp::IDS],
            ),
            (
                method::flow_action::DESTROY,
                &[attr::destroy_flow_action::IDS],
            ),
            (
                mlx5::method::flow_action::CREATE_MODIFY_HEADER,
                &[mlx5::attr::create_modify_header::IDS],
            ),
            (
                mlx5::method::flow_action::CREATE_PACKET_REFORMAT,
                &[mlx5::attr::create_packet_reformat::IDS],
            ),
        ],
    },
    Object {
        id: object::DM,
        methods: &[method::dm::IDS, mlx5::method::dm::IDS],
        attrs: &[
            (
                method::dm::ALLOC,
                &[attr::alloc_dm::IDS, mlx5::attr::alloc_dm::IDS],
            ),
            (method::dm::FREE, &[attr::free_dm::IDS]),
            (
                mlx5::method::dm::MAP_OP_ADDR,
                &[mlx5::attr::dm_map_op_addr::IDS],
            ),
            (mlx5::method::dm::QUERY, &[mlx5::attr::query_dm::IDS]),
        ],
    },
    Object {
        id: object::COUNTERS,
        methods: &[method::counters::IDS],
        attrs: &[
            (method::counters::CREATE, &[attr::create_counters::IDS]),
            (method::counters::DESTROY, &[attr::destroy_counters::IDS]),
            (method::counters::READ, &[attr::read_counters::IDS]),
        ],
    },
    Object {
        id: object::ASYNC_EVENT,
        methods: &[method::async_event::IDS],
        attrs: &[(method::async_event::ALLOC, &[attr::async_event_alloc::IDS])],
    },
    Object {
        id: object::DMAH,
        methods: &[method::dmah::IDS],
        attrs: &[
            (method::dmah::ALLOC, &[attr::alloc_dmah::IDS]),
            (method::dmah::FREE, &[attr::free_dmah::IDS]),
        ],
    },
    Object {
        id: object::DMABUF,
        methods: &[method::dmabuf::IDS],
        attrs: &[(method::dmabuf::ALLOC, &[attr::alloc_dmabuf::IDS])],
    },
    Object {
        id: object::COMP_CNTR,
        methods: &[method::comp_cntr::IDS],
        attrs: &[
            (method::comp_cntr::CREATE, &[attr::create_comp_cntr::IDS]),
            (method::comp_cntr::DESTROY, &[attr::destroy_comp_cntr::IDS]),
            (method::comp_cntr::MODIFY, &[attr::modify_comp_cntr::IDS]),
            (method::comp_cntr::READ, &[attr::read_comp_cntr::IDS]),
        ],
    },
    Object {
        id: mlx5::object::DEVX,
        methods: &[mlx5::method::devx::IDS],
        attrs: &[
            (mlx5::method::devx::OTHER, &[mlx5::attr::devx_other::IDS]),
            (
                mlx5::method::devx::QUERY_UAR,
                &[mlx5::attr::devx_query_uar::IDS],
            ),
            (
                mlx5::method::devx::QUERY_EQN,
                &[mlx5::attr::devx_query_eqn::IDS],
            ),
            (
                mlx5::method::devx::SUBSCRIBE_EVENT,
                &[mlx5::attr::devx_subscribe_event::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::DEVX_OBJ,
        methods: &[mlx5::method::devx_obj::IDS],
        attrs: &[
            (
                mlx5::method::devx_obj::CREATE,
                &[mlx5::attr::devx_obj_create::IDS],
            ),
            (
                mlx5::method::devx_obj::DESTROY,
                &[mlx5::attr::devx_obj_destroy::IDS],
            ),
            (
                mlx5::method::devx_obj::MODIFY,
                &[mlx5::attr::devx_obj_modify::IDS],
            ),
            (
                mlx5::method::devx_obj::QUERY,
                &[mlx5::attr::devx_obj_query::IDS],
            ),
            (
                mlx5::method::devx_obj::ASYNC_QUERY,
                &[mlx5::attr::devx_obj_query_async::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::DEVX_UMEM,
        methods: &[mlx5::method::devx_umem::IDS],
        attrs: &[
            (
                mlx5::method::devx_umem::REG,
                &[mlx5::attr::devx_umem_reg::IDS],
            ),
            (
                mlx5::method::devx_umem::DEREG,
                &[mlx5::attr::devx_umem_dereg::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::FLOW_MATCHER,
        methods: &[mlx5::method::flow_matcher::IDS],
        attrs: &[
            (
                mlx5::method::flow_matcher::CREATE,
                &[mlx5::attr::flow_matcher_create::IDS],
            ),
            (
                mlx5::method::flow_matcher::DESTROY,
                &[mlx5::attr::flow_matcher_destroy::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::DEVX_ASYNC_CMD_FD,
        methods: &[mlx5::method::devx_async_cmd_fd::IDS],
        attrs: &[(
            mlx5::method::devx_async_cmd_fd::ALLOC,
            &[mlx5::attr::devx_async_cmd_fd_alloc::IDS],
        )],
    },
    Object {
        id: mlx5::object::DEVX_ASYNC_EVENT_FD,
        methods: &[mlx5::method::devx_async_event_fd::IDS],
        attrs: &[(
            mlx5::method::devx_async_event_fd::ALLOC,
            &[mlx5::attr::devx_async_event_fd_alloc::IDS],
        )],
    },
    Object {
        id: mlx5::object::VAR,
        methods: &[mlx5::method::var::IDS],
        attrs: &[
            (mlx5::method::var::ALLOC, &[mlx5::attr::var_obj_alloc::IDS]),
            (
                mlx5::method::var::DESTROY,
                &[mlx5::attr::var_obj_destroy::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::PP,
        methods: &[mlx5::method::pp::IDS],
        attrs: &[
            (mlx5::method::pp::ALLOC, &[mlx5::attr::pp_obj_alloc::IDS]),
            (
                mlx5::method::pp::DESTROY,
                &[mlx5::attr::pp_obj_destroy::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::UAR,
        methods: &[mlx5::method::uar::IDS],
        attrs: &[
            (mlx5::method::uar::ALLOC, &[mlx5::attr::uar_obj_alloc::IDS]),
            (
                mlx5::method::uar::DESTROY,
                &[mlx5::attr::uar_obj_destroy::IDS],
            ),
        ],
    },
    Object {
        id: mlx5::object::STEERING_ANCHOR,
        methods: &[mlx5::method::steering_anchor::IDS],
        attrs: &[
            (
                mlx5::method::steering_anchor::CREATE,
                &[mlx5::attr::steering_anchor_create::IDS],
            ),
            (
                mlx5::method::steering_anchor::DESTROY,
                &[mlx5::attr::steering_anchor_destroy::IDS],
            ),
        ],
    },
];
