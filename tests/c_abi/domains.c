/*
 * Thread domains, and parent domains whose program allocates the queues.
 */

#include "check.h"

#include <dlfcn.h>

#define MOST 64

/* What the allocator of a parent domain has seen. */
struct seen {
	struct ibv_pd *domain;
	/* What it answers with: memory of its own if NULL is not `fixed`. */
	bool fixed;
	void *answer;
	int count, back, wrong;
	void *memory[MOST];
	uint64_t type[MOST];
};

static void *allocate(struct ibv_pd *domain, void *with, size_t size, size_t alignment, uint64_t type)
{
	struct seen *seen = with;
	void *memory;

	if (!seen->domain)
		seen->domain = domain;
	seen->wrong += domain != seen->domain || !size || !alignment || alignment & (alignment - 1);
	NEED(seen->count < MOST);
	seen->type[seen->count++] = type;
	if (seen->fixed)
		return seen->answer;
	if (alignment < sizeof(void *))
		alignment = sizeof(void *);
	NEED(!posix_memalign(&memory, alignment, size));
	memset(memory, 0, size);
	seen->memory[seen->count - 1] = memory;
	return memory;
}

static void take_back(struct ibv_pd *domain, void *with, void *memory, uint64_t type)
{
	struct seen *seen = with;

	seen->wrong += domain != seen->domain;
	seen->back++;
	for (int i = 0; i < seen->count; i++) {
		if (seen->memory[i] != memory)
			continue;
		seen->wrong += seen->type[i] != type;
		seen->memory[i] = NULL;
		free(memory);
		return;
	}
	seen->wrong++;
}

static struct ibv_pd *make_domain(struct ibv_pd *pd, struct ibv_td *td, struct seen *seen)
{
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };

	if (seen) {
		attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
		attr.alloc = allocate;
		attr.free = take_back;
		attr.pd_context = seen;
	}
	return ibv_alloc_parent_domain(context, &attr);
}

static struct ibv_td *make_td(void)
{
	return ibv_alloc_td(context, &(struct ibv_td_init_attr) {});
}

/* Tells of which types of resource memory was asked for: the driver's codes. */
static void say_types(const struct seen *seen)
{
	for (int code = 0; code < 32; code++) {
		bool asked = false;

		for (int i = 0; i < seen->count; i++)
			asked |= (uint32_t)seen->type[i] == (uint32_t)code;
		if (asked)
			say("asked for type", "%d", code);
	}
	say("asked by driver", "%d", seen->count ? (int)(seen->type[0] >> 32) : -1);
}

/* All but memory in the domain. */
static struct side make_side_in(struct ibv_pd *pd, struct ibv_pd *domain)
{
	struct ibv_cq_init_attr_ex cq = {
		.cqe = 256, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = domain,
	};
	struct side side = { .pd = pd };
	struct ibv_qp_init_attr attr;

	NEED(side.cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &cq)));
	NEED(side.memory = aligned_alloc(4096, MEMORY));
	memset(side.memory, 0, MEMORY);
	NEED(side.mr = ibv_reg_mr(domain, side.memory, MEMORY, ALL_ACCESS));
	attr = basic(side.cq, IBV_QPT_RC);
	NEED(side.qp = ibv_create_qp(domain, &attr));
	return side;
}

static void destroy_side(struct side *side)
{
	say_status("queue pair", ibv_destroy_qp(side->qp));
	say_status("region", ibv_dereg_mr(side->mr));
	say_status("completion queue", ibv_destroy_cq(side->cq));
}

static void write_all(struct pair *pair, int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_sge sge = part(&pair->a, 0, 8);
		struct ibv_send_wr wr = writing(i, &sge, &pair->b, 64), *bad;

		memset(pair->a.memory, 'a' + i % 26, 8);
		NEED(!ibv_post_send(pair->a.qp, &wr, &bad));
		need_completions(pair->a.cq, 1);
	}
	say("written", "%.8s", pair->b.memory + 64);
}

