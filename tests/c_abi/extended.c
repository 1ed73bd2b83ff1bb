/*
 * Extended queue pairs (ibv_wr_*) and completion queues (ibv_start_poll): work requests in two phases, and completions that
 * are read one by one.
 */

#include "check.h"

#define OPERATIONS (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND | \
	IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
#define DATAGRAM_OPERATIONS (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define FIELDS (IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP)

static struct ibv_qp_init_attr_ex extended(const struct side *side, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr basis = basic(side->cq, type);

	return (struct ibv_qp_init_attr_ex) {
		.send_cq = basis.send_cq, .recv_cq = basis.recv_cq, .qp_type = type, .cap = basis.cap,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = side->pd,
		.send_ops_flags = type == IBV_QPT_UD ? DATAGRAM_OPERATIONS : OPERATIONS,
	};
}

static struct side make_extended(enum ibv_qp_type type)
{
	struct side side = make_ground();
	struct ibv_qp_init_attr_ex attr = extended(&side, type);

	NEED(side.qp = ibv_create_qp_ex(context, &attr));
	return side;
}

/* The first end is extended. */
static struct pair make_extended_pair(enum ibv_qp_type type)
{
	struct pair pair = { make_extended(type), make_side(type) };

	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	return pair;
}

static struct ibv_qp_ex *sender(const struct pair *pair)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair->a.qp);

	NEED(qp);
	return qp;
}

static void add_write(struct ibv_qp_ex *qp, const struct pair *pair, uint64_t id)
{
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, pair->b.mr->rkey, (uintptr_t)pair->b.memory);
	ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 8);
}


static void completed(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);

	say("same address", "%d", (void *)qp == (void *)pair.a.qp);
	ibv_wr_start(qp);
	add_write(qp, &pair, 1);
	add_write(qp, &pair, 2);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 2);
}

static void nothing_completed(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);

	ibv_wr_start(qp);
	say_status("complete", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	add_write(qp, &pair, 2);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
}

static void aborted(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);

	for (int i = 0; i < 40; i++) {
		ibv_wr_start(qp);
		add_write(qp, &pair, 100);
		add_write(qp, &pair, 101);
		ibv_wr_abort(qp);
	}
	ibv_wr_start(qp);
	add_write(qp, &pair, 1);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
	flush_writes(&pair.a, &pair.b);
	say_completions("then", pair.a.cq, 1);
}

/* The payload of a datagram that was given up is not that of the next one, nor is its address. */
static void aborted_datagrams(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_UD);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_sge space = part(&pair.b, 0, 256);
	struct ibv_recv_wr receive = { .wr_id = 3, .sg_list = &space, .num_sge = 1 }, *bad;
	struct ibv_ah_attr to = to_self();
	struct ibv_ah *ah;
	struct ibv_wc wc;

	NEED(ah = ibv_create_ah(pair.a.pd, &to));
	for (int i = 0; i < 2; i++)
		NEED(!ibv_post_recv(pair.b.qp, &receive, &bad));
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(qp);
	qp->wr_id = 1;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory, 11);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory, 22);
	say_status("behind a payload", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	qp->wr_id = 3;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY + 1);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	qp->wr_id = 4;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory, 44);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	say_status("behind an address", ibv_wr_complete(qp));
	say_completions("sent", pair.a.cq, 2);
	for (int i = 0; i < 2; i++) {
		NEED(completion(pair.b.cq, &wc, WAIT_S));
		say("received", "%u bytes", wc.byte_len);
	}
}

/* One bad request in the middle: nothing is posted at all. */
static void all_or_nothing(void)
{
	static struct ibv_sge many[4096];
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);

	for (int i = 0; i < 4096; i++)
		many[i] = part(&pair.a, 0, 1);
	ibv_wr_start(qp);
	add_write(qp, &pair, 1);
	qp->wr_id = 2;
	ibv_wr_rdma_write(qp, pair.b.mr->rkey, (uintptr_t)pair.b.memory);
	ibv_wr_set_sge_list(qp, 4096, many);
	add_write(qp, &pair, 3);
	say_status("complete", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	add_write(qp, &pair, 4);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
	flush_writes(&pair.a, &pair.b);
	say_completions("then", pair.a.cq, 1);
}

