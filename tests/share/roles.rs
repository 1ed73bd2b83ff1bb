//! What other processes do. Each says by lines on its standard output how far it has come.

use std::io::{BufRead, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, WaitOptions, pidfd_getfd, pidfd_open, waitpid,
};
use support::exchange::{OPEN, over};
use support::{Exchange, Result, completion, open};
use uverbs::share::{Address, Join, Joined, ShareKey};
use uverbs::uapi::handle::{MrHandle, PdHandle};
use uverbs::{Caps, Context, Rc, RemoteSlice, import::ImportedPd, mr::RemoteKey};

use crate::{agent, hand, worker};

/// Plays a role to its end.
pub(crate) fn play(role: &str, arguments: &[String]) -> ! {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match (role, arguments.as_slice()) {
        ("importer", rest) => importer(rest),
        ("forker", []) => forker(),
        ("silent", [fd, pd, mr]) => silent(fd, pd, mr),
        ("exporter", [address]) => exporter(address),
        ("joiner", [address]) => joiner(address),
        ("joiner", [address, user]) => {
            become_user(number(user).unwrap_or(u32::MAX)).and_then(|()| joiner(address))
        }
        ("early-joiner", [address]) => early_joiner(address),
        ("crowd", [address]) => crowd(address),
        ("lingerer", [address, user]) => {
            become_user(number(user).unwrap_or(u32::MAX)).and_then(|()| lingerer(address))
        }
        ("worker", [address, fd]) => worker::play(address, fd),
        ("owner", [command]) => agent::play_owner(command),
        ("agent", [command, dmabuf, data]) => hand::play(command, dmabuf, data),
        _ => Err(format!("no such role: {role} {arguments:?}").into()),
    };
    match outcome {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            say(&format!("failed: {error}"));
            std::process::exit(1)
        }
    }
}

pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Should the parent be gone, there is nobody to tell.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

pub(crate) fn hear() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match line.is_empty() {
        true => Err("the parent has gone".into()),
        false => Ok(line.trim_end().to_owned()),
    }
}

/// Goes on when the parent says so or has nothing more to say.
pub(crate) fn wait_for_parent() {
    let mut line = String::new();
    // Whatever comes or fails, the waiting is over.
    let _ = std::io::stdin().lock().read_line(&mut line);
}

fn number<T: std::str::FromStr<Err = std::num::ParseIntError>>(text: &str) -> Result<T> {
    Ok(text.parse()?)
}

/// Takes over a descriptor that was inherited by its number.
pub(crate) fn inherited(number: &str) -> Result<OwnedFd> {
    let fd: RawFd = number.parse()?;
    // SAFETY: the parent names a descriptor that it has passed on for this alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gets the command file in the way that the parent says.
fn obtain(way: &str, first: &str, second: &str) -> Result<OwnedFd> {
    Ok(match way {
        "inherit" => inherited(first)?,
        "scm" => receive(inherited(first)?.as_fd())?,
        "pidfd" => {
            let pid = Pid::from_raw(number(first)?).ok_or("pid 0")?;
            let process = pidfd_open(pid, PidfdFlags::empty())?;
            pidfd_getfd(process, number(second)?, PidfdGetfdFlags::empty())?
        }
        _ => return Err(format!("no such way: {way}").into()),
    })
}

fn receive(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| "no file came".into())
}

/// Gives up being root, for good.
fn become_user(user: u32) -> Result {
    // SAFETY: the call has no requirements of memory. By the C library: for all threads.
    match unsafe { libc::setuid(user) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Connects two hundred times and says nothing.
fn crowd(address: &str) -> Result {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let name = address.strip_prefix('@').ok_or("not an abstract name")?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let mut sockets = Vec::new();
    for _ in 0..200 {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        sockets.push(socket);
    }
    say("here");
    wait_for_parent();
    Ok(())
}

/// Leaves TCP sockets that linger for a minute with the exporter, on each of several connections. The peers
/// that do not take their data stay here.
fn lingerer(address: &str) -> Result {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let name = address.strip_prefix('@').ok_or("not an abstract name")?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut socket = std::net::TcpStream::connect(listener.local_addr()?)?;
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60)))?;
        socket.set_nonblocking(true)?;
        while socket.write(&[0; 65536]).is_ok() {}
        let flags = SocketFlags::CLOEXEC;
        let client =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&client, &address)?;
        match send_file(&client, socket.as_fd()) {
            Ok(()) => kept.push((client, listener.accept()?, None)),
            // Since Linux 6.16 the exporter's socket takes no files: this process would linger if it closed
            // its own.
            Err(Errno::PERM) => kept.push((client, listener.accept()?, Some(socket))),
            Err(errno) => return Err(errno.into()),
        }
    }
    say("here");
    wait_for_parent();
    Ok(())
}

fn send_file(socket: &OwnedFd, file: BorrowedFd<'_>) -> std::result::Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::NOBUFS);
    }
    let parts = [IoSlice::new(b"no request")];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Imports a PD and an MR, has traffic over the PD, and writes to the MR, which is its parent's memory.
