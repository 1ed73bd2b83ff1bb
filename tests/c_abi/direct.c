/*
 * Direct verbs of ConnectX adapters: where objects lie (mlx5dv_init_obj), and requests and completions that the program
 * writes and reads by itself there; objects with what only this device has; commands of the program's own.
 */

#include "check.h"

#include <fcntl.h>
#include <stddef.h>

#include <infiniband/mlx5dv.h>

#define BLOCK 64

/* A queue pair whose rings the program uses by itself, with its completion queue. */
struct own {
	struct side side;
	struct mlx5dv_qp qp;
	struct mlx5dv_cq cq;
	uint32_t posted, received, polled;
};

static struct ibv_cq_ex *extended_cq(const char *fact, struct mlx5dv_cq_init_attr *own)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 63, .wc_flags = IBV_WC_STANDARD_FLAGS };

	return say_object(fact, mlx5dv_create_cq(context, &attr, own));
}

static struct own take_over(struct side side)
{
	struct own own = { .side = side };
	struct mlx5dv_obj obj = {};

	own.qp.comp_mask = MLX5DV_QP_MASK_UAR_MMAP_OFFSET;
	obj.qp.in = side.qp, obj.qp.out = &own.qp;
	obj.cq.in = side.cq, obj.cq.out = &own.cq;
	NEED(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ));
	return own;
}

/* Rings for what was written. */
static void ring(struct own *own, struct mlx5_wqe_ctrl_seg *last)
{
	__sync_synchronize();
	own->qp.dbrec[MLX5_SND_DBR] = htonl(own->posted & 0xffff);
	__sync_synchronize();
	*(volatile uint64_t *)own->qp.bf.reg = *(uint64_t *)last;
	__sync_synchronize();
}

static void *block(struct own *own, uint32_t at)
{
	return (char *)own->qp.sq.buf + (at & (own->qp.sq.wqe_cnt - 1)) * BLOCK;
}

