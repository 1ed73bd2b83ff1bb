/*
 * Messages over reliable datagrams of an EFA by a program that asks for the rings' memory once, and writes requests and
 * receives, rings doorbells and reads completions itself: as newer versions of libfabric do. The test runs it on libefa
 * and on ours, and compares what it tells.
 *
 *   efa_rings DEVICE
 *
 * The headers here are older than these direct verbs, so the functions are looked up.
 */

#include <dlfcn.h>
#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

#define CHECK(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

/* As in rdma-core 65. */
struct wq_attr {
	uint64_t comp_mask;
	uint8_t *buffer;
	uint32_t entry_size, num_entries;
	uint32_t *doorbell;
	uint32_t max_batch;
	uint8_t reserved[4];
};

struct cq_attr {
	uint64_t comp_mask;
	uint8_t *buffer;
	uint32_t entry_size, num_entries;
	uint32_t *doorbell;
};

#define FUNCTION(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, name))

#define QKEY 0x12345678
#define DEPTH 16
#define MESSAGES 50
#define LENGTH 96
#define LIMIT_S 20

#include "make_srd.h"

/* A ring of requests, and how many have been posted and have completed. */
struct ring {
	struct wq_attr attr;
	uint32_t posted, done;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
static struct efadv_ah_attr handle;
static uint8_t memory[2][DEPTH][LENGTH];

static struct ibv_qp *create_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_DRIVER, .pd = pd, .cap = { DEPTH, DEPTH, 1, 1, 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	return make_srd(context, &attr);
}

/* Who says no limit, and who says the whole ring, mean the same. */
static unsigned batch(const struct wq_attr *attr)
{
	return attr->max_batch < attr->num_entries ? attr->max_batch : attr->num_entries;
}

static void query_qp(struct ibv_qp *qp, struct ring *sends, struct ring *receives)
{
	int (*query)(struct ibv_qp *, struct wq_attr *, struct wq_attr *, uint32_t) =
		FUNCTION("efadv_query_qp_wqs", struct ibv_qp *, struct wq_attr *, struct wq_attr *, uint32_t);

	CHECK(query);
	CHECK(!query(qp, &sends->attr, &receives->attr, sizeof(sends->attr)));
	printf("sends: %u of %u bytes, batches of %u; receives: %u of %u bytes, batches of %u; masks %lu and %lu\n",
		sends->attr.num_entries, sends->attr.entry_size, batch(&sends->attr), receives->attr.num_entries,
		receives->attr.entry_size, batch(&receives->attr), sends->attr.comp_mask, receives->attr.comp_mask);
	CHECK(sends->attr.buffer && sends->attr.doorbell && receives->attr.buffer && receives->attr.doorbell);
}

static struct cq_attr query_cq(struct ibv_cq *cq)
{
	int (*query)(struct ibv_cq *, struct cq_attr *, uint32_t) =
		FUNCTION("efadv_query_cq", struct ibv_cq *, struct cq_attr *, uint32_t);
	struct cq_attr attr = {};

