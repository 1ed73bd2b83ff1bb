//! A process that does with a shared file what it is told, one thing at a time: the hands of
//! [`crate::model`].
//!
//! An order is a line of a word and numbers: what to do, the number that the object is or will be known by,
//! and what it is made with. The answer is a line: `ok` with a handle if there is a new one, `busy` if the
//! library refused, `missing` if a handle names nothing of the kind, `errno` with its number if the kernel
//! refused.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use support::Result as Outcome;
use uverbs::uapi::handle::{MrHandle, PdHandle};
use uverbs::{
    Access, Caps, Cause, Context, Cq, Error, Mr, Pd, Qp, Rc,
    error::DestroyError,
    import::{ImportedMr, ImportedPd},
};

use crate::roles::inherited;

/// What a worker has.
enum Item {
    Pd(Pd),
    ImportedPd(ImportedPd),
    Mr(Mr<Vec<u8>>),
    ImportedMr(ImportedMr),
    Qp(Box<Qp<Rc>>, Cq),
}

/// Starts as the first worker of its line: with the file that it has inherited.
pub(crate) fn play(address: &str, fd: &str) -> Outcome {
    // SAFETY: nobody here waits for children, so the kernel may bury them.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    obey(&Context::import(inherited(fd)?)?, address)
}

/// Takes orders until the order to end, or until nobody gives any.
fn obey(context: &Context, address: &str) -> Outcome {
    let mut output = UnixStream::connect(address)?;
    let mut input = BufReader::new(output.try_clone()?);
    let mut items = BTreeMap::new();
    writeln!(output, "{}", std::process::id())?;
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            [] => return Ok(()),
            ["end"] => {
                while let Some((_, item)) = items.pop_first() {
                    drop(item);
                }
                return Ok(());
            }
            ["fork"] => {
                // SAFETY: this process has one thread, so the child may do all that the parent may.
                match unsafe { libc::fork() } {
                    0 => {
                        drop((input, output));
                        let outcome = follow(context, address);
                        // SAFETY: ends at once, without destroying what is the parent's.
                        unsafe { libc::_exit(outcome.is_err().into()) };
                    }
                    -1 => return Err(std::io::Error::last_os_error().into()),
                    _ => "ok".into(),
                }
            }
            [order, numbers @ ..] => {
                let numbers: Result<Vec<u32>, _> =
                    numbers.iter().map(|number| number.parse()).collect();
                say(carry_out(context, &mut items, order, &numbers?)?)
            }
        };
        writeln!(output, "{answer}")?;
    }
}

/// Goes on as a worker of its own, in a forked process.
fn follow(parent: &Context, address: &str) -> Outcome {
    obey(
        &Context::import(parent.as_fd().try_clone_to_owned()?)?,
        address,
    )
}

fn say(answer: Result<Option<u32>, Error>) -> String {
    match answer {
        Ok(None) => "ok".into(),
        Ok(Some(handle)) => format!("ok {handle}"),
        Err(error) => match (error.cause(), error.errno()) {
            (Cause::Busy(_), _) => "busy".into(),
            (Cause::NotFound(_), _) => "missing".into(),
            (_, Some(errno)) => format!("errno {}", errno.raw_os_error()),
            _ => format!("failed: {error}"),
        },
    }
}

type Items = BTreeMap<u32, Item>;

/// Carries out an order. The inner result is the library's answer, with the handle of a new object.
fn carry_out(
    context: &Context,
    items: &mut Items,
    order: &str,
    numbers: &[u32],
) -> Outcome<Result<Option<u32>, Error>> {
    let made = match (order, numbers) {
        ("alloc", [_]) => context.alloc_pd().map(|pd| (pd.handle().0, Item::Pd(pd))),
        ("import", [_, handle]) => context
            .import_pd(PdHandle(*handle))
            .map(|pd| (*handle, Item::ImportedPd(pd))),
        ("register", [_, pd]) => pd_of(items, *pd)?
            .register(vec![0u8; 64], Access::LOCAL_WRITE)
            .map(|mr| (mr.handle().0, Item::Mr(mr)))
            .map_err(|failed| failed.error),
        ("import_mr", [_, pd, handle]) => pd_of(items, *pd)?
            .import_mr(MrHandle(*handle))
            .map(|mr| (*handle, Item::ImportedMr(mr))),
        ("qp", [_, pd]) => queue_pair(context, pd_of(items, *pd)?),
        (_, [number]) => {
            let item = items.remove(number).ok_or("no such item")?;
            return Ok(match undo(order, item)? {
                (None, answer) => answer.map(|()| None),
                (Some(item), answer) => {
                    items.insert(*number, item);
                    answer.map(|()| None)
                }
            });
        }
        _ => return Err(format!("no such order: {order} {numbers:?}").into()),
    };
    Ok(made.map(|(handle, item)| {
        items.insert(numbers[0], item);
        Some(handle)
    }))
}

fn pd_of(items: &Items, number: u32) -> Outcome<&Pd> {
    match items.get(&number) {
        Some(Item::Pd(pd)) => Ok(pd),
        Some(Item::ImportedPd(pd)) => Ok(pd),
        _ => Err(format!("{number} is no PD").into()),
    }
}

fn queue_pair(context: &Context, pd: &Pd) -> Result<(u32, Item), Error> {
    let caps = Caps {
        max_send_wr: 4,
        max_recv_wr: 4,
        ..Caps::default()
    };
    let cq = context.create_cq(4)?;
    let qp = pd.create_qp::<Rc>(&cq, caps)?;
    Ok((qp.handle().0, Item::Qp(Box::new(qp), cq)))
}

/// Gives an item up in one way or another. What is left of it comes back.
fn undo(order: &str, item: Item) -> Outcome<(Option<Item>, Result<(), Error>)> {
    fn answer<T>(
        result: Result<(), DestroyError<T>>,
        back: fn(T) -> Item,
    ) -> (Option<Item>, Result<(), Error>) {
        match result {
            Ok(()) => (None, Ok(())),
            Err(DestroyError { object, error }) => (Some(back(object)), Err(error)),
        }
    }
    Ok(match (order, item) {
        ("drop", _) => (None, Ok(())),
        ("disown", Item::Pd(pd)) => (Some(Item::ImportedPd(pd.disown())), Ok(())),
        ("disown", Item::Mr(mr)) => (Some(Item::ImportedMr(mr.disown())), Ok(())),
        ("destroy", Item::Pd(pd)) => answer(pd.dealloc(), Item::Pd),
        ("destroy", Item::Mr(mr)) => answer(mr.deregister().map(drop), Item::Mr),
        ("destroy", Item::ImportedPd(pd)) => answer(pd.dealloc_for_everyone(), Item::ImportedPd),
        ("destroy", Item::ImportedMr(mr)) => {
            // SAFETY: no request here names it, and orders are given for regions that were disowned.
            let result = unsafe { mr.deregister_for_everyone() };
            answer(result, Item::ImportedMr)
        }
        ("destroy", Item::Qp(qp, cq)) => {
            qp.destroy()?;
            cq.destroy()?;
            (None, Ok(()))
        }
        _ => return Err(format!("{order} does not suit the item").into()),
    })
}