/* A write of a part to the start of the peer's memory and `to` bytes on, in one block. */
static void post_write(struct own *own, size_t from, uint32_t length, const struct side *peer, size_t to)
{
	struct mlx5_wqe_ctrl_seg *ctrl = block(own, own->posted);
	struct mlx5_wqe_raddr_seg *remote = (void *)(ctrl + 1);
	struct mlx5_wqe_data_seg *data = (void *)(remote + 1);
	struct ibv_sge sge = part(&own->side, from, length);

	mlx5dv_set_ctrl_seg(ctrl, own->posted, MLX5_OPCODE_RDMA_WRITE, 0, own->side.qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	remote->raddr = htobe64((uintptr_t)peer->memory + to);
	remote->rkey = htonl(peer->mr->rkey);
	remote->reserved = 0;
	mlx5dv_set_data_seg(data, sge.length, sge.lkey, sge.addr);
	own->posted++;
	ring(own, ctrl);
}

/* The next entry of the queue, once it is there; NULL if it does not come. */
static struct mlx5_cqe64 *entry(struct own *own)
{
	char *place = (char *)own->cq.buf + (own->polled & (own->cq.cqe_cnt - 1)) * own->cq.cqe_size;
	struct mlx5_cqe64 *cqe = (void *)(place + own->cq.cqe_size - sizeof(*cqe));
	double end = now() + WAIT_S;

	for (;;) {
		uint8_t op_own = *(volatile uint8_t *)&cqe->op_own;

		if (op_own >> 4 != MLX5_CQE_INVALID && (op_own & 1) == !!(own->polled & own->cq.cqe_cnt))
			break;
		if (now() > end)
			return NULL;
	}
	__sync_synchronize();
	own->polled++;
	own->cq.dbrec[0] = htonl(own->polled & 0xffffff);
	return cqe;
}

static void say_entry(const char *fact, struct own *own)
{
	struct mlx5_cqe64 *cqe = entry(own);

	if (!cqe) {
		say(fact, "did not come");
		return;
	}
	say(fact, "code %d, counter %d, of this queue %d", cqe->op_own >> 4, ntohs(cqe->wqe_counter),
	    (ntohl(cqe->sop_drop_qpn) & 0xffffff) == own->side.qp->qp_num);
}

static void own_posting(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct own a = take_over(pair.a), b = take_over(pair.b);
	struct mlx5_wqe_data_seg *receive;
	int right = 0;

	say("strides", "%u %u %u", a.qp.sq.stride, a.qp.rq.stride, a.cq.cqe_size);
	say("told", "mask %llx %llx", (unsigned long long)a.qp.comp_mask, (unsigned long long)a.cq.comp_mask);
	say("powers of two", "%d", !(a.qp.sq.wqe_cnt & (a.qp.sq.wqe_cnt - 1)) && !(a.cq.cqe_cnt & (a.cq.cqe_cnt - 1)));
	/* Twice round both rings. */
	for (uint32_t i = 0; i < 2 * (a.qp.sq.wqe_cnt > a.cq.cqe_cnt ? a.qp.sq.wqe_cnt : a.cq.cqe_cnt); i++) {
		struct mlx5_cqe64 *cqe;

		pair.a.memory[i % 256] = i * 7 + 1;
		post_write(&a, i % 256, 1, &pair.b, i % 256);
		NEED(cqe = entry(&a));
		right += cqe->op_own >> 4 == MLX5_CQE_REQ && ntohs(cqe->wqe_counter) == (i & 0xffff);
	}
	say("lap", "%d", right == 2 * (int)(a.qp.sq.wqe_cnt > a.cq.cqe_cnt ? a.qp.sq.wqe_cnt : a.cq.cqe_cnt));
	say("written", "%d", !memcmp(pair.a.memory, pair.b.memory, 256));

	/* A receive that the program posts, and a send that the library posts: its own queue is untouched. */
	receive = (void *)((char *)b.qp.rq.buf);
	mlx5dv_set_data_seg(receive, 64, pair.b.mr->lkey, (uintptr_t)pair.b.memory + 4096);
	mlx5dv_set_data_seg(receive + 1, 0, MLX5_INVALID_LKEY, 0);
	__sync_synchronize();
	b.qp.dbrec[MLX5_RCV_DBR] = htonl(1);
	{
		struct mlx5_wqe_ctrl_seg *ctrl = block(&a, a.posted);
		struct ibv_sge sge = part(&pair.a, 0, 64);

		mlx5dv_set_ctrl_seg(ctrl, a.posted, MLX5_OPCODE_SEND_IMM, 0, pair.a.qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 2, 0,
				    htonl(0x1234));
		mlx5dv_set_data_seg((void *)(ctrl + 1), sge.length, sge.lkey, sge.addr);
		a.posted++;
		ring(&a, ctrl);
	}
	say_entry("received", &b);
	say("arrived", "%d", !memcmp(pair.a.memory, pair.b.memory + 4096, 64));
	NEED(entry(&a));
	/* The rings go with their objects, with what lies in them. */
	say_status("destroy", ibv_destroy_qp(pair.a.qp));
	say_status("destroy the other", ibv_destroy_qp(pair.b.qp));
	say_status("destroy the queue", ibv_destroy_cq(pair.a.cq));
	say_status("destroy the other queue", ibv_destroy_cq(pair.b.cq));
}

/* What was taken over can be reset and used again, from the start of its rings. */
static void again(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct own a = take_over(pair.a);

	for (int i = 0; i < 3; i++) {
		post_write(&a, 0, 8, &pair.b, 0);
		say_entry("before", &a);
	}
	to_state(pair.a.qp, IBV_QPS_RESET);
	to_state(pair.b.qp, IBV_QPS_RESET);
	say("record", "%u", a.qp.dbrec[MLX5_SND_DBR]);
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	a.posted = 0;
	memset(pair.a.memory, 0x5a, 8);
	post_write(&a, 0, 8, &pair.b, 0);
	say_entry("after", &a);
	say("written", "%d", pair.b.memory[7] == 0x5a);
}

static void entry_sizes(void)
{
	struct mlx5dv_cq_init_attr own = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE };
	struct ibv_cq_ex *cq;

	for (int size = 64; size <= 128; size *= 2) {
		struct mlx5dv_cq told;
		struct mlx5dv_obj obj = {};

		own.cqe_size = size;
		cq = extended_cq("queue", &own);
		NEED(cq);
		obj.cq.in = ibv_cq_ex_to_cq(cq), obj.cq.out = &told;
		say_status("where", mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ));
		say("entries", "%u of %u bytes", told.cqe_cnt, told.cqe_size);
		say_status("destroy", ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
	own.cqe_size = 32;
	extended_cq("of 32 bytes", &own);
	own = (struct mlx5dv_cq_init_attr) { .comp_mask = 1 << 7 };
	extended_cq("unknown attributes", &own);
	own = (struct mlx5dv_cq_init_attr) { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_FLAGS };
	cq = extended_cq("no flags", &own);
	say_status("destroy", ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	cq = extended_cq("nothing", NULL);
	say_status("destroy", ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

/* A queue of entries of 128 bytes, which the program polls; the library polls another. */
static void polled_by_both(void)
{
	struct pair pair = { make_ground(), make_side(IBV_QPT_RC) };
	struct mlx5dv_cq_init_attr own = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, .cqe_size = 128 };
	struct ibv_cq_ex *cq = extended_cq("queue", &own);
	struct ibv_qp_init_attr attr;
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	struct own a;

	NEED(cq);
	pair.a.cq = ibv_cq_ex_to_cq(cq);
	attr = basic(pair.a.cq, IBV_QPT_RC);
	NEED(pair.a.qp = ibv_create_qp(pair.a.pd, &attr));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	sge = part(&pair.a, 0, 8);
	wr = writing(1, &sge, &pair.b, 0);
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("polled by the library", pair.a.cq, 1);
	a = take_over(pair.a);
	a.polled = 1;
	a.posted = 1;
	post_write(&a, 0, 8, &pair.b, 8);
	say_entry("by the program", &a);
}

static void shared_queue(void)
{
	struct side side = make_ground();
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 15, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(side.pd, &attr);
	struct mlx5dv_srq told = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_obj obj = { .srq = { .in = srq, .out = &told } };
	struct pair pair = { side, make_side(IBV_QPT_RC) };
	struct ibv_qp_init_attr init = basic(side.cq, IBV_QPT_RC);
	struct mlx5_wqe_srq_next_seg *next;
	struct mlx5_cqe64 *cqe;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct own a;

	NEED(srq);
	say_status("where", mlx5dv_init_obj(&obj, MLX5DV_OBJ_SRQ));
	say("ring", "head %u, tail %u, stride %u, mask %llx", told.head, told.tail, told.stride,
	    (unsigned long long)told.comp_mask);
	say("number", "%d", told.srqn != 0);
	init.srq = srq;
	NEED(pair.a.qp = ibv_create_qp(side.pd, &init));
	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	a = take_over(pair.a);
	say("own ring", "%u", a.qp.rq.wqe_cnt);
	for (int i = 0; i < 2; i++) {
		next = (void *)((char *)told.buf + i * told.stride);
		memset(next, 0, sizeof(*next));
		next->next_wqe_index = htons(i + 1);
		mlx5dv_set_data_seg((void *)(next + 1), 512, side.mr->lkey, (uintptr_t)side.memory + i * 512);
	}
	__sync_synchronize();
	told.dbrec[0] = htonl(2);
	for (int i = 0; i < 2; i++) {
		/* More than goes into a completion. */
		sge = part(&pair.b, 0, 500);
		memset(pair.b.memory, 'a' + i, 500);
		NEED(!ibv_post_send(pair.b.qp, &wr, &bad));
		NEED(cqe = entry(&a));
		say("received", "code %d, element %d, bytes %u, %c", cqe->op_own >> 4, ntohs(cqe->wqe_counter),
		    ntohl(cqe->byte_cnt), side.memory[i * 512 + 499]);
		say_completions("sent", pair.b.cq, 1);
	}
}

static void addresses(void)
{
	struct side side = make_ground();
	struct ibv_ah_attr path = to_self();
	struct ibv_ah *ah;
	struct mlx5dv_ah told = {};
	struct mlx5dv_pd pd = {}, other = {};
	struct mlx5dv_obj obj = { .ah = { .out = &told }, .pd = { .in = side.pd, .out = &pd } };
	char text[2 * sizeof(struct mlx5_wqe_av) + 1] = "";

	path.sl = 3;
	path.grh.flow_label = 0x12345;
	path.grh.traffic_class = 32;
	NEED(ah = ibv_create_ah(side.pd, &path));
	obj.ah.in = ah;
	say_status("where", mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH | MLX5DV_OBJ_PD));
	for (size_t i = 0; i < sizeof(*told.av); i++)
		sprintf(text + 2 * i, "%02x", ((unsigned char *)told.av)[i]);
	say("vector", "%s", text);
	obj.pd.in = ibv_alloc_pd(context), obj.pd.out = &other;
	NEED(obj.pd.in);
	say_status("another domain", mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD));
	say("numbers", "differ %d, masks %llx %llx", pd.pdn != other.pdn, (unsigned long long)pd.comp_mask,
	    (unsigned long long)told.comp_mask);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 256 };
	struct mlx5dv_alloc_dm_attr own = { .type = MLX5DV_DM_TYPE_MEMIC };
	struct ibv_dm *dm = say_object("memory", mlx5dv_alloc_dm(context, &attr, &own));
	struct mlx5dv_dm told = { .comp_mask = MLX5DV_DM_MASK_REMOTE_VA };
	struct mlx5dv_obj obj = { .dm = { .in = dm, .out = &told } };
	uint32_t words[64];
	int right = 0;

	if (dm) {
		say_status("where", mlx5dv_init_obj(&obj, MLX5DV_OBJ_DM));
		say("length", "%llu", (unsigned long long)told.length);
		for (int i = 0; i < 64; i++)
			((volatile uint32_t *)told.buf)[i] = i * 77;
		__sync_synchronize();
		NEED(!ibv_memcpy_from_dm(words, dm, 0, sizeof(words)));
		for (int i = 0; i < 64; i++)
			right += words[i] == (uint32_t)i * 77;
		say("words", "%d", right);
		say_status("free", ibv_free_dm(dm));
	}
	own.type = 99;
	say_object("of no kind", mlx5dv_alloc_dm(context, &attr, &own));
}

