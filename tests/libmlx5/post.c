/*
 * libmlx5's side of the tests beside it: posts the requests that are given on standard input, through libibverbs.
 *
 *   post DEVICE rc|uc|ud|keys SHARED GID_INDEX SEND_WR RECV_WR SEND_SGE RECV_SGE INLINE
 *
 * It makes two queue pairs of a device, 0 and 1, which are each other's peers, and 64 KiB of registered memory, and prints
 * what they are called, so that the test can tell a key from another. With SHARED both receive from one shared queue.
 * GID_INDEX is -1 where there are no GIDs. Then it reads (all numbers; offsets are in the memory):
 *
 *   address SL PATH_BITS RATE GLOBAL FLOW_LABEL HOP_LIMIT CLASS   an address handle to the own port, counted from 0
 *   receive QP SLICES (OFFSET LENGTH)...                          QP 2 is the shared queue
 *   bind QP FLAGS ACCESS OFFSET LENGTH                            a window of type 1
 *   post QP COUNT SENDS RECEIVES                                  a list of COUNT requests, which has so many completions
 *     OPCODE FLAGS IMMEDIATE OFFSET FIRST SECOND ADDRESS SLICES (OFFSET LENGTH)...
 *
 *   gather FLAGS ACCESS ROWS PARTS (OFFSET LENGTH STRIDE)...      of the key, by queue pair 0, with keys
 *   raw                                                           a request as a whole that does nothing, likewise
 *
 * Opcodes and flags are those of ibv_send_wr. OFFSET is the peer's memory. FIRST and SECOND are the operands of an atomic
 * (what is compared with or added, what is swapped in) or, for a window of type 2, its access and the low byte of its key.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#define MEMORY 65536
#define Q_KEY 0x11223344
#define FIRST_TAG 0x5a	/* of the low bytes that the window of type 2 is bound with */
#define LAST_TAG 0x5c
#define MOST_SLICES 64
#define MOST_REQUESTS 16
#define LIMIT_S 20
#define MOST_PARTS 8

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_port_attr port;
static union ibv_gid gid;
static int gid_index;
static unsigned char *memory;
static struct ibv_mr *mr;
static struct ibv_mw *windows[2];
static struct ibv_srq *srq;
static struct ibv_qp *qp[2];
static struct mlx5dv_mkey *key;
static struct ibv_ah *ah[8];
static int ahs;

static long long number(void)
{
	long long value;

	CHECK(scanf("%lld", &value) == 1);
	return value;
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			CHECK(context = ibv_open_device(list[i]));
	CHECK(context);
	ibv_free_device_list(list);
}

static struct ibv_ah_attr to_self(void)
{
	struct ibv_ah_attr attr = { .port_num = 1, .dlid = port.lid };

	if (gid_index >= 0) {
		attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
		attr.grh.dgid = gid;
		attr.grh.sgid_index = gid_index;
		attr.grh.hop_limit = 64;
	}
	return attr;
}

