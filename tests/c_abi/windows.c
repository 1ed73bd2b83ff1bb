/*
 * Memory windows: both types, by lists of requests, by ibv_bind_mw and by ibv_wr_bind_mw.
 */

#include "check.h"

/* Two queue pairs, the first with the functions of ibv_wr_*, and a region of the second that windows can be bound to. */
struct windowed {
	struct pair pair;
	struct ibv_mr *mr;
};

static struct ibv_qp *make_qp(struct side *side)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC, .pd = side->pd,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	};

	return ibv_create_qp_ex(context, &attr);
}

static struct windowed make_windowed(bool functions)
{
	struct windowed made = { .pair = { make_side(IBV_QPT_RC), make_ground() } };
	struct ibv_qp_init_attr attr = basic(made.pair.b.cq, IBV_QPT_RC);

	NEED(made.pair.b.qp = functions ? make_qp(&made.pair.b) : ibv_create_qp(made.pair.b.pd, &attr));
	NEED(made.mr = ibv_reg_mr(made.pair.b.pd, made.pair.b.memory, MEMORY, ALL_ACCESS | IBV_ACCESS_MW_BIND));
	connect_qp(made.pair.a.qp, made.pair.b.qp);
	connect_qp(made.pair.b.qp, made.pair.a.qp);
	return made;
}

/* Writes through a window, and tells whether it arrives. */
static void write_through(const char *what, struct pair *pair, uint32_t key, char byte)
{
	struct ibv_sge sge = part(&pair->a, 0, 8);
	struct ibv_send_wr wr = writing(5, &sge, &pair->b, 4096), *bad;

	memset(pair->a.memory, byte, 8);
	wr.wr.rdma.rkey = key;
	say_status(what, ibv_post_send(pair->a.qp, &wr, &bad));
	say_completions(what, pair->a.cq, 1);
	say(what, "%.8s", pair->b.memory + 4096);
}

static void say_bound(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	if (completion(cq, &wc, WAIT_S))
		say("bound", "%llu %s, operation %d", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status), wc.opcode);
}

static struct ibv_mw_bind_info part_of(struct ibv_mr *mr, size_t length)
{
	return (struct ibv_mw_bind_info) { mr, (uintptr_t)mr->addr + 4096, length, IBV_ACCESS_REMOTE_WRITE };
}

static void type_1(void)
{
	struct windowed made = make_windowed(false);
	struct ibv_mw_bind bind = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = part_of(made.mr, 4096) };
	struct ibv_mw *mw;
	uint32_t key;
	int busy;

	NEED(mw = say_object("window", ibv_alloc_mw(made.pair.b.pd, IBV_MW_TYPE_1)));
	key = mw->rkey;
	say_status("bind", ibv_bind_mw(made.pair.b.qp, mw, &bind));
	say("next key", "%d", mw->rkey == ibv_inc_rkey(key));
	say_bound(made.pair.b.cq);
	write_through("write", &made.pair, mw->rkey, 'a');
	/* soft-RoCE keeps the region while a window is bound to it. */
	say_status("region", busy = ibv_dereg_mr(made.mr));
	key = mw->rkey;
	bind.bind_info.length = 0;
	if (!busy)
		return;
	say_status("to nothing", ibv_bind_mw(made.pair.b.qp, mw, &bind));
	say("next key", "%d", mw->rkey == ibv_inc_rkey(key));
	say_bound(made.pair.b.cq);
	write_through("write to nothing", &made.pair, key, 'b');
	say_status("free", ibv_dealloc_mw(mw));
	say_status("region", ibv_dereg_mr(made.mr));
}

