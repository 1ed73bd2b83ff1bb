/*
 * Lists of work requests, good and bad: what is before *bad_wr is posted, the rest is not.
 */

#include "check.h"

#define MANY 512

static struct ibv_send_wr wrs[MANY];
static struct ibv_recv_wr recvs[MANY];

/* A list of writes of 8 bytes, the ids counted from 0. */
static void list_writes(const struct pair *pair, struct ibv_sge *sge, int count)
{
	*sge = part(&pair->a, 0, 8);
	for (int i = 0; i < count; i++) {
		wrs[i] = writing(i, sge, &pair->b, 0);
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
	}
}

static void list_receives(struct ibv_sge *sge, int count)
{
	for (int i = 0; i < count; i++)
		recvs[i] = (struct ibv_recv_wr) {
			.wr_id = i, .sg_list = sge, .num_sge = 1, .next = i + 1 < count ? &recvs[i + 1] : NULL,
		};
}

static void say_bad(const struct ibv_send_wr *bad)
{
	say("bad", "%d", (int)(bad - wrs));
}

/* That the queue pair works on, with a request whose completion is told. */
static void say_alive(struct pair *pair)
{
	flush_writes(&pair->a, &pair->b);
	say_completions("then", pair->a.cq, 1);
}

static void good_list(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_send_wr *bad;
	struct ibv_sge sge;

	list_writes(&pair, &sge, 5);
	say_status("post", ibv_post_send(pair.a.qp, wrs, &bad));
	say_completions("completion", pair.a.cq, 5);
}

/* What a change of the request `which` of four does. */
static void with_bad(int which, void (*spoil)(struct ibv_send_wr *, struct pair *))
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_send_wr *bad = NULL;
	struct ibv_sge sge;
	int status;

	list_writes(&pair, &sge, 4);
	spoil(&wrs[which], &pair);
	status = ibv_post_send(pair.a.qp, wrs, &bad);
	say_status("post", status);
	if (status)
		say_bad(bad);
	say_completions("completion", pair.a.cq, status ? which : 4);
	if (status)
		say_alive(&pair);
}

static struct ibv_sge too_many[4096];

static void too_many_slices(struct ibv_send_wr *wr, struct pair *pair)
{
	for (size_t i = 0; i < sizeof(too_many) / sizeof(too_many[0]); i++)
		too_many[i] = part(&pair->a, 0, 1);
	wr->sg_list = too_many;
	wr->num_sge = sizeof(too_many) / sizeof(too_many[0]);
}

static void too_much_inline(struct ibv_send_wr *wr, struct pair *pair)
{
	static struct ibv_sge long_slice;

	long_slice = part(&pair->a, 0, 8192);
	wr->sg_list = &long_slice;
	wr->send_flags |= IBV_SEND_INLINE;
}

static void unknown_opcode(struct ibv_send_wr *wr, struct pair *pair)
{
	(void)pair;
	wr->opcode = 200;
}

static struct ibv_sge word;

static void short_atomic(struct ibv_send_wr *wr, struct pair *pair)
{
	word = part(&pair->a, 0, 4);
	wr->sg_list = &word;
	wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr->wr.atomic.remote_addr = (uintptr_t)pair->b.memory;
	wr->wr.atomic.rkey = pair->b.mr->rkey;
}

static void crooked_atomic(struct ibv_send_wr *wr, struct pair *pair)
{
	short_atomic(wr, pair);
	word.length = 8;
	wr->opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr->wr.atomic.remote_addr += 4;
}

/* More slices than there are: nothing may read them. */
static void huge_atomic(struct ibv_send_wr *wr, struct pair *pair)
{
	short_atomic(wr, pair);
	word.length = 8;
	wr->num_sge = 1 << 30;
}

static void huge_list(struct ibv_send_wr *wr, struct pair *pair)
{
	(void)pair;
	wr->num_sge = 1 << 30;
}

static void huge_inline(struct ibv_send_wr *wr, struct pair *pair)
{
	huge_list(wr, pair);
	wr->send_flags |= IBV_SEND_INLINE;
}

