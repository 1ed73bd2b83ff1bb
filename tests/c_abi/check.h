/*
 * What the C programs beside this file share. A program is a table of checks. Each check runs in a process of its own, with
 * the device freshly opened, so that one that crashes or hangs costs nothing but itself. It tells facts, a line each:
 *
 *   CHECK FACT: VALUE
 *
 * The test runs the program on the distribution's libibverbs and on ours and compares the lines. A value must therefore not
 * depend on time or addresses.
 *
 *   PROGRAM DEVICE GID_INDEX [CHECK]
 *
 * GID_INDEX is -1 where peers are named by LIDs. With CHECK, or -CHECK, only that one runs, or all others.
 */

#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define MEMORY 65536
#define Q_KEY 0x11223344
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
/* Under emulation everything is slow; only a hang takes this long. */
#define LIMIT_S 120
#define WAIT_S 20
/* How long a call is watched that must not return. One that returns nevertheless does so much sooner, mostly. */
#define QUIET_MS 300
#define UNUSED __attribute__((unused))

/*
 * The programs also run while signals interrupt their system calls (`cargo vm test --signals`). A call that waits says so, on
 * libibverbs as on ours: then the program waits on.
 */
#define AGAIN(expression) ({ \
	__typeof__(expression) again_; \
	while ((again_ = (expression)) < 0 && errno == EINTR) \
		errno = 0; \
	again_; })
#define ibv_get_async_event(...) AGAIN(ibv_get_async_event(__VA_ARGS__))
#define ibv_get_cq_event(...) AGAIN(ibv_get_cq_event(__VA_ARGS__))
#define poll(...) AGAIN(poll(__VA_ARGS__))
#define waitpid(...) AGAIN(waitpid(__VA_ARGS__))

struct check {
	const char *name;
	void (*run)(void);
};

static const char *current = "";
static const char *device_name;
static int gid_index;
static struct ibv_context *context;

/* Lets others go on for a while. */
UNUSED static void rest(void)
{
	struct timespec time = { .tv_nsec = QUIET_MS * 1000000 };

	AGAIN(nanosleep(&time, &time));
}

/* Tells a fact. */
UNUSED __attribute__((format(printf, 2, 3)))
static void say(const char *fact, const char *format, ...)
{
	va_list values;

	printf("%s %s: ", current, fact);
	va_start(values, format);
	vprintf(format, values);
	va_end(values);
	printf("\n");
	fflush(stdout);
}

static const char *error_name(int number)
{
	static char text[32];
	const char *name = number ? strerrorname_np(number) : "0";

	if (name)
		return name;
	snprintf(text, sizeof(text), "%d", number);
	return text;
}

/* Tells what a verb returned that gives an errno. Some give a negative one. */
UNUSED static void say_status(const char *fact, int status)
{
	say(fact, "%s%s", status < 0 ? "-" : "", error_name(abs(status)));
}

/* Tells whether a verb gave an object, and errno if not. */
#define say_object(fact, expression) ({ \
	errno = 0; \
	__typeof__(expression) object_ = (expression); \
	say(fact, "%s%s", object_ ? "an object" : "no object, ", object_ ? "" : error_name(errno)); \
	object_; })

/* Tells what a verb gave that returns -1 and sets errno. */
#define say_or_errno(fact, expression) do { \
	errno = 0; \
	int status_ = (expression); \
	say(fact, "%d %s", status_, error_name(status_ < 0 ? errno : 0)); } while (0)

UNUSED static void give_up(const char *what, int line)
{
	say("ends", "line %d, %s: %s", line, what, error_name(errno));
	exit(1);
}

/* What must hold for the check to go on. */
#define NEED(condition) do { if (!(condition)) give_up(#condition, __LINE__); } while (0)

UNUSED static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened = NULL;

	NEED(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device_name))
			NEED(opened = ibv_open_device(list[i]));
	NEED(opened);
	ibv_free_device_list(list);
	return opened;
}

UNUSED static bool is_soft(void)
{
	return !strncmp(device_name, "rxe", 3);
}

UNUSED static struct ibv_ah_attr to_self(void)
{
	struct ibv_port_attr port;
	struct ibv_ah_attr attr = { .port_num = 1 };

	NEED(!ibv_query_port(context, 1, &port));
	attr.dlid = port.lid;
	if (gid_index >= 0) {
		attr.is_global = 1;
		NEED(!ibv_query_gid(context, 1, gid_index, &attr.grh.dgid));
		attr.grh.sgid_index = gid_index;
		attr.grh.hop_limit = 64;
	}
	return attr;
}

/* One end: a queue pair with a completion queue and memory of its own. */
struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
};

UNUSED static struct ibv_qp_init_attr basic(struct ibv_cq *cq, enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr) {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
	};
}

/* All but the queue pair. */
UNUSED static struct side make_ground(void)
{
	struct side side = {};

	NEED(side.pd = ibv_alloc_pd(context));
	NEED(side.cq = ibv_create_cq(context, 256, NULL, NULL, 0));
	NEED(side.memory = aligned_alloc(4096, MEMORY));
	memset(side.memory, 0, MEMORY);
	NEED(side.mr = ibv_reg_mr(side.pd, side.memory, MEMORY, ALL_ACCESS));
	return side;
}

