/*
 * rdma-core's side of the measurements: the same work as the Rust program beside it, through libibverbs.
 *
 *   rdma_core instructions DEVICE          each operation of the data path, for callgrind
 *   rdma_core instructions-ex DEVICE       the same by the interface of ibv_wr_start and ibv_start_poll
 *   rdma_core start-up DEVICE pd|completion [memory]
 *                                          a start, up to the first PD or the first completion
 *   rdma_core scale DEVICE qp|mr COUNT    many objects
 *   rdma_core serve DEVICE                 timed work, as asked for on standard input
 *
 * Each part names the Rust file that it goes with.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "measured.h"

#define GID_INDEX 1

/* Two connected queue pairs of this process; src/pair.rs. */
struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	/* Where `here` is created. */
	struct ibv_pd *here_pd;
	struct ibv_port_attr port;
	struct ibv_qp *here, *there;
	struct ibv_qp_ex *here_ex;
	struct ibv_cq *cq, *peer_cq;
	struct ibv_cq_ex *cq_ex;
	/* Where the completion queues report, if that is asked for. */
	struct ibv_comp_channel *channel, *peer_channel;
	struct ibv_mr *source, *target;
};

static struct ibv_qp *create_qp_with(struct pair *pair, struct ibv_pd *pd, struct ibv_cq *cq,
	struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { DEPTH, DEPTH, 1, 1, 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pair->context, &attr);

	CHECK(qp);
	return qp;
}

static struct ibv_qp *create_qp(struct pair *pair, struct ibv_pd *pd, struct ibv_cq *cq)
{
	return create_qp_with(pair, pd, cq, NULL);
}

static void connect_qp(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid gid,
	const struct ibv_port_attr *port, enum ibv_mtu mtu)
{
	int ethernet = port->link_layer == IBV_LINK_LAYER_ETHERNET;
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer->qp_num, .rq_psn = 7,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {
			.is_global = ethernet, .port_num = 1, .dlid = ethernet ? 0 : port->lid,
			.grh = { .dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 64 },
		},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_mr *register_memory(struct ibv_pd *pd, size_t length, int byte)
{
	void *memory = malloc(length);
	struct ibv_mr *mr;

	CHECK(memory);
	memset(memory, byte, length);
	mr = ibv_reg_mr(pd, memory, length,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	return mr;
}

/* A domain whose queue pairs are one thread's, which saves locks; the bare one where the provider has none. */
static struct ibv_pd *thread_domain(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_td_init_attr none = {};
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = ibv_alloc_td(context, &none) };
	struct ibv_pd *domain = attr.td ? ibv_alloc_parent_domain(context, &attr) : NULL;

	return domain ? domain : pd;
}

/* What the completion queue of `here` is, and whether the queues have channels. */
enum kind { PLAIN, EXTENDED, WITH_CHANNELS };

static void make_pair(struct pair *pair, const char *device, size_t length, enum kind kind)
{
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 2 * DEPTH,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	union ibv_gid gid;

	pair->context = open_device(device);
	CHECK(pair->pd = ibv_alloc_pd(pair->context));
	pair->here_pd = kind == EXTENDED ? thread_domain(pair->context, pair->pd) : pair->pd;
	pair->source = register_memory(pair->pd, length, 1);
	pair->target = register_memory(pair->pd, length, 0);
	if (kind == WITH_CHANNELS) {
		CHECK(pair->channel = ibv_create_comp_channel(pair->context));
		CHECK(pair->peer_channel = ibv_create_comp_channel(pair->context));
	}
	if (kind == EXTENDED) {
		pair->cq_ex = ibv_create_cq_ex(pair->context, &cq_attr);
		CHECK(pair->cq_ex);
		pair->cq = ibv_cq_ex_to_cq(pair->cq_ex);
	} else {
		CHECK(pair->cq = ibv_create_cq(pair->context, 2 * DEPTH, NULL, pair->channel, 0));
	}
	CHECK(pair->peer_cq = ibv_create_cq(pair->context, 2 * DEPTH, NULL, pair->peer_channel, 0));
	pair->here = create_qp(pair, pair->here_pd, pair->cq);
	pair->there = create_qp(pair, pair->pd, pair->peer_cq);
	pair->here_ex = ibv_qp_to_qp_ex(pair->here);
	CHECK(!ibv_query_port(pair->context, 1, &pair->port));
	CHECK(!ibv_query_gid(pair->context, 1, GID_INDEX, &gid));
	connect_qp(pair->here, pair->there, gid, &pair->port, pair->port.active_mtu);
	connect_qp(pair->there, pair->here, gid, &pair->port, pair->port.active_mtu);
}

/* Instructions: the functions that callgrind collects in; src/instructions.rs. */

#define WRITE_LENGTH 64

COUNTED int op_post_write(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, wr, &bad);
}