static void connect_qp(struct ibv_qp *of, const struct ibv_qp *peer)
{
	int datagrams = of->qp_type == IBV_QPT_UD, reliable = of->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = Q_KEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = peer->qp_num, .rq_psn = 7,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = to_self(),
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	int with_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	int with_rtr = IBV_QP_STATE, with_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (!reliable)
		init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	with_init |= datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	if (!datagrams)
		with_rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (reliable) {
		with_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		with_rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	CHECK(!ibv_modify_qp(of, &init, with_init));
	CHECK(!ibv_modify_qp(of, &rtr, with_rtr));
	CHECK(!ibv_modify_qp(of, &rts, with_rts));
}

/* Takes so many completions, all of which must be successes. */
static void await(struct ibv_cq *cq, int count)
{
	time_t start = time(NULL);
	struct ibv_wc wc;

	while (count > 0) {
		int found = ibv_poll_cq(cq, 1, &wc);

		CHECK(found >= 0);
		if (found && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "request %llu: %s\n", (unsigned long long)wc.wr_id,
				ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (time(NULL) - start > LIMIT_S) {
			fprintf(stderr, "%d completions did not come\n", count);
			exit(1);
		}
		count -= found;
	}
}

static int slices(struct ibv_sge *list)
{
	int count = number();

	CHECK(count <= MOST_SLICES);
	for (int i = 0; i < count; i++) {
		list[i].addr = (uintptr_t)memory + number();
		list[i].length = number();
		list[i].lkey = mr->lkey;
	}
	return count;
}

static void address(void)
{
	struct ibv_ah_attr attr = to_self();

	CHECK(ahs < 8);
	attr.sl = number();
	attr.src_path_bits = number();
	attr.static_rate = number();
	attr.is_global = number();
	attr.grh.flow_label = number();
	attr.grh.hop_limit = number();
	attr.grh.traffic_class = number();
	CHECK(ah[ahs++] = ibv_create_ah(pd, &attr));
}

static void receive(void)
{
	struct ibv_sge list[MOST_SLICES];
	struct ibv_recv_wr wr = { .sg_list = list }, *bad;
	int of = number();

	wr.num_sge = slices(list);
	CHECK(of == 2 ? !ibv_post_srq_recv(srq, &wr, &bad) : !ibv_post_recv(qp[of], &wr, &bad));
}

static void bind_window(void)
{
	struct ibv_qp *of = qp[number()];
	struct ibv_mw_bind bind = { .send_flags = number() };

	bind.bind_info.mw_access_flags = number();
	bind.bind_info.addr = (uintptr_t)memory + number();
	bind.bind_info.length = number();
	bind.bind_info.mr = mr;
	if (!bind.bind_info.length)
		bind.bind_info = (struct ibv_mw_bind_info) {};
	CHECK(!ibv_bind_mw(of, windows[0], &bind));
	await(of->send_cq, 1);
}

static void request(struct ibv_send_wr *wr, struct ibv_sge *list, const struct ibv_qp *of)
{
	long long immediate, offset, first, second, to;

	wr->opcode = number();
	wr->send_flags = number();
	immediate = number();
	offset = number();
	first = number();
	second = number();
	to = number();
	wr->sg_list = list;
	wr->num_sge = slices(list);
	wr->imm_data = htonl(immediate);
	if (wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_LOCAL_INV)
		wr->invalidate_rkey = windows[1]->rkey;
	if (to >= 0) {
		wr->wr.ud.ah = ah[to];
		wr->wr.ud.remote_qpn = qp[of == qp[0]]->qp_num;
		wr->wr.ud.remote_qkey = Q_KEY;
	} else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr->wr.atomic.remote_addr = (uintptr_t)memory + offset;
		wr->wr.atomic.rkey = mr->rkey;
		wr->wr.atomic.compare_add = first;
		wr->wr.atomic.swap = second;
	} else if (wr->opcode == IBV_WR_BIND_MW) {
		wr->bind_mw.mw = windows[1];
		wr->bind_mw.rkey = (windows[1]->rkey & ~0xff) | second;
		wr->bind_mw.bind_info.mr = mr;
		wr->bind_mw.bind_info.addr = list->addr;
		wr->bind_mw.bind_info.length = list->length;
		wr->bind_mw.bind_info.mw_access_flags = first;
		wr->num_sge = 0;
	} else {
		wr->wr.rdma.remote_addr = (uintptr_t)memory + offset;
		wr->wr.rdma.rkey = mr->rkey;
	}
}

static void post(void)
{
	static struct ibv_sge lists[MOST_REQUESTS][MOST_SLICES];
	struct ibv_send_wr wrs[MOST_REQUESTS] = {}, *bad;
	int of = number(), count = number(), sends = number(), receives = number();

	CHECK(count > 0 && count <= MOST_REQUESTS);
	for (int i = 0; i < count; i++) {
		request(&wrs[i], lists[i], qp[of]);
		wrs[i].wr_id = i;
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
	}
	CHECK(!ibv_post_send(qp[of], wrs, &bad));
	for (int i = 0; i < count; i++)
		if (wrs[i].opcode == IBV_WR_BIND_MW)
			windows[1]->rkey = wrs[i].bind_mw.rkey;
	await(qp[of]->send_cq, sends);
	await(qp[!of]->recv_cq, receives);
}

/* A queue pair whose requests give keys parts of others. */
static struct ibv_qp *keyed_qp(const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .cap = attr->cap, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct mlx5dv_qp_init_attr own = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
		.send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED | MLX5DV_QP_EX_WITH_RAW_WQE,
	};

	return mlx5dv_create_qp(context, &init, &own);
}