static void too_much_inline(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);

	ibv_wr_start(qp);
	qp->wr_id = 1;
	ibv_wr_rdma_write(qp, pair.b.mr->rkey, (uintptr_t)pair.b.memory);
	ibv_wr_set_inline_data(qp, pair.a.memory, 8192);
	say_status("complete", ibv_wr_complete(qp));
	flush_writes(&pair.a, &pair.b);
	say_completions("then", pair.a.cq, 1);
}

/* Lengths that cannot be are refused before anything is read, and what comes behind them does nothing. */
static void too_long_before_the_address(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_UD);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_data_buf bufs[2] = { { pair.a.memory, 5 }, { pair.a.memory, (size_t)1 << 40 } };
	struct ibv_ah_attr to = to_self();
	struct ibv_ah *ah;

	NEED(ah = ibv_create_ah(pair.a.pd, &to));
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, pair.a.memory, SIZE_MAX);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	say_status("bytes", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, SIZE_MAX, &sge);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	say_status("slices", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	say_status("list", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	qp->wr_id = 9;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 1, &sge);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	say_status("then", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
}

/* The same where the payload is the last step. */
static void too_long_list(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_data_buf bufs[2] = { { pair.a.memory, 5 }, { pair.a.memory, (size_t)1 << 40 } };

	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	say_status("list", ibv_wr_complete(qp));
	flush_writes(&pair.a, &pair.b);
	say_completions("then", pair.a.cq, 1);
}

/* A datagram to which no payload comes. */
static void datagram_without_payload(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_UD);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_sge space = part(&pair.b, 0, 256);
	struct ibv_recv_wr receive = { .wr_id = 3, .sg_list = &space, .num_sge = 1 }, *bad;
	struct ibv_ah_attr to = to_self();
	struct ibv_ah *ah;
	struct ibv_wc wc;

	NEED(ah = ibv_create_ah(pair.a.pd, &to));
	NEED(!ibv_post_recv(pair.b.qp, &receive, &bad));
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htonl(7));
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	say_status("datagram", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
	NEED(completion(pair.b.cq, &wc, WAIT_S));
	say("it", "%u bytes, immediate %u", wc.byte_len, ntohl(wc.imm_data));
}

/* A request to which no setter comes has no payload: alone, before another one, and behind it. */
static void no_setter(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_sge space = part(&pair.b, 1024, 64);
	struct ibv_recv_wr receive = { .wr_id = 50, .sg_list = &space, .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	for (int i = 0; i < 3; i++)
		NEED(!ibv_post_recv(pair.b.qp, &receive, &bad));
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	say_status("alone", ibv_wr_complete(qp));
	ibv_wr_start(qp);
	qp->wr_id = 2;
	ibv_wr_rdma_write_imm(qp, pair.b.mr->rkey, (uintptr_t)pair.b.memory, htonl(5));
	add_write(qp, &pair, 3);
	qp->wr_id = 4;
	ibv_wr_send_imm(qp, htonl(6));
	say_status("around another", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 4);
	for (int i = 0; i < 3; i++) {
		NEED(completion(pair.b.cq, &wc, WAIT_S));
		say("received", "opcode %d, %u bytes, immediate %u", wc.opcode, wc.byte_len,
			wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0);
	}
	datagram_without_payload();
}

static void full(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);

	ibv_wr_start(qp);
	for (int i = 0; i < 512; i++)
		add_write(qp, &pair, i);
	say_status("complete", ibv_wr_complete(qp));
	flush_writes(&pair.a, &pair.b);
	say_completions("then", pair.a.cq, 1);
}

/* The bytes are copied by the setter, the id and the flags taken by the operation. */
static void taken_when(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	unsigned char text[16] = "before";

	ibv_wr_start(qp);
	qp->wr_id = 5;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_rdma_write(qp, pair.b.mr->rkey, (uintptr_t)pair.b.memory);
	qp->wr_id = 6;
	qp->wr_flags = 0;
	ibv_wr_set_inline_data(qp, text, 6);
	qp->wr_id = 7;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_rdma_write(qp, pair.b.mr->rkey, (uintptr_t)pair.b.memory + 32);
	ibv_wr_set_inline_data(qp, text + 1, 5);
	memcpy(text, "behind", 6);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 2);
	say("first", "%s", pair.b.memory);
	say("second", "%s", pair.b.memory + 32);
}