COUNTED int op_post_inline(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, wr, &bad);
}

COUNTED int op_post_batch(struct ibv_qp *qp, struct ibv_send_wr *list)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, list, &bad);
}

COUNTED int op_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, wr, &bad);
}

COUNTED int op_post_shared(struct ibv_srq *srq, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_srq_recv(srq, wr, &bad);
}

/* The same by the newer interface, which has a builder for each request and reads completions in place. */

COUNTED int op_ex_post_write(struct ibv_qp_ex *qp, const struct ibv_sge *sge, uint32_t rkey, uint64_t to,
	uint64_t wr_id)
{
	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, rkey, to);
	ibv_wr_set_sge(qp, sge->lkey, sge->addr, sge->length);
	return ibv_wr_complete(qp);
}

COUNTED int op_ex_post_inline(struct ibv_qp_ex *qp, void *bytes, uint64_t wr_id)
{
	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	/* The manual page has no need of IBV_SEND_INLINE here, librxe 44 does. */
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, bytes, INLINE_LENGTH);
	return ibv_wr_complete(qp);
}

COUNTED int op_ex_post_batch(struct ibv_qp_ex *qp, const struct ibv_sge *sge, uint32_t rkey, uint64_t to)
{
	ibv_wr_start(qp);
	for (int i = 0; i < BATCH; i++) {
		qp->wr_id = i;
		qp->wr_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_rdma_write(qp, rkey, to);
		ibv_wr_set_sge(qp, sge[i].lkey, sge[i].addr, sge[i].length);
	}
	return ibv_wr_complete(qp);
}

struct requests {
	struct ibv_sge sge[BATCH];
	struct ibv_sge inline_sge, into;
	struct ibv_send_wr write, send, list[BATCH];
	struct ibv_recv_wr receive;
	uint8_t bytes[INLINE_LENGTH];
};

static void fill_requests(struct requests *r, const struct pair *pair)
{
	struct ibv_send_wr write = {
		.wr_id = 7, .sg_list = r->sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)pair->target->addr, pair->target->rkey },
	};

	for (int i = 0; i < BATCH; i++) {
		r->sge[i] = (struct ibv_sge){ (uintptr_t)pair->source->addr, WRITE_LENGTH, pair->source->lkey };
		r->list[i] = write;
		r->list[i].wr_id = i;
		r->list[i].sg_list = &r->sge[i];
		r->list[i].send_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
		r->list[i].next = i == BATCH - 1 ? NULL : &r->list[i + 1];
	}
	r->write = write;
	r->inline_sge = (struct ibv_sge){ (uintptr_t)r->bytes, INLINE_LENGTH, 0 };
	r->send = (struct ibv_send_wr){
		.wr_id = 9, .sg_list = &r->inline_sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	};
	r->into = (struct ibv_sge){ (uintptr_t)pair->target->addr, WRITE_LENGTH, pair->target->lkey };
	r->receive = (struct ibv_recv_wr){ .wr_id = 8, .sg_list = &r->into, .num_sge = 1 };
}