static void thread_domain(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *domain;
	struct ibv_td *td = say_object("thread domain", make_td());

	NEED(td);
	say("its context", "%d", td->context == context);
	NEED(domain = say_object("domain", make_domain(pd, td, NULL)));
	say("it has", "context %d, handle %d", domain->context == context, domain->handle == pd->handle);
	say_status("thread domain in use", ibv_dealloc_td(td));
	say_status("protection domain in use", ibv_dealloc_pd(pd));
	say_status("domain", ibv_dealloc_pd(domain));
	say_status("thread domain", ibv_dealloc_td(td));
	say_status("protection domain", ibv_dealloc_pd(pd));
}

/* All queues lie where the program says, and it gets each piece back once. */
static void own_memory(void)
{
	struct seen seen = {};
	struct ibv_pd *pd = ibv_alloc_pd(context), *domain;
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq;
	struct pair pair;

	NEED(domain = say_object("domain", make_domain(pd, NULL, &seen)));
	say("asked before", "%d", seen.count);
	pair = (struct pair) { make_side_in(pd, domain), make_side_in(pd, domain) };
	NEED(srq = say_object("shared queue", ibv_create_srq(domain, &init)));
	say_types(&seen);
	say("told the domain", "%d", seen.domain == domain);
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	write_all(&pair, 40);
	say_status("domain in use", ibv_dealloc_pd(domain));
	say("back before", "%d", seen.back);
	say_status("shared queue", ibv_destroy_srq(srq));
	destroy_side(&pair.a);
	destroy_side(&pair.b);
	say("all back", "%d", seen.back == seen.count);
	say("wrong", "%d", seen.wrong);
	say_status("domain", ibv_dealloc_pd(domain));
	say_status("protection domain", ibv_dealloc_pd(pd));
}

static void drivers_memory(void)
{
	struct seen seen = { .fixed = true, .answer = IBV_ALLOCATOR_USE_DEFAULT };
	struct ibv_pd *pd = ibv_alloc_pd(context), *domain;
	struct pair pair;

	NEED(domain = make_domain(pd, NULL, &seen));
	pair = (struct pair) { make_side_in(pd, domain), make_side_in(pd, domain) };
	say("asked", "%d", seen.count > 0);
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	write_all(&pair, 4);
	destroy_side(&pair.a);
	destroy_side(&pair.b);
	say("back", "%d", seen.back);
	say_status("domain", ibv_dealloc_pd(domain));
}

static void no_memory(void)
{
	struct seen seen = { .fixed = true };
	struct side side = make_ground();
	struct ibv_qp_init_attr attr = basic(side.cq, IBV_QPT_RC);
	struct ibv_cq_init_attr_ex cq = { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };

	NEED(cq.parent_domain = make_domain(side.pd, NULL, &seen));
	say_object("queue pair", ibv_create_qp(cq.parent_domain, &attr));
	say_object("shared queue", ibv_create_srq(cq.parent_domain, &srq));
	say("completion queue", "%d", ibv_create_cq_ex(context, &cq) != NULL);
	say("back", "%d", seen.back);
	say_status("domain", ibv_dealloc_pd(cq.parent_domain));
}

static void refused(void)
{
	struct ibv_parent_domain_init_attr attr = { .pd = ibv_alloc_pd(context), .comp_mask = 1 << 30 };
	struct ibv_td_init_attr td = { .comp_mask = 1 << 30 };

	say_object("thread domain", ibv_alloc_td(context, &td));
	say_object("unknown attributes", ibv_alloc_parent_domain(context, &attr));
	attr = (struct ibv_parent_domain_init_attr) {};
	say_object("of nothing", ibv_alloc_parent_domain(context, &attr));
}

/* One function of an allocator without the other has no effect. */
static void half_an_allocator(void)
{
	struct seen seen = {};
	struct side side = make_ground();
	struct ibv_parent_domain_init_attr attr = {
		.pd = side.pd, .pd_context = &seen,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
	};

	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr qp_attr = basic(side.cq, IBV_QPT_RC);
		struct ibv_pd *domain;
		struct ibv_qp *qp;

		attr.alloc = i ? NULL : allocate;
		attr.free = i ? take_back : NULL;
		NEED(domain = say_object("domain", ibv_alloc_parent_domain(context, &attr)));
		NEED(qp = say_object("queue pair", ibv_create_qp(domain, &qp_attr)));
		say_status("queue pair", ibv_destroy_qp(qp));
		say("called", "%d %d", seen.count, seen.back);
		say_status("domain", ibv_dealloc_pd(domain));
	}
}

