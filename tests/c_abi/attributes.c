/*
 * What verbs say to good, bad and unknown attributes: errno as libibverbs gives it.
 */

#include "check.h"

#include <net/if.h>

static void queries(void)
{
	struct ibv_device_attr device = {};
	struct ibv_device_attr_ex more = {};
	struct ibv_query_device_ex_input input = { .comp_mask = 1 << 30 };
	struct ibv_port_attr port = {};
	union ibv_gid gid;
	uint16_t pkey;

	say_status("device", ibv_query_device(context, &device));
	say("it is", "%u.%u, %u queue pairs of %u, flags %x, %u slices, %u and %u reads, %u queues of %u, %u regions of %llu",
		device.vendor_id, device.vendor_part_id, device.max_qp, device.max_qp_wr, device.device_cap_flags,
		device.max_sge, device.max_qp_rd_atom, device.max_qp_init_rd_atom, device.max_cq, device.max_cqe,
		device.max_mr, (unsigned long long)device.max_mr_size);
	say("and", "%u domains, %u handles, %u shared queues of %u, %u slices, keys %u, ports %u, atomics %d, firmware %s",
		device.max_pd, device.max_ah, device.max_srq, device.max_srq_wr, device.max_srq_sge, device.max_pkeys,
		device.phys_port_cnt, device.atomic_cap, device.fw_ver);
	say("identifiers", "%016llx %016llx", (unsigned long long)device.node_guid, (unsigned long long)device.sys_image_guid);
	say_status("more of it", ibv_query_device_ex(context, NULL, &more));
	say("it has", "paging %llx %x %x %x, clock %llx %llu, flags %llx, segmentation %u, hashes %u, tags %u, windows of memory %llu, ports %u",
		(unsigned long long)more.odp_caps.general_caps, more.odp_caps.per_transport_caps.rc_odp_caps,
		more.odp_caps.per_transport_caps.uc_odp_caps, more.odp_caps.per_transport_caps.ud_odp_caps,
		(unsigned long long)more.completion_timestamp_mask, (unsigned long long)more.hca_core_clock,
		(unsigned long long)more.device_cap_flags_ex, more.tso_caps.max_tso, more.rss_caps.supported_qpts,
		more.tm_caps.max_num_tags, (unsigned long long)more.max_dm_size, more.phys_port_cnt_ex);
	say("atomics", "%d, on the bus %x %x %x", more.orig_attr.atomic_cap, more.pci_atomic_caps.fetch_add,
		more.pci_atomic_caps.swap, more.pci_atomic_caps.compare_swap);
	say_status("unknown input", ibv_query_device_ex(context, &input, &more));
	say_status("port", ibv_query_port(context, 1, &port));
	say("it is", "state %d, unit %d of %d, %d GIDs, flags %x, messages of %u, keys %u, LID %u of %u, link %d, width %d, speed %d, physical %d, flags %x %x",
		port.state, port.active_mtu, port.max_mtu, port.gid_tbl_len, port.port_cap_flags, port.max_msg_sz,
		port.pkey_tbl_len, port.lid, port.sm_lid, port.link_layer, port.active_width, port.active_speed,
		port.phys_state, port.flags, port.port_cap_flags2);
	say_status("port 0", ibv_query_port(context, 0, &port));
	say_status("port 9", ibv_query_port(context, 9, &port));
	say_or_errno("GID 0", ibv_query_gid(context, 1, 0, &gid));
	say_or_errno("GID 100000", ibv_query_gid(context, 1, 100000, &gid));
	say_or_errno("GID -1", ibv_query_gid(context, 1, -1, &gid));
	say_or_errno("GID of port 9", ibv_query_gid(context, 9, 0, &gid));
	say_or_errno("key 0", ibv_query_pkey(context, 1, 0, &pkey));
	say("it is", "%x", ntohs(pkey));
	say_or_errno("key 100000", ibv_query_pkey(context, 1, 100000, &pkey));
	say_or_errno("key of port 9", ibv_query_pkey(context, 9, 0, &pkey));
	say_or_errno("index of the key", ibv_get_pkey_index(context, 1, htons(0xffff)));
	say_or_errno("index of no key", ibv_get_pkey_index(context, 1, htons(0x1234)));
}

