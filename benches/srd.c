/*
 * rdma-core's side of the measurements on an EFA: the same work as src/srd.rs, through libibverbs and libefa.
 *
 *   srd instructions DEVICE          each operation of the data path, for callgrind
 *   srd instructions-ex DEVICE       the same, requests by ibv_wr_start, and completions by ibv_start_poll
 *
 * READs are in the second alone: libefa has none in ibv_post_send.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

#include "measured.h"

#define READ_LENGTH 64
#define QKEY 0x11111111

#include "../tests/c_abi/make_srd.h"

struct to {
	struct ibv_ah *ah;
	uint32_t qpn;
};

INLINED int read_some(struct ibv_qp_ex *qp, const struct to *to, const struct ibv_sge *sge, uint32_t rkey,
	uint64_t from, int count)
{
	ibv_wr_start(qp);
	for (int i = 0; i < count; i++) {
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_read(qp, rkey, from);
		ibv_wr_set_sge(qp, sge->lkey, sge->addr, sge->length);
		ibv_wr_set_ud_addr(qp, to->ah, to->qpn, QKEY);
	}
	return ibv_wr_complete(qp);
}

INLINED int send_inline(struct ibv_qp_ex *qp, const struct to *to, void *bytes)
{
	ibv_wr_start(qp);
	qp->wr_id = 9;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, bytes, INLINE_LENGTH);
	ibv_wr_set_ud_addr(qp, to->ah, to->qpn, QKEY);
	return ibv_wr_complete(qp);
}

COUNTED int op_srd_read(struct ibv_qp_ex *qp, const struct to *to, const struct ibv_sge *sge, uint32_t rkey,
	uint64_t from)
{
	return read_some(qp, to, sge, rkey, from, 1);
}

COUNTED int op_srd_batch(struct ibv_qp_ex *qp, const struct to *to, const struct ibv_sge *sge, uint32_t rkey,
	uint64_t from)
{
	return read_some(qp, to, sge, rkey, from, BATCH);
}

COUNTED int op_srd_inline(struct ibv_qp_ex *qp, const struct to *to, void *bytes)
{
	return send_inline(qp, to, bytes);
}

COUNTED int op_srd_list(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, wr, &bad);
}

COUNTED int op_srd_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, wr, &bad);
}

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_qp *here, *there;
	struct ibv_qp_ex *here_ex;
	struct ibv_cq_ex *cq_ex, *peer_cq_ex;
	struct ibv_cq *cq, *peer_cq;
	struct ibv_mr *source, *target;
	struct to to;
	struct ibv_sge into;
	struct ibv_recv_wr receive;
	uint8_t bytes[INLINE_LENGTH];
};

static struct ibv_mr *register_memory(struct ibv_pd *pd)
{
	void *memory = calloc(1, 4096);
	struct ibv_mr *mr;

	CHECK(memory);
	CHECK(mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	return mr;
}

static struct ibv_qp *create_qp(struct pair *pair, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_DRIVER, .pd = pair->pd,
		.cap = { DEPTH, DEPTH, 1, 1, INLINE_LENGTH },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ,
	};

	return make_srd(pair->context, &attr);
}

static void make_pair(struct pair *pair, const char *device)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 2 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };

	pair->context = open_device(device);
	CHECK(pair->pd = ibv_alloc_pd(pair->context));
	CHECK(pair->cq_ex = ibv_create_cq_ex(pair->context, &attr));
	CHECK(pair->peer_cq_ex = ibv_create_cq_ex(pair->context, &attr));
	pair->cq = ibv_cq_ex_to_cq(pair->cq_ex);
	pair->peer_cq = ibv_cq_ex_to_cq(pair->peer_cq_ex);
	pair->here = create_qp(pair, pair->cq);
	pair->there = create_qp(pair, pair->peer_cq);
	pair->here_ex = ibv_qp_to_qp_ex(pair->here);
	CHECK(!ibv_query_gid(pair->context, 1, 0, &way.grh.dgid));
	CHECK(pair->to.ah = ibv_create_ah(pair->pd, &way));
	pair->to.qpn = pair->there->qp_num;
	pair->source = register_memory(pair->pd);
	pair->target = register_memory(pair->pd);
	pair->into = (struct ibv_sge){ (uintptr_t)pair->target->addr, READ_LENGTH, pair->target->lkey };
	pair->receive = (struct ibv_recv_wr){ .wr_id = 8, .sg_list = &pair->into, .num_sge = 1 };
}

static void make_ready(struct pair *p, const struct ibv_sge *sge, int *ready, int want)
{
	if (*ready < want) {
		CHECK(!read_some(p->here_ex, &p->to, sge, p->target->rkey, (uintptr_t)p->target->addr, READY));
		usleep(SETTLE_US);
		*ready += READY;
	}
	*ready -= want;
}

static void post_receives(struct pair *p, int count)
{
	struct ibv_recv_wr *bad;

	for (int i = 0; i < count; i++)
		CHECK(!ibv_post_recv(p->there, &p->receive, &bad));
}

/* Messages that have been received. */
static void make_received(struct pair *p, int *ready, int want)
{
	if (*ready < want) {
		post_receives(p, READY);
		for (int i = 0; i < READY; i++)
			CHECK(!send_inline(p->here_ex, &p->to, p->bytes));
		drain(p->cq, READY);
		usleep(SETTLE_US);
		*ready += READY;
	}
	*ready -= want;
}

