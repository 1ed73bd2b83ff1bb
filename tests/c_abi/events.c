/*
 * Events: what they name, who waits for their acknowledgement, and the files that they come from.
 */

#include "check.h"

#include <sys/time.h>

/* A side whose completion queue is on a channel. */
static struct side make_on_channel(struct ibv_comp_channel *channel, void *cq_context)
{
	struct side side = make_ground();
	struct ibv_qp_init_attr attr;

	NEED(!ibv_destroy_cq(side.cq));
	NEED(side.cq = ibv_create_cq(context, 64, cq_context, channel, 0));
	attr = basic(side.cq, IBV_QPT_RC);
	NEED(side.qp = ibv_create_qp(side.pd, &attr));
	return side;
}

static void connect_both(struct pair *pair)
{
	connect_qp(pair->a.qp, pair->b.qp);
	connect_qp(pair->b.qp, pair->a.qp);
}

static void write_once(struct pair *pair)
{
	struct ibv_sge sge = part(&pair->a, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair->b, 0), *bad;

	NEED(!ibv_post_send(pair->a.qp, &wr, &bad));
}

static bool readable(int file, int ms)
{
	struct pollfd asked = { .fd = file, .events = POLLIN };

	return poll(&asked, 1, ms) == 1;
}

static void make_nonblocking(int file)
{
	NEED(!fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK));
}

static int destroy_cq(void *cq) { return ibv_destroy_cq(cq); }
static int destroy_qp(void *qp) { return ibv_destroy_qp(qp); }
static int destroy_srq(void *srq) { return ibv_destroy_srq(srq); }

/* An event for a completion queue that was armed, once. */
static void completion_event(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct pair pair;
	struct ibv_cq *cq;
	void *of;

	NEED(channel);
	pair = (struct pair) { make_on_channel(channel, &pair), make_side(IBV_QPT_RC) };
	connect_both(&pair);
	say("blocks", "%d", !(fcntl(channel->fd, F_GETFL) & O_NONBLOCK));
	say("closed over exec", "%d", !!(fcntl(channel->fd, F_GETFD) & FD_CLOEXEC));
	make_nonblocking(channel->fd);
	say_or_errno("nothing", ibv_get_cq_event(channel, &cq, &of));
	say_status("arm", ibv_req_notify_cq(pair.a.cq, 0));
	write_once(&pair);
	say("readable", "%d", readable(channel->fd, WAIT_S * 1000));
	say_or_errno("event", ibv_get_cq_event(channel, &cq, &of));
	say("it is", "queue %d, context %d", cq == pair.a.cq, of == &pair);
	need_completions(pair.a.cq, 1);
	write_once(&pair);
	need_completions(pair.a.cq, 1);
	say_or_errno("not armed", ibv_get_cq_event(channel, &cq, &of));
	ibv_ack_cq_events(pair.a.cq, 1);
	NEED(!ibv_destroy_qp(pair.a.qp));
	say_status("destroy", ibv_destroy_cq(pair.a.cq));
	say_status("destroy the channel", ibv_destroy_comp_channel(channel));
}

/* Destroying waits for the acknowledgement of what was read. */
static void destroy_waits(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct blocked blocked;
	struct pair pair;
	struct ibv_cq *cq;
	void *of;

	NEED(channel);
	pair = (struct pair) { make_on_channel(channel, NULL), make_side(IBV_QPT_RC) };
	connect_both(&pair);
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_req_notify_cq(pair.a.cq, 0));
		write_once(&pair);
		NEED(!ibv_get_cq_event(channel, &cq, &of));
		need_completions(pair.a.cq, 1);
	}
	NEED(!ibv_destroy_qp(pair.a.qp));
	start_blocked(&blocked, destroy_cq, pair.a.cq);
	ibv_ack_cq_events(pair.a.cq, 1);
	rest();
	say("after one", "%s", __atomic_load_n(&blocked.done, __ATOMIC_ACQUIRE) ? "returned" : "waits");
	ibv_ack_cq_events(pair.a.cq, 1);
	end_blocked(&blocked);
}