/* As many bytes as there is room for, in more slices. */
static void inline_of_many_slices(struct ibv_send_wr *wr, struct pair *pair)
{
	too_many_slices(wr, pair);
	wr->num_sge = 40;
	wr->send_flags |= IBV_SEND_INLINE;
}

/* It is for functions. In a list its 8 bytes would have to be where the slices are. */
static void atomic_write(struct ibv_send_wr *wr, struct pair *pair)
{
	word = part(&pair->a, 0, 8);
	wr->sg_list = &word;
	wr->opcode = 15; /* IBV_WR_ATOMIC_WRITE */
}

static void fewer_than_none(struct ibv_send_wr *wr, struct pair *pair)
{
	(void)pair;
	wr->num_sge = -1;
}

static void negative_count_third(void) { with_bad(2, fewer_than_none); }
static void bad_slices_first(void) { with_bad(0, too_many_slices); }
static void bad_slices_third(void) { with_bad(2, too_many_slices); }
static void bad_slices_last(void) { with_bad(3, too_many_slices); }
static void bad_inline_third(void) { with_bad(2, too_much_inline); }
/* An adapter refuses them itself, and its queue pair is lost on either library. */
static void short_atomic_third(void) { if (is_soft()) with_bad(2, short_atomic); }
static void crooked_atomic_third(void) { if (is_soft()) with_bad(2, crooked_atomic); }
static void bad_opcode_third(void) { with_bad(2, unknown_opcode); }
static void huge_atomic_third(void) { with_bad(2, huge_atomic); }
static void huge_list_third(void) { with_bad(2, huge_list); }
static void huge_inline_third(void) { with_bad(2, huge_inline); }
static void inline_of_many_slices_third(void) { with_bad(2, inline_of_many_slices); }
static void atomic_write_third(void) { with_bad(2, atomic_write); }

/* A list longer than the ring: as many as it takes are posted. How many that is the rest of the list says. */
static void full_send_queue(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_send_wr *bad = NULL;
	struct ibv_sge sge;
	int posted;

	list_writes(&pair, &sge, MANY);
	say_status("post", ibv_post_send(pair.a.qp, wrs, &bad));
	posted = bad - wrs;
	say("at least what was asked for", "%s", posted >= 16 && posted < MANY ? "yes" : "no");
	need_completions(pair.a.cq, posted);
	say_alive(&pair);
}

/* Whether a program that takes no completions may go on when the device is done with what it has posted. */
static void unread_completions(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_send_wr *bad = NULL;
	struct ibv_sge sge;
	double limit;
	int posted, more;

	list_writes(&pair, &sge, MANY);
	ibv_post_send(pair.a.qp, wrs, &bad);
	posted = bad - wrs;
	list_writes(&pair, &sge, 1);
	/* On soft-RoCE it may, so that only a hang takes long; on an adapter it may not, however long it waits. */
	limit = now() + (is_soft() ? WAIT_S : 2);
	do
		more = ibv_post_send(pair.a.qp, wrs, &bad);
	while (more && now() < limit);
	say_status("one more", more);
	need_completions(pair.a.cq, posted + !more);
	say_alive(&pair);
}

static void full_receive_queue(void)
{
	struct side side = make_side(IBV_QPT_RC);
	struct ibv_sge sge = part(&side, 0, 8);
	struct ibv_recv_wr *bad = NULL;
	int posted;

	NEED(!to_init(side.qp));
	list_receives(&sge, MANY);
	say_status("post", ibv_post_recv(side.qp, recvs, &bad));
	posted = bad - recvs;
	say("at least what was asked for", "%s", posted >= 16 && posted < MANY ? "yes" : "no");
}

static void full_shared_queue(void)
{
	struct side side = make_ground();
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_sge sge = part(&side, 0, 8);
	struct ibv_recv_wr *bad = NULL;
	struct ibv_srq *srq;
	int posted;

	NEED(srq = ibv_create_srq(side.pd, &attr));
	list_receives(&sge, MANY);
	say_status("post", ibv_post_srq_recv(srq, recvs, &bad));
	posted = bad - recvs;
	say("at least what was asked for", "%s", posted >= 16 && posted < MANY ? "yes" : "no");
}