static void devices(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_context *opened;

	NEED(list);
	for (int i = 0; list[i]; i++) {
		if (strcmp(ibv_get_device_name(list[i]), device_name))
			continue;
		say("supported", "%d", mlx5dv_is_supported(list[i]));
		opened = say_object("with commands", mlx5dv_open_device(list[i], &attr));
		if (opened) {
			struct mlx5dv_context told = {};
			uint32_t eqn = 0;

			say_status("asked", mlx5dv_query_device(opened, &told));
			say_status("event queue", mlx5dv_devx_query_eqn(opened, 0, &eqn));
			say("it has a number", "%d", eqn != 0);
			say_status("close", ibv_close_device(opened));
		}
		attr.flags = 0;
		opened = say_object("without", mlx5dv_open_device(list[i], &attr));
		if (opened)
			say_status("close", ibv_close_device(opened));
	}
	ibv_free_device_list(list);
}

/* Commands of the program's own: memory, a register page, events; a refusal of the device's is told as it is. */
static void commands(void)
{
	uint32_t input[4] = { htonl(0x0100 << 16), htonl(1), 0, 0 }, output[1028 + 4] = {};
	void *memory = aligned_alloc(4096, 8192);
	struct mlx5dv_devx_umem *umem;
	struct mlx5dv_devx_uar *uar;
	struct mlx5dv_devx_event_channel *channel;
	uint16_t event = 0x04;

	say_status("capabilities", mlx5dv_devx_general_cmd(context, input, sizeof(input), output, sizeof(output)));
	say("status", "%u", ntohl(output[0]) >> 24);
	input[1] = htonl(0x7f << 1);
	say_status("of no kind", mlx5dv_devx_general_cmd(context, input, sizeof(input), output, sizeof(output)));
	say("its status", "%u", ntohl(output[0]) >> 24);
	/* The kernel lets no command through that creates something, and none for an object that creates nothing. */
	input[0] = htonl(0x0800 << 16);
	say_status("a command for objects", mlx5dv_devx_general_cmd(context, input, sizeof(input), output, sizeof(output)));
	input[0] = htonl(0x0100 << 16);
	say_object("no object", mlx5dv_devx_obj_create(context, input, sizeof(input), output, sizeof(output)));
	NEED(memory);
	umem = say_object("memory", mlx5dv_devx_umem_reg(context, memory, 8192, IBV_ACCESS_LOCAL_WRITE));
	if (umem)
		say_status("release", mlx5dv_devx_umem_dereg(umem));
	uar = say_object("registers", mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC));
	if (uar) {
		say("page", "%d %td", uar->page_id != 0, (char *)uar->reg_addr - (char *)uar->base_addr);
		mlx5dv_devx_free_uar(uar);
	}
	channel = say_object("channel", mlx5dv_devx_create_event_channel(context, 0));
	if (channel) {
		say_status("subscribe", mlx5dv_devx_subscribe_devx_event(channel, NULL, sizeof(event), &event, 7));
		mlx5dv_devx_destroy_event_channel(channel);
	}
}

