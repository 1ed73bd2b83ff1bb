/*
 * Devices and their list, contexts that are closed with objects left, children of fork, and functions that need no device.
 */

#include "check.h"

#include <dlfcn.h>

/* Of the library, but not of its header. */
extern const char *ibv_get_sysfs_path(void);
extern int ibv_read_sysfs_file(const char *directory, const char *file, char *text, size_t size);

static struct ibv_device *find(struct ibv_device **list)
{
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device_name))
			return list[i];
	return NULL;
}

static void device_list(void)
{
	struct ibv_device **list, **again, *device;
	int count = -1;

	NEED(list = ibv_get_device_list(&count));
	say("count", "%d", count);
	say("ends with NULL", "%d", list[count] == NULL);
	NEED(device = find(list));
	say("it is", "%s %s %s %s, node %d, transport %d, identifier %016llx", device->name, device->dev_name,
		device->dev_path, device->ibdev_path, device->node_type, device->transport_type,
		(unsigned long long)ibv_get_device_guid(device));
	say("index", "%d", ibv_get_device_index(device) >= 0);
	say("name", "%s", ibv_get_device_name(device));
	NEED(again = ibv_get_device_list(NULL));
	say("same device", "%d", find(again) == device);
	say("opened device", "%d", context->device == device);
	ibv_free_device_list(list);
	say("after the list", "%s", ibv_get_device_name(find(again)));
	ibv_free_device_list(again);
	say("after all lists", "%s", ibv_get_device_name(context->device));
}

static void opened_context(void)
{
	struct ibv_context *second = open_device();

	say("vectors", "%d", context->num_comp_vectors);
	say("files", "%d %d", context->cmd_fd >= 0, context->async_fd >= 0);
	say("closed over exec", "%d %d", !!(fcntl(context->cmd_fd, F_GETFD) & FD_CLOEXEC),
		!!(fcntl(context->async_fd, F_GETFD) & FD_CLOEXEC));
	say("extended", "%d", context->abi_compat == (void *)UINTPTR_MAX);
	say("another", "%d %d", second != context, second->device == context->device);
	say_status("close", ibv_close_device(second));
	say_status("close", ibv_close_device(context));
}

/* Many programs close with objects left, or end. */
static void closed_with_objects(void)
{
	make_pair(IBV_QPT_RC);
	make_pair(IBV_QPT_UD);
	say_status("close", ibv_close_device(context));
	context = open_device();
	make_pair(IBV_QPT_RC);
	NEED(ibv_create_comp_channel(context));
}

static int open_files(void)
{
	int found = 0;

	for (int fd = 0; fd < 1024; fd++)
		found += fcntl(fd, F_GETFD) >= 0;
	return found;
}

/* What the kernel has pinned for devices, in KiB. */
static long pinned(void)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[256];
	long found = -1;

	NEED(file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "VmPin: %ld", &found) == 1)
			break;
	fclose(file);
	return found;
}

/* What a closed device had left is no more: a peer cannot write to it. */
static void closed_while_connected(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 12, .retry_cnt = 1, .rnr_retry = 1, .max_rd_atomic = 4,
	};
	struct ibv_context *first = context;
	struct side here = make_side(IBV_QPT_RC), there;
	struct ibv_sge sge = part(&here, 0, 8);
	struct ibv_send_wr wr, *bad;
	int files = open_files();
	long kib = pinned();
	struct ibv_wc wc;

	NEED(context = open_device());
	there = make_side(IBV_QPT_RC);
	connect_qp(there.qp, here.qp);
	NEED(!to_init(here.qp) && !to_rtr(here.qp, there.qp->qp_num));
	/* Soft-RoCE tries without an end if it is to try seven times. */
	NEED(!ibv_modify_qp(here.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	memset(here.memory, 'a', 8);
	wr = writing(1, &sge, &there, 64);
	NEED(!ibv_post_send(here.qp, &wr, &bad));
	say_completions("write", here.cq, 1);
	say_status("close", ibv_close_device(context));
	context = first;
	say("files", "%d", open_files() - files);
	say("pinned", "%ld", pinned() - kib);
	memset(here.memory, 'b', 8);
	wr.wr_id = 2;
	NEED(!ibv_post_send(here.qp, &wr, &bad));
	NEED(completion(here.cq, &wc, WAIT_S));
	say("write to what is gone", "%s, %.8s", ibv_wc_status_str(wc.status), there.memory + 64);
}

/* A child changes what it has of the parent's memory while the parent's is written by the device. */
static void forked_child(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 64), *bad;
	int status;
	pid_t child;

	memset(pair.a.memory, 'a', 8);
	pair.b.memory[4096] = 'p';
	child = fork();
	if (!child) {
		rest();
		_exit(0);
	}
	NEED(child > 0);
	/* Without copies at the fork the parent would write to another page now than the device. */
	pair.b.memory[0] = 'p';
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("completion", pair.a.cq, 1);
	say("memory", "%c %.8s", pair.b.memory[0], pair.b.memory + 64);
	NEED(waitpid(child, &status, 0) == child);
	say("child", "%d", status);
	flush_writes(&pair.a, &pair.b);
	say_completions("then", pair.a.cq, 1);
}

static void fork_support(void)
{
	int before = ibv_is_fork_initialized();

	say("before", "%d", before);
	say_status("initialise", ibv_fork_init());
	say("after", "%d", ibv_is_fork_initialized());
	make_side(IBV_QPT_RC);
	say_status("late", ibv_fork_init());
	forked_child();
}