/* A buffer for regions lies where the program says, too. The headers are older than the functions. */
static void buffers(void)
{
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
	void (*free_buf)(void *) = dlsym(RTLD_DEFAULT, "ibv_free_buf");
	struct ibv_pd *pd = ibv_alloc_pd(context), *domain;
	void *buf, *address;
	struct seen seen = {};

	if (!alloc_buf || !free_buf) {
		say("buffer", "no function");
		return;
	}
	say_object("of nothing", alloc_buf(pd, 0, &buf));
	NEED(domain = make_domain(pd, NULL, &seen));
	NEED(address = say_object("buffer", alloc_buf(domain, 5000, &buf)));
	say("asked", "%d, type %llu", seen.count, (unsigned long long)seen.type[0]);
	say("it is the program's", "%d", address == seen.memory[0]);
	say_status("domain in use", ibv_dealloc_pd(domain));
	free_buf(buf);
	say("back", "%d, wrong %d", seen.back, seen.wrong);
	seen = (struct seen) { .domain = domain, .fixed = true };
	say_object("without memory", alloc_buf(domain, 5000, &buf));
	seen.answer = IBV_ALLOCATOR_USE_DEFAULT;
	NEED(say_object("by default", alloc_buf(domain, 5000, &buf)));
	free_buf(buf);
	say("back", "%d", seen.back);
	say_status("domain", ibv_dealloc_pd(domain));
}

/* Two queue pairs of a thread domain are between start and end at once, which one thread may do. */
static void without_locks(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *domain;
	struct ibv_td *td = make_td();
	struct pair pairs[2];
	struct ibv_qp_ex *qp[2];

	NEED(td);
	NEED(domain = make_domain(pd, td, NULL));
	for (int i = 0; i < 2; i++) {
		struct side side = make_side_in(pd, domain);
		struct ibv_qp_init_attr_ex attr = {
			.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC, .pd = domain,
			.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
		};

		NEED(!ibv_destroy_qp(side.qp));
		NEED(side.qp = ibv_create_qp_ex(context, &attr));
		NEED(qp[i] = ibv_qp_to_qp_ex(side.qp));
		pairs[i] = (struct pair) { side, make_side_in(pd, domain) };
		connect_qp(pairs[i].a.qp, pairs[i].b.qp);
		connect_qp(pairs[i].b.qp, pairs[i].a.qp);
		memset(side.memory, 'a' + i, 8);
	}
	for (int round = 0; round < 40; round++) {
		for (int i = 0; i < 2; i++) {
			ibv_wr_start(qp[i]);
			qp[i]->wr_id = round;
			qp[i]->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qp[i], pairs[i].b.mr->rkey, (uintptr_t)pairs[i].b.memory + 64);
		}
		for (int i = 0; i < 2; i++)
			ibv_wr_set_sge(qp[i], pairs[i].a.mr->lkey, (uintptr_t)pairs[i].a.memory, 8);
		for (int i = 0; i < 2; i++)
			NEED(!ibv_wr_complete(qp[i]));
		for (int i = 0; i < 2; i++)
			need_completions(pairs[i].a.cq, 1);
	}
	for (int i = 0; i < 2; i++) {
		say("functions", "%.8s", pairs[i].b.memory + 64);
		write_all(&pairs[i], 20);
		destroy_side(&pairs[i].a);
		destroy_side(&pairs[i].b);
	}
	say_status("domain", ibv_dealloc_pd(domain));
	say_status("thread domain", ibv_dealloc_td(td));
}

MAIN(
	{ "thread_domain", thread_domain }, { "own_memory", own_memory }, { "drivers_memory", drivers_memory },
	{ "no_memory", no_memory }, { "refused", refused }, { "half_an_allocator", half_an_allocator }, { "buffers", buffers }, { "without_locks", without_locks },
)
