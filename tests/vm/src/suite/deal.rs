//! Dealing tests to kernels and devices, as in a Latin square.
//!
//! A test that runs on three kernels and three devices has nine cells. In three of them it meets every kernel
//! and every device once, so a run that deals takes a third of the time. What is lost is the fault that shows
//! in one cell alone, and a run in full finds that.
//!
//! A test that runs on one device runs on each kernel, in three cells. A test that takes long and is not
//! about the kernel runs once on each device; such tests are spread over the kernels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a guest's RDMA devices are.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Device {
    /// Soft-RoCE.
    SoftRoce,
    /// The adapter with InfiniBand ports.
    InfiniBand,
    /// The adapter with Ethernet ports.
    Roce,
    /// The EFA.
    Efa,
}

impl Device {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::SoftRoce, Self::InfiniBand, Self::Roce, Self::Efa];
}

impl fmt::Display for Device {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::SoftRoce => "soft-RoCE",
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Efa => "EFA",
        })
    }
}

/// One kernel with one device.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Cell {
    /// The kernel's place among those of the run.
    pub(crate) kernel: usize,
    /// The device.
    pub(crate) device: Device,
}

/// What a test has to meet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Meet {
    /// Each kernel and each device.
    KernelsAndDevices,
    /// Each device, on kernels that differ if there are several.
    Devices,
}

/// What a dealer is to save.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Save {
    /// Time: all cells get about the same number of tests.
    Time,
    /// Cells: few tests are not worth many boots.
    Cells,
}

/// Deals tests to cells, and remembers how many each cell has.
///
/// The deal depends on the tests that were dealt before and on nothing else.
#[derive(Debug)]
pub(crate) struct Dealer {
    save: Save,
    loads: BTreeMap<Cell, usize>,
    /// The choices for cells that were dealt among before.
    choices: BTreeMap<(Meet, Vec<Cell>), Vec<Vec<Cell>>>,
}

impl Dealer {
    /// One that has dealt nothing yet.
    pub(crate) fn new(save: Save) -> Self {
        Self {
            save,
            loads: BTreeMap::new(),
            choices: BTreeMap::new(),
        }
    }

    /// Chooses, of the cells where a test can run, as few as there must be for the test to meet what it has
    /// to. Of several such choices it takes the one whose cells have the fewest tests so far, or the one with
    /// the fewest cells that have none.
    pub(crate) fn deal(&mut self, meet: Meet, open: &[Cell]) -> Vec<Cell> {
        let Self {
            save,
            loads,
            choices,
        } = self;
        let choices = choices.entry((meet, open.to_vec()));
        let choices = choices.or_insert_with(|| smallest_covers(meet, open));
        let cost = |cells: &&Vec<Cell>| -> usize {
            let loads = cells.iter().map(|cell| loads.get(cell).copied());
            match save {
                Save::Time => loads.flatten().sum(),
                Save::Cells => loads.filter(Option::is_none).count(),
            }
        };
        let chosen = choices.iter().min_by_key(cost).cloned();
        let chosen = chosen.unwrap_or_default();
        for cell in &chosen {
            *loads.entry(*cell).or_default() += 1;
        }
        chosen
    }
}

/// The smallest sets of these cells in which a test meets what it has to, and of those the ones with the most
/// kernels.
///
/// All sets are tried: of nine cells there are 511.
fn smallest_covers(meet: Meet, open: &[Cell]) -> Vec<Vec<Cell>> {
    let members = |set: u32| -> Vec<Cell> {
        let cells = open.iter().enumerate();
        let cells = cells.filter(|(place, _)| set & 1 << place != 0);
        cells.map(|(_, cell)| *cell).collect()
    };
    let covers = |set: &Vec<Cell>| {
        devices(set) == devices(open) && (meet == Meet::Devices || kernels(set) == kernels(open))
    };
    let mut sets: Vec<Vec<Cell>> = (1_u32..1 << open.len())
        .map(members)
        .filter(covers)
        .collect();
    let worth = |set: &Vec<Cell>| (Reverse(set.len()), kernels(set).len());
    let most = sets.iter().map(worth).max();
    sets.retain(|set| Some(worth(set)) == most);
    sets
}

fn kernels(cells: &[Cell]) -> BTreeSet<usize> {
    cells.iter().map(|cell| cell.kernel).collect()
}

