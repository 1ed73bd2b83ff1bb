/*
 * Requests of every kind on reliable datagrams of an EFA, one at a time, by ibv_wr_start and by lists; what is told of
 * each on both sides; and what is refused. The test runs it on libefa and on ours, with a tap on the device, and compares the requests, the
 * descriptors and what it tells.
 *
 *   srd DEVICE
 *
 * Its first line names what is another number in each run: `names LKEY RKEY AHN SENDER RECEIVER`.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

#define CHECK(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

/* So that addresses are the same in each run. */
#define MEMORY ((void *)0x200000000000)
#define BYTES 8192
#define HALF 4096
#define QKEY 0x12345678
#define LIMIT_S 20
/* The efadv of this rdma-core has no name for it. */
#define CAP_RDMA_WRITE (1 << 5)

#include "make_srd.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *send_cq, *recv_cq;
static struct ibv_qp *sender, *receiver;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
static uint8_t *memory = MEMORY;
static bool writes;

static struct ibv_qp *create_qp(struct ibv_cq_ex *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_DRIVER, .pd = pd,
		.cap = { 16, 16, 2, 2, 32 }, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			(writes ? IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM : 0),
	};

	return make_srd(context, &attr);
}

static void set_up(const char *device)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };
	struct efadv_device_attr device_attr = {};
	struct efadv_ah_attr ah_attr = {};

	CHECK(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			CHECK(context = ibv_open_device(list[i]));
	CHECK(context);
	CHECK(!efadv_query_device(context, &device_attr, sizeof(device_attr)));
	writes = device_attr.device_caps & CAP_RDMA_WRITE;
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mmap(MEMORY, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MEMORY);
	CHECK(mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
		(writes ? IBV_ACCESS_REMOTE_WRITE : 0)));
	CHECK(send_cq = ibv_create_cq_ex(context, &attr));
	CHECK(recv_cq = ibv_create_cq_ex(context, &attr));
	sender = create_qp(send_cq);
	receiver = create_qp(recv_cq);
	CHECK(!ibv_query_gid(context, 1, 0, &way.grh.dgid));
	CHECK(ah = ibv_create_ah(pd, &way));
	CHECK(!efadv_query_ah(ah, &ah_attr, sizeof(ah_attr)));
	printf("names %u %u %u %u %u\n", mr->lkey, mr->rkey, ah_attr.ahn, sender->qp_num, receiver->qp_num);
}

static const char *who(uint32_t qpn)
{
	return qpn == sender->qp_num ? "the sender" : qpn == receiver->qp_num ? "the receiver" : "nobody";
}

/* Tells of the next completion; with `old` by ibv_poll_cq, else field by field. */
static void completion(const char *what, struct ibv_cq_ex *cq, bool old)
{
	struct ibv_poll_cq_attr none = {};
	time_t begun = time(NULL);
	struct ibv_wc wc;

	if (old) {
		while (!ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc))
			CHECK(time(NULL) - begun < LIMIT_S);
		printf("%s: id %lu, %s, opcode %d, vendor %u", what, wc.wr_id, ibv_wc_status_str(wc.status), wc.opcode,
			wc.vendor_err);
		printf(", of %s, flags %#x", who(wc.qp_num), wc.wc_flags);
		if (wc.opcode & IBV_WC_RECV)
			printf(", from %s, %u bytes, handle %s", who(wc.src_qp), wc.byte_len, wc.slid == 0xffff ? "none" : "one");
		printf(wc.wc_flags & IBV_WC_WITH_IMM ? ", data %#x\n" : "\n", wc.imm_data);
		return;
	}
	while (ibv_start_poll(cq, &none))
		CHECK(time(NULL) - begun < LIMIT_S);
	printf("%s: id %lu, %s", what, cq->wr_id, ibv_wc_status_str(cq->status));
	/* Of one that failed only this and its id are told. */
	if (cq->status == IBV_WC_SUCCESS) {
		int opcode = ibv_wc_read_opcode(cq);
		unsigned int flags = ibv_wc_read_wc_flags(cq);

		printf(", opcode %d, of %s, flags %#x", opcode, who(ibv_wc_read_qp_num(cq)), flags);
		if (opcode & IBV_WC_RECV)
			printf(", from %s, %u bytes, handle %s", who(ibv_wc_read_src_qp(cq)), ibv_wc_read_byte_len(cq),
				ibv_wc_read_slid(cq) == 0xffff ? "none" : "one");
		if (flags & IBV_WC_WITH_IMM)
			printf(", data %#x", ibv_wc_read_imm_data(cq));
	} else {
		printf(", vendor %u", ibv_wc_read_vendor_err(cq));
	}
	puts("");
	ibv_end_poll(cq);
}

static void receive(uint64_t id, int slices)
{
	struct ibv_sge sge[2] = {
		{ (uintptr_t)memory + HALF, 100, mr->lkey }, { (uintptr_t)memory + HALF + 1000, 3000, mr->lkey },
	};
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sge, .num_sge = slices }, *bad;

	CHECK(!ibv_post_recv(receiver, &wr, &bad));
}

enum kind { SEND, SEND_IMM, INLINE, READ, WRITE, WRITE_IMM };

