/*
 * Eight threads at once: on one queue pair and one completion queue, and each with objects of its own.
 */

#include "check.h"

#include <sched.h>

#define THREADS 8
#define EACH 200

static struct pair shared;
static struct ibv_srq *shared_queue;
static struct ibv_qp_ex *shared_ex;
static int wrong;
static int completed[THREADS];
static int taken;

static void each(void *(*run)(void *))
{
	pthread_t threads[THREADS];

	for (long i = 0; i < THREADS; i++)
		NEED(!pthread_create(&threads[i], NULL, run, (void *)i));
	for (int i = 0; i < THREADS; i++)
		NEED(!pthread_join(threads[i], NULL));
}

static void fault(void)
{
	__atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
}

/* Takes what is there of the shared queue's completions, whoever posted the requests. */
static void take(struct ibv_cq *cq)
{
	struct ibv_wc wcs[4];
	int found = ibv_poll_cq(cq, 4, wcs);

	if (found < 0)
		fault();
	for (int i = 0; i < found; i++) {
		if (wcs[i].status != IBV_WC_SUCCESS || wcs[i].wr_id / 1000 >= THREADS)
			fault();
		else
			__atomic_add_fetch(&completed[wcs[i].wr_id / 1000], 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&taken, 1, __ATOMIC_RELEASE);
	}
}

static bool all_taken(void)
{
	return __atomic_load_n(&taken, __ATOMIC_ACQUIRE) >= THREADS * EACH;
}

static void take_the_rest(struct ibv_cq *cq)
{
	double end = now() + WAIT_S;

	while (!all_taken() && now() < end)
		take(cq);
}

static void say_completed(void)
{
	for (int i = 0; i < THREADS; i++)
		say("completed", "%d of thread %d", completed[i], i);
	say("wrong", "%d", wrong);
}

static void *write_many(void *argument)
{
	long thread = (long)argument;
	struct ibv_sge sge = part(&shared.a, thread * 64, 8);

	for (int i = 0; i < EACH; i++) {
		struct ibv_send_wr wr = writing(thread * 1000 + i, &sge, &shared.b, thread * 64), *bad;
		int status;

		*(uint64_t *)(shared.a.memory + thread * 64) = thread + 1;
		while ((status = ibv_post_send(shared.a.qp, &wr, &bad)) == ENOMEM)
			take(shared.a.cq);
		if (status)
			fault();
		take(shared.a.cq);
	}
	take_the_rest(shared.a.cq);
	return NULL;
}

static void say_written(void)
{
	int good = 0;

	for (long i = 0; i < THREADS; i++)
		good += *(uint64_t *)(shared.b.memory + i * 64) == (uint64_t)i + 1;
	say("written", "%d", good);
}

static void one_queue_pair(void)
{
	shared = make_pair(IBV_QPT_RC);
	each(write_many);
	say_completed();
	say_written();
}

static void *write_in_phases(void *argument)
{
	long thread = (long)argument;

	for (int i = 0; i < EACH; i += 2) {
		int status;

		*(uint64_t *)(shared.a.memory + thread * 64) = thread + 1;
		do {
			ibv_wr_start(shared_ex);
			shared_ex->wr_flags = IBV_SEND_SIGNALED;
			for (int j = 0; j < 2; j++) {
				shared_ex->wr_id = thread * 1000 + i + j;
				ibv_wr_rdma_write(shared_ex, shared.b.mr->rkey, (uintptr_t)shared.b.memory + thread * 64);
				ibv_wr_set_sge(shared_ex, shared.a.mr->lkey, (uintptr_t)shared.a.memory + thread * 64, 8);
			}
			status = ibv_wr_complete(shared_ex);
			take(shared.a.cq);
			/* Soft-RoCE's provider says ENOSPC. */
		} while (status == ENOMEM || status == ENOSPC);
		if (status)
			fault();
	}
	take_the_rest(shared.a.cq);
	return NULL;
}