static void instructions(const char *device, int extended)
{
	static struct pair p;
	struct ibv_sge sge, message;
	struct ibv_send_wr send = {
		.wr_id = 9, .sg_list = &message, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	};
	uint64_t ids = 0, from;
	int ready = 0;

	make_pair(&p, device);
	sge = (struct ibv_sge){ (uintptr_t)p.source->addr, READ_LENGTH, p.source->lkey };
	from = (uintptr_t)p.target->addr;
	message = (struct ibv_sge){ (uintptr_t)p.bytes, INLINE_LENGTH, 0 };
	send.wr.ud.ah = p.to.ah;
	send.wr.ud.remote_qpn = p.to.qpn;
	send.wr.ud.remote_qkey = QKEY;
	if (extended) {
		ROW("post_read", {
			CHECK(!op_srd_read(p.here_ex, &p.to, &sge, p.target->rkey, from));
			drain(p.cq, 1);
		});
		post_receives(&p, WARM_UP + CALLS);
		ROW("post_inline", {
			CHECK(!op_srd_inline(p.here_ex, &p.to, p.bytes));
			drain(p.cq, 1);
		});
		drain(p.peer_cq, WARM_UP + CALLS);
		ROW("post_reads", {
			CHECK(!op_srd_batch(p.here_ex, &p.to, &sge, p.target->rkey, from));
			drain(p.cq, BATCH);
		});
		ROW("poll_nothing", CHECK(op_ex_poll_one(p.cq_ex, &ids) == 0));
		ROW("poll_one", {
			make_ready(&p, &sge, &ready, 1);
			CHECK(op_ex_poll_one(p.cq_ex, &ids) == 1);
		});
		ROW("poll_many", {
			make_ready(&p, &sge, &ready, MANY);
			CHECK(op_ex_poll_many(p.cq_ex, &ids) == MANY);
		});
		drain(p.cq, ready);
		ready = 0;
		ROW("poll_received", {
			make_received(&p, &ready, 1);
			CHECK(op_ex_poll_one(p.peer_cq_ex, &ids) == 1);
		});
		ROW("poll_received_many", {
			make_received(&p, &ready, MANY);
			CHECK(op_ex_poll_many(p.peer_cq_ex, &ids) == MANY);
		});
		return;
	}
	ROW("post_receive", CHECK(!op_srd_receive(p.there, &p.receive)));
	ROW("post_inline", {
		CHECK(!op_srd_list(p.here, &send));
		drain(p.cq, 1);
	});
	drain(p.peer_cq, WARM_UP + CALLS);
	ROW("poll_nothing", CHECK(op_poll_one(p.cq, &ids) == 0));
	ROW("poll_one", { make_ready(&p, &sge, &ready, 1); CHECK(op_poll_one(p.cq, &ids) == 1); });
	ROW("poll_many", { make_ready(&p, &sge, &ready, MANY); CHECK(op_poll_many(p.cq, &ids) == MANY); });
	drain(p.cq, ready);
	ready = 0;
	ROW("poll_received", {
		make_received(&p, &ready, 1);
		CHECK(op_poll_one(p.peer_cq, &ids) == 1);
	});
	ROW("poll_received_many", {
		make_received(&p, &ready, MANY);
		CHECK(op_poll_many(p.peer_cq, &ids) == MANY);
	});
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (!strcmp(what, "instructions"))
		instructions(argv[2], 0);
	else if (!strcmp(what, "instructions-ex"))
		instructions(argv[2], 1);
	else {
		fprintf(stderr, "usage: %s instructions|instructions-ex DEVICE\n", argv[0]);
		return 2;
	}
	return 0;
}