/* Numbers that no queue pair has: as many as two sets of the device's, each another, and each given back. */
static void reserved(void)
{
	uint32_t numbers[16] = {}, other = 0;
	int again = 0;

	for (int i = 0; i < 16; i++) {
		int status = mlx5dv_reserved_qpn_alloc(context, &numbers[i]);

		if (status)
			return say_status("a number", status);
		for (int j = 0; j < i; j++)
			again += numbers[i] == numbers[j];
	}
	say("again", "%d", again);
	for (int i = 0; i < 16; i++)
		say_status("back", mlx5dv_reserved_qpn_dealloc(context, numbers[i]));
	say_status("twice", mlx5dv_reserved_qpn_dealloc(context, numbers[3]));
	say_status("another", mlx5dv_reserved_qpn_alloc(context, &other));
	say("it was one before", "%d", other == numbers[0] || other == numbers[15]);
	say_status("back", mlx5dv_reserved_qpn_dealloc(context, other));
}

/* A memory key that a command creates, asks for and takes away, and what is refused of other commands about it. */
static void objects(void)
{
	uint32_t create[0x110 / 4] = { htonl(0x0200 << 16) }, created[4] = {};
	uint32_t query[4] = { htonl(0x0201 << 16) }, told[0x110 / 4] = {};
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct mlx5dv_pd number = {};
	struct mlx5dv_obj obj = { .pd = { .in = pd, .out = &number } };
	struct mlx5dv_devx_obj *key;

	NEED(pd);
	NEED(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD));
	/* Free, to be changed by requests, over parts, readable here; of any queue pair; with room for four parts. */
	create[4] = htonl(1 << 30 | 1 << 15 | 1 << 10 | 2 << 8);
	create[5] = htonl(0xffffff00);
	create[7] = htonl(number.pdn);
	create[4 + 0x1a0 / 32] = htonl(4);
	key = say_object("key", mlx5dv_devx_obj_create(context, create, sizeof(create), created, sizeof(created)));
	NEED(key);
	query[2] = created[2];
	say_status("query", mlx5dv_devx_obj_query(key, query, sizeof(query), told, sizeof(told)));
	say("told", "%d %u", told[4 + 1] == create[5], ntohl(told[4 + 0x1a0 / 32]));
	/* The kernel lets no command about others through, nor one that changes nothing. */
	query[2] ^= htonl(1);
	say_status("query of another", mlx5dv_devx_obj_query(key, query, sizeof(query), told, sizeof(told)));
	say_status("no change", mlx5dv_devx_obj_modify(key, query, sizeof(query), told, sizeof(told)));
	say_status("destroy", mlx5dv_devx_obj_destroy(key));
}