static void make_ready(struct pair *pair, struct requests *r, int *ready, int want)
{
	struct ibv_send_wr *bad;

	if (*ready < want) {
		for (int i = 0; i < READY; i++)
			CHECK(!ibv_post_send(pair->here, &r->write, &bad));
		usleep(SETTLE_US);
		*ready += READY;
	}
	*ready -= want;
}

/* Messages that have been received. */
static void make_received(struct pair *pair, struct ibv_srq *srq, struct requests *r, int *ready,
	int want)
{
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *bad_receive;

	if (*ready < want) {
		for (int i = 0; i < READY; i++)
			CHECK(!(srq ? ibv_post_srq_recv(srq, &r->receive, &bad_receive) :
				ibv_post_recv(pair->there, &r->receive, &bad_receive)));
		for (int i = 0; i < READY; i++)
			CHECK(!ibv_post_send(pair->here, &r->send, &bad));
		drain(pair->cq, READY);
		usleep(SETTLE_US);
		*ready += READY;
	}
	*ready -= want;
}

/* Receives from a shared queue. The queue pairs take the places of those of the pair. */
static void instructions_shared(struct pair *pair, struct requests *r)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 2 * DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pair->pd, &attr);
	union ibv_gid gid;
	uint64_t ids = 0;
	int ready = 0;

	CHECK(srq);
	pair->here = create_qp(pair, pair->pd, pair->cq);
	pair->there = create_qp_with(pair, pair->pd, pair->peer_cq, srq);
	CHECK(!ibv_query_gid(pair->context, 1, GID_INDEX, &gid));
	connect_qp(pair->here, pair->there, gid, &pair->port, pair->port.active_mtu);
	connect_qp(pair->there, pair->here, gid, &pair->port, pair->port.active_mtu);
	ROW("post_shared", CHECK(!op_post_shared(srq, &r->receive)));
	ROW("poll_shared", {
		make_received(pair, srq, r, &ready, 1);
		CHECK(op_poll_one(pair->peer_cq, &ids) == 1);
	});
	ROW("poll_shared_many", {
		make_received(pair, srq, r, &ready, MANY);
		CHECK(op_poll_many(pair->peer_cq, &ids) == MANY);
	});
}