/* The third receive request is bad; the first two are there, as messages show. */
static void bad_receive(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.b, 0, 64), text = part(&pair.a, 0, 8);
	struct ibv_recv_wr *bad = NULL;
	struct ibv_send_wr *bad_send;

	list_receives(&sge, 4);
	too_many_slices(&wrs[0], &pair);
	recvs[2].sg_list = too_many;
	recvs[2].num_sge = 4096;
	say_status("post", ibv_post_recv(pair.b.qp, recvs, &bad));
	say("bad", "%d", (int)(bad - recvs));
	recvs[3].wr_id = 33;
	say_status("post the rest", ibv_post_recv(pair.b.qp, &recvs[3], &bad));
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = {
			.sg_list = &text, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		};

		NEED(!ibv_post_send(pair.a.qp, &wr, &bad_send));
		need_completions(pair.a.cq, 1);
	}
	say_completions("received", pair.b.cq, 3);
}

/* Of these one provider refuses what the other takes for none. */
static void negative_receives(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_sge sge = part(&pair.b, 0, 64);
	struct ibv_recv_wr *bad = NULL;
	struct ibv_srq *srq;
	int status;

	NEED(srq = ibv_create_srq(pair.b.pd, &attr));
	list_receives(&sge, 3);
	recvs[1].num_sge = -1;
	say_status("post", status = ibv_post_recv(pair.b.qp, recvs, &bad));
	if (status)
		say("bad", "%d", (int)(bad - recvs));
	say_status("post to a shared queue", status = ibv_post_srq_recv(srq, recvs, &bad));
	if (status)
		say("bad of the shared queue", "%d", (int)(bad - recvs));
}

static void bad_shared_receive(void)
{
	struct side side = make_ground();
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct pair pair = { .a = side };
	struct ibv_sge sge = part(&side, 0, 8);
	struct ibv_recv_wr *bad = NULL;
	struct ibv_srq *srq;

	NEED(srq = ibv_create_srq(side.pd, &attr));
	list_receives(&sge, 4);
	too_many_slices(&wrs[0], &pair);
	recvs[1].sg_list = too_many;
	recvs[1].num_sge = 4096;
	say_status("post", ibv_post_srq_recv(srq, recvs, &bad));
	say("bad", "%d", (int)(bad - recvs));
}

static void no_requests(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_recv_wr *bad_receive = NULL;

	say_status("receives", ibv_post_recv(pair.a.qp, NULL, &bad_receive));
	say_alive(&pair);
}

/* Without room for the request that fails. */
static void no_room_for_the_bad(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_sge sge;
	struct ibv_srq *srq;

	NEED(srq = ibv_create_srq(pair.a.pd, &attr));
	list_writes(&pair, &sge, 1);
	too_many_slices(&wrs[0], &pair);
	say_status("send", ibv_post_send(pair.a.qp, wrs, NULL));
	list_receives(too_many, 1);
	recvs[0].num_sge = 4096;
	say_status("receive", ibv_post_recv(pair.a.qp, recvs, NULL));
	say_status("shared receive", ibv_post_srq_recv(srq, recvs, NULL));
	say_alive(&pair);
}

static void no_slices(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive;
	struct ibv_send_wr wr = {
		.wr_id = 6, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x12345678),
	}, *bad;
	struct ibv_wc wc;

	say_status("receive", ibv_post_recv(pair.b.qp, &receive, &bad_receive));
	say_status("send", ibv_post_send(pair.a.qp, &wr, &bad));
	NEED(completion(pair.b.cq, &wc, WAIT_S));
	say("received", "%s, opcode %d, %u bytes, flags %x, immediate %x, from the peer: %d", ibv_wc_status_str(wc.status),
		wc.opcode, wc.byte_len, wc.wc_flags, ntohl(wc.imm_data), wc.qp_num == pair.b.qp->qp_num);
	say_completions("sent", pair.a.cq, 1);
}

