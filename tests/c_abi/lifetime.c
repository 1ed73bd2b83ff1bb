/*
 * Devices and their list, contexts that are closed with objects left, children of fork, and functions that need no device.
 */

#include "check.h"

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
		usleep(QUIET_MS * 1000);
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
	{ "closed_with_objects", closed_with_objects }, { "forked_child", forked_child }, { "fork_support", fork_support },
	{ "words", words }, { "system_files", system_files },
)