/* What nobody has read goes with its queue. */
static void unread_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct pair pair;
	struct ibv_cq *cq;
	void *of;

	NEED(channel);
	pair = (struct pair) { make_on_channel(channel, NULL), make_side(IBV_QPT_RC) };
	connect_both(&pair);
	NEED(!ibv_req_notify_cq(pair.a.cq, 0));
	write_once(&pair);
	NEED(readable(channel->fd, WAIT_S * 1000));
	NEED(!ibv_destroy_qp(pair.a.qp));
	say_status("destroy", ibv_destroy_cq(pair.a.cq));
	make_nonblocking(channel->fd);
	say_or_errno("event", ibv_get_cq_event(channel, &cq, &of));
	say_status("destroy the channel", ibv_destroy_comp_channel(channel));
}

/* Two queues on a channel, each with its own events. */
static void two_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct pair pair;
	int found[2] = {};

	NEED(channel);
	pair = (struct pair) { make_on_channel(channel, &found[0]), make_on_channel(channel, &found[1]) };
	connect_both(&pair);
	say("users", "%d", channel->refcnt);
	NEED(!ibv_req_notify_cq(pair.a.cq, 0));
	NEED(!ibv_req_notify_cq(pair.b.cq, 0));
	write_once(&pair);
	flush_writes(&pair.b, &pair.a);
	for (int i = 0; i < 2; i++) {
		struct ibv_cq *cq;
		void *of;

		NEED(readable(channel->fd, WAIT_S * 1000));
		NEED(!ibv_get_cq_event(channel, &cq, &of));
		say("agrees", "%d", cq->cq_context == of);
		(*(int *)of)++;
		ibv_ack_cq_events(cq, 1);
	}
	say("events", "%d %d", found[0], found[1]);
}

/* Armed for what is solicited alone. */
static void solicited(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct pair pair;
	struct ibv_cq *cq;
	void *of;

	NEED(channel);
	pair = (struct pair) { make_side(IBV_QPT_RC), make_on_channel(channel, NULL) };
	connect_both(&pair);
	make_nonblocking(channel->fd);
	NEED(!ibv_req_notify_cq(pair.b.cq, 1));
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = part(&pair.a, 0, 8), space = part(&pair.b, 0, 8);
		struct ibv_recv_wr receive = { .sg_list = &space, .num_sge = 1 }, *bad_receive;
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED | (i ? IBV_SEND_SOLICITED : 0),
		}, *bad;

		NEED(!ibv_post_recv(pair.b.qp, &receive, &bad_receive));
		NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
		need_completions(pair.a.cq, 1);
		need_completions(pair.b.cq, 1);
		if (i)
			NEED(readable(channel->fd, WAIT_S * 1000));
		say_or_errno(i ? "solicited" : "not solicited", ibv_get_cq_event(channel, &cq, &of));
	}
	ibv_ack_cq_events(cq, 1);
}

/* How often a signal has come, and how often one may until the call that it should end counts as hanging. */
static volatile sig_atomic_t signals;
#define MOST_SIGNALS 200

/* The next one ends the check then. */
static void count_signal(int number)
{
	if (++signals >= MOST_SIGNALS)
		signal(number, SIG_DFL);
}

static void signal_every(int ms)
{
	struct timeval time = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
	struct itimerval timer = { .it_interval = time, .it_value = time };

	NEED(!setitimer(ITIMER_REAL, &timer, NULL));
}

/*
 * A signal ends the waiting. It comes again and again, for the first may come before the call has begun to wait. (The timer is
 * that of the check's own limit.)
 */