/* Inline bytes from several places. */
static void inline_list(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_data_buf bufs[2] = { { "before", 6 }, { "behind", 6 } };

	ibv_wr_start(qp);
	qp->wr_id = 7;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_rdma_write(qp, pair.b.mr->rkey, (uintptr_t)pair.b.memory);
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
	say("written", "%s", pair.b.memory);
}

/* Each operation that was asked for, with slices as one and as a list. */
static void operations(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_sge sges[2] = { part(&pair.a, 64, 8), part(&pair.a, 256, 8) }, space = part(&pair.b, 1024, 64);
	struct ibv_recv_wr receive = { .wr_id = 50, .sg_list = &space, .num_sge = 1 }, *bad;
	uint64_t *there = (uint64_t *)(pair.b.memory + 128);
	struct ibv_wc wc;

	there[0] = 7;
	there[1] = 8;
	for (int i = 0; i < 3; i++)
		NEED(!ibv_post_recv(pair.b.qp, &receive, &bad));
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	qp->wr_id = 1;
	ibv_wr_rdma_read(qp, pair.b.mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge_list(qp, 2, sges);
	qp->wr_id = 2;
	ibv_wr_atomic_fetch_add(qp, pair.b.mr->rkey, (uintptr_t)there, 10);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory + 512, 8);
	qp->wr_id = 3;
	ibv_wr_atomic_cmp_swp(qp, pair.b.mr->rkey, (uintptr_t)there, 17, 99);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory + 520, 8);
	qp->wr_id = 4;
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 2, sges);
	qp->wr_id = 5;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_send_imm(qp, htonl(123));
	ibv_wr_set_inline_data(qp, "text", 4);
	qp->wr_id = 6;
	/* It sends what the READ brings, and nothing but a fence makes it wait for that. */
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ibv_wr_rdma_write_imm(qp, pair.b.mr->rkey, (uintptr_t)there + 64, htonl(124));
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory + 64, 8);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 6);
	say("read", "%llu %llu", *(unsigned long long *)(pair.a.memory + 64), *(unsigned long long *)(pair.a.memory + 256));
	say("atomics", "%llu %llu %llu", *(unsigned long long *)(pair.a.memory + 512),
		*(unsigned long long *)(pair.a.memory + 520), (unsigned long long)*there);
	say("written", "%llu", (unsigned long long)there[8]);
	for (int i = 0; i < 3; i++) {
		NEED(completion(pair.b.cq, &wc, WAIT_S));
		say("received", "opcode %d, %u bytes, flags %x, immediate %u", wc.opcode, wc.byte_len, wc.wc_flags,
			wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0);
	}
}

/* The address before the bytes, and behind them. */
static void datagrams(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_UD);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_sge space = part(&pair.b, 0, 256);
	struct ibv_recv_wr receive = { .wr_id = 3, .sg_list = &space, .num_sge = 1 }, *bad;
	struct ibv_ah_attr to = to_self();
	struct ibv_ah *ah;
	struct ibv_wc wc;

	NEED(ah = ibv_create_ah(pair.a.pd, &to));
	for (int i = 0; i < 4; i++)
		NEED(!ibv_post_recv(pair.b.qp, &receive, &bad));
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	qp->wr_id = 1;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory, 16);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, pair.a.mr->lkey, (uintptr_t)pair.a.memory, 17);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_send_imm(qp, htonl(9));
	ibv_wr_set_inline_data(qp, "inline", 6);
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	qp->wr_id = 4;
	ibv_wr_send_imm(qp, htonl(10));
	ibv_wr_set_ud_addr(qp, ah, pair.b.qp->qp_num, Q_KEY);
	ibv_wr_set_inline_data(qp, "inlines", 7);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("sent", pair.a.cq, 4);
	for (int i = 0; i < 4; i++) {
		NEED(completion(pair.b.cq, &wc, WAIT_S));
		say("received", "%u bytes, immediate %u", wc.byte_len, wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0);
	}
}