/* What is posted in each state on the way to RTS, and behind it. */
static void too_early(void)
{
	struct pair pair = { make_side(IBV_QPT_RC), make_side(IBV_QPT_RC) };
	static const char *const sends[] = { "send in RESET", "send in INIT", "send in RTR" };
	static const char *const receives[] = { "receive in RESET", "receive in INIT", "receive in RTR" };
	struct ibv_recv_wr *bad_receive;
	struct ibv_send_wr *bad;
	struct ibv_sge sge;

	connect_qp(pair.b.qp, pair.a.qp);
	for (int state = 0; state < 3; state++) {
		if (state == 1)
			NEED(!to_init(pair.a.qp));
		if (state == 2)
			NEED(!to_rtr(pair.a.qp, pair.b.qp->qp_num));
		list_writes(&pair, &sge, 2);
		/* Soft-RoCE's provider asks the kernel, and keeps in the ring what that refuses. */
		if (!is_soft()) {
			say_status(sends[state], ibv_post_send(pair.a.qp, wrs, &bad));
			say_bad(bad);
		}
		list_receives(&sge, 1);
		say_status(receives[state], ibv_post_recv(pair.a.qp, recvs, &bad_receive));
	}
	NEED(!to_rts(pair.a.qp));
	list_writes(&pair, &sge, 2);
	say_status("send in RTS", ibv_post_send(pair.a.qp, wrs, &bad));
	say_completions("sent", pair.a.cq, 2);
	to_state(pair.a.qp, IBV_QPS_RESET);
	if (!is_soft())
		say_status("send after a reset", ibv_post_send(pair.a.qp, wrs, &bad));
	list_receives(&sge, 1);
	say_status("receive after a reset", ibv_post_recv(pair.a.qp, recvs, &bad_receive));
}

/* A request that comes too early is named, and is not posted later. */
static void named_too_early(void)
{
	struct pair pair = { make_ground(), make_side(IBV_QPT_RC) };
	struct ibv_qp_init_attr attr = basic(pair.a.cq, IBV_QPT_RC);
	struct ibv_send_wr *bad = NULL;
	struct ibv_sge sge;

	NEED(pair.a.qp = ibv_create_qp(pair.a.pd, &attr));
	NEED(!to_init(pair.a.qp) && !to_rtr(pair.a.qp, pair.b.qp->qp_num));
	connect_qp(pair.b.qp, pair.a.qp);
	list_writes(&pair, &sge, 1);
	say_status("send", ibv_post_send(pair.a.qp, wrs, &bad));
	say("named", "%d", bad == wrs);
	NEED(!to_rts(pair.a.qp));
	say_status("again", ibv_post_send(pair.a.qp, wrs, &bad));
	say_completions("sent", pair.a.cq, 1);
}

/* A receive that waits, and sends that come later, are flushed in the error state. */
static void flushed(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_recv_wr *bad_receive;
	struct ibv_send_wr *bad;

	list_receives(&sge, 1);
	say_status("receive", ibv_post_recv(pair.a.qp, recvs, &bad_receive));
	to_state(pair.a.qp, IBV_QPS_ERR);
	say("state", "%d", pair.a.qp->state);
	say_completions("received", pair.a.cq, 1);
	list_writes(&pair, &sge, 2);
	say_status("send", ibv_post_send(pair.a.qp, wrs, &bad));
	say_completions("sent", pair.a.cq, 2);
}

/* The same where the queue pair was not ready to send before: soft-RoCE flushes sends all the same. */
static void flushed_early(void)
{
	static const char *const sends[] = { "send from INIT", "send from RTR" };

	for (int state = 0; state < 2; state++) {
		struct pair pair = { make_side(IBV_QPT_RC), make_side(IBV_QPT_RC) };
		struct ibv_send_wr *bad;
		struct ibv_sge sge;

		NEED(!to_init(pair.a.qp));
		if (state)
			NEED(!to_rtr(pair.a.qp, pair.b.qp->qp_num));
		to_state(pair.a.qp, IBV_QPS_ERR);
		list_writes(&pair, &sge, 2);
		say_status(sends[state], ibv_post_send(pair.a.qp, wrs, &bad));
		if (is_soft())
			say_completions("sent", pair.a.cq, 2);
	}
}