static void interrupted(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct sigaction action = { .sa_handler = count_signal };
	struct ibv_async_event event;
	struct ibv_cq *cq;
	int status, error;
	void *of;

	NEED(channel);
	NEED(!sigaction(SIGALRM, &action, NULL));
	for (int i = 0; i < 2; i++) {
		signals = 0;
		signal_every(100);
		/* Not the macros, which wait on. */
		status = i ? (ibv_get_async_event)(context, &event) : (ibv_get_cq_event)(channel, &cq, &of);
		error = errno;
		signal_every(0);
		say(i ? "asynchronous" : "completion", "%d %s", status, error_name(status < 0 ? error : 0));
	}
	signal(SIGALRM, SIG_DFL);
	alarm(LIMIT_S);
}

static void *wait_for_completions(void *channel)
{
	struct ibv_cq *cq;
	void *of;

	while (!ibv_get_cq_event(channel, &cq, &of))
		ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *wait_for_events(UNUSED void *nothing)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
	return NULL;
}

/* A thread that waits is cancelled, as programs end theirs. */
static void cancelled(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

	NEED(channel);
	for (int i = 0; i < 2; i++) {
		struct timespec until;
		pthread_t thread;
		void *result = NULL;
		int status;

		NEED(!pthread_create(&thread, NULL, i ? wait_for_events : wait_for_completions, channel));
		rest();
		NEED(!pthread_cancel(thread));
		NEED(!clock_gettime(CLOCK_REALTIME, &until));
		until.tv_sec += WAIT_S;
		status = pthread_timedjoin_np(thread, &result, &until);
		say(i ? "asynchronous" : "completion", "%s, %d", error_name(status), result == PTHREAD_CANCELED);
	}
	say_status("destroy", ibv_destroy_comp_channel(channel));
}

/* What the adapter tells of itself at any time is not what is asked for here. */
static void await_event(enum ibv_event_type type, struct ibv_async_event *event)
{
	do {
		if (!readable(context->async_fd, WAIT_S * 1000)) {
			say("event", "did not come");
			exit(1);
		}
		NEED(!ibv_get_async_event(context, event));
		if (event->event_type != type)
			ibv_ack_async_event(event);
	} while (event->event_type != type);
}

static void async_file(void)
{
	struct ibv_async_event event;

	say("blocks", "%d", !(fcntl(context->async_fd, F_GETFL) & O_NONBLOCK));
	say("closed over exec", "%d", !!(fcntl(context->async_fd, F_GETFD) & FD_CLOEXEC));
	make_nonblocking(context->async_fd);
	say_or_errno("nothing", ibv_get_async_event(context, &event));
}

/* A shared queue that falls below its limit. */
static void limit_event(void)
{
	struct pair pair = { make_side(IBV_QPT_RC), make_ground() };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = basic(pair.b.cq, IBV_QPT_RC);
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct ibv_sge space = part(&pair.b, 0, 64), sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr receive = { .sg_list = &space, .num_sge = 1 }, *bad_receive;
	struct ibv_async_event event;
	struct blocked blocked;

	NEED(attr.srq = ibv_create_srq(pair.b.pd, &shared));
	NEED(pair.b.qp = ibv_create_qp(pair.b.pd, &attr));
	connect_both(&pair);
	for (int i = 0; i < 3; i++)
		NEED(!ibv_post_srq_recv(attr.srq, &receive, &bad_receive));
	say_status("limit", ibv_modify_srq(attr.srq, &limit, IBV_SRQ_LIMIT));
	for (int i = 0; i < 3; i++) {
		NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
		need_completions(pair.a.cq, 1);
	}
	need_completions(pair.b.cq, 3);
	await_event(IBV_EVENT_SRQ_LIMIT_REACHED, &event);
	say("event", "%s, queue %d", ibv_event_type_str(event.event_type), event.element.srq == attr.srq);
	NEED(!ibv_destroy_qp(pair.b.qp));
	start_blocked(&blocked, destroy_srq, attr.srq);
	ibv_ack_async_event(&event);
	end_blocked(&blocked);
}

