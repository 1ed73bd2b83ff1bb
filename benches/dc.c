/*
 * rdma-core's side of the measurement of dynamic connections: the same work as src/dc.rs, through libibverbs and
 * libmlx5.
 *
 *   dc instructions-ex DEVICE        a WRITE of an initiator, for callgrind
 *
 * Requests go by ibv_wr_start alone: ibv_post_send has no address for them.
 */

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "measured.h"

#define WRITE_LENGTH 64
#define KEY 0x0123456789abcdef
#define CHANGES_OF_A_TARGET (IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU)

struct to {
	struct ibv_ah *ah;
	uint32_t number;
};

COUNTED int op_dc_write(struct ibv_qp_ex *qp, struct mlx5dv_qp_ex *own, const struct to *to, const struct ibv_sge *sge,
	uint32_t rkey, uint64_t remote)
{
	ibv_wr_start(qp);
	qp->wr_id = 7;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, rkey, remote);
	ibv_wr_set_sge(qp, sge->lkey, sge->addr, sge->length);
	mlx5dv_wr_set_dc_addr(own, to->ah, to->number, KEY);
	return ibv_wr_complete(qp);
}

struct world {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_port_attr port;
	struct ibv_ah_attr way;
};

static void make_world(struct world *w, const char *device)
{
	void *memory = calloc(1, 4096);

	CHECK(memory);
	w->context = open_device(device);
	CHECK(w->pd = ibv_alloc_pd(w->context));
	CHECK(w->cq = ibv_create_cq(w->context, 2 * DEPTH, NULL, NULL, 0));
	CHECK(w->mr = ibv_reg_mr(w->pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_query_port(w->context, 1, &w->port));
	w->way = (struct ibv_ah_attr){ .port_num = 1, .dlid = w->port.lid };
	if (w->port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		w->way.is_global = 1;
		/* That of RoCE v2 on IPv4. */
		w->way.grh.sgid_index = 1;
		w->way.grh.hop_limit = 64;
		CHECK(!ibv_query_gid(w->context, 1, 1, &w->way.grh.dgid));
	}
}

static uint32_t make_target(struct world *w)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = w->cq, .recv_cq = w->cq, .pd = w->pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr own = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp;

	CHECK(init.srq = ibv_create_srq(w->pd, &srq));
	CHECK(qp = mlx5dv_create_qp(w->context, &init, &own));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = w->port.active_mtu;
	attr.min_rnr_timer = 12;
	attr.ah_attr = w->way;
	CHECK(!ibv_modify_qp(qp, &attr, CHANGES_OF_A_TARGET));
	return qp->qp_num;
}

static struct ibv_qp *make_initiator(struct world *w)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = w->cq, .recv_cq = w->cq, .pd = w->pd,
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct mlx5dv_qp_init_attr own = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp;

	CHECK(qp = mlx5dv_create_qp(w->context, &init, &own));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = w->port.active_mtu;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	return qp;
}

int main(int argc, char **argv)
{
	struct world w = {};
	struct to to;
	struct ibv_qp_ex *qp;
	struct mlx5dv_qp_ex *own;
	struct ibv_sge sge;
	uint64_t remote;

	if (argc != 3 || strcmp(argv[1], "instructions-ex")) {
		fprintf(stderr, "usage: %s instructions-ex DEVICE\n", argv[0]);
		return 2;
	}
	make_world(&w, argv[2]);
	to.number = make_target(&w);
	CHECK(to.ah = ibv_create_ah(w.pd, &w.way));
	CHECK(qp = ibv_qp_to_qp_ex(make_initiator(&w)));
	CHECK(own = mlx5dv_qp_ex_from_ibv_qp_ex(qp));
	sge = (struct ibv_sge){ (uintptr_t)w.mr->addr, WRITE_LENGTH, w.mr->lkey };
	remote = sge.addr + 2048;
	ROW("dc_write", {
		CHECK(!op_dc_write(qp, own, &to, &sge, w.mr->rkey, remote));
		drain(w.cq, 1);
	});
	return 0;
}