static int post_one(void *argument)
{
	struct pair *pair = argument;
	struct ibv_sge sge = part(&pair->a, 0, 8);
	struct ibv_send_wr wr = writing(9, &sge, &pair->b, 0), *bad;

	return ibv_post_send(pair->a.qp, &wr, &bad);
}

/* Between start and complete or abort others wait. */
static void others_wait(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct blocked blocked;

	ibv_wr_start(qp);
	add_write(qp, &pair, 1);
	start_blocked(&blocked, post_one, &pair);
	ibv_wr_abort(qp);
	end_blocked(&blocked);
	say_completions("completion", pair.a.cq, 1);
	ibv_wr_start(qp);
	add_write(qp, &pair, 2);
	start_blocked(&blocked, post_one, &pair);
	say_status("complete", ibv_wr_complete(qp));
	end_blocked(&blocked);
	say_completions("completion", pair.a.cq, 2);
}

/* A queue pair that is reset while its owner posts forgets what was begun, and can be used again. */
static void reset_while_posting(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	ibv_wr_start(qp);
	add_write(qp, &pair, 1);
	say_status("reset", ibv_modify_qp(pair.a.qp, &attr, IBV_QP_STATE));
	add_write(qp, &pair, 2);
	say_status("complete", ibv_wr_complete(qp));
	say_status("peer", ibv_modify_qp(pair.b.qp, &attr, IBV_QP_STATE));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	ibv_wr_start(qp);
	add_write(qp, &pair, 3);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
}

/* What ibv_create_qp_ex refuses. */
static void refused_queue_pairs(void)
{
	struct side side = make_ground();
	struct ibv_qp_init_attr_ex attr;
	struct ibv_qp *qp;

	attr = extended(&side, IBV_QPT_RC);
	attr.comp_mask |= 1 << 30;
	say_object("unknown attribute", ibv_create_qp_ex(context, &attr));
	attr = extended(&side, IBV_QPT_RC);
	attr.send_ops_flags |= 1ULL << 40;
	say_object("unknown operation", ibv_create_qp_ex(context, &attr));
	attr = extended(&side, IBV_QPT_RC);
	attr.send_ops_flags |= IBV_QP_EX_WITH_TSO;
	say_object("segmentation on RC", ibv_create_qp_ex(context, &attr));
	attr = extended(&side, IBV_QPT_UD);
	attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ;
	say_object("reads on UD", ibv_create_qp_ex(context, &attr));
	attr = extended(&side, IBV_QPT_UC);
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_INV;
	say_object("invalidation on UC", ibv_create_qp_ex(context, &attr));
	attr = extended(&side, IBV_QPT_RC);
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = 1 << 29;
	say_object("unknown flag", ibv_create_qp_ex(context, &attr));
	attr.create_flags = 1 << 12;
	say_object("flag of the kernel", ibv_create_qp_ex(context, &attr));
	attr.create_flags = IBV_QP_CREATE_SOURCE_QPN;
	attr.source_qpn = 7;
	say_object("source", ibv_create_qp_ex(context, &attr));
	attr = extended(&side, IBV_QPT_RC);
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	qp = say_object("without operations", ibv_create_qp_ex(context, &attr));
	NEED(qp);
	say("it is extended", "%d", ibv_qp_to_qp_ex(qp) != NULL);
	attr = extended(&side, IBV_QPT_RC);
	attr.send_ops_flags = 0;
	qp = say_object("with no operation", ibv_create_qp_ex(context, &attr));
	NEED(qp);
	say("it is extended", "%d", ibv_qp_to_qp_ex(qp) != NULL);
	say_object("plain", qp = make_side(IBV_QPT_RC).qp);
	say("it is extended", "%d", ibv_qp_to_qp_ex(qp) != NULL);
}

static void send_message(struct pair *pair, int number)
{
	struct ibv_sge space = part(&pair->b, 0, 64), sge = part(&pair->a, 0, 8);
	struct ibv_recv_wr receive = { .wr_id = number, .sg_list = &space, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htonl(1000 + number),
	}, *bad;

	NEED(!ibv_post_recv(pair->b.qp, &receive, &bad_receive));
	NEED(!ibv_post_send(pair->a.qp, &wr, &bad));
	need_completions(pair->a.cq, 1);
}

