/*
 * The least that a program can do to get a protection domain: netlink to find the device, open, and two ioctls.
 *
 *   bare DEVICE pd [memory]
 *
 * Linked statically. It knows the messages by their layout and checks little; it is a yardstick, not an example.
 */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/netlink.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#define CHECK(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

struct message {
	struct nlmsghdr header;
	char body[4096];
};

static void add(struct message *m, int type, const void *data, int length)
{
	struct nlattr *attr = (void *)((char *)m + m->header.nlmsg_len);

	attr->nla_type = type;
	attr->nla_len = NLA_HDRLEN + length;
	memcpy((char *)attr + NLA_HDRLEN, data, length);
	m->header.nlmsg_len += NLA_ALIGN(attr->nla_len);
}

static void *find(struct nlmsghdr *header, int type)
{
	char *at = (char *)header + NLMSG_HDRLEN, *end = (char *)header + header->nlmsg_len;

	while (at < end) {
		struct nlattr *attr = (void *)at;

		if ((attr->nla_type & NLA_TYPE_MASK) == type)
			return at + NLA_HDRLEN;
		at += NLA_ALIGN(attr->nla_len);
	}
	return NULL;
}

static int ask(int fd, struct message *m, int command, int flags)
{
	m->header.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command);
	m->header.nlmsg_flags = NLM_F_REQUEST | flags;
	CHECK(send(fd, m, m->header.nlmsg_len, 0) > 0);
	int length = recv(fd, m, sizeof(*m), 0);
	CHECK(length > 0);
	return length;
}

static uint32_t device_index(int fd, const char *name)
{
	struct message m = { .header.nlmsg_len = NLMSG_HDRLEN };
	int length = ask(fd, &m, RDMA_NLDEV_CMD_GET, NLM_F_DUMP);

	for (struct nlmsghdr *h = &m.header; NLMSG_OK(h, length); h = NLMSG_NEXT(h, length)) {
		char *found = find(h, RDMA_NLDEV_ATTR_DEV_NAME);

		if (found && !strcmp(found, name)) {
			uint32_t index = *(uint32_t *)find(h, RDMA_NLDEV_ATTR_DEV_INDEX);

			/* The end of the list. */
			CHECK(recv(fd, &m, sizeof(m), 0) > 0);
			return index;
		}
	}
	fprintf(stderr, "no device %s\n", name);
	exit(1);
}

static void call(int fd, int method, struct ib_uverbs_attr *attrs, int count)
{
	struct {
		struct ib_uverbs_ioctl_hdr header;
		struct ib_uverbs_attr attrs[3];
	} frame = {
		.header = {
			.length = sizeof(frame.header) + count * sizeof(*attrs),
			.object_id = UVERBS_OBJECT_DEVICE, .method_id = method, .num_attrs = count,
			.driver_id = RDMA_DRIVER_RXE,
		},
	};

	memcpy(frame.attrs, attrs, count * sizeof(*attrs));
	CHECK(!ioctl(fd, RDMA_VERBS_IOCTL, &frame));
}

#define ATTR(id, length, value) \
	{ .attr_id = id, .len = length, .flags = UVERBS_ATTR_F_MANDATORY, .data = value }

int main(int argc, char **argv)
{
	struct message m = { .header.nlmsg_len = NLMSG_HDRLEN };
	uint32_t comp_vectors, pd;
	uint64_t core_support;
	struct ib_uverbs_attr get_context[] = {
		ATTR(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4, (uintptr_t)&comp_vectors),
		ATTR(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8, (uintptr_t)&core_support),
	};
	/* The core's input is a response pointer that is not looked at. */
	struct ib_uverbs_attr alloc_pd[] = {
		ATTR(UVERBS_ATTR_WRITE_CMD, 8, IB_USER_VERBS_CMD_ALLOC_PD),
		ATTR(UVERBS_ATTR_CORE_IN, 8, 0),
		ATTR(UVERBS_ATTR_CORE_OUT, 4, (uintptr_t)&pd),
	};
	char path[64], status[4096];
	uint32_t index;
	int fd;

	if (argc < 3)
		return 2;
	/* A mark for those who watch the system calls. */
	getppid();
	CHECK((fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA)) >= 0);
	index = device_index(fd, argv[1]);
	add(&m, RDMA_NLDEV_ATTR_DEV_INDEX, &index, sizeof(index));
	add(&m, RDMA_NLDEV_ATTR_CHARDEV_TYPE, "uverbs", sizeof("uverbs"));
	ask(fd, &m, RDMA_NLDEV_CMD_GET_CHARDEV, 0);
	snprintf(path, sizeof(path), "/dev/infiniband/%s",
		(char *)find(&m.header, RDMA_NLDEV_ATTR_CHARDEV_NAME));
	close(fd);
	CHECK((fd = open(path, O_RDWR | O_CLOEXEC)) >= 0);
	call(fd, UVERBS_METHOD_GET_CONTEXT, get_context, 2);
	call(fd, UVERBS_METHOD_INVOKE_WRITE, alloc_pd, 3);
	if (argc > 3) {
		char *line;
		int length;

		CHECK((fd = open("/proc/self/status", O_RDONLY)) >= 0);
		CHECK((length = read(fd, status, sizeof(status) - 1)) > 0);
		status[length] = 0;
		CHECK(line = strstr(status, "VmHWM:"));
		*strchr(line, '\n') = 0;
		puts(line);
		fflush(stdout);
	}
	_exit(0);
}