static void one_extended_queue_pair(void)
{
	struct ibv_qp_init_attr basis;
	struct ibv_qp_init_attr_ex attr;

	shared = (struct pair) { make_ground(), make_side(IBV_QPT_RC) };
	basis = basic(shared.a.cq, IBV_QPT_RC);
	attr = (struct ibv_qp_init_attr_ex) {
		.send_cq = shared.a.cq, .recv_cq = shared.a.cq, .cap = basis.cap, .qp_type = IBV_QPT_RC, .pd = shared.a.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	NEED(shared.a.qp = ibv_create_qp_ex(context, &attr));
	NEED(shared_ex = ibv_qp_to_qp_ex(shared.a.qp));
	connect_qp(shared.a.qp, shared.b.qp);
	connect_qp(shared.b.qp, shared.a.qp);
	each(write_in_phases);
	say_completed();
	say_written();
}

/* Half of the threads send, the others receive from one shared queue. */
static void *send_or_receive(void *argument)
{
	long thread = (long)argument;
	bool sends = thread % 2;
	struct side *side = sends ? &shared.a : &shared.b;
	struct ibv_sge sge = part(side, thread * 64, 8);

	for (int i = 0; i < EACH; i++) {
		uint64_t id = thread * 1000 + i;
		int status;

		do {
			if (sends) {
				struct ibv_send_wr wr = {
					.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED,
				}, *bad;

				status = ibv_post_send(shared.a.qp, &wr, &bad);
			} else {
				struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

				status = ibv_post_srq_recv(shared_queue, &wr, &bad);
			}
			take(side->cq);
		} while (status == ENOMEM && !all_taken());
		if (status)
			fault();
	}
	take_the_rest(side->cq);
	return NULL;
}

static void one_shared_queue(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 64, .max_sge = 1 } };
	struct ibv_qp_init_attr attr;

	shared = (struct pair) { make_side(IBV_QPT_RC), make_ground() };
	NEED(shared_queue = ibv_create_srq(shared.b.pd, &srq_attr));
	attr = basic(shared.b.cq, IBV_QPT_RC);
	attr.srq = shared_queue;
	NEED(shared.b.qp = ibv_create_qp(shared.b.pd, &attr));
	connect_qp(shared.a.qp, shared.b.qp);
	connect_qp(shared.b.qp, shared.a.qp);
	each(send_or_receive);
	say_completed();
}

/* Each thread makes and destroys objects of one context. */
static void *make_and_destroy(void *argument)
{
	struct ibv_pd *pd = shared.a.pd;

	(void)argument;
	for (int i = 0; i < 10; i++) {
		struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		struct ibv_qp_init_attr attr = basic(cq, IBV_QPT_UD);
		struct ibv_qp *qp = cq ? ibv_create_qp(pd, &attr) : NULL;
		struct ibv_mr *mr = ibv_reg_mr(pd, shared.a.memory, 4096, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_ah_attr to = to_self();
		struct ibv_ah *ah = ibv_create_ah(pd, &to);

		if (!qp || !mr || !ah) {
			fault();
			continue;
		}
		if (to_init(qp) || ibv_destroy_ah(ah) || ibv_dereg_mr(mr) || ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
			fault();
	}
	return NULL;
}

static void objects(void)
{
	shared.a = make_ground();
	each(make_and_destroy);
	say("wrong", "%d", wrong);
}

static int stops, posted;

static void *post_receives(void *argument)
{
	struct ibv_sge sge = part(&shared.a, 0, 8);
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	(void)argument;
	while (!__atomic_load_n(&stops, __ATOMIC_ACQUIRE))
		if (!ibv_post_recv(shared.a.qp, &wr, &bad))
			__atomic_store_n(&posted, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* A receive that overlaps a reset is not in the queue afterwards: all its places are free. */
static void reset_while_posting(void)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_init_attr attr;

	shared.a = make_ground();
	sge = part(&shared.a, 0, 8);
	attr = basic(shared.a.cq, IBV_QPT_RC);
	NEED(shared.a.qp = ibv_create_qp(shared.a.pd, &attr));
	for (int i = 0; i < 100; i++) {
		unsigned int room = 0;
		pthread_t thread;

		NEED(!to_init(shared.a.qp));
		stops = posted = 0;
		NEED(!pthread_create(&thread, NULL, post_receives, NULL));
		while (!__atomic_load_n(&posted, __ATOMIC_ACQUIRE))
			sched_yield();
		to_state(shared.a.qp, IBV_QPS_RESET);
		__atomic_store_n(&stops, 1, __ATOMIC_RELEASE);
		NEED(!pthread_join(thread, NULL));
		NEED(!to_init(shared.a.qp));
		while (room <= attr.cap.max_recv_wr && !ibv_post_recv(shared.a.qp, &wr, &bad))
			room++;
		if (room != attr.cap.max_recv_wr)
			fault();
		to_state(shared.a.qp, IBV_QPS_RESET);
	}
	say("wrong", "%d", wrong);
}

static void *open_and_close(void *argument)
{
	(void)argument;
	for (int i = 0; i < 5; i++) {
		struct ibv_context *opened = open_device();

		if (opened->device != context->device || ibv_close_device(opened))
			fault();
	}
	return NULL;
}

static void contexts(void)
{
	each(open_and_close);
	say("wrong", "%d", wrong);
}

MAIN(
	{ "one_queue_pair", one_queue_pair }, { "one_extended_queue_pair", one_extended_queue_pair },
	{ "one_shared_queue", one_shared_queue }, { "reset_while_posting", reset_while_posting }, { "objects", objects }, { "contexts", contexts },
)
