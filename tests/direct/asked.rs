//! What the device says of itself and of objects, and why it refuses.

use std::fs::File;
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use support::{Hca, Listener, Result, fail, open, same, says, test_on_adapter};
use uverbs::direct::mlx5::layout::{
    CmdHcaCap, CreateMkeyIn, Input, Mkc, Qpc, QueryQpIn, QueryQpOut, RoceAddrLayout, RoceCap,
    Structure,
};
use uverbs::direct::mlx5::{CommandError, Direct, Status};
use uverbs::error::Errno;
use uverbs::{Access, Error, Rc};
use zerocopy::IntoBytes;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_adapter("asked::capabilities", capabilities),
        test_on_adapter("asked::addresses", addresses),
        test_on_adapter("asked::queue_pairs_of_the_kernel", |_| queue_pairs()),
        test_on_adapter("asked::refusals_say_why", |_| refusals()),
        test_on_adapter("asked::data_direct", |_| data_direct()),
        test_on_adapter("asked::reserved_numbers", |_| reserved_numbers()),
    ]
}

/// Catches fields that lie elsewhere, and capabilities of another kind.
fn capabilities(hca: Hca) -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let (general, device) = (direct.capabilities()?, context.query_device()?);
    let number = |field| 1_u64 << general.get(field);
    same(
        number(CmdHcaCap::LOG_MAX_QP),
        device.max_qp.into(),
        "queue pairs",
    )?;
    same(
        number(CmdHcaCap::LOG_MAX_CQ),
        device.max_cq.into(),
        "completion queues",
    )?;
    same(
        general.get(CmdHcaCap::CQE_VERSION),
        1,
        "the form of completions",
    )?;
    same(
        general.get(CmdHcaCap::PORT_TYPE),
        hca.roce.into(),
        "the kind of port",
    )?;
    same(general.get(CmdHcaCap::NUM_PORTS), 1, "the ports")?;
    match (direct.roce_capabilities(), hca.roce) {
        (Ok(roce), true) => same(
            roce.get(RoceCap::R_ROCE_MAX_SRC_UDP_PORT),
            0xffff,
            "UDP ports",
        ),
        (Err(error), false) => says(&error, &["BAD_PARAM_ERR", "0x100"]),
        (other, _) => fail(format!("{other:?}")),
    }
}

/// Catches an index that is another one's, and bytes in the wrong place.
fn addresses(hca: Hca) -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    if !hca.roce {
        let error = direct.roce_address(1, 0);
        // The table of an InfiniBand port is the subnet manager's.
        return same(
            error
                .map(|entry| entry.get(RoceAddrLayout::ROCE_VERSION))
                .ok(),
            Some(0),
            "",
        );
    }
    let table = context.gid_table()?;
    same(table.is_empty(), false, "the table")?;
    for entry in table {
        let told = direct.roce_address(1, entry.index as u16)?;
        let gid: &[u8] = told.bytes(RoceAddrLayout::SOURCE_L3_ADDRESS);
        same(gid, entry.gid.raw().as_slice(), "the GID")?;
        same(
            told.get(RoceAddrLayout::SOURCE_MAC_31_0) != 0,
            true,
            "the MAC address",
        )?;
    }
    match direct.roce_address(1, 999) {
        Err(error) => says(&error, &["BAD_PARAM_ERR", "0x760"]),
        Ok(entry) => fail(format!("{entry:?}")),
    }
}

/// Catches a command about another object than the handle's.
fn queue_pairs() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let [first, second] = [(), ()].map(|()| pd.qp(&cq).create::<Rc>());
    let (first, second) = (first?, second?);
    let mut command = QueryQpIn::new();
    command.set(QueryQpIn::QPN, first.qpn().into());
    let context_of = direct.query(first.handle(), &command)?;
    let qpc = context_of.inner(QueryQpOut::QPC);
    same(
        qpc.get(Qpc::PD),
        direct.pdn(&pd)?.into(),
        "the protection domain",
    )?;
    same(qpc.get(Qpc::STATE), 0, "the state")?;
    match direct.query(second.handle(), &command) {
        Err(CommandError::Verb(error)) => same(error.errno(), Some(Errno::INVAL), "the error"),
        other => fail(format!("{other:?}")),
    }
}

