/*
 * A device that goes away while a program has objects of it: what their ends say. It comes back at the end.
 */

#include "check.h"

static void write_one(const char *path)
{
	FILE *file = fopen(path, "w");

	NEED(file && fputs("1", file) >= 0);
	NEED(!fclose(file));
}

static void removed(void)
{
	struct side side = make_side(IBV_QPT_RC);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_srq *srq = ibv_create_srq(side.pd, &attr);
	struct ibv_ah_attr to = to_self();
	struct ibv_ah *ah = ibv_create_ah(side.pd, &to);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_async_event event;
	char path[300];

	NEED(channel && srq && ah && cq);
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/remove", device_name);
	write_one(path);
	NEED(!ibv_get_async_event(context, &event));
	say("event", "%s", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	say_status("address handle", ibv_destroy_ah(ah));
	say_status("queue pair", ibv_destroy_qp(side.qp));
	say_status("shared queue", ibv_destroy_srq(srq));
	say_status("completion queue", ibv_destroy_cq(cq));
	say_status("another", ibv_destroy_cq(side.cq));
	say_status("region", ibv_dereg_mr(side.mr));
	say_status("domain", ibv_dealloc_pd(side.pd));
	say_status("close", ibv_close_device(context));
	write_one("/sys/bus/pci/rescan");
}

MAIN({ "removed", removed })
