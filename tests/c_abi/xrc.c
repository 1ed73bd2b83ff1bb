/*
 * XRC: domains, shared receive queues and queue pairs in them, and requests that name such a queue. Soft-RoCE has none: there
 * the checks tell that it is refused.
 */

#include "check.h"

#define OPERATIONS (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND | \
	IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
#define SRQ_MASK (IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ)

/* An initiator (the queue pair of `from`), a target, and a shared receive queue with its memory and completion queue. */
struct world {
	struct side from, to;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *target;
	uint32_t number;
};

static struct ibv_xrcd *open_domain(struct ibv_context *of, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags,
	};

	return ibv_open_xrcd(of, &attr);
}

static struct ibv_srq_init_attr_ex queue_of(const struct world *world)
{
	return (struct ibv_srq_init_attr_ex) {
		.attr = { .max_wr = 15, .max_sge = 1 }, .comp_mask = SRQ_MASK, .srq_type = IBV_SRQT_XRC,
		.pd = world->to.pd, .xrcd = world->xrcd, .cq = world->to.cq,
	};
}

static struct ibv_qp_init_attr_ex target_of(const struct world *world)
{
	return (struct ibv_qp_init_attr_ex) {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = world->xrcd,
	};
}

static struct ibv_qp_init_attr_ex initiator_of(const struct side *side, uint64_t operations)
{
	return (struct ibv_qp_init_attr_ex) {
		.send_cq = side->cq, .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD |
			(operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0), .pd = side->pd, .send_ops_flags = operations,
		.cap = { .max_send_wr = 16, .max_send_sge = 2, .max_inline_data = 64 },
	};
}