/* A write that the other end refuses, which learns of it. */
static void access_event(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.a, 0, 8);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 0), *bad;
	struct ibv_async_event event;
	struct blocked blocked;

	/* Soft-RoCE has no such event. */
	if (is_soft())
		return;
	wr.wr.rdma.rkey ^= 0x5500;
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("completion", pair.a.cq, 1);
	await_event(IBV_EVENT_QP_ACCESS_ERR, &event);
	say("event", "%s, queue pair %d", ibv_event_type_str(event.event_type), event.element.qp == pair.b.qp);
	start_blocked(&blocked, destroy_qp, pair.b.qp);
	ibv_ack_async_event(&event);
	end_blocked(&blocked);
}

/* A queue that is too small for what reports to it. */
static void overrun(void)
{
	struct pair pair = { make_ground(), make_side(IBV_QPT_RC) };
	struct ibv_async_event event;
	struct ibv_qp_init_attr attr;

	/* The adapter takes the queue pairs along. */
	if (!is_soft())
		return;
	NEED(!ibv_destroy_cq(pair.a.cq));
	NEED(pair.a.cq = ibv_create_cq(context, 3, NULL, NULL, 0));
	attr = basic(pair.a.cq, IBV_QPT_RC);
	NEED(pair.a.qp = ibv_create_qp(pair.a.pd, &attr));
	connect_both(&pair);
	say("room", "%d", pair.a.cq->cqe);
	for (int i = 0; i <= pair.a.cq->cqe; i++)
		write_once(&pair);
	await_event(IBV_EVENT_CQ_ERR, &event);
	say("event", "%s, queue %d", ibv_event_type_str(event.event_type), event.element.cq == pair.a.cq);
	ibv_ack_async_event(&event);
}

static int poll_once(void *cq)
{
	struct ibv_wc wc;

	return ibv_poll_cq(cq, 1, &wc) < 0;
}

/* A poll that begins behind the event, whatever comes of it, leaves the queue to others. */
static void overrun_and_polled(void)
{
	struct pair pair = { make_ground(), make_side(IBV_QPT_RC) };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 3 };
	struct ibv_poll_cq_attr poll_attr = {};
	struct ibv_async_event event;
	struct ibv_qp_init_attr attr;
	struct blocked blocked;
	struct ibv_cq_ex *cq;
	pthread_t thread;

	/* As above. */
	if (!is_soft())
		return;
	NEED(cq = ibv_create_cq_ex(context, &cq_attr));
	pair.a.cq = ibv_cq_ex_to_cq(cq);
	attr = basic(pair.a.cq, IBV_QPT_RC);
	NEED(pair.a.qp = ibv_create_qp(pair.a.pd, &attr));
	connect_both(&pair);
	for (int i = 0; i <= pair.a.cq->cqe; i++)
		write_once(&pair);
	await_event(IBV_EVENT_CQ_ERR, &event);
	ibv_ack_async_event(&event);
	for (int i = 0; i < 2; i++) {
		int status = ibv_start_poll(cq, &poll_attr);

		say_status(i ? "start again" : "start", status);
		if (!status)
			ibv_end_poll(cq);
	}
	blocked = (struct blocked) { .call = poll_once, .with = pair.a.cq };
	NEED(!pthread_create(&thread, NULL, run_blocked, &blocked));
	NEED(!pthread_join(thread, NULL));
	say("another thread polls", "%s", blocked.status ? "in vain" : "well");
}

MAIN(
	{ "completion_event", completion_event }, { "destroy_waits", destroy_waits }, { "unread_events", unread_events },
	{ "two_queues", two_queues }, { "solicited", solicited }, { "interrupted", interrupted },
	{ "cancelled", cancelled },
	{ "async_file", async_file }, { "limit_event", limit_event }, { "access_event", access_event },
	{ "overrun", overrun }, { "overrun_and_polled", overrun_and_polled },
)
