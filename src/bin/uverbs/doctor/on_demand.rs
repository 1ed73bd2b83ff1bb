//! Whether on-demand paging of soft-RoCE takes messages from the right addresses. It tries two WRITEs between
//! queue pairs of this process, since affected kernels are recognised by what they do, not by their versions.

use std::time::Duration;

use uverbs::query::DeviceAttr;
use uverbs::uapi::enums::DriverId;
use uverbs::uapi::flags::OdpGeneralCapBits;
use uverbs::{Access, Caps, Context, Error, Rc};

use super::{Check, Finding};

/// Bytes of the memory. Each word contains its offset.
const BYTES: usize = 16 << 10;

/// The offsets of the messages. At least one of them is not at the start of a page.
const PLACES: [usize; 2] = [4096 + 1000, 4096 + 2000];

/// How long a WRITE to this process itself may take.
const PATIENCE: Duration = Duration::from_secs(2);

const REMEDY: &str = "Register no memory on demand on this device: the kernel copies from and to the start of \
    the page, wherever in it a message lies (soft-RoCE since Linux 6.15, __rxe_odp_mr_copy). Other memory is \
    not affected.";

/// `None` on a device without on-demand paging; on adapters, which page in hardware; and if a WRITE does not
/// arrive for another reason, which other checks report.
pub(super) fn finding(context: &Context, attr: &DeviceAttr) -> Option<Finding> {
    let is_there = attr.odp.general_caps & OdpGeneralCapBits::SUPPORT.bits() != 0;
    if !is_there || context.driver_id().0 != DriverId::RXE.0 {
        return None;
    }
    Some(verdict(context.name(), &copied(context).ok()??))
}

/// The expected word, and the one that was copied.
type Word = [u64; 2];

fn verdict(device: &str, words: &[Word]) -> Finding {
    let check = Check::new("on demand", device);
    let wrong = words.iter().find(|[should, is]| should != is);
    match wrong {
        None => check.good("a message is taken from where it lies in its page"),
        Some([should, is]) => check.warning(
            format_args!("of a message at byte {should} of on-demand memory went byte {is}"),
            REMEDY,
        ),
    }
}

/// Writes from on-demand memory into other memory; `None` if that does not complete.
fn copied(context: &Context) -> Result<Option<Vec<Word>>, Error> {
    let pd = context.alloc_pd()?;
    let words = (0..BYTES as u64).step_by(8).flat_map(u64::to_ne_bytes);
    let source = pd.register(
        words.collect::<Vec<u8>>(),
        Access::LOCAL_WRITE | Access::ON_DEMAND,
    )?;
    let target = pd.register(vec![0_u8; 16], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let channel = context.create_channel()?;
    let mut cq = context.cq(4).channel(&channel).create()?;
    let mut here = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let mut there = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let (one, other) = (here.endpoint()?, there.endpoint()?);
    here.connect(&other)?;
    there.connect(&one)?;
    let mut found = Vec::new();
    for place in PLACES {
        let mut batch = here.batch();
        let to = target.remote().slice(..8)?;
        batch
            .signaled(0)
            .write(source.slice(place..place + 8)?, to)?;
        batch.ring()?;
        let completion = cq.wait(PATIENCE)?.and_then(|mut all| all.iter().next());
        if completion.is_none_or(|completion| completion.result().is_err()) {
            return Ok(None);
        }
        let mut word = [0; 8];
        target.read_at(0, &mut word)?;
        found.push([place as u64, u64::from_ne_bytes(word)]);
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    /// Catches a verdict from only one message: a message at the start of a page is right on every kernel.
    #[test]
    fn one_wrong_word_is_enough() {
        assert_eq!(verdict("rxe0", &[[8, 8], [16, 16]]).verdict, Verdict::Good);
        let finding = verdict("rxe0", &[[4096, 4096], [5096, 4096]]);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.found.contains("at byte 5096"), "{finding:?}");
        assert!(finding.remedy.contains("Register no memory on demand"));
    }
}
