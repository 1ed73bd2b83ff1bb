/*
 * A program whose references to libibverbs lead to the oldest version of each name, as those of a program do that was linked
 * to a stand-in for the library without versions.
 */

/* Before the functions are declared. */
#define OLDEST(name) __asm__(".symver " #name ", " #name "@IBVERBS_1.0");
OLDEST(ibv_get_device_list)
OLDEST(ibv_free_device_list)
OLDEST(ibv_get_device_name)
OLDEST(ibv_get_device_guid)
OLDEST(ibv_open_device)
OLDEST(ibv_close_device)
OLDEST(ibv_query_device)
OLDEST(ibv_query_port)
OLDEST(ibv_query_gid)
OLDEST(ibv_query_pkey)
OLDEST(ibv_alloc_pd)
OLDEST(ibv_dealloc_pd)
OLDEST(ibv_reg_mr)
OLDEST(ibv_dereg_mr)
OLDEST(ibv_create_cq)
OLDEST(ibv_resize_cq)
OLDEST(ibv_destroy_cq)
OLDEST(ibv_get_cq_event)
OLDEST(ibv_ack_cq_events)
OLDEST(ibv_create_qp)
OLDEST(ibv_query_qp)
OLDEST(ibv_modify_qp)
OLDEST(ibv_destroy_qp)

#include "check.h"

static void traffic(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = part(&pair.a, 0, 16);
	struct ibv_send_wr wr = writing(1, &sge, &pair.b, 64), *bad;

	memcpy(pair.a.memory, "by old versions", 16);
	NEED(!ibv_post_send(pair.a.qp, &wr, &bad));
	say_completions("completion", pair.a.cq, 1);
	say("arrived", "%s", (char *)pair.b.memory + 64);
	NEED(!ibv_destroy_qp(pair.a.qp));
	NEED(!ibv_destroy_qp(pair.b.qp));
	NEED(!ibv_dereg_mr(pair.a.mr));
	NEED(!ibv_dealloc_pd(pair.a.pd));
}

static void events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_device_attr attr;
	struct ibv_cq *cq;

	NEED(channel);
	NEED(!ibv_query_device(context, &attr));
	NEED(cq = ibv_create_cq(context, 16, &attr, channel, 0));
	say("context", "%d", cq->cq_context == &attr);
	say_status("resize", ibv_resize_cq(cq, 64));
	NEED(!ibv_destroy_cq(cq));
	NEED(!ibv_destroy_comp_channel(channel));
	say_status("close", ibv_close_device(context));
}

MAIN({ "traffic", traffic }, { "events", events })
