/*
 * Connections by address (librdmacm): events that come of a step that the library takes itself.
 */

#include "check.h"

#include <rdma/rdma_cma.h>

#define rdma_get_cm_event(...) AGAIN(rdma_get_cm_event(__VA_ARGS__))
#define rdma_get_request(...) AGAIN(rdma_get_request(__VA_ARGS__))

/* The guest's first function has it. */
#define ADDRESS "10.9.0.1"
#define STEP_MS (WAIT_S * 1000)

static struct rdma_cm_event *next(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	NEED(!rdma_get_cm_event(channel, &event));
	return event;
}

static void need_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = next(channel);

	if (event->event != kind) {
		say("ends", "%s, not %s", rdma_event_str(event->event), rdma_event_str(kind));
		exit(1);
	}
	NEED(!rdma_ack_cm_event(event));
}

static bool readable(struct rdma_event_channel *channel)
{
	struct pollfd asked = { .fd = channel->fd, .events = POLLIN };

	return poll(&asked, 1, STEP_MS) == 1;
}

/* Gives an identifier a queue pair of the library's. */
static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0);
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_qp_init_attr attr;

	NEED(cq && pd);
	attr = basic(cq, IBV_QPT_RC);
	NEED(!rdma_create_qp(id, pd, &attr));
}

static struct rdma_cm_id *listen_here(struct rdma_event_channel *channel, struct sockaddr_in *address)
{
	struct rdma_cm_id *id;

	address->sin_family = AF_INET;
	NEED(inet_pton(AF_INET, ADDRESS, &address->sin_addr) == 1);
	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)address));
	NEED(!rdma_listen(id, 1));
	address->sin_port = rdma_get_src_port(id);
	return id;
}

static struct rdma_conn_param shallow(void)
{
	return (struct rdma_conn_param) { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
}

/* An identifier that has asked the listener for a connection. */
static struct rdma_cm_id *ask(struct rdma_event_channel *channel, struct sockaddr_in *address)
{
	struct rdma_conn_param param = shallow();
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)address, STEP_MS));
	need_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, STEP_MS));
	need_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(id);
	NEED(!rdma_connect(id, &param));
	return id;
}

/* Accepts a request, and is gone before the peer has looked at that. */
static void accept_and_go(struct rdma_event_channel *server, struct rdma_event_channel *client)
{
	struct rdma_conn_param param = shallow();
	struct rdma_cm_event *event = next(server);
	struct rdma_cm_id *id = event->id;

	NEED(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(id);
	NEED(!rdma_accept(id, &param));
	NEED(!rdma_ack_cm_event(event));
	NEED(readable(client));
	rdma_destroy_qp(id);
	NEED(!rdma_destroy_id(id));
	rest();
}

/*
 * The peer has accepted and is gone, so that the library cannot confirm. The program hears of that, but not of the farewell
 * that follows, and the identifier ends although nobody has acknowledged the farewell.
 */
static void confirmation_fails(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel();
	struct rdma_event_channel *client = rdma_create_event_channel();
	struct sockaddr_in address = {};
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *listener;
	bool fails = false;

	NEED(server && client);
	listener = listen_here(server, &address);
	/* Where the farewell is still on its way, the confirmation succeeds. */
	for (int i = 0; i < 20 && !fails; i++) {
		if (i)
			NEED(!rdma_destroy_id(id));
		id = ask(client, &address);
		accept_and_go(server, client);
		event = next(client);
		fails = event->event != RDMA_CM_EVENT_ESTABLISHED;
		if (fails)
			say("event", "%s, %s", rdma_event_str(event->event), event->status < 0 ? "failed" : "well");
		NEED(!rdma_ack_cm_event(event));
		if (!fails)
			rdma_destroy_qp(id);
	}
	NEED(fails);
	NEED(readable(client));
	NEED(!fcntl(client->fd, F_SETFL, O_NONBLOCK));
	say_or_errno("the farewell", rdma_get_cm_event(client, &event));
	rdma_destroy_qp(id);
	say_or_errno("destroy", rdma_destroy_id(id));
	say_or_errno("and the listener", rdma_destroy_id(listener));
}

static void *wait_for_events(void *channel)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(channel, &event))
		rdma_ack_cm_event(event);
	return NULL;
}

