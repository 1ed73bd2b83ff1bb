//! Interrupts the system calls of the program that this library is preloaded into (`LD_PRELOAD`): a thread
//! sends signals to the others, whose handler does nothing and is installed without `SA_RESTART`. So whatever
//! waits in the kernel ends with `EINTR`, again and again.
//!
//! `VM_SIGNALS` says how: `SEED:GAP:DIRECTORY[:DIRECTORY..]`. The gap between two signals is GAP
//! microseconds, between half of it and one and a half times as much, as the seed and the program's arguments
//! decide; they also decide which thread is next. Programs outside of these directories are left alone: they
//! may take `EINTR` for an error.
//!
//! The signal is `SIGURG`, which is ignored where nothing handles it: one that is pending when a process
//! starts another program ends nothing.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::ptr;
use std::thread;
use std::time::Duration;

const VARIABLE: &str = "VM_SIGNALS";
const SIGNAL: c_int = libc::SIGURG;

/// After how many signals the threads are listed again: that takes longer than sending one.
const SIGNALS_FOR_A_LIST: u32 = 16;

/// Runs before `main`.
#[used]
// SAFETY: the section holds pointers to such functions, which the loader calls once each.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if let Some(plan) = Plan::of_environment() {
        plan.begin();
    }
}

extern "C" fn nothing(_: c_int) {}

struct Plan {
    random: u64,
    gap: u64,
}

impl Plan {
    /// None for a program that is to be left alone.
    fn of_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let mut words = text.split(':');
        let seed: u64 = words.next()?.parse().ok()?;
        let gap = words.next()?.parse().ok()?;
        let program = std::env::current_exe().ok()?;
        if !words.any(|directory| program.starts_with(directory)) {
            return None;
        }
        let mut hash = DefaultHasher::new();
        seed.hash(&mut hash);
        // The first is a path.
        std::env::args_os()
            .skip(1)
            .for_each(|word| word.hash(&mut hash));
        Some(Self {
            random: hash.finish() | 1,
            gap,
        })
    }

    fn begin(self) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a `sigaction` of zeros is one with the default handler, an empty mask and no flags, thus
        // without `SA_RESTART`; the handler only returns, which is safe in a signal. The sets are written by
        // `sigfillset` and by the first call of `pthread_sigmask` before they are read.
        unsafe {
            (*action.as_mut_ptr()).sa_sigaction = nothing as extern "C" fn(c_int) as usize;
            libc::sigaction(SIGNAL, action.as_ptr(), ptr::null_mut());
            // The thread inherits that it takes no signal.
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        }
        // Without a thread the program runs on undisturbed, and the run counts what was interrupted.
        let _ = thread::Builder::new()
            .name("signals".into())
            .spawn(move || self.send());
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }

    fn send(mut self) {
        // SAFETY: these take nothing.
        let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
        loop {
            let threads = others(process, own);
            for _ in 0..SIGNALS_FOR_A_LIST {
                let gap = self.gap / 2 + self.below(self.gap.max(1));
                thread::sleep(Duration::from_micros(gap));
                let next = threads[self.below(threads.len() as u64) as usize];
                // SAFETY: it sends a signal. To a thread that has ended meanwhile it fails.
                unsafe { libc::syscall(libc::SYS_tgkill, process, next, SIGNAL) };
            }
        }
    }

    /// A number below the bound, which is not 0, by Marsaglia's xorshift.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) % bound
    }
}

/// The threads of this process but for one; the first alone if there is no /proc.
fn others(process: libc::pid_t, own: libc::pid_t) -> Vec<libc::pid_t> {
    let listed = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let numbers = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut threads: Vec<libc::pid_t> = numbers.filter(|thread| *thread != own).collect();
    if threads.is_empty() {
        threads.push(process);
    }
    threads
}