static void instructions(const char *device, int extended)
{
	static struct requests r;
	struct pair pair = {};
	struct ibv_recv_wr *bad;
	uint64_t ids = 0;
	int ready = 0;

	make_pair(&pair, device, 4096, extended ? EXTENDED : PLAIN);
	fill_requests(&r, &pair);
	if (!extended) {
		ROW("post_write", { CHECK(!op_post_write(pair.here, &r.write)); drain(pair.cq, 1); });
		/* Ours has another way for this, which libibverbs has not. */
		ROW("one_write", { CHECK(!op_post_write(pair.here, &r.write)); drain(pair.cq, 1); });
		ROW("post_receive", CHECK(!op_post_receive(pair.there, &r.receive)));
		ROW("post_inline", { CHECK(!op_post_inline(pair.here, &r.send)); drain(pair.cq, 1); });
		drain(pair.peer_cq, WARM_UP + CALLS);
		for (int i = 0; i < WARM_UP + CALLS; i++)
			CHECK(!ibv_post_recv(pair.there, &r.receive, &bad));
		ROW("one_inline", { CHECK(!op_post_inline(pair.here, &r.send)); drain(pair.cq, 1); });
		drain(pair.peer_cq, WARM_UP + CALLS);
		ROW("post_batch", { CHECK(!op_post_batch(pair.here, r.list)); drain(pair.cq, 1); });
		ROW("poll_nothing", CHECK(op_poll_one(pair.cq, &ids) == 0));
		ROW("poll_one", { make_ready(&pair, &r, &ready, 1); CHECK(op_poll_one(pair.cq, &ids) == 1); });
		ROW("poll_many", {
			make_ready(&pair, &r, &ready, MANY);
			CHECK(op_poll_many(pair.cq, &ids) == MANY);
		});
		ready = 0;
		ROW("poll_received", {
			make_received(&pair, NULL, &r, &ready, 1);
			CHECK(op_poll_one(pair.peer_cq, &ids) == 1);
		});
		ROW("poll_received_many", {
			make_received(&pair, NULL, &r, &ready, MANY);
			CHECK(op_poll_many(pair.peer_cq, &ids) == MANY);
		});
		drain(pair.peer_cq, ready);
		instructions_shared(&pair, &r);
	} else {
		uint64_t to = (uintptr_t)pair.target->addr;
		uint32_t rkey = pair.target->rkey;

		/* One way for what ours has several for. The queue pair is in a thread domain. */
		static const char *const writes[] = {
			"post_write", "one_write", "domain_write", "domain_one_write"
		};

		for (int i = 0; i < 4; i++)
			ROW(writes[i], {
				CHECK(!op_ex_post_write(pair.here_ex, r.sge, rkey, to, 7));
				drain(pair.cq, 1);
			});
		for (int i = 0; i < WARM_UP + CALLS; i++)
			CHECK(!ibv_post_recv(pair.there, &r.receive, &bad));
		ROW("post_inline", {
			CHECK(!op_ex_post_inline(pair.here_ex, r.bytes, 9));
			drain(pair.cq, 1);
		});
		ROW("post_batch", {
			CHECK(!op_ex_post_batch(pair.here_ex, r.sge, rkey, to));
			drain(pair.cq, 1);
		});
		ROW("poll_nothing", CHECK(op_ex_poll_one(pair.cq_ex, &ids) == 0));
		ROW("poll_one", {
			make_ready(&pair, &r, &ready, 1);
			CHECK(op_ex_poll_one(pair.cq_ex, &ids) == 1);
		});
		ROW("poll_many", {
			make_ready(&pair, &r, &ready, MANY);
			CHECK(op_ex_poll_many(pair.cq_ex, &ids) == MANY);
		});
	}
}

/* Start-up: src/bin/start-up.rs. */

static void end(int memory)
{
	char line[128];
	FILE *status;

	if (memory) {
		CHECK(status = fopen("/proc/self/status", "r"));
		while (fgets(line, sizeof(line), status))
			if (!strncmp(line, "VmHWM:", 6))
				fputs(line, stdout);
		fflush(stdout);
	}
	_exit(0);
}

static void start_up(const char *device, int to_completion, int memory)
{
	static struct requests r;
	struct ibv_send_wr *bad;
	struct pair pair = {};

	/* A mark for those who watch the system calls. */
	getppid();
	if (!to_completion) {
		CHECK(ibv_alloc_pd(open_device(device)));
		end(memory);
	}
	make_pair(&pair, device, 4096, PLAIN);
	fill_requests(&r, &pair);
	CHECK(!ibv_post_send(pair.here, &r.write, &bad));
	drain(pair.cq, 1);
	end(memory);
}

/* Timed work on request: src/serve.rs, src/control, src/transfer.rs. */

#define MAX_SIZE (1 << 20)
#define MAX_SAMPLES 4096
#define MESSAGES_BEFORE 4
#define CQ_ENTRIES 256
#define POLLED 32

struct server {
	struct pair pair;
	struct ibv_qp *peer;
	struct ibv_cq *cq;
	union ibv_gid gid;
	void *memory;
	size_t length;
	int huge;
};

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* Takes completions. With a channel it waits for an event before it polls; the queue is armed, and stays so. */
static void take(struct ibv_cq *cq, int count, struct ibv_comp_channel *channel)
{
	struct ibv_wc wc[POLLED];
	struct ibv_cq *of;
	void *context;

	while (count > 0) {
		int found;

		if (channel) {
			CHECK(!ibv_get_cq_event(channel, &of, &context));
			ibv_ack_cq_events(of, 1);
			CHECK(!ibv_req_notify_cq(of, 0));
		}
		found = ibv_poll_cq(cq, POLLED, wc);
		CHECK(found >= 0);
		for (int i = 0; i < found; i++)
			CHECK(wc[i].status == IBV_WC_SUCCESS);
		count -= found;
	}
}

