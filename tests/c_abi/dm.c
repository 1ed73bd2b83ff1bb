/*
 * Memory of the device: allocated, copied to and from, with regions in it, imported. Soft-RoCE has none: there the checks tell
 * that it is refused.
 */

#include "check.h"

#include <dlfcn.h>

#define LENGTH 4500
#define REGION_ACCESS (ALL_ACCESS | IBV_ACCESS_ZERO_BASED)

static unsigned char bytes[LENGTH], found[LENGTH];

static struct ibv_dm *allocate(const char *fact, size_t length, uint32_t log_align, uint32_t mask)
{
	struct ibv_alloc_dm_attr attr = { .length = length, .log_align_req = log_align, .comp_mask = mask };

	return say_object(fact, ibv_alloc_dm(context, &attr));
}

static void fill(unsigned char first)
{
	for (int i = 0; i < LENGTH; i++)
		bytes[i] = first + i * 7 + i / 256;
}

/* Tells whether the memory has the bytes. */
static void say_same(const char *fact, struct ibv_dm *dm)
{
	memset(found, 0, LENGTH);
	NEED(!ibv_memcpy_from_dm(found, dm, 0, LENGTH));
	say(fact, "%d", !memcmp(found, bytes, LENGTH));
}

static void copies(void)
{
	struct ibv_dm *dm = allocate("memory", LENGTH, 6, 0), *other;

	if (!dm)
		return;
	NEED(other = allocate("other memory", 64, 0, 0));
	say("it has", "context %d, mask %u", dm->context == context, dm->comp_mask);
	fill(1);
	say_status("copy", ibv_memcpy_to_dm(dm, 0, bytes, LENGTH));
	say_status("copy to the other", ibv_memcpy_to_dm(other, 0, bytes + 100, 64));
	say_same("all of it", dm);
	say_status("copy a part", ibv_memcpy_to_dm(dm, 400, bytes, 12));
	memcpy(bytes + 400, bytes, 12);
	say_same("with the part", dm);
	say_status("copy nothing", ibv_memcpy_to_dm(dm, LENGTH, NULL, 0));
	say_status("half a word", ibv_memcpy_to_dm(dm, 0, found, 2));
	say_status("within words", ibv_memcpy_to_dm(dm, 2, found, 4));
	say_status("from within words", ibv_memcpy_from_dm(found, dm, 6, 8));
	say_status("beyond", ibv_memcpy_to_dm(dm, LENGTH - 4, found, 8));
	say_status("from beyond", ibv_memcpy_from_dm(found, dm, LENGTH, 4));
	say_status("more than there can be", ibv_memcpy_to_dm(dm, 0, found, (size_t)-4));
	say_status("far beyond", ibv_memcpy_from_dm(found, dm, 1ULL << 40, 4));
	say_same("as before", dm);
	NEED(!ibv_memcpy_from_dm(found, other, 0, 64));
	fill(1);
	say("the other", "%d", !memcmp(found, bytes + 100, 64));
	say_status("free", ibv_free_dm(dm));
	say_status("free the other", ibv_free_dm(other));
}

static void refused(void)
{
	struct ibv_device_attr_ex attr = {};

	NEED(!ibv_query_device_ex(context, NULL, &attr));
	say("most", "%llu", (unsigned long long)attr.max_dm_size);
	allocate("nothing", 0, 0, 0);
	allocate("more than there is", attr.max_dm_size + 1, 0, 0);
	allocate("much more", 1ULL << 40, 0, 0);
	allocate("a part of an address space", (1ULL << 44) + 64, 0, 0);
	allocate("unknown attributes", 64, 0, 1);
	allocate("too coarse", 64, 40, 0);
}

/* Has a request of the pair's first end done. */
static void request(struct pair *pair, const char *fact, struct ibv_send_wr wr, struct ibv_sge sge)
{
	struct ibv_send_wr *bad;

	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_SIGNALED;
	NEED(!ibv_post_send(pair->a.qp, &wr, &bad));
	say_completions(fact, pair->a.cq, 1);
}