/// Catches numbers that two have, or a queue pair, those that do not go back, and a device that has none left
/// and passes for one that reserves none.
fn reserved_numbers() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let (first, second) = (direct.reserve_qpns()?, direct.reserve_qpns()?);
    let numbers = first.numbers();
    same(numbers.is_empty(), false, "no numbers")?;
    let are_apart = numbers.end <= second.numbers().start || second.numbers().end <= numbers.start;
    same(are_apart, true, "two have the same")?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    let qp = pd.qp(&cq).create::<Rc>()?;
    same(numbers.contains(&qp.qpn()), false, "a queue pair has one")?;
    drop((first, second));
    // The device has no more than some hundred sets.
    for _ in 0..1000 {
        direct.reserve_qpns()?;
    }
    let mut all = Vec::new();
    let error = loop {
        match direct.reserve_qpns() {
            Ok(numbers) => all.push(numbers),
            Err(error) => break error,
        }
    };
    same(all.is_empty(), false, "it has some left")?;
    same(error.errno(), Some(Errno::REMOTEIO), "the error")?;
    says(&error, &["reserved numbers", "NO_RES_ERR"])
}

/// Catches a refusal of the device's that comes as the kernel's, and the reverse; and the handle of an object
/// that was not created, which the kernel may have given to another object by the time that it is destroyed.
fn refusals() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let mut command = CreateMkeyIn::new();
    // There is no such domain.
    (command.inner_mut(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY))
        .set(Mkc::ACCESS_MODE_1_0, 2)
        .set(Mkc::FREE, 1)
        .set(Mkc::PD, 0xf_ffff);
    let mut output = [0; 16];
    let told = Arc::<Mutex<Vec<String>>>::default();
    let listener = Listener {
        target: "uverbs::command",
        hear: {
            let told = Arc::clone(&told);
            move |text| told.lock().unwrap().push(text)
        },
    };
    let error = tracing::subscriber::with_default(listener, || {
        // SAFETY: nothing comes of it.
        unsafe { direct.create(command.as_bytes(), &mut output) }
    });
    let told = told.lock().unwrap();
    let verbs: Vec<_> = told.iter().map(|text| text.split(':').next()).collect();
    same(verbs, vec![Some("devx_obj_create")], "the commands")?;
    let Err(error) = error else {
        return fail("a key in no domain");
    };
    let Some(refusal) = error.refusal() else {
        return fail(format!("{error:?}"));
    };
    same(
        (refusal.opcode, refusal.status),
        (0x200, Status::BAD_RES_ERR),
        "the refusal",
    )?;
    same(output[0], Status::BAD_RES_ERR.0, "the answer")?;
    says(&Error::from(error), &["no such object", "0x200"])?;

    // CREATE_EQ is none that users have.
    let mut unknown = [0; 16];
    unknown[..2].copy_from_slice(&[0x3, 0x1]);
    // SAFETY: the kernel does not let it through.
    match unsafe { direct.command(&unknown, &mut output) } {
        Err(CommandError::Verb(error)) => {
            same(error.errno(), Some(Errno::INVAL), "the error")?;
        }
        other => return fail(format!("{other:?}")),
    }
    // SAFETY: it is not sent.
    match unsafe { direct.command(&unknown[..8], &mut output) } {
        Err(CommandError::Verb(error)) => says(&error, &["8 bytes", "16 to 65535"]),
        other => fail(format!("{other:?}")),
    }
}

/// Catches a way past the processor that is there by name alone: the modelled device has none.
fn data_direct() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let pd = context.alloc_pd()?;
    let told = direct.data_direct_path();
    same(
        told.as_ref().is_err_and(Error::is_unsupported),
        true,
        &format!("{told:?}"),
    )?;
    let file = File::open("/dev/null")?.into();
    match direct.register_data_direct(&pd, file, 0..4096, 0, Access::LOCAL_WRITE) {
        Err(refused) => same(refused.error.is_unsupported(), true, &refused.to_string()),
        Ok(region) => fail(format!("{region:?}")),
    }
}