static int transfer(struct pair *pair, const char *operation, uint32_t size, int batch, int events)
{
	struct ibv_sge from = { (uintptr_t)pair->source->addr, size, pair->source->lkey };
	struct ibv_sge into = { (uintptr_t)pair->target->addr, size, pair->target->lkey };
	struct ibv_send_wr list[DEPTH], *bad;
	struct ibv_recv_wr receives[DEPTH], *bad_receive;
	int is_send = !strcmp(operation, "send");

	if (is_send) {
		for (int i = 0; i < batch; i++)
			receives[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &into, .num_sge = 1,
				.next = i == batch - 1 ? NULL : &receives[i + 1] };
		if (ibv_post_recv(pair->there, receives, &bad_receive))
			return -1;
	}
	for (int i = 0; i < batch; i++) {
		list[i] = (struct ibv_send_wr){
			.wr_id = i, .sg_list = &from, .num_sge = 1,
			.opcode = is_send ? IBV_WR_SEND :
				!strcmp(operation, "read") ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			.send_flags = i == batch - 1 ? IBV_SEND_SIGNALED : 0,
			.next = i == batch - 1 ? NULL : &list[i + 1],
		};
		if (!is_send) {
			list[i].wr.rdma.remote_addr = (uintptr_t)pair->target->addr;
			list[i].wr.rdma.rkey = pair->target->rkey;
		}
	}
	if (ibv_post_send(pair->here, list, &bad))
		return -1;
	if (is_send)
		take(pair->peer_cq, batch, events ? pair->peer_channel : NULL);
	take(pair->cq, 1, events ? pair->channel : NULL);
	return 0;
}

/* How often this thread has given its processor up, to sleep. */
static long sleeps(void)
{
	struct rusage usage;

	CHECK(!getrusage(RUSAGE_THREAD, &usage));
	return usage.ru_nvcsw;
}

static int prepare_memory(struct server *s, const char *what)
{
	size_t length = !strcmp(what, "mr-1m") ? 1 << 20 : !strcmp(what, "mr-256m") ? 256 << 20 :
		!strcmp(what, "mr-huge") ? 32 << 20 : 4096;
	int huge = !strcmp(what, "mr-huge");

	if (s->memory && s->length == length && s->huge == huge)
		return 0;
	if (s->memory)
		munmap(s->memory, s->length);
	s->memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (huge ? MAP_HUGETLB : 0), -1, 0);
	if (s->memory == MAP_FAILED) {
		s->memory = NULL;
		return -1;
	}
	if (!huge)
		madvise(s->memory, length, MADV_NOHUGEPAGE);
	s->length = length;
	s->huge = huge;
	return 0;
}