static void say_posts(const char *send, const char *receive, struct side *side)
{
	struct ibv_sge sge = part(side, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, side, 8), *bad;
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad_recv;

	say_status(send, ibv_post_send(side->qp, &wr, &bad));
	say_status(receive, ibv_post_recv(side->qp, &recv, &bad_recv));
}

/* Commands about a queue pair of the kernel's: its context, a change that changes nothing, and states. */
static void about_queue_pairs(void)
{
	struct side side = make_side(IBV_QPT_RC);
	uint32_t state[4] = { htonl(0x050a << 16) };
	uint32_t query[4] = { htonl(0x050b << 16) }, told[0x110 / 4] = {};
	uint32_t change[0x110 / 4] = { htonl(0x0505 << 16) }, changed[4] = {};
	uint8_t port, active;

	query[2] = htonl(side.qp->qp_num);
	say_status("query", mlx5dv_devx_qp_query(side.qp, query, sizeof(query), told, sizeof(told)));
	say("state", "%u", ntohl(told[6]) >> 28);
	change[2] = query[2];
	say_status("from another state", mlx5dv_devx_qp_modify(side.qp, change, sizeof(change), changed, sizeof(changed)));
	say("its status", "%u", ntohl(changed[0]) >> 24);
	say_status("UDP port of a new one", mlx5dv_modify_qp_udp_sport(side.qp, 0xc123));
	say_status("port of a new one", mlx5dv_modify_qp_lag_port(side.qp, 1));
	say_status("its port", mlx5dv_query_qp_lag_port(side.qp, &port, &active));
	connect_qp(side.qp, side.qp);
	say_status("change", mlx5dv_devx_qp_modify(side.qp, change, sizeof(change), changed, sizeof(changed)));
	say_posts("send", "receive", &side);
	state[2] = query[2];
	say_status("to RESET", mlx5dv_devx_qp_modify(side.qp, state, sizeof(state), changed, sizeof(changed)));
	say("told state", "%d", side.qp->state);
	say_posts("send in RESET", "receive in RESET", &side);
	/* Another one, with the context that it had in INIT. */
	side = make_side(IBV_QPT_RC);
	NEED(!to_init(side.qp));
	query[2] = state[2] = change[2] = htonl(side.qp->qp_num);
	NEED(!mlx5dv_devx_qp_query(side.qp, query, sizeof(query), told, sizeof(told)));
	NEED(!mlx5dv_devx_qp_modify(side.qp, state, sizeof(state), changed, sizeof(changed)));
	change[0] = htonl(0x0502 << 16);
	memcpy(change + 6, told + 6, sizeof(change) - 24);
	say_status("to INIT", mlx5dv_devx_qp_modify(side.qp, change, sizeof(change), changed, sizeof(changed)));
	say_posts("send in INIT", "receive in INIT", &side);
}