/* Posts a request: with two slices, or with as many inline bytes. */
static void post(uint64_t id, enum kind kind, unsigned int length)
{
	struct ibv_sge two[2] = { { (uintptr_t)memory, length, mr->lkey }, { (uintptr_t)memory + 500, 20, mr->lkey } };
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);
	uint64_t there = (uintptr_t)memory + HALF + 8;

	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	switch (kind) {
	case SEND: case INLINE: ibv_wr_send(qp); break;
	case SEND_IMM: ibv_wr_send_imm(qp, htobe32(0x01020304)); break;
	case READ: ibv_wr_rdma_read(qp, mr->rkey, there); break;
	case WRITE: ibv_wr_rdma_write(qp, mr->rkey, there); break;
	case WRITE_IMM: ibv_wr_rdma_write_imm(qp, mr->rkey, there, htobe32(0x05060708)); break;
	}
	if (kind == INLINE)
		ibv_wr_set_inline_data(qp, memory, length);
	else if (kind == SEND)
		ibv_wr_set_sge_list(qp, 2, two);
	else
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, length);
	ibv_wr_set_ud_addr(qp, ah, receiver->qp_num, QKEY);
	CHECK(!ibv_wr_complete(qp));
}

/* A message by a list. */
static void post_list(uint64_t id, bool with_data)
{
	struct ibv_sge sge = { (uintptr_t)memory + 64, 77, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = with_data ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, .imm_data = htobe32(9),
		.wr.ud = { ah, receiver->qp_num, QKEY },
	}, *bad;

	CHECK(!ibv_post_send(sender, &wr, &bad));
}

static void message(const char *what, uint64_t id, enum kind kind, unsigned int length, int slices)
{
	receive(id + 100, slices);
	post(id, kind, length);
	completion(what, send_cq, id % 2);
	completion("  received", recv_cq, id % 2);
}

/* A message by a list, with so many slices of three bytes and these flags. */
static int post_flagged(int slices, unsigned int flags)
{
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = {
		.sg_list = sge, .num_sge = slices, .opcode = IBV_WR_SEND, .send_flags = flags,
		.wr.ud = { ah, receiver->qp_num, QKEY },
	}, *bad;

	for (int i = 0; i < 3; i++)
		sge[i] = (struct ibv_sge) { (uintptr_t)memory + 100 * i, 3, mr->lkey };
	return ibv_post_send(sender, &wr, &bad);
}

/* The same by functions, with one slice. */
static int post_flagged_by_functions(unsigned int flags)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);

	ibv_wr_start(qp);
	qp->wr_flags = flags;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 3);
	ibv_wr_set_ud_addr(qp, ah, receiver->qp_num, QKEY);
	return ibv_wr_complete(qp);
}

/* Flags that the device does not have, and slices: only those of an inline request are not counted. */
static void flagged(uint64_t id)
{
	static const unsigned int flags[] = { IBV_SEND_FENCE, IBV_SEND_SOLICITED, IBV_SEND_IP_CSUM, 1 << 20 };
	struct ibv_poll_cq_attr unknown = { .comp_mask = 1 };

	for (int i = 0; i < 4; i++)
		printf("flag %#x: %d, by functions %d\n", flags[i], post_flagged(1, flags[i] | IBV_SEND_SIGNALED),
			post_flagged_by_functions(flags[i] | IBV_SEND_SIGNALED));
	printf("three slices: %d\n", post_flagged(3, IBV_SEND_SIGNALED));
	receive(id, 1);
	CHECK(!post_flagged(3, IBV_SEND_SIGNALED | IBV_SEND_INLINE));
	completion("three inline slices", send_cq, true);
	completion("  received", recv_cq, true);
	printf("poll by attributes: %d\n", ibv_start_poll(send_cq, &unknown));
}

/* What is sent in the state ERR. For a receive, which it refuses too, libefa rings the doorbell all the same. */
static void in_error(void)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr send = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { ah, receiver->qp_num, QKEY },
	}, *bad;
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);

	CHECK(!ibv_modify_qp(sender, &error, IBV_QP_STATE));
	printf("in error: send %d", ibv_post_send(sender, &send, &bad));
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, receiver->qp_num, QKEY);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
	printf(", by functions %d\n", ibv_wr_complete(qp));
}

/* A payload that is longer than any request, which is no full queue. */
static void too_long(void)
{
	static uint8_t bytes[4096];
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);

	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, receiver->qp_num, QKEY);
	ibv_wr_set_inline_data(qp, bytes, sizeof(bytes));
	printf("too long: %d\n", ibv_wr_complete(qp));
}

int main(int argc, char **argv)
{
	uint64_t id = 1;

	if (argc != 2)
		return 2;
	set_up(argv[1]);
	for (int i = 0; i < HALF; i++)
		memory[i] = i * 7;
	/* More than go once round the rings. */
	for (int lap = 0; lap < 3; lap++) {
		message("two slices", id++, SEND, 200, 2);
		message("with data", id++, SEND_IMM, 10, 1);
		message("no bytes", id++, SEND_IMM, 0, 1);
		message("inline", id++, INLINE, 32, 1);
		message("one inline byte", id++, INLINE, 1, 2);
		post(id++, READ, 300);
		completion("READ", send_cq, lap % 2);
		if (writes) {
			post(id++, WRITE, 400);
			completion("WRITE", send_cq, lap % 2);
			message("WRITE with data", id++, WRITE_IMM, 50, 1);
		}
		for (int with_data = 0; with_data < 2; with_data++) {
			receive(id + 100, 1);
			post_list(id, with_data);
			completion("by a list", send_cq, with_data);
			completion("  received", recv_cq, with_data);
			id++;
		}
	}
	flagged(id++);
	/* Too long for its receive, and a READ without right. */
	receive(id + 100, 1);
	post(id++, SEND, 200);
	completion("too long", send_cq, false);
	too_long();
	in_error();
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver) && !ibv_destroy_ah(ah) && !ibv_dereg_mr(mr));
	puts("ends: well");
	return 0;
}