static int control(struct server *s, const char *what)
{
	struct pair *pair = &s->pair;

	if (!strcmp(what, "pd")) {
		struct ibv_pd *pd = ibv_alloc_pd(pair->context);

		return pd ? ibv_dealloc_pd(pd) : -1;
	}
	if (!strcmp(what, "cq")) {
		struct ibv_cq *cq = ibv_create_cq(pair->context, CQ_ENTRIES, NULL, NULL, 0);

		return cq ? ibv_destroy_cq(cq) : -1;
	}
	if (!strcmp(what, "qp")) {
		struct ibv_qp_init_attr attr = {
			.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC, .cap = { 64, 64, 1, 1, 64 },
		};
		struct ibv_qp *qp = ibv_create_qp(pair->pd, &attr);

		if (!qp)
			return -1;
		connect_qp(qp, s->peer, s->gid, &pair->port, IBV_MTU_1024);
		return ibv_destroy_qp(qp);
	}
	if (!strncmp(what, "mr-", 3)) {
		struct ibv_mr *mr = ibv_reg_mr(pair->pd, s->memory, s->length,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

		return mr ? ibv_dereg_mr(mr) : -1;
	}
	return -1;
}

static void serve(const char *device)
{
	static uint64_t samples[MAX_SAMPLES];
	static struct server s;
	char line[128], word[16], wait[16];
	int count, most, milliseconds, batch, events, awake;
	uint32_t size;

	make_pair(&s.pair, device, MAX_SIZE, WITH_CHANNELS);
	CHECK(s.cq = ibv_create_cq(s.pair.context, CQ_ENTRIES, NULL, NULL, 0));
	s.peer = create_qp(&s.pair, s.pair.pd, s.cq);
	CHECK(!ibv_query_gid(s.pair.context, 1, GID_INDEX, &s.gid));
	while (fgets(line, sizeof(line), stdin)) {
		int is_transfer = sscanf(line, "transfer %15s %u %d %15s %d %d", word, &size, &batch, wait,
			&most, &milliseconds) == 6;
		uint64_t started;
		int failed = 0;

		if (!is_transfer && sscanf(line, "control %15s %d %d", word, &most, &milliseconds) != 3)
			fail("a request that is not understood");
		if (is_transfer ? size > MAX_SIZE || batch > DEPTH : prepare_memory(&s, word))
			failed = 1;
		awake = is_transfer && !strcmp(wait, "awake");
		events = awake || (is_transfer && !strcmp(wait, "events"));
		if (!failed && events) {
			CHECK(!ibv_req_notify_cq(s.pair.cq, 0));
			CHECK(!ibv_req_notify_cq(s.pair.peer_cq, 0));
		}
		for (int i = 0; !failed && is_transfer && i < MESSAGES_BEFORE; i++)
			failed = transfer(&s.pair, word, size, 1, events);
		started = now();
		for (count = 0; !failed && count < most && count < MAX_SAMPLES &&
			now() - started < milliseconds * 1000000ull;) {
			long slept = awake ? sleeps() : 0;
			uint64_t before = now();

			failed = is_transfer ? transfer(&s.pair, word, size, batch, events) : control(&s, word);
			samples[count] = now() - before;
			/* Awake, only those times count at which the event was there before. */
			count += !awake || sleeps() == slept;
		}
		if (failed)
			printf("error %s: %s", strerror(errno), line);
		for (int i = 0; !failed && i < count; i++)
			printf("%s%llu", i ? " " : "", (unsigned long long)samples[i]);
		if (!failed)
			putchar('\n');
		fflush(stdout);
	}
}

/* Many objects: src/scale.rs. */

#define ROUND 64
#define ROUNDS 15
#define PAGE 4096
#define WRITTEN 8
#define SCALE_SETTLE_US 30000
#define FIRST 8

static uint64_t look(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	unsigned long kib = 0;
	char line[128];

	CHECK(file);
	while (fgets(line, sizeof(line), file) && sscanf(line, "Rss: %lu kB", &kib) != 1)
		;
	fclose(file);
	CHECK(kib);
	return (uint64_t)kib << 10;
}

/* Twice, since the first look itself touches code and data. */
static uint64_t resident(void)
{
	look();
	return look();
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t middle(uint64_t *values)
{
	qsort(values, ROUNDS, sizeof(*values), by_value);
	return values[ROUNDS / 2];
}

static struct ibv_qp *connected(struct pair *pair, union ibv_gid gid)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = pair->cq, .recv_cq = pair->cq, .qp_type = IBV_QPT_RC, .cap = { ROUND, 16, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pair->pd, &attr);

	CHECK(qp);
	connect_qp(qp, qp, gid, &pair->port, IBV_MTU_1024);
	return qp;
}

static void scale_qps(struct pair *pair, int count)
{
	struct ibv_mr *mr = register_memory(pair->pd, PAGE, 0);
	struct ibv_sge sge = { (uintptr_t)mr->addr, WRITTEN, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)mr->addr, mr->rkey },
	}, *bad;
	uint64_t posts[ROUNDS], polls[ROUNDS], before, started, set_up, bytes;
	struct ibv_qp **qps = malloc(count * sizeof(*qps));
	union ibv_gid gid;

	CHECK(qps);
	CHECK(pair->cq = ibv_create_cq(pair->context, 2 * ROUND, NULL, NULL, 0));
	CHECK(!ibv_query_port(pair->context, 1, &pair->port));
	CHECK(!ibv_query_gid(pair->context, 1, GID_INDEX, &gid));
	for (int i = 0; i < FIRST; i++)
		connected(pair, gid);
	before = resident();
	started = now();
	for (int i = 0; i < count; i++)
		qps[i] = connected(pair, gid);
	set_up = (now() - started) / count;
	bytes = (resident() - before) / count;
	for (int round = 0; round < ROUNDS; round++) {
		started = now();
		for (int i = 0; i < ROUND; i++) {
			wr.wr_id = round * ROUND + i;
			CHECK(!ibv_post_send(qps[wr.wr_id % count], &wr, &bad));
		}
		posts[round] = (now() - started) / ROUND;
		usleep(SCALE_SETTLE_US);
		started = now();
		take(pair->cq, ROUND, NULL);
		polls[round] = (now() - started) / ROUND;
	}
	printf("%llu %llu %llu %llu\n", (unsigned long long)set_up, (unsigned long long)bytes,
		(unsigned long long)middle(posts), (unsigned long long)middle(polls));
}