/// Arguments: user, way, two for the way, PD, MR.
fn importer(arguments: &[&str]) -> Result {
    let [user, way, first, second, pd, mr] = arguments else {
        return Err("six arguments are needed".into());
    };
    let fd = obtain(way, first, second)?;
    become_user(number(user)?)?;
    let context = Context::import(fd)?;
    let pd = context.import_pd(PdHandle(number(pd)?))?;
    let mr = pd.import_mr(MrHandle(number(mr)?))?;
    over(&pd)?;
    let mut pair = Exchange::new(&pd)?;
    pair.write_to(mr.remote())?;
    pair.read_from(mr.remote())?;
    say("done");
    wait_for_parent();
    Ok(())
}

/// Forks without exec: the child imports the inherited file, the parent goes on.
fn forker() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    over(&pd)?;
    // SAFETY: this process has one thread, so the child may do all that the parent may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = forked(&context, pd.handle());
        if let Err(error) = &outcome {
            say(&format!("failed: {error}"));
        }
        // SAFETY: ends at once, without destroying what is the parent's.
        unsafe { libc::_exit(outcome.is_err().into()) };
    }
    let pid = Pid::from_raw(child).ok_or("fork failed")?;
    let ended = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = ended.ok_or("the child has no status")?;
    if status.exit_status() != Some(0) {
        return Err(format!("the forked child ended with {status:?}").into());
    }
    // The child's end has taken nothing of the parent's with it.
    over(&pd)?;
    pd.dealloc()?;
    say("done");
    Ok(())
}

fn forked(inherited: &Context, pd: PdHandle) -> Result {
    let context = Context::import(inherited.as_fd().try_clone_to_owned()?)?;
    over(&*context.import_pd(pd)?)
}

/// Imports, forbids itself every ioctl and every write, and lets go.
fn silent(fd: &str, pd: &str, mr: &str) -> Result {
    let context = Context::import(inherited(fd)?)?;
    let imported = context.import_pd(PdHandle(number(pd)?))?;
    let again = context.import_pd(PdHandle(number(pd)?))?;
    let mr = imported.import_mr(MrHandle(number(mr)?))?;
    forbid_talking()?;
    mr.unimport();
    imported.unimport();
    drop(again);
    drop(context);
    std::process::exit(0)
}

/// From now on a system call by which a command could reach the kernel kills the process.
fn forbid_talking() -> Result {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let rules = [libc::SYS_ioctl, libc::SYS_write, libc::SYS_writev];
    let filter = SeccompFilter::new(
        rules.into_iter().map(|call| (call, vec![])).collect(),
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

/// Offers a PD and an MR. It hears the key and what to do, line by line.
fn exporter(address: &str) -> Result {
    let address: Address = address.parse()?;
    let key: ShareKey = hear()?.parse()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mr = pd.register(vec![0u8; 8192], OPEN)?;
    let offer = pd.offer(key).mr("memory", &mr).at(&address)?;
    say("offered");
    hear()?;
    let serving = offer.spawn()?;
    say("serving");
    wait_for_parent();
    drop(serving);
    Ok(())
}

/// Joins, and exchanges bytes with another joiner by queue pairs of its own.
fn joiner(address: &str) -> Result {
    let key: ShareKey = hear()?.parse()?;
    let joined = join(address, key)?;
    say("joined");
    hear()?;
    over(joined.pd())?;
    say("traffic");
    exchange(joined.pd())
}

/// Joins an offer that need not be there yet.
fn early_joiner(address: &str) -> Result {
    let key: ShareKey = hear()?.parse()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let join = Join::new(address.parse()?, key).deadline(deadline);
    say("waiting");
    let joined = join.join()?;
    say("joined");
    wait_for_parent();
    drop(joined);
    Ok(())
}

pub(crate) fn join(address: &str, key: ShareKey) -> Result<Joined> {
    let request = Join::new(address.parse()?, key).patience(Duration::from_secs(60));
    Ok(request.join()?)
}

/// Connects to the queue pair that it hears of, and writes into the other's memory.
fn exchange(pd: &ImportedPd) -> Result {
    let mut cq = pd.context().create_cq(16)?;
    let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let source = pd.register(vec![0x5au8; 4096], OPEN)?;
    let target = pd.register(vec![0u8; 4096], OPEN)?;
    let RemoteSlice {
        address,
        length,
        rkey,
    } = target.remote();
    say(&format!("{} {address} {length} {}", qp.endpoint()?, rkey.0));
    let line = hear()?;
    let fields: Vec<&str> = line.split(' ').collect();
    let [endpoint, address, length, rkey] = fields[..] else {
        return Err(format!("not an endpoint and a slice: {line}").into());
    };
    let peer = RemoteSlice {
        address: number(address)?,
        length: number(length)?,
        rkey: RemoteKey(number(rkey)?),
    };
    qp.connect(&endpoint.parse()?)?;
    say("connected");
    hear()?;
    let mut batch = qp.batch();
    batch.signaled(1).write(source.slice(..)?, peer)?;
    batch.ring()?;
    completion(&mut cq)?.ok()?;
    say("written");
    hear()?;
    let mut bytes = [0; 4096];
    target.read_at(0, &mut bytes)?;
    match bytes.iter().all(|byte| *byte == 0x5a) {
        true => say("seen"),
        false => say("the other's bytes did not come"),
    }
    wait_for_parent();
    Ok(())
}