static void connect_ends(struct ibv_qp *from, struct ibv_qp *target)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int path = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;

	for (int end = 0; end < 2; end++) {
		int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

		NEED(!ibv_modify_qp(end ? target : from, &attr, mask));
	}
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .rq_psn = 7, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = to_self(),
	};
	attr.dest_qp_num = target->qp_num;
	NEED(!ibv_modify_qp(from, &attr, path));
	attr.dest_qp_num = from->qp_num;
	NEED(!ibv_modify_qp(target, &attr, path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 10, .retry_cnt = 2, .rnr_retry = 7, .max_rd_atomic = 4,
	};
	NEED(!ibv_modify_qp(from, &attr, rts | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	NEED(!ibv_modify_qp(target, &attr, rts));
}

static void receive(struct world *world, uint64_t id, size_t at)
{
	struct ibv_sge sge = part(&world->to, at, 64);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(!ibv_post_srq_recv(world->srq, &wr, &bad));
}

/* Gives false where there is no XRC. */
static bool make_world(struct world *world, uint64_t operations)
{
	struct ibv_srq_init_attr_ex queue;
	struct ibv_qp_init_attr_ex qp;

	world->from = make_ground();
	world->to = make_ground();
	world->xrcd = say_object("domain", open_domain(context, -1, O_CREAT));
	if (!world->xrcd)
		return false;
	queue = queue_of(world);
	NEED(world->srq = say_object("queue", ibv_create_srq_ex(context, &queue)));
	say("it has", "room %d, slices %d, context %d", queue.attr.max_wr >= 15, queue.attr.max_sge >= 1,
		world->srq->context == context);
	say_status("number", ibv_get_srq_num(world->srq, &world->number));
	qp = target_of(world);
	NEED(world->target = say_object("target", ibv_create_qp_ex(context, &qp)));
	say("it has", "domain %d, queues %d %d %d, type %d, state %d", world->target->pd != NULL, world->target->send_cq != NULL,
		world->target->recv_cq != NULL, world->target->srq != NULL, world->target->qp_type, world->target->state);
	qp = initiator_of(&world->from, operations);
	NEED(world->from.qp = say_object("initiator", ibv_create_qp_ex(context, &qp)));
	say("it has", "domain %d, queues %d %d %d, sends %d, receives %u %u", world->from.qp->pd == world->from.pd,
		world->from.qp->send_cq == world->from.cq, world->from.qp->recv_cq != NULL, world->from.qp->srq != NULL,
		qp.cap.max_send_wr >= 16, qp.cap.max_recv_wr, qp.cap.max_recv_sge);
	connect_ends(world->from.qp, world->target);
	return true;
}

/* What has come to the queue of the world. */
static void say_received(struct world *world, const char *fact, size_t at)
{
	struct ibv_wc wc;

	NEED(completion(world->to.cq, &wc, WAIT_S));
	say(fact, "%llu %s, opcode %d, %u bytes, to the target %d, immediate %d: %.8s", (unsigned long long)wc.wr_id,
		ibv_wc_status_str(wc.status), wc.opcode, wc.byte_len, wc.qp_num == world->target->qp_num,
		wc.wc_flags & IBV_WC_WITH_IMM ? (int)ntohl(wc.imm_data) : -1, (char *)world->to.memory + at);
}

static void end_world(struct world *world)
{
	say_status("busy domain", ibv_close_xrcd(world->xrcd));
	say_status("initiator ends", ibv_destroy_qp(world->from.qp));
	say_status("target ends", ibv_destroy_qp(world->target));
	say_status("queue ends", ibv_destroy_srq(world->srq));
	say_status("domain ends", ibv_close_xrcd(world->xrcd));
}

/* Requests in a list, each of which names a queue. */
static void lists(void)
{
	struct world world;
	struct ibv_sge first, second;
	struct ibv_send_wr wr[4], *bad = NULL;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!make_world(&world, 0))
		return;
	receive(&world, 1, 0);
	receive(&world, 2, 64);
	receive(&world, 3, 128);
	memcpy(world.from.memory, "a letter", 8);
	memcpy(world.to.memory + 1024, "to read", 7);
	first = part(&world.from, 0, 8);
	second = part(&world.from, 512, 7);
	memset(wr, 0, sizeof(wr));
	for (int i = 0; i < 4; i++) {
		wr[i] = (struct ibv_send_wr) {
			.wr_id = 10 + i, .next = i < 3 ? &wr[i + 1] : NULL, .sg_list = &first, .num_sge = 1,
			.send_flags = IBV_SEND_SIGNALED,
		};
		wr[i].qp_type.xrc.remote_srqn = world.number;
	}
	wr[0].opcode = IBV_WR_SEND;
	wr[1].opcode = IBV_WR_SEND_WITH_IMM;
	wr[1].imm_data = htonl(77);
	wr[1].send_flags |= IBV_SEND_INLINE;
	wr[2].opcode = IBV_WR_RDMA_READ;
	wr[2].sg_list = &second;
	wr[2].wr.rdma.remote_addr = (uintptr_t)world.to.memory + 1024;
	wr[2].wr.rdma.rkey = world.to.mr->rkey;
	wr[3].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr[3].imm_data = htonl(78);
	wr[3].wr.rdma.remote_addr = (uintptr_t)world.to.memory + 2048;
	wr[3].wr.rdma.rkey = world.to.mr->rkey;
	say_status("post", ibv_post_send(world.from.qp, wr, &bad));
	say_completions("sent", world.from.cq, 4);
	say_received(&world, "plain", 0);
	say_received(&world, "inline", 64);
	say_received(&world, "written", 2048);
	say("read", "%.7s", (char *)world.from.memory + 512);
	say_status("query", ibv_query_qp(world.target, &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	say("it has", "state %d, type %d, sends %u, receives %u", attr.qp_state, init.qp_type, attr.cap.max_send_wr,
		attr.cap.max_recv_wr);
	wr[0].next = NULL;
	wr[0].qp_type.xrc.remote_srqn = world.number ^ 0x800000;
	say_status("astray", ibv_post_send(world.from.qp, wr, &bad));
	say_completions("astray", world.from.cq, 1);
	to_state(world.target, IBV_QPS_RESET);
	to_state(world.from.qp, IBV_QPS_RESET);
	connect_ends(world.from.qp, world.target);
	wr[0].qp_type.xrc.remote_srqn = world.number;
	receive(&world, 4, 0);
	say_status("again", ibv_post_send(world.from.qp, wr, &bad));
	say_completions("again", world.from.cq, 1);
	say_received(&world, "again", 0);
	end_world(&world);
}

/* Requests step by step, with the queue named before the payload and behind it. */
static void steps(void)
{
	struct world world;
	struct ibv_qp_ex *qp;
	struct ibv_data_buf pieces[2] = { { "in ", 3 }, { "pieces", 6 } };

	if (!make_world(&world, OPERATIONS))
		return;
	for (int i = 0; i < 4; i++)
		receive(&world, i, 64 * i);
	memcpy(world.from.memory, "a letter", 8);
	NEED(qp = ibv_qp_to_qp_ex(world.from.qp));
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_xrc_srqn(qp, world.number);
	ibv_wr_set_sge(qp, world.from.mr->lkey, (uintptr_t)world.from.memory, 8);
	qp->wr_id = 2;
	ibv_wr_send_imm(qp, htonl(79));
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	ibv_wr_set_xrc_srqn(qp, world.number);
	qp->wr_id = 3;
	ibv_wr_rdma_write(qp, world.to.mr->rkey, (uintptr_t)world.to.memory + 1024);
	ibv_wr_set_inline_data(qp, "written", 7);
	ibv_wr_set_xrc_srqn(qp, world.number);
	qp->wr_id = 4;
	ibv_wr_atomic_fetch_add(qp, world.to.mr->rkey, (uintptr_t)world.to.memory + 2048, 5);
	ibv_wr_set_xrc_srqn(qp, world.number);
	ibv_wr_set_sge(qp, world.from.mr->lkey, (uintptr_t)world.from.memory + 512, 8);
	say_status("complete", ibv_wr_complete(qp));
	say_completions("sent", world.from.cq, 4);
	say_received(&world, "first", 0);
	say_received(&world, "second", 64);
	say("written", "%.7s %d", (char *)world.to.memory + 1024, world.to.memory[2048]);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_xrc_srqn(qp, world.number);
	ibv_wr_set_inline_data(qp, "aborted", 7);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	qp->wr_id = 5;
	ibv_wr_send(qp);
	ibv_wr_set_xrc_srqn(qp, world.number);
	ibv_wr_set_inline_data(qp, "behind", 6);
	say_status("behind", ibv_wr_complete(qp));
	say_completions("behind", world.from.cq, 1);
	say_received(&world, "third", 128);
	end_world(&world);
}

/* A domain of a file, which another context has open too. */
static void shared(void)
{
	struct ibv_context *other = open_device(), *first = context;
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_context = &first, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr found;
	struct ibv_xrcd *theirs;
	struct world world;
	struct ibv_qp *opened;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	FILE *file = tmpfile();
	int fd;

	NEED(file);
	fd = fileno(file);
	say_object("not there", open_domain(other, fd, 0));
	world.from = make_ground();
	world.to = make_ground();
	world.xrcd = say_object("domain", open_domain(context, fd, O_CREAT | O_EXCL));
	if (!world.xrcd)
		return;
	say_object("no mask", ibv_open_xrcd(other, &(struct ibv_xrcd_init_attr) { .comp_mask = IBV_XRCD_INIT_ATTR_FD }));
	say_object("there", open_domain(other, fd, O_CREAT | O_EXCL));
	NEED(theirs = say_object("theirs", open_domain(other, fd, O_CREAT)));
	/* The queue is the other context's. */
	context = other;
	world.to = make_ground();
	context = first;
	struct ibv_srq_init_attr_ex queue = queue_of(&world);
	queue.xrcd = theirs;
	NEED(world.srq = say_object("queue", ibv_create_srq_ex(other, &queue)));
	NEED(!ibv_get_srq_num(world.srq, &world.number));
	struct ibv_qp_init_attr_ex qp = target_of(&world);
	NEED(world.target = ibv_create_qp_ex(context, &qp));
	qp = initiator_of(&world.from, 0);
	NEED(world.from.qp = ibv_create_qp_ex(context, &qp));
	connect_ends(world.from.qp, world.target);
	attr.xrcd = theirs;
	attr.qp_num = world.target->qp_num ^ 0x800000;
	say_object("no such target", ibv_open_qp(other, &attr));
	attr.qp_num = world.target->qp_num;
	attr.comp_mask &= ~IBV_QP_OPEN_ATTR_XRCD;
	say_object("without domain", ibv_open_qp(other, &attr));
	attr.comp_mask |= IBV_QP_OPEN_ATTR_XRCD;
	NEED(opened = say_object("opened", ibv_open_qp(other, &attr)));
	say("it has", "number %d, type %d, context %d %d, domain %d, state %d", opened->qp_num == world.target->qp_num,
		opened->qp_type, opened->context == other, opened->qp_context == &first, opened->pd != NULL, opened->state);
	say_status("query", ibv_query_qp(opened, &found, IBV_QP_STATE, &init));
	say("it has", "state %d, %d", found.qp_state, opened->state);
	say_status("creator ends", ibv_destroy_qp(world.target));
	world.target = opened;
	receive(&world, 1, 0);
	memcpy(world.from.memory, "a letter", 8);
	sge = part(&world.from, 0, 8);
	wr.opcode = IBV_WR_SEND;
	wr.qp_type.xrc.remote_srqn = world.number;
	NEED(!ibv_post_send(world.from.qp, &wr, &bad));
	say_completions("sent", world.from.cq, 1);
	say_received(&world, "received", 0);
	/* What was opened goes with its context: libmlx5 crashes when it destroys that. */
	say_status("queue ends", ibv_destroy_srq(world.srq));
	say_status("theirs, busy", ibv_close_xrcd(theirs));
	say_status("initiator ends", ibv_destroy_qp(world.from.qp));
	say_status("domain ends", ibv_close_xrcd(world.xrcd));
}

/* What is refused. */
static void refused(void)
{
	struct world world;
	struct ibv_srq_init_attr_ex queue;
	struct ibv_qp_init_attr_ex qp;

	if (!make_world(&world, 0))
		return;
	queue = queue_of(&world);
	queue.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
	say_object("queue without completion queue", ibv_create_srq_ex(context, &queue));
	queue = queue_of(&world);
	queue.comp_mask &= ~IBV_SRQ_INIT_ATTR_XRCD;
	say_object("queue without domain", ibv_create_srq_ex(context, &queue));
	queue = queue_of(&world);
	queue.attr.max_wr = 1 << 30;
	say_object("queue with too much", ibv_create_srq_ex(context, &queue));
	qp = target_of(&world);
	qp.comp_mask = 0;
	say_object("target without domain", ibv_create_qp_ex(context, &qp));
	qp = initiator_of(&world.from, 0);
	qp.comp_mask = 0;
	say_object("initiator without domain", ibv_create_qp_ex(context, &qp));
	qp = initiator_of(&world.from, IBV_QP_EX_WITH_TSO);
	say_object("initiator with TSO", ibv_create_qp_ex(context, &qp));
	say_status("busy completion queue", ibv_destroy_cq(world.to.cq));
	end_world(&world);
}

/* A queue that ends while completions of its messages wait. */
static void destroyed_unread(void)
{
	struct ibv_srq_init_attr_ex queue;
	struct world world;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_srq *second;
	struct ibv_wc wc;

	if (!make_world(&world, 0))
		return;
	queue = queue_of(&world);
	NEED(second = ibv_create_srq_ex(context, &queue));
	receive(&world, 10, 0);
	sge = part(&world.from, 0, 8);
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.qp_type.xrc.remote_srqn = world.number;
	NEED(!ibv_post_send(world.from.qp, &wr, &bad));
	need_completions(world.from.cq, 1);
	say_status("queue ends", ibv_destroy_srq(world.srq));
	world.srq = second;
	NEED(!ibv_get_srq_num(second, &wr.qp_type.xrc.remote_srqn));
	receive(&world, 11, 64);
	NEED(!ibv_post_send(world.from.qp, &wr, &bad));
	need_completions(world.from.cq, 1);
	while (completion(world.to.cq, &wc, QUIET_MS / 1000.0))
		say("received", "%llu %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	end_world(&world);
}

MAIN({ "lists", lists }, { "steps", steps }, { "shared", shared }, { "refused", refused },
	{ "destroyed_unread", destroyed_unread })