/* Where the queues of the next function tell of completions, if they do. */
static struct ibv_comp_channel *channel;

/* Requests in each state on the way to RTS. Soft-RoCE's provider asks the kernel, and keeps in the ring what that refuses. */
static void too_early(void)
{
	struct pair pair = { make_extended(IBV_QPT_RC), make_side(IBV_QPT_RC) };
	struct ibv_qp_ex *qp = sender(&pair);

	connect_qp(pair.b.qp, pair.a.qp);
	for (int state = is_soft() ? 3 : 0; state < 4; state++) {
		if (state == 1)
			NEED(!to_init(pair.a.qp));
		if (state == 2)
			NEED(!to_rtr(pair.a.qp, pair.b.qp->qp_num));
		if (state == 3 && is_soft())
			connect_qp(pair.a.qp, pair.b.qp);
		else if (state == 3)
			NEED(!to_rts(pair.a.qp));
		ibv_wr_start(qp);
		add_write(qp, &pair, state);
		say_status("complete", ibv_wr_complete(qp));
	}
	say_completions("completion", pair.a.cq, 1);
	say("nothing more", "%d", ibv_poll_cq(pair.a.cq, 1, &(struct ibv_wc) {}));
	to_state(pair.a.qp, IBV_QPS_RESET);
	if (!is_soft()) {
		ibv_wr_start(qp);
		add_write(qp, &pair, 4);
		say_status("after a reset", ibv_wr_complete(qp));
	}
}

/* A pair whose second end has an extended completion queue, in which so many messages have arrived. */
static struct pair with_messages(struct ibv_cq_ex **cq, int count)
{
	struct pair pair = { make_side(IBV_QPT_RC), make_ground() };
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = FIELDS, .channel = channel };
	struct ibv_qp_init_attr qp_attr;

	NEED(*cq = ibv_create_cq_ex(context, &attr));
	pair.b.cq = ibv_cq_ex_to_cq(*cq);
	qp_attr = basic(pair.b.cq, IBV_QPT_RC);
	NEED(pair.b.qp = ibv_create_qp(pair.b.pd, &qp_attr));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	for (int i = 0; i < count; i++)
		send_message(&pair, i);
	return pair;
}

/* Starts to poll until there is something. */
static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {};
	double end = now() + WAIT_S;
	int status;

	do
		status = ibv_start_poll(cq, &attr);
	while (status == ENOENT && now() < end);
	return status;
}

/* An empty queue holds nothing, so that it can be polled otherwise. */
static void empty(void)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_cq_ex *cq;
	struct ibv_wc wc;

	with_messages(&cq, 0);
	for (int i = 0; i < 3; i++)
		say_status("start", ibv_start_poll(cq, &attr));
	say("plain", "%d", ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc));
	say_status("start", ibv_start_poll(cq, &attr));
	say_status("destroy", ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) ? EBUSY : 0);
}

/* Polling ends although it has not begun: some programs do that. */
static void empty_and_ended(void)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_cq_ex *cq;
	struct ibv_wc wc;

	with_messages(&cq, 0);
	say_status("start", ibv_start_poll(cq, &attr));
	ibv_end_poll(cq);
	say_status("start", ibv_start_poll(cq, &attr));
	ibv_end_poll(cq);
	say("plain", "%d", ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc));
}

static void unknown_poll_attribute(void)
{
	struct ibv_poll_cq_attr attr = { .comp_mask = 1 << 30 };
	struct ibv_cq_ex *cq;

	with_messages(&cq, 0);
	say_status("start", ibv_start_poll(cq, &attr));
}

static void say_current(const struct pair *pair, struct ibv_cq_ex *cq)
{
	say("completion", "%llu %s, opcode %d, %u bytes, flags %x, immediate %u, at the receiver: %d",
		(unsigned long long)cq->wr_id, ibv_wc_status_str(cq->status), ibv_wc_read_opcode(cq),
		ibv_wc_read_byte_len(cq), ibv_wc_read_wc_flags(cq), ntohl(ibv_wc_read_imm_data(cq)),
		ibv_wc_read_qp_num(cq) == pair->b.qp->qp_num);
}