/* What needs no device of a kind that there is none of: it is refused, and programs fall back. */
static void what_lacks(void)
{
	struct side side = make_side(IBV_QPT_RC);
	struct mlx5dv_devx_umem_in in = {
		.addr = side.memory, .size = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .pgsz_bitmap = 4096,
	};
	struct mlx5dv_crypto_login_attr login = {};
	struct mlx5dv_dek_init_attr dek = {};
	struct mlx5dv_devx_async_event_hdr event;
	struct mlx5dv_devx_event_channel *channel;
	struct mlx5dv_devx_umem *umem = say_object("memory", mlx5dv_devx_umem_reg_ex(context, &in));

	if (umem)
		say_status("release", mlx5dv_devx_umem_dereg(umem));
	in.comp_mask = 1 << 9;
	say_object("unknown memory", mlx5dv_devx_umem_reg_ex(context, &in));
	say_status("login", mlx5dv_crypto_login(context, &login));
	say_object("key for data", mlx5dv_dek_create(context, &dek));
	channel = say_object("channel", mlx5dv_devx_create_event_channel(context, 0));
	if (channel) {
		int flags = fcntl(channel->fd, F_GETFL);

		NEED(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK));
		say_or_errno("no event", mlx5dv_devx_get_event(channel, &event, sizeof(event)));
		mlx5dv_devx_destroy_event_channel(channel);
	}
}

static void refused(void)
{
	struct mlx5dv_obj obj = {};

	say_status("nothing", mlx5dv_init_obj(&obj, 0));
	say_status("a stream", mlx5dv_dci_stream_id_reset(make_side(IBV_QPT_RC).qp, 1));
}

/* A pair whose first queue pair gives keys parts of others, and raw requests. */
struct keyed {
	struct pair pair;
	struct ibv_qp_ex *ex;
	struct mlx5dv_qp_ex *own;
};

static struct keyed make_keyed(uint64_t operations)
{
	struct keyed keyed = { .pair = { make_ground(), make_side(IBV_QPT_RC) } };
	struct side *a = &keyed.pair.a;
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC, .send_cq = a->cq, .recv_cq = a->cq, .pd = a->pd,
		.cap = { .max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 8, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_LOCAL_INV,
	};
	struct mlx5dv_qp_init_attr own = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, .send_ops_flags = operations };

	NEED(a->qp = mlx5dv_create_qp(context, &init, &own));
	NEED(keyed.ex = ibv_qp_to_qp_ex(a->qp));
	NEED(keyed.own = mlx5dv_qp_ex_from_ibv_qp_ex(keyed.ex));
	connect_qp(a->qp, keyed.pair.b.qp);
	connect_qp(keyed.pair.b.qp, a->qp);
	return keyed;
}

#define OF_KEYS (MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED | MLX5DV_QP_EX_WITH_MKEY_CONFIGURE)

static struct mlx5dv_mkey *make_key(const char *fact, struct ibv_pd *pd, uint32_t flags, uint16_t entries)
{
	struct mlx5dv_mkey_init_attr attr = { .pd = pd, .create_flags = flags, .max_entries = entries };
	struct mlx5dv_mkey *key = say_object(fact, mlx5dv_create_mkey(&attr));

	if (key)
		say("its room", "%u, keys alike %d", attr.max_entries, key->lkey == key->rkey);
	return key;
}

static void start(struct keyed *keyed, uint64_t id, int flags)
{
	ibv_wr_start(keyed->ex);
	keyed->ex->wr_id = id;
	keyed->ex->wr_flags = flags;
}