fn devices(cells: &[Cell]) -> BTreeSet<Device> {
    cells.iter().map(|cell| cell.device).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As many devices as kernels: a square.
    fn grid() -> Vec<Cell> {
        let devices = [Device::SoftRoce, Device::InfiniBand, Device::Roce];
        let row = |kernel| devices.map(|device| Cell { kernel, device });
        (0..3).flat_map(row).collect()
    }

    /// Some tests, each with the cells where it can run.
    fn tests() -> impl Strategy<Value = Vec<Vec<Cell>>> {
        let cells = prop::sample::subsequence(grid(), 0..=9);
        prop::collection::vec(cells, 0..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn each_test_meets_each_kernel_and_device_where_it_can_run(tests in tests()) {
            let mut dealer = Dealer::new(Save::Time);
            for open in tests {
                let dealt = dealer.deal(Meet::KernelsAndDevices, &open);
                prop_assert!(dealt.iter().all(|cell| open.contains(cell)));
                prop_assert_eq!(kernels(&dealt), kernels(&open));
                prop_assert_eq!(devices(&dealt), devices(&open));
                // No cell could be left out.
                for left_out in &dealt {
                    let rest: Vec<Cell> = dealt.iter().copied().filter(|cell| cell != left_out).collect();
                    prop_assert!(kernels(&rest) != kernels(&open) || devices(&rest) != devices(&open));
                }
            }
        }

        #[test]
        fn a_dear_test_meets_each_device_once(tests in tests()) {
            let mut dealer = Dealer::new(Save::Time);
            for open in tests {
                let dealt = dealer.deal(Meet::Devices, &open);
                prop_assert!(dealt.iter().all(|cell| open.contains(cell)));
                prop_assert_eq!(devices(&dealt), devices(&open));
                prop_assert_eq!(dealt.len(), devices(&open).len());
            }
        }

        #[test]
        fn the_same_tests_are_dealt_alike(tests in tests()) {
            let deal = || {
                let mut dealer = Dealer::new(Save::Time);
                tests.iter().map(|open| dealer.deal(Meet::KernelsAndDevices, open)).collect::<Vec<_>>()
            };
            prop_assert_eq!(deal(), deal());
        }

        #[test]
        fn cells_differ_by_one_test_at_most_if_all_run_everywhere(number in 0_usize..100) {
            let mut dealer = Dealer::new(Save::Time);
            for _ in 0..number {
                prop_assert_eq!(dealer.deal(Meet::KernelsAndDevices, &grid()).len(), 3);
            }
            let loads = grid().into_iter().map(|cell| dealer.loads.get(&cell).copied().unwrap_or_default());
            let loads: Vec<usize> = loads.collect();
            prop_assert_eq!(loads.iter().sum::<usize>(), 3 * number);
            prop_assert!(loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0) <= 1);
        }
    }

    #[test]
    fn a_test_that_runs_in_one_cell_of_a_kernel_is_dealt_there() {
        // Paging on demand: the newest kernel with soft-RoCE. The adapter has it nowhere.
        let only = Cell {
            kernel: 2,
            device: Device::SoftRoce,
        };
        assert_eq!(
            Dealer::new(Save::Time).deal(Meet::KernelsAndDevices, &[only]),
            [only]
        );
        assert!(
            Dealer::new(Save::Time)
                .deal(Meet::KernelsAndDevices, &[])
                .is_empty()
        );
    }

    #[test]
    fn dear_tests_of_one_device_take_turns_on_the_kernels() {
        let mut dealer = Dealer::new(Save::Time);
        let open = [0, 1, 2].map(|kernel| Cell {
            kernel,
            device: Device::Efa,
        });
        let turns: Vec<_> = (0..3)
            .flat_map(|_| dealer.deal(Meet::Devices, &open))
            .collect();
        assert_eq!(turns.len(), 3);
        assert_eq!(kernels(&turns).len(), 3);
        // One that runs on three devices has three kernels too.
        assert_eq!(kernels(&dealer.deal(Meet::Devices, &grid())).len(), 3);
    }

    #[test]
    fn where_boots_are_saved_all_tests_share_three_cells() {
        let mut dealer = Dealer::new(Save::Cells);
        let one = dealer.deal(Meet::KernelsAndDevices, &grid());
        assert_eq!(one.len(), 3);
        for _ in 0..4 {
            assert_eq!(dealer.deal(Meet::KernelsAndDevices, &grid()), one);
        }
        // One that cannot run in the first of them has another instead, and no more.
        let open: Vec<Cell> = grid().into_iter().filter(|cell| *cell != one[0]).collect();
        let dealt = dealer.deal(Meet::KernelsAndDevices, &open);
        assert_eq!(kernels(&dealt), kernels(&open));
        assert_eq!(devices(&dealt), devices(&open));
    }

    #[test]
    fn a_fourth_device_takes_one_cell_more() {
        let row = |kernel| Device::ALL.map(|device| Cell { kernel, device });
        let all: Vec<Cell> = (0..3).flat_map(row).collect();
        let dealt = Dealer::new(Save::Time).deal(Meet::KernelsAndDevices, &all);
        assert_eq!((dealt.len(), devices(&dealt).len()), (4, 4));
    }

    #[test]
    fn two_devices_and_three_kernels_take_three_cells() {
        let mut dealer = Dealer::new(Save::Time);
        let open: Vec<Cell> = grid()
            .into_iter()
            .filter(|cell| cell.device != Device::SoftRoce)
            .collect();
        for _ in 0..4 {
            assert_eq!(dealer.deal(Meet::KernelsAndDevices, &open).len(), 3);
        }
        let loads: Vec<usize> = dealer.loads.values().copied().collect();
        assert_eq!(loads, [2; 6]);
    }
}