static void gid_entries(void)
{
	static struct ibv_gid_entry entries[1024];
	struct ibv_gid_entry entry;
	ssize_t count = ibv_query_gid_table(context, entries, 1024, 0);

	say("entries", "%zd", count);
	for (ssize_t i = 0; i < count; i++) {
		char text[64];

		say("entry", "%u of port %u, type %u, interface %u, %s", entries[i].gid_index, entries[i].port_num,
			entries[i].gid_type, entries[i].ndev_ifindex, inet_ntop(AF_INET6, entries[i].gid.raw, text, sizeof(text)));
	}
	say("room for one", "%zd", ibv_query_gid_table(context, entries, 1, 0));
	say("flags", "%zd", ibv_query_gid_table(context, entries, 1024, 1));
	say_status("index 0", ibv_query_gid_ex(context, 1, 0, &entry, 0));
	say_status("index 100000", ibv_query_gid_ex(context, 1, 100000, &entry, 0));
	say_status("port 9", ibv_query_gid_ex(context, 9, 0, &entry, 0));
	say_status("flags", ibv_query_gid_ex(context, 1, 0, &entry, 1));
}

static void completion_queues(void)
{
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 4, 4 } };
	struct ibv_cq *cq;

	say_object("no entries", ibv_create_cq(context, 0, NULL, NULL, 0));
	say_object("less than none", ibv_create_cq(context, -1, NULL, NULL, 0));
	say_object("too many entries", ibv_create_cq(context, 1 << 30, NULL, NULL, 0));
	say_object("vector", ibv_create_cq(context, 16, NULL, NULL, 9999));
	say_object("vector less than none", ibv_create_cq(context, 16, NULL, NULL, -1));
	NEED(cq = say_object("good", ibv_create_cq(context, 100, &moderation, NULL, 0)));
	say("it has", "room %d, context %d, channel %d, user %d", cq->cqe >= 100, cq->context == context, cq->channel != NULL,
		cq->cq_context == &moderation);
	say_status("resize", ibv_resize_cq(cq, 1000));
	say("room", "%d", cq->cqe >= 1000);
	say_status("resize to too many", ibv_resize_cq(cq, 1 << 30));
	say_status("resize to none", ibv_resize_cq(cq, 0));
	say_status("moderation", ibv_modify_cq(cq, &moderation));
	say_status("arm", ibv_req_notify_cq(cq, 0));
	say_status("destroy", ibv_destroy_cq(cq));
}

static void try_qp(const char *what, const struct side *side, void (*change)(struct ibv_qp_init_attr *))
{
	struct ibv_qp_init_attr attr = basic(side->cq, IBV_QPT_RC);
	struct ibv_qp *qp;

	change(&attr);
	qp = say_object(what, ibv_create_qp(side->pd, &attr));
	if (qp)
		NEED(!ibv_destroy_qp(qp));
}

static void unknown_type(struct ibv_qp_init_attr *attr) { attr->qp_type = 77; }
static void raw_packets(struct ibv_qp_init_attr *attr) { attr->qp_type = IBV_QPT_RAW_PACKET; }
static void many_sends(struct ibv_qp_init_attr *attr) { attr->cap.max_send_wr = 1 << 30; }
static void many_receives(struct ibv_qp_init_attr *attr) { attr->cap.max_recv_wr = 1 << 30; }
static void many_slices(struct ibv_qp_init_attr *attr) { attr->cap.max_send_sge = 100000; }
static void many_receive_slices(struct ibv_qp_init_attr *attr) { attr->cap.max_recv_sge = 100000; }
static void much_inline(struct ibv_qp_init_attr *attr) { attr->cap.max_inline_data = 1 << 20; }
static void no_sends(struct ibv_qp_init_attr *attr) { attr->cap.max_send_wr = attr->cap.max_send_sge = attr->cap.max_inline_data = 0; }
static void no_receives(struct ibv_qp_init_attr *attr) { attr->cap.max_recv_wr = attr->cap.max_recv_sge = 0; }