static void *wait_for_requests(void *listener)
{
	struct rdma_cm_id *id;

	while (!rdma_get_request(listener, &id))
		rdma_destroy_id(id);
	return NULL;
}

/* A thread that waits is cancelled, as programs end theirs. */
static void cancel(const char *what, void *(*wait)(void *), void *for_what)
{
	struct timespec until;
	pthread_t thread;
	void *result = NULL;
	int status;

	NEED(!pthread_create(&thread, NULL, wait, for_what));
	rest();
	NEED(!pthread_cancel(thread));
	NEED(!clock_gettime(CLOCK_REALTIME, &until));
	until.tv_sec += WAIT_S;
	status = pthread_timedjoin_np(thread, &result, &until);
	say(what, "%s, %d", error_name(status), result == PTHREAD_CANCELED);
}

static void cancelled(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *own;
	struct rdma_cm_id *listener;

	NEED(channel);
	cancel("events", wait_for_events, channel);
	rdma_destroy_event_channel(channel);
	NEED(!rdma_getaddrinfo(ADDRESS, "7480", &hints, &own));
	NEED(!rdma_create_ep(&listener, own, NULL, NULL));
	NEED(!rdma_listen(listener, 1));
	cancel("requests", wait_for_requests, listener);
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(own);
}

/*
 * The queue pair of a request cannot be created: the program does not get its identifier. librdmacm leaves that with
 * the event.
 */
static void request_without_qp(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *own;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1 << 30, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_event_channel *client = rdma_create_event_channel();
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_cm_id *listener, *id, *taken;
	struct rdma_cm_event *event;

	NEED(client);
	NEED(!rdma_getaddrinfo(ADDRESS, "7481", &hints, &own));
	NEED(!rdma_create_ep(&listener, own, NULL, &attr));
	NEED(!rdma_listen(listener, 1));
	NEED(inet_pton(AF_INET, ADDRESS, &address.sin_addr) == 1);
	address.sin_port = rdma_get_src_port(listener);
	id = ask(client, &address);
	say("request", "%d", rdma_get_request(listener, &taken));
	NEED(listener->event);
	taken = listener->event->id;
	say("left", "%s", taken == listener ? "the listener" : "the request");
	if (taken != listener)
		NEED(!rdma_destroy_id(taken));
	event = next(client);
	say("the peer", "%s", rdma_event_str(event->event));
	NEED(!rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	say_or_errno("destroy", rdma_destroy_id(id));
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(own);
}

/* A queue pair that cannot be created leaves no pointers to the library's completion queues. */
static void failed_creation(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1 << 20, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_cm_id *id;

	NEED(channel);
	NEED(inet_pton(AF_INET, ADDRESS, &address.sin_addr) == 1);
	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)&address));
	NEED(id->verbs);
	say("create", "%d", rdma_create_qp(id, NULL, &attr));
	say("left", "%s", attr.send_cq || attr.recv_cq ? "queues" : "nothing");
	say("of the identifier", "%d", id->send_cq || id->recv_cq);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static struct sockaddr_in group = { .sin_family = AF_INET };

static void *leave_group(void *id)
{
	return rdma_leave_multicast(id, (struct sockaddr *)&group) ? "failed" : "well";
}

/* A synchronous identifier leaves a group. librdmacm waits for the event that the identifier itself holds. */
static void leave_synchronously(void)
{
	struct sockaddr_in own = { .sin_family = AF_INET };
	struct rdma_cm_id *id;
	struct timespec until;
	pthread_t thread;
	void *left = "no";

	NEED(inet_pton(AF_INET, ADDRESS, &own.sin_addr) == 1);
	NEED(inet_pton(AF_INET, "239.9.8.3", &group.sin_addr) == 1);
	NEED(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	NEED(!rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&group, STEP_MS));
	NEED(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	NEED(!pthread_create(&thread, NULL, leave_group, id));
	NEED(!clock_gettime(CLOCK_REALTIME, &until));
	until.tv_sec += WAIT_S;
	if (!pthread_timedjoin_np(thread, &left, &until))
		NEED(!rdma_destroy_id(id));
	say("left", "%s", (char *)left);
}

MAIN(
	{ "failed_creation", failed_creation }, { "leave_synchronously", leave_synchronously },
	{ "confirmation_fails", confirmation_fails }, { "cancelled", cancelled }, { "request_without_qp", request_without_qp },
)