static void all_at_once(void)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_cq_ex *cq;
	struct pair pair = with_messages(&cq, 4);
	int seen = 1;

	say_status("start", start(cq));
	say_current(&pair, cq);
	while (seen < 4) {
		int status = ibv_next_poll(cq);

		/* The last message may still be on its way. */
		if (status == ENOENT) {
			ibv_end_poll(cq);
			NEED(!start(cq));
		} else {
			NEED(!status);
		}
		say_current(&pair, cq);
		seen++;
	}
	say_status("next", ibv_next_poll(cq));
	ibv_end_poll(cq);
	say_status("start", ibv_start_poll(cq, &attr));
}

/* What was not looked at stays there. */
static void one_by_one(void)
{
	struct ibv_cq_ex *cq;
	struct pair pair = with_messages(&cq, 3);

	say_status("start", start(cq));
	say_current(&pair, cq);
	ibv_end_poll(cq);
	say_completions("plain", pair.b.cq, 1);
	say_status("start", start(cq));
	say_current(&pair, cq);
	ibv_end_poll(cq);
}

static int poll_plain(void *argument)
{
	struct ibv_wc wc;

	return ibv_poll_cq(argument, 1, &wc);
}

static void others_wait_for_the_poll(void)
{
	struct ibv_cq_ex *cq;
	struct blocked blocked;
	struct pair pair = with_messages(&cq, 1);

	say_status("start", start(cq));
	start_blocked(&blocked, poll_plain, pair.b.cq);
	ibv_end_poll(cq);
	end_blocked(&blocked);
}

/* A queue can be armed before the end of a poll, by the thread that polls and by others. */
static void armed_while_polling(void)
{
	struct ibv_cq_ex *cq;
	struct ibv_cq *told;
	struct pair pair;
	void *of;

	NEED(channel = ibv_create_comp_channel(context));
	pair = with_messages(&cq, 1);
	say_status("start", start(cq));
	say_status("arm", ibv_req_notify_cq(pair.b.cq, 0));
	say("completion", "%llu", (unsigned long long)cq->wr_id);
	ibv_end_poll(cq);
	send_message(&pair, 1);
	NEED(!ibv_get_cq_event(channel, &told, &of));
	say("event", "%d", told == pair.b.cq);
	ibv_ack_cq_events(told, 1);
	say_completions("then", pair.b.cq, 1);
}

/* So can a queue pair be created that reports to it. */
static void made_while_polling(void)
{
	struct ibv_cq_ex *cq;
	struct pair pair = with_messages(&cq, 1);
	struct ibv_qp_init_attr attr = basic(pair.b.cq, IBV_QPT_RC);
	struct ibv_qp *qp;

	say_status("start", start(cq));
	NEED(qp = say_object("another", ibv_create_qp(pair.b.pd, &attr)));
	say("completion", "%llu", (unsigned long long)cq->wr_id);
	ibv_end_poll(cq);
	say_status("destroy", ibv_destroy_qp(qp));
	send_message(&pair, 1);
	say_completions("then", pair.b.cq, 1);
}

