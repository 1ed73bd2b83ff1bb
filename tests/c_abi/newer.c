/*
 * What libibverbs has since rdma-core 57: buffers that it allocates, regions by attributes, the speed of a port; the numbers
 * of shared receive queues; and what librdmacm has since 57: addresses that are told by an event, and events of the
 * program's own; and limits that libmlx5 tells. The headers here are older, so the functions are looked up.
 */

#include "check.h"

#include <dlfcn.h>

#include <rdma/rdma_cma.h>

/* As in rdma-core 64 and later. */
struct region {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

#define FUNCTION(result, name, ...) ((result (*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, name))
#define alloc_buf FUNCTION(void *, "ibv_alloc_buf", struct ibv_pd *, size_t, void **)
#define free_buf FUNCTION(void, "ibv_free_buf", void *)
#define export_buf FUNCTION(int, "ibv_export_buf_dmabuf_fd", void *)
#define reg_buf FUNCTION(struct ibv_mr *, "ibv_reg_buf_mr", struct ibv_pd *, void *, void *, size_t, int)
#define reg_ex FUNCTION(struct ibv_mr *, "ibv_reg_mr_ex", struct ibv_pd *, struct region *)
#define query_speed FUNCTION(int, "ibv_query_port_speed", struct ibv_context *, uint32_t, uint64_t *)

/* Registers, tells what the region has, and deregisters. */
static void try(const char *what, struct ibv_pd *pd, struct region region)
{
	struct ibv_mr *mr;

	region.length = region.length ? region.length : 4096;
	region.access = IBV_ACCESS_LOCAL_WRITE;
	errno = 0;
	mr = reg_ex(pd, &region);
	if (!mr) {
		say(what, "%s", error_name(errno));
		return;
	}
	say(what, "address %d, length %zu, domain %d", mr->addr == region.addr, mr->length, mr->pd == pd);
	say_status(what, ibv_dereg_mr(mr));
}

/* Whole pages: libmlx5 rounds up. */
#define BYTES 12288

static void buffers(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	void *buf, *address;
	struct ibv_mr *mr;

	NEED(pd && other);
	NEED(address = alloc_buf(pd, BYTES, &buf));
	say("aligned", "%d", (uintptr_t)address % 4096 == 0);
	memset(address, 1, BYTES);
	NEED(mr = reg_buf(pd, buf, address, BYTES, IBV_ACCESS_LOCAL_WRITE));
	say("region", "%d %zu", mr->addr == address, mr->length);
	say_status("deregister", ibv_dereg_mr(mr));
	say_object("in the middle", mr = reg_buf(pd, buf, (char *)address + 100, BYTES - 100, 0));
	if (mr)
		say_status("deregister", ibv_dereg_mr(mr));
	say_object("beyond", reg_buf(pd, buf, (char *)address + 100, BYTES - 99, 0));
	say_object("before", reg_buf(pd, buf, (char *)address - 1, 100, 0));
	say_object("of another domain", reg_buf(other, buf, address, 100, 0));
	say_or_errno("export", export_buf(buf));
	try("by attributes", pd, (struct region) { .comp_mask = BUF | ADDR, .addr = address, .buf = buf });
	try("at another address", pd, (struct region) { .comp_mask = BUF | ADDR | IOVA, .addr = address, .buf = buf,
							.iova = 0x10000000 });
	try("without address", pd, (struct region) { .comp_mask = BUF, .buf = buf });
	try("with descriptor", pd, (struct region) { .comp_mask = BUF | ADDR | FD, .addr = address, .buf = buf, .fd = -1 });
	free_buf(buf);
	say_status("domain", ibv_dealloc_pd(other));
	say_status("domain", ibv_dealloc_pd(pd));
}

static void regions(void)
{
	static char memory[8192] __attribute__((aligned(4096)));
	struct ibv_pd *pd = ibv_alloc_pd(context);

	NEED(pd);
	try("plain", pd, (struct region) { .comp_mask = ADDR, .addr = memory });
	try("at another address", pd, (struct region) { .comp_mask = ADDR | IOVA, .addr = memory, .iova = 0x10000000 });
	try("nothing", pd, (struct region) { .comp_mask = 0 });
	try("with offset", pd, (struct region) { .comp_mask = ADDR | FD_OFFSET, .addr = memory });
	try("descriptor alone", pd, (struct region) { .comp_mask = FD, .fd = -1 });
	try("descriptor and address", pd, (struct region) { .comp_mask = FD | FD_OFFSET | IOVA | ADDR, .addr = memory, .fd = -1 });
	say_status("domain", ibv_dealloc_pd(pd));
}

static void speed(void)
{
	uint64_t found = 0;
	int status = query_speed(context, 1, &found);

	say("port 1", "%s %llu", error_name(status), (unsigned long long)found);
	say("port 9", "%d", query_speed(context, 9, &found) != 0);
}

static void numbers(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq *srq;
	uint32_t number = 0;

	NEED(pd);
	NEED(srq = ibv_create_srq(pd, &attr));
	say_status("number", ibv_get_srq_num(srq, &number));
	say("there is one", "%d", number != 0);
	say_status("destroy", ibv_destroy_srq(srq));
}

/* How many READs dynamic connections answer and have on the way, of which the device has two numbers. */
static void limits(void)
{
	/* Words of struct mlx5dv_context: what is asked for, and the two limits. */
	enum { COMP_MASK = 2, RD_ATOM = 19, INIT_RD_ATOM = 20, ASKED = 1 << 14 };
	uint64_t told[64] = { [COMP_MASK] = ASKED };
	int (*query)(struct ibv_context *, uint64_t *);
	void *direct;

	if (strncmp(device_name, "mlx5", 4))
		return;
	NEED(direct = dlopen("libmlx5.so.1", RTLD_NOW));
	NEED(query = dlsym(direct, "mlx5dv_query_device"));
	say_status("asked", query(context, told));
	say("told", "%d", told[COMP_MASK] == ASKED);
	say("reads", "%llu to a target, %llu of an initiator", (unsigned long long)told[RD_ATOM],
	    (unsigned long long)told[INIT_RD_ATOM]);
}

/* Pages of registers, which programs ask for with each of their queues: a device has few. */
static void pages(void)
{
	enum { NC = 1 };
	const uint32_t dedicated = 1u << 31;
	void *direct, *(*get)(struct ibv_context *, uint32_t), *first, *own;
	void (*put)(void *);

	if (strncmp(device_name, "mlx5", 4))
		return;
	NEED(direct = dlopen("libmlx5.so.1", RTLD_NOW));
	NEED(get = dlsym(direct, "mlx5dv_devx_alloc_uar"));
	NEED(put = dlsym(direct, "mlx5dv_devx_free_uar"));
	NEED(first = get(context, NC));
	say("the same again", "%d", get(context, NC) == first);
	put(first);
	say("the same behind its end", "%d", get(context, NC) == first);
	NEED(own = get(context, dedicated));
	say("of its own", "%d", own != first);
	put(own);
}

#define CM(result, name, ...) ((result (*)(__VA_ARGS__))dlsym(cm, name))

static void *cm;

/* Tells the next event, acknowledges it, and gives what a program has put into it. */
static uint64_t tell_event(const char *fact, struct rdma_event_channel *channel)
{
	struct pollfd asked = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	uint64_t argument;

	NEED(poll(&asked, 1, WAIT_S * 1000) == 1);
	NEED(!AGAIN(CM(int, "rdma_get_cm_event", struct rdma_event_channel *, struct rdma_cm_event **)(channel, &event)));
	say(fact, "%d %d", event->event, event->status);
	/* The field begins the union, in later headers. */
	memcpy(&argument, &event->param, sizeof(argument));
	NEED(!CM(int, "rdma_ack_cm_event", struct rdma_cm_event *)(event));
	return argument;
}

static void lookups(void)
{
	enum { SA = 0x10, DNS = 0x20, USER = 18 };
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found = NULL;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **);
	int (*tell)(struct rdma_cm_id *, int, int, uint64_t);