/* Waits for an event of a queue that was armed: then a completion is there, and nobody has taken it. */
static void need_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *of;

	NEED(!ibv_get_cq_event(channel, &cq, &of));
	ibv_ack_cq_events(cq, 1);
}

static void say_one(const char *fact, const struct ibv_wc *wc)
{
	say(fact, "%llu %s", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
}

/* What a queue has up to the completion of that id, which must come. */
static void say_until(const char *fact, struct ibv_cq *cq, uint64_t last)
{
	struct ibv_wc wc;

	do {
		NEED(completion(cq, &wc, WAIT_S));
		say_one(fact, &wc);
	} while (wc.wr_id != last);
}

/* What a queue has, to which nothing comes any more. */
static void say_all(const char *fact, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (completion(cq, &wc, QUIET_MS / 1000.0))
		say_one(fact, &wc);
}

/*
 * Completions that nobody has taken when their queue pair ends. Where they go with it, a program frees what their ids lead to
 * as soon as that has ended.
 */
static void destroyed_unread(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_comp_channel *channel;
	struct side from = pair.a, to = pair.b;
	struct ibv_qp_init_attr attr;
	struct ibv_srq_init_attr room = { .attr = { .max_wr = 3, .max_sge = 1 } };
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 0), *bad;
	struct ibv_recv_wr receive = { .wr_id = 10, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_srq *srq;
	unsigned int posted;

	/* Sends, with another queue pair on the same completion queue. */
	NEED(channel = ibv_create_comp_channel(context));
	NEED(from.cq = ibv_create_cq(context, 64, NULL, channel, 0));
	for (int i = 0; i < 2; i++) {
		attr = basic(from.cq, IBV_QPT_RC);
		NEED((i ? &from : &pair.a)->qp = ibv_create_qp(pair.a.pd, &attr));
	}
	NEED(srq = ibv_create_srq(pair.b.pd, &room));
	attr = basic(pair.b.cq, IBV_QPT_RC);
	attr.srq = srq;
	NEED(to.qp = ibv_create_qp(pair.b.pd, &attr));
	connect_qp(pair.a.qp, pair.b.qp);
	to_state(pair.b.qp, IBV_QPS_RESET);
	connect_qp(pair.b.qp, pair.a.qp);
	connect_qp(from.qp, to.qp);
	connect_qp(to.qp, from.qp);
	NEED(!ibv_req_notify_cq(from.cq, 0));
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	need_event(channel);
	say_status("destroy", ibv_destroy_qp(pair.a.qp));
	flush_writes(&from, &to);
	say_until("sent", from.cq, FLUSH);
	/* Receives of a shared queue, all of whose room is needed again. */
	receive.sg_list = &(struct ibv_sge) { (uintptr_t)to.memory, 8, to.mr->lkey };
	for (posted = 0; !ibv_post_srq_recv(srq, &receive, &bad_receive); posted++)
		receive.wr_id++;
	say("room", "%d", posted == room.attr.max_wr);
	wr.opcode = IBV_WR_SEND;
	for (wr.wr_id = 2; wr.wr_id < 5; wr.wr_id++)
		NEED(!ibv_post_send(from.qp, &wr, &bad));
	need_completions(from.cq, 3);
	say_status("destroy", ibv_destroy_qp(to.qp));
	say_all("received", pair.b.cq);
	for (posted = 0; !ibv_post_srq_recv(srq, &receive, &bad_receive); posted++)
		;
	say("room again", "%u", posted);
}

static void words(void)
{
	for (int i = -1; i <= 24; i++)
		say("status", "%d %s", i, ibv_wc_status_str(i));
	for (int i = -1; i <= 21; i++)
		say("event", "%d %s", i, ibv_event_type_str(i));
	for (int i = -1; i <= 7; i++)
		say("port", "%d %s", i, ibv_port_state_str(i));
	for (int i = -1; i <= 8; i++)
		say("node", "%d %s", i, ibv_node_type_str(i));
	for (int i = -1; i <= 24; i++)
		say("rate", "%d %d %d", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
	for (int i = -1; i <= 100; i++)
		say("factor", "%d %d", i, mult_to_ibv_rate(i));
	for (int i = 0; i <= 1300000; i += 500)
		if (mbps_to_ibv_rate(i))
			say("speed", "%d %d", i, mbps_to_ibv_rate(i));
}

/* Functions by other names, which librdmacm and others call. */
/* Names that programs look up at run time, as those do that are linked to no library of RDMA. */
static void looked_up(void)
{
	static const char *const names[] = {
		"ibv_get_device_list", "ibv_query_port", "ibv_reg_mr_iova2", "_ibv_query_gid_table", "ibv_query_gid_type",
		"verbs_allow_disassociate_destroy", "ibv_no_such_name",
	};
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);

	NEED(library);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		say(names[i], "%s", dlsym(library, names[i]) ? "is there" : "is not there");
}

static void system_files(void)
{
	char text[64];

	say("path", "%s", ibv_get_sysfs_path());
	say("read", "%d", ibv_read_sysfs_file(ibv_get_sysfs_path(), "class/infiniband_verbs/abi_version", text, sizeof(text)));
	say("it is", "%s", text);
	say("nothing to read", "%d", ibv_read_sysfs_file(ibv_get_sysfs_path(), "class/none", text, sizeof(text)));
}

MAIN(
	{ "device_list", device_list }, { "opened_context", opened_context },
	{ "closed_with_objects", closed_with_objects }, { "closed_while_connected", closed_while_connected }, { "forked_child", forked_child }, { "fork_support", fork_support },
	{ "looked_up", looked_up }, { "destroyed_unread", destroyed_unread }, { "words", words }, { "system_files", system_files },
)