/* A queue pair whose receives are flushed, in a completion queue that nobody polls. */
static struct ibv_qp *make_flushed(struct side *side)
{
	struct ibv_qp_init_attr attr = basic(side->cq, IBV_QPT_RC);
	struct ibv_sge sge = part(side, 0, 8);
	struct ibv_recv_wr *bad;
	struct ibv_qp *qp;

	attr.cap.max_recv_wr = 40;
	NEED(qp = ibv_create_qp(side->pd, &attr));
	NEED(!to_init(qp));
	list_receives(&sge, 40);
	NEED(!ibv_post_recv(qp, recvs, &bad));
	to_state(qp, IBV_QPS_ERR);
	return qp;
}

/* Completions that go with their queue pair, or with what it was before a reset, leave their places as well. */
static void flushed_and_gone(void)
{
	struct side side = make_ground();
	struct ibv_qp *qp;
	struct ibv_wc wc;

	/* With soft-RoCE they stay. */
	if (is_soft())
		return;
	NEED(!ibv_destroy_cq(side.cq));
	NEED(side.cq = ibv_create_cq(context, 63, NULL, NULL, 0));
	for (int i = 0; i < 4; i++) {
		qp = make_flushed(&side);
		if (i % 2)
			to_state(qp, IBV_QPS_RESET);
		NEED(!ibv_destroy_qp(qp));
	}
	say("left", "%d", ibv_poll_cq(side.cq, 1, &wc));
	make_flushed(&side);
	say_completions("flushed", side.cq, 40);
}

/* Only what is signaled completes, unless all is. */
static void signaled(void)
{
	struct pair pair = { make_ground(), make_side(IBV_QPT_RC) };
	struct ibv_qp_init_attr attr = basic(pair.a.cq, IBV_QPT_RC);
	struct ibv_send_wr *bad;
	struct ibv_sge sge;

	attr.sq_sig_all = 1;
	NEED(pair.a.qp = ibv_create_qp(pair.a.pd, &attr));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	list_writes(&pair, &sge, 3);
	wrs[0].send_flags = wrs[1].send_flags = wrs[2].send_flags = 0;
	NEED(!ibv_post_send(pair.a.qp, wrs, &bad));
	say_completions("all", pair.a.cq, 3);

	pair = make_pair(IBV_QPT_RC);
	list_writes(&pair, &sge, 3);
	wrs[0].send_flags = wrs[1].send_flags = 0;
	NEED(!ibv_post_send(pair.a.qp, wrs, &bad));
	say_completions("last", pair.a.cq, 1);
	say_alive(&pair);
}

/* Bytes of an inline request are taken when it is posted. */
static void inline_is_copied(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	unsigned char text[32];
	struct ibv_sge sges[2] = { { (uintptr_t)text, 16, 0 }, { (uintptr_t)text + 16, 16, 0 } };
	struct ibv_send_wr wr = writing(1, sges, &pair.b, 0), *bad;
	int sum = 0;

	memset(text, 1, 16);
	memset(text + 16, 2, 16);
	wr.num_sge = 2;
	wr.send_flags |= IBV_SEND_INLINE;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	memset(text, 9, sizeof(text));
	need_completions(pair.a.cq, 1);
	for (int i = 0; i < 40; i++)
		sum += pair.b.memory[i];
	say("sum", "%d", sum);
}