	NEED(cm = dlopen("librdmacm.so.1", RTLD_NOW));
	resolve = dlsym(cm, "rdma_resolve_addrinfo");
	query = dlsym(cm, "rdma_query_addrinfo");
	tell = dlsym(cm, "rdma_write_cm_event");
	NEED(resolve && query && tell);
	NEED(channel = CM(struct rdma_event_channel *, "rdma_create_event_channel")());
	NEED(!CM(int, "rdma_create_id", struct rdma_event_channel *, struct rdma_cm_id **, void *, int)
	     (channel, &id, NULL, RDMA_PS_TCP));
	say_or_errno("nothing yet", query(id, &found));
	if (!resolve(id, "10.9.0.1", "7471", &hints)) {
		say_or_errno("twice", resolve(id, "10.9.0.1", "7471", &hints));
		tell_event("resolved", channel);
		say_or_errno("not taken", resolve(id, "10.9.0.1", "7471", &hints));
		say_or_errno("taken", query(id, &found));
		say("answer", "%d %d, port %d, next %d", found->ai_family, found->ai_port_space,
		    ntohs(((struct sockaddr_in *)found->ai_dst_addr)->sin_port), found->ai_next != NULL);
		CM(void, "rdma_freeaddrinfo", struct rdma_addrinfo *)(found);
		say_or_errno("taken twice", query(id, &found));
		/* One that goes with the identifier. */
		say_or_errno("again", resolve(id, "10.9.0.1", "7472", NULL));
		tell_event("resolved again", channel);
		say_or_errno("own event", tell(id, USER, 3, 0x1122334455667788));
		say("argument", "%llx", (unsigned long long)tell_event("told", channel));
		say_or_errno("another's event", tell(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0));
		NEED(!query(id, &found));
		CM(void, "rdma_freeaddrinfo", struct rdma_addrinfo *)(found);
		hints.ai_flags = SA | DNS;
		say_or_errno("both ways", resolve(id, NULL, "7471", &hints));
		hints.ai_flags = SA;
		say_or_errno("service of a host", resolve(id, "10.9.0.1", "7471", &hints));
		/* librdmacm leaves -1 in errno. */
		say("no service", "%d", resolve(id, NULL, NULL, &hints));
		say("service of nowhere", "%d", resolve(id, NULL, "7471", &hints));
		say_or_errno("after refusals", resolve(id, "10.9.0.1", "7471", NULL));
		tell_event("resolved after refusals", channel);
	} else {
		/* Before Linux 6.18. What librdmacm leaves in errno then differs by kernel. */
		say("the kernel lacks it", "%s", "refused");
		say_or_errno("and no answer", query(id, &found));
	}
	NEED(!CM(int, "rdma_destroy_id", struct rdma_cm_id *)(id));
	CM(void, "rdma_destroy_event_channel", struct rdma_event_channel *)(channel);
}

MAIN({ "lookups", lookups }, { "buffers", buffers }, { "regions", regions }, { "speed", speed }, { "numbers", numbers },
     { "limits", limits }, { "pages", pages })