static void gather(void)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[0]);
	struct mlx5dv_qp_ex *own = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	struct mlx5dv_mr_interleaved rows[MOST_PARTS];
	struct ibv_sge list[MOST_PARTS];
	int flags = number(), access = number(), repeat = number(), count = number();

	CHECK(count <= MOST_PARTS);
	for (int i = 0; i < count; i++) {
		list[i].addr = (uintptr_t)memory + number();
		list[i].length = number();
		list[i].lkey = mr->lkey;
		rows[i].addr = list[i].addr;
		rows[i].bytes_count = list[i].length;
		rows[i].bytes_skip = number() - list[i].length;
		rows[i].lkey = mr->lkey;
	}
	ibv_wr_start(ex);
	ex->wr_flags = flags | IBV_SEND_INLINE;
	if (repeat == 1)
		mlx5dv_wr_mr_list(own, key, access, count, list);
	else
		mlx5dv_wr_mr_interleaved(own, key, access, repeat, count, rows);
	CHECK(!(errno = ibv_wr_complete(ex)));
	await(qp[0]->send_cq, 1);
}

static void raw(void)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[0]);
	struct mlx5_wqe_ctrl_seg nothing = {};

	mlx5dv_set_ctrl_seg(&nothing, 0, MLX5_OPCODE_NOP, 0, qp[0]->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 1, 0, 0);
	ibv_wr_start(ex);
	mlx5dv_wr_raw_wqe(mlx5dv_qp_ex_from_ibv_qp_ex(ex), &nothing);
	CHECK(!(errno = ibv_wr_complete(ex)));
	await(qp[0]->send_cq, 1);
}

int main(int argc, char **argv)
{
	static const char *const transports[] = { "rc", "uc", "ud", "keys" };
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC };
	int keys = argc > 2 && !strcmp(argv[2], "keys");
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_DRIVER };
	char word[16];

	CHECK(argc == 10);
	open_device(argv[1]);
	for (int i = 0; i < 4; i++)
		if (!strcmp(argv[2], transports[i]))
			attr.qp_type = types[i];
	gid_index = atoi(argv[4]);
	attr.cap = (struct ibv_qp_cap) {
		atoi(argv[5]), atoi(argv[6]), atoi(argv[7]), atoi(argv[8]), atoi(argv[9])
	};
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(gid_index < 0 || !ibv_query_gid(context, 1, gid_index, &gid));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(memory = aligned_alloc(4096, MEMORY));
	for (int i = 0; i < MEMORY; i++)
		memory[i] = i % 251;
	CHECK(mr = ibv_reg_mr(pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
	CHECK(windows[0] = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	/* The kernel counts the low byte on from window to window. A window that begins with one of a bind would be taken for bound. */
	do
		CHECK(windows[1] = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	while ((windows[1]->rkey & 0xff) >= FIRST_TAG && (windows[1]->rkey & 0xff) <= LAST_TAG);
	if (atoi(argv[3])) {
		struct ibv_srq_init_attr shared = { .attr = { attr.cap.max_recv_wr, attr.cap.max_recv_sge, 0 } };

		CHECK(srq = ibv_create_srq(pd, &shared));
		attr.srq = srq;
	}
	for (int i = 0; i < 2; i++) {
		CHECK(attr.send_cq = ibv_create_cq(context, 64, NULL, NULL, 0));
		CHECK(attr.recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0));
		CHECK(qp[i] = keys ? keyed_qp(&attr) : ibv_create_qp(pd, &attr));
	}
	if (keys) {
		struct mlx5dv_mkey_init_attr init = { pd, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 12 };

		CHECK(key = mlx5dv_create_mkey(&init));
	}
	connect_qp(qp[0], qp[1]);
	connect_qp(qp[1], qp[0]);
	printf("%u %u %llu %u %u %u %u %u\n", qp[0]->qp_num, qp[1]->qp_num, (unsigned long long)(uintptr_t)memory,
		mr->lkey, mr->rkey, windows[0]->rkey, windows[1]->rkey, key ? key->lkey : 0);
	fflush(stdout);
	while (scanf("%15s", word) == 1) {
		if (!strcmp(word, "address"))
			address();
		else if (!strcmp(word, "receive"))
			receive();
		else if (!strcmp(word, "bind"))
			bind_window();
		else if (!strcmp(word, "gather"))
			gather();
		else if (!strcmp(word, "raw"))
			raw();
		else if (!strcmp(word, "post"))
			post();
		else
			CHECK(!"a known word");
	}
	return 0;
}