static void queue_pairs(void)
{
	struct side side = make_ground();
	struct ibv_qp_init_attr attr = basic(side.cq, IBV_QPT_RC), found = {};
	struct ibv_qp_attr state = {};
	struct ibv_qp *qp;

	try_qp("unknown type", &side, unknown_type);
	try_qp("raw packets", &side, raw_packets);
	try_qp("many sends", &side, many_sends);
	try_qp("many receives", &side, many_receives);
	try_qp("many slices", &side, many_slices);
	try_qp("many receive slices", &side, many_receive_slices);
	try_qp("much inline", &side, much_inline);
	try_qp("no sends", &side, no_sends);
	try_qp("no receives", &side, no_receives);
	NEED(qp = say_object("good", ibv_create_qp(side.pd, &attr)));
	say("it has", "sends %d, receives %d, slices %d and %d, inline %d", attr.cap.max_send_wr >= 16,
		attr.cap.max_recv_wr >= 16, attr.cap.max_send_sge >= 2, attr.cap.max_recv_sge >= 2,
		attr.cap.max_inline_data >= 64);
	say("and", "context %d, domain %d, queues %d %d, shared %d, state %d, type %d", qp->context == context,
		qp->pd == side.pd, qp->send_cq == side.cq, qp->recv_cq == side.cq, qp->srq != NULL, qp->state, qp->qp_type);
	say_status("query", ibv_query_qp(qp, &state, IBV_QP_STATE | IBV_QP_CAP, &found));
	say("it has", "state %d, sends %d, receives %d, slices %d and %d, inline %d, queues %d %d, type %d, all signaled %d",
		state.qp_state, found.cap.max_send_wr == attr.cap.max_send_wr, found.cap.max_recv_wr == attr.cap.max_recv_wr,
		found.cap.max_send_sge == attr.cap.max_send_sge, found.cap.max_recv_sge == attr.cap.max_recv_sge,
		found.cap.max_inline_data == attr.cap.max_inline_data, found.send_cq == side.cq, found.recv_cq == side.cq,
		found.qp_type, found.sq_sig_all);
	say_status("destroy", ibv_destroy_qp(qp));
}