/* Windows of type 2 go by work requests alone. */
static void type_2(void)
{
	struct windowed made = make_windowed(false);
	struct ibv_send_wr wr = { .wr_id = 7, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_mw_bind bind = { .bind_info = part_of(made.mr, 4096) };
	struct ibv_mw *mw;
	uint32_t key;

	NEED(mw = say_object("window", ibv_alloc_mw(made.pair.b.pd, IBV_MW_TYPE_2)));
	say_status("as type 1", ibv_bind_mw(made.pair.b.qp, mw, &bind));
	key = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = key;
	wr.bind_mw.bind_info = part_of(made.mr, 4096);
	say_status("bind", ibv_post_send(made.pair.b.qp, &wr, &bad));
	say_bound(made.pair.b.cq);
	write_through("write", &made.pair, key, 'a');
	wr = (struct ibv_send_wr) {
		.wr_id = 8, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key,
	};
	say_status("invalidate", ibv_post_send(made.pair.b.qp, &wr, &bad));
	say_bound(made.pair.b.cq);
	write_through("write to nothing", &made.pair, key, 'b');
	say_status("free", ibv_dealloc_mw(mw));
}

static void by_functions(void)
{
	struct windowed made = make_windowed(true);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(made.pair.b.qp);
	struct ibv_mw_bind_info info = part_of(made.mr, 4096);
	struct ibv_mw *mw;
	uint32_t key;

	NEED(mw = ibv_alloc_mw(made.pair.b.pd, IBV_MW_TYPE_2));
	key = ibv_inc_rkey(mw->rkey);
	ibv_wr_start(qp);
	qp->wr_id = 7;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(qp, mw, key, &info);
	say_status("bind", ibv_wr_complete(qp));
	say_bound(made.pair.b.cq);
	write_through("write", &made.pair, key, 'a');
	ibv_wr_start(qp);
	qp->wr_id = 8;
	ibv_wr_local_inv(qp, key);
	say_status("invalidate", ibv_wr_complete(qp));
	say_bound(made.pair.b.cq);
	write_through("write to nothing", &made.pair, key, 'b');
	say_status("free", ibv_dealloc_mw(mw));
}

/* What the header's inline function and the device refuse. */
static void refused(void)
{
	struct windowed made = make_windowed(false);
	struct ibv_mw_bind bind = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = part_of(made.mr, 4096) };
	struct ibv_mw *mw;
	uint32_t key;

	NEED(mw = ibv_alloc_mw(made.pair.b.pd, IBV_MW_TYPE_1));
	key = mw->rkey;
	bind.bind_info.mr = made.pair.a.mr;
	say_status("of another domain", ibv_bind_mw(made.pair.b.qp, mw, &bind));
	bind.bind_info.mr = made.mr;
	bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	say_status("from zero", ibv_bind_mw(made.pair.b.qp, mw, &bind));
	say("same key", "%d", mw->rkey == key);
	/* Soft-RoCE takes any length, and fails the request. */
	if (!is_soft()) {
		bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
		bind.bind_info.length = (1ull << 31) + 1;
		say_status("of more than 2 GiB", ibv_bind_mw(made.pair.b.qp, mw, &bind));
		say("same key", "%d", mw->rkey == key);
	}
	bind.bind_info = part_of(made.pair.b.mr, 4096);
	say_status("of a region for none", ibv_bind_mw(made.pair.b.qp, mw, &bind));
	say_bound(made.pair.b.cq);
	say_status("free", ibv_dealloc_mw(mw));
}

/* Binds to a region, and tells whether the queue pair goes on. */
static void try_region(const char *what, struct windowed *made, struct ibv_mr *mr, uint64_t address)
{
	struct ibv_mw_bind bind = { .wr_id = 7, .bind_info = { mr, address, 4096, IBV_ACCESS_REMOTE_WRITE } };
	struct ibv_mw *mw;
	uint32_t key;

	NEED(mw = ibv_alloc_mw(made->pair.b.pd, IBV_MW_TYPE_1));
	key = mw->rkey;
	say_status(what, ibv_bind_mw(made->pair.b.qp, mw, &bind));
	say("same key", "%d", mw->rkey == key);
	say_status("free", ibv_dealloc_mw(mw));
	write_through("then", &made->pair, made->pair.b.mr->rkey, 'a');
}

/* Regions that are not known by addresses: soft-RoCE has none. */
static void without_address(void)
{
	struct windowed made = make_windowed(false);
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	unsigned int access = ALL_ACCESS | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED;
	struct ibv_dm *dm;
	struct ibv_mr *mr;

	if (is_soft())
		return;
	NEED(mr = ibv_alloc_null_mr(made.pair.b.pd));
	try_region("null", &made, mr, 0);
	if ((mr = say_object("from zero", ibv_reg_mr(made.pair.b.pd, made.pair.b.memory, 8192, access))))
		try_region("from zero", &made, mr, 0);
	NEED(dm = ibv_alloc_dm(context, &attr));
	if ((mr = say_object("of the device", ibv_reg_dm_mr(made.pair.b.pd, dm, 0, 4096, ALL_ACCESS | IBV_ACCESS_ZERO_BASED))))
		try_region("of the device", &made, mr, 0);
}

MAIN({ "type_1", type_1 }, { "type_2", type_2 }, { "by_functions", by_functions }, { "refused", refused }, { "without_address", without_address })