UNUSED static struct side make_side(enum ibv_qp_type type)
{
	struct side side = make_ground();
	struct ibv_qp_init_attr attr = basic(side.cq, type);

	NEED(side.qp = ibv_create_qp(side.pd, &attr));
	return side;
}

UNUSED static int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = Q_KEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (qp->qp_type == IBV_QPT_RC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	if (qp->qp_type == IBV_QPT_UC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	return ibv_modify_qp(qp, &attr, mask);
}

UNUSED static int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1, .ah_attr = to_self(),
	};
	int mask = IBV_QP_STATE;

	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(qp, &attr, mask);
}

UNUSED static int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &attr, mask);
}

UNUSED static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

UNUSED static void connect_qp(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	NEED(!to_init(qp));
	NEED(!to_rtr(qp, peer->qp_num));
	NEED(!to_rts(qp));
}

struct pair {
	struct side a, b;
};

UNUSED static struct pair make_pair(enum ibv_qp_type type)
{
	struct pair pair = { make_side(type), make_side(type) };

	connect_qp(pair.a.qp, pair.b.qp);
	connect_qp(pair.b.qp, pair.a.qp);
	return pair;
}

UNUSED static struct ibv_sge part(const struct side *of, size_t offset, uint32_t length)
{
	return (struct ibv_sge) { (uintptr_t)of->memory + offset, length, of->mr->lkey };
}

/* A write of `sge` to the start of the peer's memory and `to` bytes on. */
UNUSED static struct ibv_send_wr writing(uint64_t id, struct ibv_sge *sge, const struct side *peer, size_t to)
{
	return (struct ibv_send_wr) {
		.wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)peer->memory + to, .rkey = peer->mr->rkey },
	};
}

UNUSED static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Waits for one completion; false if there is none in this time. */
UNUSED static bool completion(struct ibv_cq *cq, struct ibv_wc *wc, double seconds)
{
	double end = now() + seconds;
	bool over;
	int found;

	do {
		/* What was there in time is found, however late this looks. */
		over = now() >= end;
		found = ibv_poll_cq(cq, 1, wc);
		NEED(found >= 0);
	} while (!found && !over);
	return found;
}

/* Tells so many completions, each with its id and status, in their order. */
UNUSED static void say_completions(const char *fact, struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;

	for (int i = 0; i < count; i++) {
		if (!completion(cq, &wc, WAIT_S)) {
			say(fact, "%d of %d did not come", count - i, count);
			return;
		}
		say(fact, "%llu %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	}
}

/* Takes so many completions, all of which must be successes. */
UNUSED static void need_completions(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;

	while (count--) {
		NEED(completion(cq, &wc, WAIT_S));
		if (wc.status != IBV_WC_SUCCESS) {
			say("ends", "request %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
			exit(1);
		}
	}
}

/* The id of what flush_writes posts. */
#define FLUSH 999

/* Has a signaled write done, behind which all that was posted before it is complete. */
UNUSED static void flush_writes(struct side *from, const struct side *to)
{
	struct ibv_sge sge = part(from, MEMORY - 8, 8);
	struct ibv_send_wr wr = writing(FLUSH, &sge, to, MEMORY - 8), *bad;

	NEED(!ibv_post_send(from->qp, &wr, &bad));
}

/* A call in another thread that must not return yet. */
struct blocked {
	pthread_t thread;
	int (*call)(void *);
	void *with;
	int status;
	volatile int done;
};

UNUSED static void *run_blocked(void *argument)
{
	struct blocked *blocked = argument;

	blocked->status = blocked->call(blocked->with);
	__atomic_store_n(&blocked->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

UNUSED static void start_blocked(struct blocked *blocked, int (*call)(void *), void *with)
{
	*blocked = (struct blocked) { .call = call, .with = with };
	NEED(!pthread_create(&blocked->thread, NULL, run_blocked, blocked));
	rest();
	say("blocks", "%s", __atomic_load_n(&blocked->done, __ATOMIC_ACQUIRE) ? "no" : "yes");
}

UNUSED static void end_blocked(struct blocked *blocked)
{
	NEED(!pthread_join(blocked->thread, NULL));
	say_status("then returns", blocked->status);
}

/* Runs one check in a process of its own. */
static void run_check(const struct check *check)
{
	pid_t child;
	int status;

	current = check->name;
	fflush(stdout);
	child = fork();
	if (!child) {
		alarm(LIMIT_S);
		context = open_device();
		check->run();
		say("ends", "well");
		fflush(stdout);
		/* Without handlers: what a program leaves behind at its end is another matter. */
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		exit(1);
	if (WIFSIGNALED(status))
		say("ends", "signal %s", sigabbrev_np(WTERMSIG(status)));
}

static int run_checks(int argc, char **argv, const struct check *checks, size_t count)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX [CHECK]\n", argv[0]);
		return 2;
	}
	device_name = argv[1];
	gid_index = atoi(argv[2]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < count; i++) {
		bool others = argc > 3 && argv[3][0] == '-';

		if (argc < 4 || !strcmp(argv[3] + others, checks[i].name) != others)
			run_check(&checks[i]);
	}
	return 0;
}

#define MAIN(...) \
int main(int argc, char **argv) \
{ \
	static const struct check checks[] = { __VA_ARGS__ }; \
	return run_checks(argc, argv, checks, sizeof(checks) / sizeof(checks[0])); \
}

#endif
