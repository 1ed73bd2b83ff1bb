/*
 * What the programs on libibverbs have in common: the functions that callgrind collects in, and rows of calls.
 * src/instructions.rs is the same of this project's library.
 */

#ifndef MEASURED_H
#define MEASURED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define DEPTH 256
#define CALLS 64
#define WARM_UP 4
#define BATCH 32
#define MANY 16
#define READY 128
#define SETTLE_US 700000
#define INLINE_LENGTH 32

#define COUNTED __attribute__((noinline, noclone))
#define INLINED static inline __attribute__((always_inline))

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	CHECK(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			CHECK(context = ibv_open_device(list[i]));
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

INLINED int poll_cq(struct ibv_cq *cq, int max, uint64_t *ids)
{
	struct ibv_wc wc[MANY];
	int count = ibv_poll_cq(cq, max, wc);
	uint64_t sum = 0;

	for (int i = 0; i < count; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			return -1;
		sum += wc[i].wr_id;
	}
	*ids += sum;
	return count;
}

COUNTED int op_poll_one(struct ibv_cq *cq, uint64_t *ids)
{
	return poll_cq(cq, 1, ids);
}

COUNTED int op_poll_many(struct ibv_cq *cq, uint64_t *ids)
{
	return poll_cq(cq, MANY, ids);
}

INLINED int poll_cq_ex(struct ibv_cq_ex *cq, int max, uint64_t *ids)
{
	struct ibv_poll_cq_attr attr = {};
	uint64_t sum = 0;
	int count = 0;

	if (ibv_start_poll(cq, &attr))
		return 0;
	do {
		if (cq->status != IBV_WC_SUCCESS)
			return -1;
		sum += cq->wr_id;
	} while (++count < max && !ibv_next_poll(cq));
	ibv_end_poll(cq);
	*ids += sum;
	return count;
}

COUNTED int op_ex_poll_one(struct ibv_cq_ex *cq, uint64_t *ids)
{
	return poll_cq_ex(cq, 1, ids);
}

COUNTED int op_ex_poll_many(struct ibv_cq_ex *cq, uint64_t *ids)
{
	return poll_cq_ex(cq, MANY, ids);
}

COUNTED void phase_end(const char *row, int calls)
{
	if (calls)
		printf("%s %d\n", row, calls);
	else
		puts("-");
	fflush(stdout);
}

static void drain(struct ibv_cq *cq, int count)
{
	while (count > 0) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);

		CHECK(found >= 0);
		CHECK(!found || wc.status == IBV_WC_SUCCESS);
		count -= found;
	}
}

/* An operation after some calls of it that warm up. */
#define ROW(name, operation) do { \
	for (int call = 0; call < WARM_UP; call++) \
		operation; \
	phase_end("-", 0); \
	for (int call = 0; call < CALLS; call++) \
		operation; \
	phase_end(name, CALLS); \
} while (0)

#endif