/* A queue pair tells of itself before its requests are complete. */
static void asked_while_posting(void)
{
	struct pair pair = make_extended_pair(IBV_QPT_RC);
	struct ibv_qp_ex *qp = sender(&pair);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	ibv_wr_start(qp);
	add_write(qp, &pair, 1);
	say_status("query", ibv_query_qp(pair.a.qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	say("it has", "state %d, sends %d, receives %d", attr.qp_state, init.cap.max_send_wr >= 16,
		init.cap.max_recv_wr >= 16);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("completion", pair.a.cq, 1);
}

/* A completion that failed. */
static void failure(void)
{
	struct ibv_cq_ex *cq;
	struct pair pair = with_messages(&cq, 0);
	struct ibv_sge sge = part(&pair.b, 0, 8);
	struct ibv_send_wr wr = writing(31, &sge, &pair.a, 0), *bad;

	wr.wr.rdma.rkey ^= 0x5500;
	NEED(!ibv_post_send(pair.b.qp, &wr, &bad));
	say_status("start", start(cq));
	say("completion", "%llu %s", (unsigned long long)cq->wr_id, ibv_wc_status_str(cq->status));
	ibv_end_poll(cq);
}

/* The time stamp of a completion, in the device's ticks and as time of day. */
static void stamped(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct pair pair = { make_ground(), make_side(IBV_QPT_RC) };
	struct ibv_cq_ex *cq = say_object("queue", ibv_create_cq_ex(context, &attr));
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 0), *bad;
	struct ibv_qp_init_attr qp_attr;
	uint64_t stamps[2], times[2];
	long long off;

	if (!cq)
		return;
	qp_attr = basic(ibv_cq_ex_to_cq(cq), IBV_QPT_RC);
	NEED(pair.a.qp = ibv_create_qp(pair.a.pd, &qp_attr));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
		say_status("start", start(cq));
		stamps[i] = ibv_wc_read_completion_ts(cq);
		times[i] = ibv_wc_read_completion_wallclock_ns(cq);
		ibv_end_poll(cq);
	}
	/* An emulated clock need not run as fast as the one that it is compared with. */
	off = (long long)(times[0] / 1000000000) - time(NULL);
	say("stamps", "in order %d, times in order %d, within a minute %d", stamps[0] < stamps[1], times[0] < times[1],
		off > -60 && off < 60);
}

/* What ibv_create_cq_ex refuses. */
static void refused_completion_queues(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16 };

	say_object("nothing special", ibv_create_cq_ex(context, &attr));
	attr.comp_mask = 1 << 30;
	say_object("unknown attribute", ibv_create_cq_ex(context, &attr));
	attr.comp_mask = 0;
	attr.wc_flags = 1ULL << 40;
	say_object("unknown field", ibv_create_cq_ex(context, &attr));
	attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
	say_object("VLAN", ibv_create_cq_ex(context, &attr));
	attr.wc_flags = IBV_WC_EX_WITH_TM_INFO;
	say_object("tags", ibv_create_cq_ex(context, &attr));
	attr.wc_flags = 0;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1 << 20;
	say_object("unknown flag", ibv_create_cq_ex(context, &attr));
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	say_object("one thread", ibv_create_cq_ex(context, &attr));
	attr.comp_mask = 0;
	attr.comp_vector = 9999;
	say_object("vector", ibv_create_cq_ex(context, &attr));
	attr.comp_vector = 0;
	attr.cqe = 0;
	say_object("no entries", ibv_create_cq_ex(context, &attr));
	attr.cqe = 1U << 30;
	say_object("too many entries", ibv_create_cq_ex(context, &attr));
	attr.cqe = 16;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	attr.parent_domain = ibv_alloc_pd(context);
	say_object("domain that is no parent", ibv_create_cq_ex(context, &attr));
}

MAIN(
	{ "completed", completed }, { "nothing_completed", nothing_completed }, { "aborted", aborted },
	{ "aborted_datagrams", aborted_datagrams },
	{ "all_or_nothing", all_or_nothing }, { "too_much_inline", too_much_inline },
	{ "too_long_before_the_address", too_long_before_the_address }, { "too_long_list", too_long_list },
	{ "no_setter", no_setter }, { "full", full },
	{ "taken_when", taken_when }, { "inline_list", inline_list },
	{ "operations", operations }, { "datagrams", datagrams }, { "others_wait", others_wait }, { "reset_while_posting", reset_while_posting }, { "refused_queue_pairs", refused_queue_pairs }, { "empty", empty },
	{ "empty_and_ended", empty_and_ended }, { "unknown_poll_attribute", unknown_poll_attribute },
	{ "all_at_once", all_at_once }, { "one_by_one", one_by_one },
	{ "others_wait_for_the_poll", others_wait_for_the_poll }, { "failure", failure },
	{ "armed_while_polling", armed_while_polling }, { "made_while_polling", made_while_polling },
	{ "asked_while_posting", asked_while_posting }, { "too_early", too_early },
	{ "refused_completion_queues", refused_completion_queues }, { "stamped", stamped },
)