/* Each operation once, with its result. */
static void operations(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.a, 64, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 128), *bad;
	uint64_t *here = (uint64_t *)(pair.a.memory + 64), *there = (uint64_t *)(pair.b.memory + 128);

	*here = 5;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("write", pair.a.cq, 1);
	say("written", "%llu", (unsigned long long)*there);
	*there = 7;
	wr.opcode = IBV_WR_RDMA_READ;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("read", pair.a.cq, 1);
	say("was read", "%llu", (unsigned long long)*here);
	wr.wr.atomic.remote_addr = (uintptr_t)there;
	wr.wr.atomic.rkey = pair.b.mr->rkey;
	wr.wr.atomic.compare_add = 10;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("add", pair.a.cq, 1);
	say("before and after", "%llu %llu", (unsigned long long)*here, (unsigned long long)*there);
	wr.wr.atomic.compare_add = 17;
	wr.wr.atomic.swap = 100;
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("swap", pair.a.cq, 1);
	say("before and after", "%llu %llu", (unsigned long long)*here, (unsigned long long)*there);
}

/* Some programs pass the length of their memory with an atomic operation. */
static void atomics_of_other_lengths(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sges[2] = { part(&pair.a, 64, 8), part(&pair.a, 256, 0) };
	struct ibv_send_wr wr = writing(1, sges, &pair.b, 128), *bad;
	/* Soft-RoCE refuses what is shorter, and its queue pair has gone on. */
	static const uint32_t lengths[] = { 8, 16, 4096, 4 };

	wr.wr.atomic.remote_addr = (uintptr_t)pair.b.memory + 128;
	wr.wr.atomic.rkey = pair.b.mr->rkey;
	wr.wr.atomic.compare_add = 3;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	for (int i = 0; i < 4; i++) {
		int status;

		memset(pair.a.memory + 64, 0xee, 32);
		sges[0].length = lengths[i];
		say_status("add", status = ibv_post_send(pair.a.qp, &wr, &bad));
		if (!status)
			say_completions("add", pair.a.cq, 1);
		say("before", "%llx %llx", *(unsigned long long *)(pair.a.memory + 64), *(unsigned long long *)(pair.a.memory + 72));
	}
	sges[0].length = 64;
	wr.num_sge = 2;
	wr.wr.atomic.compare_add = *(uint64_t *)(pair.b.memory + 128);
	wr.wr.atomic.swap = 100;
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	say_status("swap", ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("swap", pair.a.cq, 1);
	say("after", "%llu", *(unsigned long long *)(pair.b.memory + 128));
}

/* A key that is not the peer's. */
static void wrong_key(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 0), *bad;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	double limit;

	wr.wr.rdma.rkey ^= 0x5500;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("completion", pair.a.cq, 1);
	/* Soft-RoCE tells of the failure before it changes the state (COMPST_ERROR in rxe_completer). */
	limit = now() + WAIT_S;
	do
		NEED(!ibv_query_qp(pair.a.qp, &attr, IBV_QP_STATE, &init));
	while (attr.qp_state != IBV_QPS_ERR && now() < limit);
	say("state", "%d %d", attr.qp_state, pair.a.qp->state);
}

/* A datagram, whose receiver learns from whom it is. */
static void datagram(void)
{
	struct pair pair = make_pair(IBV_QPT_UD);
	struct ibv_sge sge = part(&pair.a, 0, 16), space = part(&pair.b, 0, 256);
	struct ibv_recv_wr receive = { .wr_id = 3, .sg_list = &space, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr wr = {
		.wr_id = 4, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(77),
		.send_flags = IBV_SEND_SIGNALED, .wr.ud = { .remote_qpn = pair.b.qp->qp_num, .remote_qkey = Q_KEY },
	}, *bad;
	struct ibv_ah_attr to = to_self(), back = {};
	struct ibv_ah *answer;
	struct ibv_wc wc;

	memset(pair.a.memory, 'x', 16);
	NEED(wr.wr.ud.ah = ibv_create_ah(pair.a.pd, &to));
	NEED(!ibv_post_recv(pair.b.qp, &receive, &bad_receive));
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	NEED(completion(pair.b.cq, &wc, WAIT_S));
	say("received", "%s, opcode %d, %u bytes, flags %x, immediate %u, from the sender: %d, at the receiver: %d",
		ibv_wc_status_str(wc.status), wc.opcode, wc.byte_len, wc.wc_flags, ntohl(wc.imm_data),
		wc.src_qp == pair.a.qp->qp_num, wc.qp_num == pair.b.qp->qp_num);
	say("text", "%.16s", pair.b.memory + 40);
	say_completions("sent", pair.a.cq, 1);
	say_status("address of the sender", ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)pair.b.memory, &back));
	say("it", "global %d, index %d, port %d, the same %d, hops %d", back.is_global, back.grh.sgid_index, back.port_num,
		gid_index < 0 || !memcmp(&back.grh.dgid, &to.grh.dgid, 16), back.grh.hop_limit);
	answer = say_object("handle", ibv_create_ah_from_wc(pair.b.pd, &wc, (struct ibv_grh *)pair.b.memory, 1));
	NEED(answer);
	NEED(!ibv_post_recv(pair.a.qp, &(struct ibv_recv_wr) { .wr_id = 8, .sg_list = &sge }, &bad_receive));
	wr.wr.ud.ah = answer;
	wr.wr.ud.remote_qpn = wc.src_qp;
	wr.num_sge = 0;
	NEED(!ibv_post_send(pair.b.qp, &wr, &bad));
	say_completions("answer sent", pair.b.cq, 1);
	say_status("destroy", ibv_destroy_ah(answer));
}

