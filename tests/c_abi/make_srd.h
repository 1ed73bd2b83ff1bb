/*
 * A queue pair of reliable datagrams of an EFA, which sends. Whoever includes it has CHECK, and a QKEY for its queue pairs.
 */

static struct ibv_qp *make_srd(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct efadv_qp_init_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };
	struct ibv_qp_attr step = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *qp = efadv_create_qp_ex(context, attr, &efa, sizeof(efa));

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &step, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	step.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &step, IBV_QP_STATE));
	step.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &step, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}
