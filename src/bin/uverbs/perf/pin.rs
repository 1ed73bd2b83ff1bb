//! The CPUs on which threads stay.

use rustix::thread::{CpuSet, sched_getaffinity};

/// A CPU for each thread of each device: `near` has the CPUs near each device, and `threads` how many it has.
///
/// It is one of those that this process may use, near the device if any of them is, and with as few other
/// threads as possible. The two sides may be on one host, so that they begin at the two ends.
pub(super) fn assign(
    near: &[Vec<usize>],
    threads: &[usize],
    allowed: &[usize],
    is_server: bool,
) -> Vec<Vec<Option<usize>>> {
    let mut taken: Vec<usize> = vec![0; allowed.len()];
    let devices = near.iter().zip(threads).map(|(near, threads)| {
        let all = 0..allowed.len();
        let mut places: Vec<usize> = all
            .clone()
            .filter(|at| near.contains(&allowed[*at]))
            .collect();
        if places.is_empty() {
            places.extend(all);
        }
        if is_server {
            places.reverse();
        }
        let cpus = (0..*threads).map(|_| {
            let place = *places.iter().min_by_key(|place| taken[**place])?;
            taken[place] += 1;
            Some(allowed[place])
        });
        cpus.collect()
    });
    devices.collect()
}

/// The CPUs that this process may use. Numbers that the system call does not have room for are left out.
pub(super) fn allowed() -> rustix::io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let all = 0..CpuSet::MAX_CPU;
    Ok(all.filter(|cpu| set.is_set(*cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: bool = false;
    const SERVER: bool = true;

    fn assigned(
        near: &[&[usize]],
        threads: &[usize],
        allowed: &[usize],
        side: bool,
    ) -> Vec<Vec<usize>> {
        let near: Vec<Vec<usize>> = near.iter().map(|cpus| cpus.to_vec()).collect();
        let cpus = assign(&near, threads, allowed, side);
        let known = |cpus: Vec<Option<usize>>| cpus.into_iter().map(Option::unwrap).collect();
        cpus.into_iter().map(known).collect()
    }

    /// Catches threads that share a CPU while another is free: those of two devices, or of two sides on a
    /// host.
    #[test]
    fn no_two_threads_share_a_cpu_while_one_is_free() {
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let node: &[usize] = &[0, 1, 2, 3];
        let client = assigned(&[node, node], &[1, 1], &all, CLIENT);
        assert_eq!(client, [[0], [1]]);
        let server = assigned(&[node, node], &[1, 1], &all, SERVER);
        assert_eq!(server, [[3], [2]]);
        // More threads than CPUs are spread evenly.
        assert_eq!(assigned(&[&[4, 5]], &[4], &all, CLIENT), [[4, 5, 4, 5]]);
    }

    /// Catches a CPU that the container or service may not use.
    #[test]
    fn only_cpus_of_this_process_are_used() {
        assert_eq!(
            assigned(&[&[0, 1, 2, 3]], &[3], &[2, 3, 9], CLIENT),
            [[2, 3, 2]]
        );
        // None of those near, and a device whose place is not known.
        assert_eq!(assigned(&[&[0, 1]], &[1], &[8, 9], CLIENT), [[8]]);
        assert_eq!(assigned(&[&[]], &[2], &[8, 9], SERVER), [[9, 8]]);
        // CPUs beyond the kernel's set.
        assert_eq!(assigned(&[&[1024, 2000]], &[1], &[7], CLIENT), [[7]]);
        assert_eq!(assign(&[vec![0]], &[2], &[], CLIENT), [[None, None]]);
    }
}