static void say_opcode(const char *fact, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	if (!completion(cq, &wc, WAIT_S))
		say(fact, "did not come");
	else if (wc.status != IBV_WC_SUCCESS)
		say(fact, "%llu %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	else
		say(fact, "%llu, opcode %d", (unsigned long long)wc.wr_id, wc.opcode);
}

/* Has the first side write by a key, from its address 0 on. */
static void write_by(struct keyed *keyed, uint64_t id, uint32_t lkey, uint32_t length, size_t to)
{
	ibv_wr_start(keyed->ex);
	keyed->ex->wr_id = id;
	keyed->ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(keyed->ex, keyed->pair.b.mr->rkey, (uintptr_t)keyed->pair.b.memory + to);
	ibv_wr_set_sge(keyed->ex, lkey, 0, length);
	say_status("post a write", ibv_wr_complete(keyed->ex));
}

static void key_over_a_list(void)
{
	struct keyed keyed = make_keyed(OF_KEYS);
	struct side *a = &keyed.pair.a, *b = &keyed.pair.b;
	struct mlx5dv_mkey *key = make_key("key", a->pd, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 5);
	struct ibv_sge parts[5];
	uint32_t all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

	NEED(key);
	for (int i = 0; i < 5; i++) {
		parts[i] = part(a, 8192 - 1024 * i, 10 + i);
		memset(a->memory + 8192 - 1024 * i, 'a' + i, 10 + i);
	}
	/* The write behind it waits for it. */
	start(&keyed, 1, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	mlx5dv_wr_mr_list(keyed.own, key, all, 5, parts);
	keyed.ex->wr_id = 2;
	keyed.ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(keyed.ex, b->mr->rkey, (uintptr_t)b->memory);
	ibv_wr_set_sge(keyed.ex, key->lkey, 0, 60);
	say_status("post", ibv_wr_complete(keyed.ex));
	say_opcode("change", a->cq);
	say_opcode("write", a->cq);
	say("written", "%.60s", (char *)b->memory);
	/* From the middle of a part on. */
	start(&keyed, 3, IBV_SEND_SIGNALED);
	ibv_wr_rdma_read(keyed.ex, b->mr->rkey, (uintptr_t)b->memory + 40);
	ibv_wr_set_sge(keyed.ex, key->lkey, 5, 10);
	say_status("post a read", ibv_wr_complete(keyed.ex));
	say_opcode("read", a->cq);
	say("read", "%.10s %.11s", (char *)a->memory + 8192, (char *)a->memory + 7168);
	/* Other parts, in several steps. */
	start(&keyed, 4, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	{
		struct mlx5dv_mkey_conf_attr none = {};

		mlx5dv_wr_mkey_configure(keyed.own, key, 2, &none);
		mlx5dv_wr_set_mkey_access_flags(keyed.own, IBV_ACCESS_LOCAL_WRITE);
		mlx5dv_wr_set_mkey_layout_list(keyed.own, 2, parts + 3);
	}
	say_status("post by steps", ibv_wr_complete(keyed.ex));
	say_opcode("change by steps", a->cq);
	memset(b->memory, 0, 64);
	write_by(&keyed, 5, key->lkey, 27, 0);
	say_opcode("write of two", a->cq);
	say("written of two", "%.27s", (char *)b->memory);
	/* The peer has no access any more. */
	{
		struct ibv_sge sge = part(b, 0, 8);
		struct ibv_send_wr wr = writing(6, &sge, a, 0), *bad;

		wr.wr.rdma.remote_addr = 0;
		wr.wr.rdma.rkey = key->rkey;
		NEED(!ibv_post_send(b->qp, &wr, &bad));
		say_completions("peer", b->cq, 1);
	}
	say_status("destroy", mlx5dv_destroy_mkey(key));
}

/* Columns of a table of 16 bytes a row: the first 3 bytes, and 2 from the eighth on. */
static void key_over_rows(void)
{
	struct keyed keyed = make_keyed(OF_KEYS);
	struct side *a = &keyed.pair.a, *b = &keyed.pair.b;
	struct mlx5dv_mkey *key = make_key("key", a->pd, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 4);
	struct mlx5dv_mr_interleaved columns[2] = {
		{ (uintptr_t)a->memory, 3, 13, a->mr->lkey }, { (uintptr_t)a->memory + 7, 2, 14, a->mr->lkey },
	};
	uint32_t all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

	NEED(key);
	for (int i = 0; i < 64; i++)
		a->memory[i] = 'A' + i;
	start(&keyed, 1, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	mlx5dv_wr_mr_interleaved(keyed.own, key, all, 4, 2, columns);
	say_status("post", ibv_wr_complete(keyed.ex));
	say_opcode("change", a->cq);
	write_by(&keyed, 2, key->lkey, 20, 0);
	say_opcode("write", a->cq);
	say("written", "%.20s", (char *)b->memory);
	/* The peer reads from within a row to within another. */
	{
		struct ibv_sge sge = part(b, 100, 9);
		struct ibv_send_wr wr = writing(3, &sge, a, 0), *bad;

		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = 4;
		wr.wr.rdma.rkey = key->rkey;
		NEED(!ibv_post_send(b->qp, &wr, &bad));
		say_completions("peer", b->cq, 1);
		say("read", "%.9s", (char *)b->memory + 100);
	}
	say_status("destroy", mlx5dv_destroy_mkey(key));
}

static void refused_keys(void)
{
	struct keyed keyed = make_keyed(OF_KEYS);
	struct side *a = &keyed.pair.a;
	struct mlx5dv_mkey *key = make_key("key", a->pd, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 4);
	struct mlx5dv_mkey_conf_attr none = {}, unknown = { .conf_flags = 1 << 5 };
	struct ibv_sge parts[8];

	for (int i = 0; i < 8; i++)
		parts[i] = part(a, 64 * i, 8);
	make_key("no flags", a->pd, 0, 4);
	make_key("unknown flags", a->pd, 1 << 12, 4);
	start(&keyed, 1, IBV_SEND_SIGNALED);
	mlx5dv_wr_mr_list(keyed.own, key, 1, 2, parts);
	say_status("not inline", ibv_wr_complete(keyed.ex));
	start(&keyed, 2, IBV_SEND_INLINE);
	mlx5dv_wr_mr_list(keyed.own, key, 1, 5, parts);
	say_status("more than its room", ibv_wr_complete(keyed.ex));
	start(&keyed, 3, IBV_SEND_INLINE);
	mlx5dv_wr_mr_list(keyed.own, key, 1 << 20, 2, parts);
	say_status("unknown access", ibv_wr_complete(keyed.ex));
	start(&keyed, 4, IBV_SEND_INLINE);
	mlx5dv_wr_mkey_configure(keyed.own, key, 1, &unknown);
	say_status("unknown flags", ibv_wr_complete(keyed.ex));
	start(&keyed, 5, IBV_SEND_INLINE);
	mlx5dv_wr_mkey_configure(keyed.own, key, 3, &none);
	mlx5dv_wr_set_mkey_access_flags(keyed.own, 1);
	mlx5dv_wr_set_mkey_access_flags(keyed.own, 1);
	say_status("access twice", ibv_wr_complete(keyed.ex));
	start(&keyed, 6, IBV_SEND_INLINE);
	mlx5dv_wr_mkey_configure(keyed.own, key, 2, &none);
	mlx5dv_wr_set_mkey_layout_list(keyed.own, 1, parts);
	mlx5dv_wr_set_mkey_layout_list(keyed.own, 1, parts);
	say_status("a layout twice", ibv_wr_complete(keyed.ex));
	/* Nothing was posted, and what is right still is. */
	start(&keyed, 7, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	mlx5dv_wr_mr_list(keyed.own, key, 1, 4, parts);
	say_status("right", ibv_wr_complete(keyed.ex));
	say_opcode("change", a->cq);
	say_status("destroy", mlx5dv_destroy_mkey(key));
}

static void raw_requests(void)
{
	struct keyed keyed = make_keyed(MLX5DV_QP_EX_WITH_RAW_WQE);
	struct side *a = &keyed.pair.a, *b = &keyed.pair.b;
	struct {
		struct mlx5_wqe_ctrl_seg ctrl;
		struct mlx5_wqe_raddr_seg remote;
		struct mlx5_wqe_data_seg data;
	} wqe = {};
	int right = 0;

	/* More than the ring has places for. */
	for (int i = 0; i < 200; i++) {
		struct ibv_wc wc;

		a->memory[i] = i ^ 0x55;
		mlx5dv_set_ctrl_seg(&wqe.ctrl, 0x7777, MLX5_OPCODE_RDMA_WRITE, 0, a->qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
		wqe.remote.raddr = htobe64((uintptr_t)b->memory + i);
		wqe.remote.rkey = htonl(b->mr->rkey);
		mlx5dv_set_data_seg(&wqe.data, 1, a->mr->lkey, (uintptr_t)a->memory + i);
		start(&keyed, i, 0);
		mlx5dv_wr_raw_wqe(keyed.own, &wqe);
		NEED(!ibv_wr_complete(keyed.ex));
		NEED(completion(a->cq, &wc, WAIT_S));
		right += wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i && wc.opcode == IBV_WC_DRIVER2;
	}
	say("completions", "%d", right);
	say("written", "%d", !memcmp(a->memory, b->memory, 200));
	/* One that does nothing. */
	memset(&wqe, 0, sizeof(wqe));
	mlx5dv_set_ctrl_seg(&wqe.ctrl, 0, MLX5_OPCODE_NOP, 0, a->qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 1, 0, 0);
	start(&keyed, 1000, 0);
	mlx5dv_wr_raw_wqe(keyed.own, &wqe);
	say_status("post nothing", ibv_wr_complete(keyed.ex));
	say_opcode("nothing", a->cq);
}

MAIN({ "own_posting", own_posting }, { "again", again }, { "entry_sizes", entry_sizes }, { "polled_by_both", polled_by_both },
     { "shared_queue", shared_queue }, { "addresses", addresses }, { "device_memory", device_memory }, { "devices", devices },
     { "commands", commands }, { "objects", objects }, { "reserved", reserved }, { "about_queue_pairs", about_queue_pairs }, { "what_lacks", what_lacks },
     { "refused", refused }, { "key_over_a_list", key_over_a_list }, { "key_over_rows", key_over_rows },
     { "refused_keys", refused_keys }, { "raw_requests", raw_requests })