static void regions(void)
{
	struct ibv_dm *dm = allocate("memory", LENGTH, 6, 0);
	struct ibv_recv_wr recv = { .wr_id = 5, .num_sge = 1 }, *bad;
	struct ibv_sge into = { .length = 64 };
	struct ibv_mr *mr;
	struct pair pair;

	if (!dm)
		return;
	fill(3);
	NEED(!ibv_memcpy_to_dm(dm, 0, bytes, LENGTH));
	pair = make_pair(IBV_QPT_RC);
	say_object("with addresses", ibv_reg_dm_mr(pair.b.pd, dm, 0, LENGTH, ALL_ACCESS));
	say_object("beyond", ibv_reg_dm_mr(pair.b.pd, dm, 64, LENGTH, REGION_ACCESS));
	say_object("for windows", ibv_reg_dm_mr(pair.b.pd, dm, 0, 64, REGION_ACCESS | IBV_ACCESS_MW_BIND));
	NEED(mr = say_object("region", ibv_reg_dm_mr(pair.b.pd, dm, 64, 4096, REGION_ACCESS)));
	say("it has", "address %d, length %zu, domain %d, context %d", mr->addr == NULL, mr->length, mr->pd == pair.b.pd,
		mr->context == context);
	memset(pair.a.memory, 'a', 4096);
	request(&pair, "write", (struct ibv_send_wr) {
		.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { .remote_addr = 16, .rkey = mr->rkey },
	}, part(&pair.a, 0, 1001));
	memset(bytes + 64 + 16, 'a', 1001);
	say_same("written", dm);
	request(&pair, "read", (struct ibv_send_wr) {
		.wr_id = 2, .opcode = IBV_WR_RDMA_READ, .wr.rdma = { .remote_addr = 0, .rkey = mr->rkey },
	}, part(&pair.a, 8192, 4096));
	say("what was read", "%d", !memcmp(pair.a.memory + 8192, bytes + 64, 4096));
	memset(bytes + 64, 0, 8);
	NEED(!ibv_memcpy_to_dm(dm, 64, bytes + 64, 8));
	request(&pair, "add", (struct ibv_send_wr) {
		.wr_id = 3, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { .remote_addr = 0, .compare_add = 0x0101010101010101, .rkey = mr->rkey },
	}, part(&pair.a, 0, 8));
	memset(bytes + 64, 1, 8);
	say_same("added", dm);
	into.addr = 128;
	into.lkey = mr->lkey;
	recv.sg_list = &into;
	NEED(!ibv_post_recv(pair.b.qp, &recv, &bad));
	request(&pair, "send", (struct ibv_send_wr) { .wr_id = 4, .opcode = IBV_WR_SEND }, part(&pair.a, 8192, 64));
	say_completions("receive", pair.b.cq, 1);
	memcpy(bytes + 64 + 128, pair.a.memory + 8192, 64);
	say_same("received", dm);
	say_status("free under a region", ibv_free_dm(dm));
	say_same("still there", dm);
	request(&pair, "beyond the region", (struct ibv_send_wr) {
		.wr_id = 6, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { .remote_addr = 4089, .rkey = mr->rkey },
	}, part(&pair.a, 0, 8));
	say_same("as before", dm);
	say_status("deregister", ibv_dereg_mr(mr));
	say_status("free", ibv_free_dm(dm));
}

static void imported(void)
{
	struct ibv_dm *dm = allocate("memory", LENGTH, 0, 0), *other;
	struct ibv_context *again;
	struct ibv_pd *pd;

	if (!dm) {
		say_object("of nothing", ibv_import_dm(context, 12345));
		return;
	}
	fill(5);
	NEED(!ibv_memcpy_to_dm(dm, 0, bytes, LENGTH));
	NEED(again = say_object("device", ibv_import_device(dup(context->cmd_fd))));
	NEED(other = say_object("the same", ibv_import_dm(again, dm->handle)));
	say("it has", "context %d, mask %u, handle %d", other->context == again, other->comp_mask, other->handle == dm->handle);
	say_same("what is in it", other);
	memset(bytes + 4096, 'x', 4);
	say_status("copy", ibv_memcpy_to_dm(other, 4096, bytes + 4096, 4));
	say_same("what came", dm);
	say_status("beyond", ibv_memcpy_to_dm(other, LENGTH, bytes, 4));
	ibv_unimport_dm(other);
	say_same("still there", dm);
	NEED(pd = ibv_alloc_pd(context));
	say_object("a domain", ibv_import_dm(again, pd->handle));
	say_object("of nothing", ibv_import_dm(again, 12345));
	say_status("free", ibv_free_dm(dm));
	say_status("close", ibv_close_device(again));
}

/* The distribution's library may be too old to have it, and so are its headers. */
static void exported(void)
{
	int (*export)(struct ibv_dm *) = dlsym(RTLD_DEFAULT, "ibv_dm_export_dmabuf_fd");
	struct ibv_dm *dm = allocate("memory", LENGTH, 0, 0);
	char path[32], link[16] = "";
	int fd;

	if (!dm)
		return;
	errno = 0;
	fd = export ? export(dm) : -2;
	if (fd >= 0) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		NEED(readlink(path, link, sizeof(link) - 1) > 0);
		close(fd);
	}
	say("export", "%s", fd == -2 ? "no function" : fd < 0 ? error_name(errno) : link);
	say_status("free", ibv_free_dm(dm));
}

MAIN({ "copies", copies }, { "refused", refused }, { "regions", regions }, { "imported", imported }, { "exported", exported })