/* One queue pair receives from a shared queue. */
static void shared_queue(void)
{
	struct pair pair = { make_side(IBV_QPT_RC), make_ground() };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = basic(pair.b.cq, IBV_QPT_RC);
	struct ibv_sge space = part(&pair.b, 0, 64), sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr *bad_receive;

	NEED(attr.srq = ibv_create_srq(pair.b.pd, &shared));
	NEED(pair.b.qp = ibv_create_qp(pair.b.pd, &attr));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	list_receives(&space, 3);
	say_status("post", ibv_post_srq_recv(attr.srq, recvs, &bad_receive));
	for (int i = 0; i < 3; i++) {
		NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
		need_completions(pair.a.cq, 1);
	}
	say_completions("received", pair.b.cq, 3);
	say_status("destroy under a queue pair", ibv_destroy_srq(attr.srq));
	NEED(!ibv_destroy_qp(pair.b.qp));
	say_status("destroy", ibv_destroy_srq(attr.srq));
}

static void poll_nothing(void)
{
	struct side side = make_ground();
	struct ibv_wc wc;

	say("none", "%d", ibv_poll_cq(side.cq, 1, &wc));
	say("room for none", "%d", ibv_poll_cq(side.cq, 0, NULL));
}

MAIN(
	{ "good_list", good_list }, { "bad_slices_first", bad_slices_first }, { "bad_slices_third", bad_slices_third },
	{ "bad_slices_last", bad_slices_last }, { "bad_inline_third", bad_inline_third },
	{ "short_atomic_third", short_atomic_third }, { "crooked_atomic_third", crooked_atomic_third },
	{ "huge_atomic_third", huge_atomic_third }, { "huge_list_third", huge_list_third },
	{ "huge_inline_third", huge_inline_third }, { "inline_of_many_slices_third", inline_of_many_slices_third },
	{ "atomic_write_third", atomic_write_third },
	{ "bad_opcode_third", bad_opcode_third }, { "named_too_early", named_too_early }, { "full_send_queue", full_send_queue },
	{ "unread_completions", unread_completions }, { "full_receive_queue", full_receive_queue },
	{ "full_shared_queue", full_shared_queue }, { "bad_receive", bad_receive },
	{ "negative_count_third", negative_count_third }, { "negative_receives", negative_receives },
	{ "bad_shared_receive", bad_shared_receive }, { "no_requests", no_requests },
	{ "no_room_for_the_bad", no_room_for_the_bad }, { "no_slices", no_slices }, { "too_early", too_early }, { "flushed", flushed },
	{ "flushed_early", flushed_early }, { "flushed_and_gone", flushed_and_gone }, { "signaled", signaled },
	{ "inline_is_copied", inline_is_copied }, { "operations", operations }, { "atomics_of_other_lengths", atomics_of_other_lengths }, { "wrong_key", wrong_key },
	{ "datagram", datagram }, { "shared_queue", shared_queue }, { "poll_nothing", poll_nothing },
)