/* Transitions that there are not, and attributes that are missing or too many. */
static void transitions(void)
{
	struct side side = make_side(IBV_QPT_RC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS }, found = {};
	struct ibv_qp_init_attr init;

	say_status("RESET to RTS", ibv_modify_qp(side.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_INIT;
	say_status("without attributes", ibv_modify_qp(side.qp, &attr, IBV_QP_STATE));
	attr.port_num = 9;
	say_status("port 9", ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.port_num = 1;
	attr.pkey_index = 60000;
	say_status("key 60000", ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.pkey_index = 0;
	say_status("too many attributes", ibv_modify_qp(side.qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | IBV_QP_SQ_PSN));
	say_status("unknown attribute", ibv_modify_qp(side.qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | 1 << 29));
	attr.qp_state = 99;
	say_status("unknown state", ibv_modify_qp(side.qp, &attr, IBV_QP_STATE));
	say("state", "%d", side.qp->state);
	say_status("INIT", to_init(side.qp));
	say("state", "%d", side.qp->state);
	say_status("RTR", to_rtr(side.qp, side.qp->qp_num));
	say("state", "%d", side.qp->state);
	say("bytes in order", "%d", ibv_query_qp_data_in_order(side.qp, IBV_WR_RDMA_WRITE, 0));
	say_status("RTS", to_rts(side.qp));
	say("state", "%d", side.qp->state);
	say("bytes in order", "%d, flags %d", ibv_query_qp_data_in_order(side.qp, IBV_WR_RDMA_WRITE, 0),
		ibv_query_qp_data_in_order(side.qp, IBV_WR_RDMA_WRITE, 1u << 31));
	say_status("query", ibv_query_qp(side.qp, &found, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init));
	say("it has", "state %d, unit %d, peer %d, %u and %u, timeout %d, retries %d and %d, reads %d and %d, port %d, timer %d",
		found.qp_state, found.path_mtu, found.dest_qp_num == side.qp->qp_num, found.rq_psn, found.sq_psn,
		found.timeout, found.retry_cnt, found.rnr_retry, found.max_rd_atomic, found.max_dest_rd_atomic,
		found.port_num, found.min_rnr_timer);
	say("path", "global %d, index %d, hops %d, port %d", found.ah_attr.is_global, found.ah_attr.grh.sgid_index,
		found.ah_attr.grh.hop_limit, found.ah_attr.port_num);
	attr.qp_state = IBV_QPS_RESET;
	say_status("RESET", ibv_modify_qp(side.qp, &attr, IBV_QP_STATE));
	say("state", "%d", side.qp->state);
}

static void shared_queues(void)
{
	struct side side = make_ground();
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 1 << 30, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex more = { .attr = { .max_wr = 16, .max_sge = 1 }, .comp_mask = 1 << 30, .pd = side.pd };
	struct ibv_srq_attr change = { .srq_limit = 100000 }, found = {};
	struct ibv_srq *srq;

	say_object("too many", ibv_create_srq(side.pd, &attr));
	attr.attr = (struct ibv_srq_attr) { .max_wr = 16, .max_sge = 100000 };
	say_object("too many slices", ibv_create_srq(side.pd, &attr));
	attr.attr = (struct ibv_srq_attr) { .max_wr = 16, .max_sge = 2 };
	NEED(srq = say_object("good", ibv_create_srq(side.pd, &attr)));
	say("it has", "room %d, slices %d, context %d, domain %d", attr.attr.max_wr >= 16, attr.attr.max_sge >= 2,
		srq->context == context, srq->pd == side.pd);
	say_status("limit", ibv_modify_srq(srq, &change, IBV_SRQ_LIMIT));
	change.srq_limit = 4;
	say_status("good limit", ibv_modify_srq(srq, &change, IBV_SRQ_LIMIT));
	say_status("unknown attribute", ibv_modify_srq(srq, &change, 1 << 20));
	say_status("query", ibv_query_srq(srq, &found));
	say("it has", "room %d, limit %u", found.max_wr >= 16, found.srq_limit);
	say_object("unknown attribute", ibv_create_srq_ex(context, &more));
	more.comp_mask = IBV_SRQ_INIT_ATTR_PD;
	say_object("domain alone", ibv_create_srq_ex(context, &more));
	more.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	more.srq_type = IBV_SRQT_BASIC;
	say_object("basic", ibv_create_srq_ex(context, &more));
	more.srq_type = 99;
	say_object("unknown type", ibv_create_srq_ex(context, &more));
	say_status("destroy", ibv_destroy_srq(srq));
}

static void try_mr(const char *what, struct ibv_pd *pd, void *address, size_t length, unsigned int access)
{
	struct ibv_mr *mr = say_object(what, ibv_reg_mr(pd, address, length, access));

	if (mr) {
		say("it has", "address %d, length %d, domain %d, context %d, keys %d", mr->addr == address, mr->length == length,
			mr->pd == pd, mr->context == context, mr->lkey == mr->rkey);
		say_status("deregister", ibv_dereg_mr(mr));
	}
}

static void regions(void)
{
	struct side side = make_ground();
	unsigned char *nothing = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *read_only = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	try_mr("good", side.pd, side.memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	try_mr("for reading", side.pd, side.memory, 4096, 0);
	try_mr("odd", side.pd, side.memory + 3, 5, IBV_ACCESS_LOCAL_WRITE);
	try_mr("remote without local writes", side.pd, side.memory, 4096, IBV_ACCESS_REMOTE_WRITE);
	try_mr("atomics without local writes", side.pd, side.memory, 4096, IBV_ACCESS_REMOTE_ATOMIC);
	try_mr("unknown access", side.pd, side.memory, 4096, 1 << 15);
	try_mr("optional access", side.pd, side.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	try_mr("no bytes", side.pd, side.memory, 0, IBV_ACCESS_LOCAL_WRITE);
	try_mr("no address", side.pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE);
	try_mr("no pages", side.pd, nothing, 8192, IBV_ACCESS_LOCAL_WRITE);
	try_mr("pages for reading", side.pd, read_only, 8192, IBV_ACCESS_LOCAL_WRITE);
	try_mr("around the end", side.pd, (void *)(UINTPTR_MAX - 4095), 8192, IBV_ACCESS_LOCAL_WRITE);
	try_mr("all", side.pd, side.memory, SIZE_MAX / 2, IBV_ACCESS_LOCAL_WRITE);
	mr = say_object("other addresses", ibv_reg_mr_iova(side.pd, side.memory, 4096, 0x10000, IBV_ACCESS_LOCAL_WRITE));
	if (mr)
		say("it has", "address %d", mr->addr == side.memory);
	say_object("of a file that is none", ibv_reg_dmabuf_mr(side.pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE));
	say_status("free the domain", ibv_dealloc_pd(side.pd));
}

static void reregistered(void)
{
	struct side side = make_ground();
	struct ibv_mr *mr;

	NEED(mr = ibv_reg_mr(side.pd, side.memory, 4096, IBV_ACCESS_LOCAL_WRITE));
	say("no flags", "%d", ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0));
	say("unknown flags", "%d", ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0));
	say("translation of nothing", "%d", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0));
	say("access that is not to change", "%d", ibv_rereg_mr(mr, 0, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ));
}

/* What soft-RoCE has of it: another domain, other access. */
static void moved_region(void)
{
	struct side side = make_ground();
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *mr;
	int busy;

	NEED(mr = ibv_reg_mr(side.pd, side.memory, 4096, IBV_ACCESS_LOCAL_WRITE));
	say("access", "%d", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	say("domain", "%d", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
	say("it has", "domain %d, address %d, length %zu", mr->pd == other, mr->addr == side.memory, mr->length);
	say_status("its domain", busy = ibv_dealloc_pd(other));
	say_status("deregister", ibv_dereg_mr(mr));
	if (busy)
		say_status("its domain", ibv_dealloc_pd(other));
}

static void windows(void)
{
	struct side side = make_ground();
	struct ibv_mw *mw = say_object("type 1", ibv_alloc_mw(side.pd, IBV_MW_TYPE_1));

	if (mw) {
		say("it has", "type %d, domain %d, context %d", mw->type, mw->pd == side.pd, mw->context == context);
		say_status("free", ibv_dealloc_mw(mw));
	}
	mw = say_object("type 2", ibv_alloc_mw(side.pd, IBV_MW_TYPE_2));
	if (mw) {
		struct pair pair = make_pair(IBV_QPT_RC);
		struct ibv_mw_bind bind = { .bind_info = { pair.a.mr, (uintptr_t)pair.a.memory, 8, IBV_ACCESS_REMOTE_READ } };

		say_status("bound as type 1", ibv_bind_mw(pair.a.qp, mw, &bind));
		say_status("free", ibv_dealloc_mw(mw));
	}
	say_object("type 9", ibv_alloc_mw(side.pd, 9));
}

static void address_handles(void)
{
	struct side side = make_ground();
	struct ibv_ah_attr attr = to_self();
	struct ibv_ah *ah;

	NEED(ah = say_object("good", ibv_create_ah(side.pd, &attr)));
	say("it has", "domain %d, context %d", ah->pd == side.pd, ah->context == context);
	say_status("destroy", ibv_destroy_ah(ah));
	attr.port_num = 9;
	say_object("port 9", ibv_create_ah(side.pd, &attr));
	attr.port_num = 0;
	say_object("port 0", ibv_create_ah(side.pd, &attr));
	if (gid_index >= 0) {
		attr = to_self();
		attr.grh.sgid_index = 255;
		say_object("index 255", ibv_create_ah(side.pd, &attr));
		attr = to_self();
		attr.is_global = 0;
		say_object("without a GID", ibv_create_ah(side.pd, &attr));
	} else {
		struct ibv_port_attr port;

		/* The adapter's provider does not ask whether the port has such a GID. */
		NEED(!ibv_query_port(context, 1, &port));
		NEED(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
		attr = (struct ibv_ah_attr) {
			.port_num = 1, .is_global = 1, .dlid = port.lid, .grh = { .dgid = attr.grh.dgid, .hop_limit = 1 },
		};
		say_object("first GID", ibv_create_ah(side.pd, &attr));
		attr.grh.sgid_index = port.gid_tbl_len - 1;
		say_object("last GID", ibv_create_ah(side.pd, &attr));
		attr.grh.sgid_index = 255;
		say_object("index 255", ibv_create_ah(side.pd, &attr));
	}
}

static void domains(void)
{
	struct ibv_pd *pd = say_object("domain", ibv_alloc_pd(context));
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_td_init_attr td_attr = { .comp_mask = 1 << 30 };
	struct ibv_pd *parent;
	struct ibv_td *td;

	say_object("thread domain of unknown attributes", ibv_alloc_td(context, &td_attr));
	td_attr.comp_mask = 0;
	td = say_object("thread domain", ibv_alloc_td(context, &td_attr));
	attr.comp_mask = 1 << 30;
	say_object("unknown attributes", ibv_alloc_parent_domain(context, &attr));
	attr.comp_mask = 0;
	attr.pd = NULL;
	say_object("of nothing", ibv_alloc_parent_domain(context, &attr));
	attr.pd = pd;
	attr.td = td;
	parent = say_object("parent", ibv_alloc_parent_domain(context, &attr));
	if (parent) {
		say_status("free the domain in use", ibv_dealloc_pd(pd));
		say_status("free the thread domain in use", ibv_dealloc_td(td));
		say_status("free the parent", ibv_dealloc_pd(parent));
	}
	if (td)
		say_status("free the thread domain", ibv_dealloc_td(td));
	say_status("free the domain", ibv_dealloc_pd(pd));
}

/* An object under others is busy. */
static void busy(void)
{
	struct ibv_comp_channel *channel;
	struct side side = make_side(IBV_QPT_UD);
	struct ibv_cq *cq;

	NEED(channel = ibv_create_comp_channel(context));
	NEED(cq = ibv_create_cq(context, 4, NULL, channel, 0));
	say("users", "%d", channel->refcnt);
	say_status("channel", ibv_destroy_comp_channel(channel));
	NEED(!ibv_destroy_cq(cq));
	say("users", "%d", channel->refcnt);
	say_status("channel", ibv_destroy_comp_channel(channel));
	say_status("completion queue", ibv_destroy_cq(side.cq));
	say_status("domain", ibv_dealloc_pd(side.pd));
	say_status("queue pair", ibv_destroy_qp(side.qp));
	say_status("completion queue", ibv_destroy_cq(side.cq));
	say_status("domain", ibv_dealloc_pd(side.pd));
	say_status("region", ibv_dereg_mr(side.mr));
	say_status("domain", ibv_dealloc_pd(side.pd));
	say_status("close", ibv_close_device(context));
}

static void multicast(void)
{
	struct side side = make_side(IBV_QPT_UD);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } }, other = { .raw = { 0xfe, 0x80, [15] = 1 } };

	NEED(!to_init(side.qp));
	say_status("not a group", ibv_attach_mcast(side.qp, &other, 0));
	say_status("leave before", ibv_detach_mcast(side.qp, &group, 0xc001));
	say_status("join", ibv_attach_mcast(side.qp, &group, 0xc001));
	say_status("again", ibv_attach_mcast(side.qp, &group, 0xc001));
	say_status("leave", ibv_detach_mcast(side.qp, &group, 0xc001));
	say_status("a reliable one", ibv_attach_mcast(make_side(IBV_QPT_RC).qp, &group, 0xc001));
}

static void imported(void)
{
	struct side side = make_ground();
	struct ibv_context *again;
	int null = open("/dev/null", O_RDWR);
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	say("a file that is none", "%d", ibv_import_device(-1) != NULL);
	say("another file", "%d", ibv_import_device(null) != NULL);
	again = say_object("device", ibv_import_device(dup(context->cmd_fd)));
	NEED(again);
	pd = say_object("domain", ibv_import_pd(again, side.pd->handle));
	if (pd) {
		mr = say_object("region", ibv_import_mr(pd, side.mr->handle));
		if (mr) {
			say("it has", "keys %d, length %d", mr->lkey == side.mr->lkey && mr->rkey == side.mr->rkey,
				mr->length == side.mr->length);
			ibv_unimport_mr(mr);
		}
		say_object("region that is none", ibv_import_mr(pd, 12345));
		ibv_unimport_pd(pd);
	}
	say_status("close", ibv_close_device(again));
}

static void ece(void)
{
	struct side side = make_side(IBV_QPT_RC);
	struct ibv_ece ece = { .comp_mask = 1 };

	say_status("query", ibv_query_ece(side.qp, &ece));
	say_status("set unknown", ibv_set_ece(side.qp, &(struct ibv_ece) { .vendor_id = 7, .options = 1, .comp_mask = 1 }));
	say_status("set none", ibv_set_ece(side.qp, &(struct ibv_ece) {}));
}

/* What hardly any device has. */
static void rarities(void)
{
	struct side side = make_ground();
	struct ibv_alloc_dm_attr dm = { .length = 1ULL << 40 };
	struct ibv_values_ex values = { .comp_mask = 1 << 30 };
	struct ibv_counters_init_attr counters = { .comp_mask = 1 << 30 };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = 1 << 30 };
	struct ibv_sge sge = part(&side, 0, 4096);

	say_object("memory of the device", ibv_alloc_dm(context, &dm));
	say_status("unknown values", ibv_query_rt_values_ex(context, &values));
	say_object("unknown counters", ibv_create_counters(context, &counters));
	say_object("unknown domain of XRC", ibv_open_xrcd(context, &xrcd));
	say_status("unknown advice", ibv_advise_mr(side.pd, 99, 0, &sge, 1));
}

/* The region that swallows what is written to it and gives zeros. */
static void null_region(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_mr *mr = say_object("region", ibv_alloc_null_mr(pair.a.pd));
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	if (!mr)
		return;
	say("it has", "address %d, length %d, domain %d, context %d, key %d", mr->addr == NULL, mr->length == SIZE_MAX,
		mr->pd == pair.a.pd, mr->context == context, mr->lkey != 0);
	memset(pair.b.memory, 'b', 16);
	sge = (struct ibv_sge) { 0, 8, mr->lkey };
	wr = writing(1, &sge, &pair.b, 0);
	say_status("write", ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("write", pair.a.cq, 1);
	say("written", "%d, %.8s", pair.b.memory[0] | pair.b.memory[7], pair.b.memory + 8);
	wr.opcode = IBV_WR_RDMA_READ;
	say_status("read", ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("read", pair.a.cq, 1);
	say("again", "%d", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	say_status("free", ibv_dereg_mr(mr));
	say_status("it is usual", ibv_dereg_mr(pair.a.mr));
}

/* The device's clock. */
static void the_clock(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, more = values, none = {};

	say_status("clock", ibv_query_rt_values_ex(context, &values));
	if (values.comp_mask != IBV_VALUES_MASK_RAW_CLOCK || !values.raw_clock.tv_nsec)
		return;
	say_status("later", ibv_query_rt_values_ex(context, &more));
	say("it goes on", "%d, seconds %ld", more.raw_clock.tv_nsec > values.raw_clock.tv_nsec, (long)more.raw_clock.tv_sec);
	say_status("nothing asked", ibv_query_rt_values_ex(context, &none));
	say("told", "%u, %ld", none.comp_mask, none.raw_clock.tv_nsec);
}

static void moderation(void)
{
	struct side side = make_ground();
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 8, 100 } };

	say_status("good", ibv_modify_cq(side.cq, &attr));
	attr.moderate.cq_count = attr.moderate.cq_period = 0;
	say_status("no longer", ibv_modify_cq(side.cq, &attr));
	attr.moderate.cq_count = attr.moderate.cq_period = UINT16_MAX;
	say_status("too much", ibv_modify_cq(side.cq, &attr));
	attr.attr_mask = 0;
	say_status("nothing", ibv_modify_cq(side.cq, &attr));
	attr.attr_mask = 1 << 20;
	say_status("unknown", ibv_modify_cq(side.cq, &attr));
}

static void advice(void)
{
	struct side side = make_ground();
	struct ibv_sge sge = part(&side, 0, 4096);

	say_status("plain region", ibv_advise_mr(side.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	say_status("unknown flag", ibv_advise_mr(side.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 20, &sge, 1));
	say_status("nothing", ibv_advise_mr(side.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0));
}

/* A parent domain goes before the regions that were registered with it. */
static void parent_goes_first(void)
{
	struct side side = make_ground();
	struct ibv_parent_domain_init_attr attr = { .pd = side.pd };
	struct ibv_pd *parent;
	struct ibv_ah_attr way = to_self();
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_ah *ah;

	if (is_soft())
		return;
	NEED(parent = ibv_alloc_parent_domain(context, &attr));
	NEED(mw = ibv_alloc_mw(parent, IBV_MW_TYPE_2));
	say_status("parent of a window", ibv_dealloc_pd(parent));
	say_status("window", ibv_dealloc_mw(mw));
	NEED(parent = ibv_alloc_parent_domain(context, &attr));
	NEED(ah = ibv_create_ah(parent, &way));
	say_status("parent of a handle", ibv_dealloc_pd(parent));
	say_status("handle", ibv_destroy_ah(ah));
	NEED(parent = ibv_alloc_parent_domain(context, &attr));
	NEED(mr = ibv_reg_mr(parent, side.memory, 4096, IBV_ACCESS_LOCAL_WRITE));
	say_status("parent", ibv_dealloc_pd(parent));
	NEED(!ibv_dereg_mr(side.mr));
	say_status("domain", ibv_dealloc_pd(side.pd));
	say_status("region", ibv_dereg_mr(mr));
	say_status("domain", ibv_dealloc_pd(side.pd));
}

/* What a queue pair is asked about without its state does not change what the program knows of that. */
static void asked_without_state(void)
{
	struct side side = make_side(IBV_QPT_RC);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	NEED(!to_init(side.qp));
	side.qp->state = IBV_QPS_UNKNOWN;
	say_status("access", ibv_query_qp(side.qp, &attr, IBV_QP_ACCESS_FLAGS, &init));
	say("known", "%d", side.qp->state);
	say_status("pace", ibv_query_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT, &init));
	say("known", "%d", side.qp->state);
	say_status("state", ibv_query_qp(side.qp, &attr, IBV_QP_STATE, &init));
	say("known", "%d", side.qp->state);
}

/* Objects that the kernel may know nothing of, whose domain goes before them then. */
static void domain_goes_first(void)
{
	struct ibv_ah_attr attr = to_self();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	int status;

	NEED(pd);
	NEED(ah = ibv_create_ah(pd, &attr));
	say_status("domain of an address handle", status = ibv_dealloc_pd(pd));
	say_status("address handle", ibv_destroy_ah(ah));
	if (status)
		say_status("domain", ibv_dealloc_pd(pd));
	/* Soft-RoCE has no null region. */
	if (is_soft())
		return;
	NEED(pd = ibv_alloc_pd(context));
	NEED(mr = ibv_alloc_null_mr(pd));
	say_status("domain of a null region", status = ibv_dealloc_pd(pd));
	say_status("null region", ibv_dereg_mr(mr));
	if (status)
		say_status("domain", ibv_dealloc_pd(pd));
}

/* All entries of a port, most of which are empty. */
static void empty_gids(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	int failed = 0;

	NEED(!ibv_query_port(context, 1, &port));
	for (int i = 0; i < port.gid_tbl_len; i++)
		failed += !!ibv_query_gid(context, 1, i, &gid);
	say("failed", "%d", failed);
}

/* Which station takes packets for a peer. */
static void resolve(const char *what, struct ibv_ah_attr attr, const char *peer)
{
	uint8_t mac[6] = {};
	uint16_t vlan = 0;
	int status;

	if (peer)
		NEED(inet_pton(AF_INET6, peer, attr.grh.dgid.raw) == 1);
	status = ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan);
	say_status(what, status);
	if (!status)
		say(what, "%02x:%02x:%02x:%02x:%02x:%02x %x, without a VLAN %d", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5],
			vlan, ibv_resolve_eth_l2_from_gid(context, &attr, mac, NULL));
}

static void stations(void)
{
	struct ibv_ah_attr attr = to_self();
	struct ibv_gid_entry entry;
	char command[128], interface[IF_NAMESIZE];

	if (gid_index < 0) {
		NEED(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
		resolve("on InfiniBand", attr, NULL);
		return;
	}
	NEED(!ibv_query_gid_ex(context, 1, gid_index, &entry, 0));
	NEED(if_indextoname(entry.ndev_ifindex, interface));
	snprintf(command, sizeof(command), "ip neigh replace 10.9.0.77 lladdr 02:00:00:00:00:77 dev %s nud permanent", interface);
	NEED(!system(command));
	resolve("this host", attr, NULL);
	resolve("a neighbour", attr, "::ffff:10.9.0.77");
	resolve("one that has to be asked", attr, "::ffff:10.9.0.88");
	resolve("a group", attr, "::ffff:239.129.2.3");
	resolve("a group of IPv6", attr, "ff0e::1:2");
	resolve("a group of IPv4 on RoCE v1", attr, "ff0e::ffff:224.0.0.5");
	resolve("nowhere", attr, "::ffff:192.0.2.1");
	resolve("by its name", attr, "fe80::5054:ff:fe12:3456");
	attr.grh.sgid_index = 200;
	resolve("from nowhere", attr, NULL);
}

MAIN(
	{ "queries", queries }, { "gid_entries", gid_entries }, { "completion_queues", completion_queues },
	{ "queue_pairs", queue_pairs }, { "transitions", transitions }, { "shared_queues", shared_queues },
	{ "regions", regions }, { "reregistered", reregistered }, { "moved_region", moved_region }, { "windows", windows },
	{ "address_handles", address_handles }, { "domains", domains }, { "busy", busy }, { "multicast", multicast },
	{ "imported", imported }, { "ece", ece }, { "rarities", rarities }, { "null_region", null_region },
	{ "the_clock", the_clock }, { "moderation", moderation }, { "advice", advice },
	{ "domain_goes_first", domain_goes_first }, { "parent_goes_first", parent_goes_first },
	{ "asked_without_state", asked_without_state }, { "empty_gids", empty_gids }, { "stations", stations },
)