static void scale_mrs(struct pair *pair, int count)
{
	struct ibv_mr **mrs = malloc(count * sizeof(*mrs));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	uint64_t before, started, set_up;
	void *page = malloc(2 * PAGE);

	CHECK(mrs && page);
	memset(page, 0, 2 * PAGE);
	for (int i = 0; i < FIRST; i++)
		CHECK(ibv_reg_mr(pair->pd, page, PAGE, access));
	before = resident();
	started = now();
	for (int i = 0; i < count; i++)
		CHECK(mrs[i] = ibv_reg_mr(pair->pd, page, PAGE, access));
	set_up = (now() - started) / count;
	printf("%llu %llu\n", (unsigned long long)set_up, (unsigned long long)((resident() - before) / count));
	for (int i = 0; i < count; i++)
		CHECK(!ibv_dereg_mr(mrs[i]));
}

static void scale(const char *device, const char *what, int count)
{
	struct pair pair = {};

	pair.context = open_device(device);
	CHECK(pair.pd = ibv_alloc_pd(pair.context));
	if (!strcmp(what, "mr"))
		scale_mrs(&pair, count);
	else
		scale_qps(&pair, count);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (!strcmp(what, "instructions"))
		instructions(argv[2], 0);
	else if (!strcmp(what, "instructions-ex"))
		instructions(argv[2], 1);
	else if (!strcmp(what, "start-up") && argc > 3)
		start_up(argv[2], !strcmp(argv[3], "completion"), argc > 4);
	else if (!strcmp(what, "scale") && argc > 4 && atoi(argv[4]) > 0)
		scale(argv[2], argv[3], atoi(argv[4]));
	else if (!strcmp(what, "serve"))
		serve(argv[2]);
	else {
		fprintf(stderr, "usage: %s instructions|instructions-ex|serve DEVICE\n"
			"       %s start-up DEVICE pd|completion [memory]\n"
			"       %s scale DEVICE qp|mr COUNT\n", argv[0], argv[0], argv[0]);
		return 2;
	}
	return 0;
}