	CHECK(query);
	CHECK(!query(cq, &attr, sizeof(attr)));
	printf("completions: %u of %u bytes, mask %lu, doorbell %s\n", attr.num_entries, attr.entry_size, attr.comp_mask,
		attr.doorbell ? "yes" : "no");
	CHECK(attr.buffer);
	return attr;
}

static void put(uint8_t *at, unsigned int bytes, uint64_t number)
{
	number = htole64(number);
	memcpy(at, &number, bytes);
}

static uint16_t get(const volatile uint8_t *at)
{
	return at[0] | at[1] << 8;
}

/* What was stored to the device's memory leaves the CPU before what is stored next. */
static void flush(void)
{
#if defined(__x86_64__)
	__asm__ volatile("sfence" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static void ring_doorbell(const struct ring *ring)
{
	flush();
	*(volatile uint32_t *)ring->attr.doorbell = htole32(ring->posted & 0xffff);
}

/* Writes a message to the place of the ring whose turn it is. */
static void write_send(struct ring *ring, uint16_t id, uint32_t qpn)
{
	uint8_t request[64] = {};
	uint32_t place = ring->posted & (ring->attr.num_entries - 1);
	volatile uint64_t *to = (volatile uint64_t *)(ring->attr.buffer + place * ring->attr.entry_size);
	uint64_t words[8];

	put(request, 2, id);
	request[2] = 1 << 7;
	/* The phase is 0 in the first lap; it is the first and the last part, and is reported. */
	request[3] = (ring->posted & ring->attr.num_entries ? 1 : 0) | 1 << 2 | 1 << 3 | 1 << 4;
	put(request + 4, 2, qpn);
	put(request + 6, 2, 1);
	put(request + 12, 2, handle.ahn);
	put(request + 16, 4, QKEY);
	put(request + 32, 4, LENGTH);
	put(request + 36, 4, mr->lkey);
	put(request + 40, 8, (uintptr_t)memory[0][id % DEPTH]);
	memcpy(words, request, sizeof(words));
	for (int i = 0; i < 8; i++)
		to[i] = words[i];
	ring->posted++;
}

static void write_receive(struct ring *ring, uint16_t id)
{
	uint8_t descriptor[16] = {};
	uint32_t place = ring->posted & (ring->attr.num_entries - 1);

	put(descriptor, 8, (uintptr_t)memory[1][id % DEPTH]);
	put(descriptor + 8, 2, id);
	put(descriptor + 10, 2, LENGTH);
	put(descriptor + 12, 4, mr->lkey | 1u << 30 | 1u << 31);
	memcpy(ring->attr.buffer + place * ring->attr.entry_size, descriptor, sizeof(descriptor));
	ring->posted++;
}

/* Waits for the next completion, which must be well and of this queue, and gives the request's id. */
static uint16_t poll(const struct cq_attr *cq, uint32_t *taken, bool is_receive)
{
	const volatile uint8_t *entry = cq->buffer + (*taken & (cq->num_entries - 1)) * cq->entry_size;
	uint8_t phase = !(*taken & cq->num_entries);
	time_t begun = time(NULL);

	while ((entry[3] & 1) != phase)
		CHECK(time(NULL) - begun < LIMIT_S);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	CHECK(entry[2] == 0);
	CHECK((entry[3] >> 1 & 3) == (is_receive ? 2 : 1));
	CHECK(!is_receive || get(entry + 6) == LENGTH);
	++*taken;
	if (cq->doorbell)
		*(volatile uint32_t *)cq->doorbell = htole32(*taken & 0xffff);
	return get(entry);
}

int main(int argc, char **argv)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };
	struct ring sends = {}, receives = {}, unused = {};
	struct cq_attr sent, received;
	struct ibv_qp *sender, *receiver;
	struct ibv_cq *cqs[2];
	uint32_t sent_taken = 0, received_taken = 0;

	CHECK(argc == 2 && list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			CHECK(context = ibv_open_device(list[i]));
	CHECK(context);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	for (int i = 0; i < 2; i++)
		CHECK(cqs[i] = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &attr)));
	sender = create_qp(cqs[0]);
	receiver = create_qp(cqs[1]);
	CHECK(!ibv_query_gid(context, 1, 0, &way.grh.dgid));
	CHECK(ah = ibv_create_ah(pd, &way));
	CHECK(!efadv_query_ah(ah, &handle, sizeof(handle)));
	query_qp(sender, &sends, &unused);
	query_qp(receiver, &unused, &receives);
	sent = query_cq(cqs[0]);
	received = query_cq(cqs[1]);
	/* Several times round the rings, up to a batch at a time. */
	for (uint16_t first = 0; first < MESSAGES;) {
		uint16_t count = 1 + first % 5, seen = 0;

		for (uint16_t id = first; id < first + count; id++) {
			memset(memory[0][id % DEPTH], id, LENGTH);
			memset(memory[1][id % DEPTH], 0xee, LENGTH);
			write_receive(&receives, id);
			write_send(&sends, id, receiver->qp_num);
		}
		ring_doorbell(&receives);
		ring_doorbell(&sends);
		for (uint16_t i = 0; i < count; i++) {
			uint16_t id = poll(&sent, &sent_taken, false) - first;

			CHECK(id < count && !(seen & 1 << id));
			seen |= 1 << id;
		}
		/* Neither messages nor receives have an order, but each message comes once. */
		for (uint16_t i = 0; i < count; i++) {
			uint16_t id = poll(&received, &received_taken, true);
			uint8_t *bytes = memory[1][id % DEPTH], which = bytes[0] - first;

			for (int at = 0; at < LENGTH; at++)
				CHECK(bytes[at] == bytes[0]);
			CHECK(which < count && seen & 1 << which);
			seen &= ~(1 << which);
		}
		CHECK(!seen);
		first += count;
	}
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver) && !ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]));
	CHECK(!ibv_destroy_ah(ah) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("ends: well");
	return 0;
}
