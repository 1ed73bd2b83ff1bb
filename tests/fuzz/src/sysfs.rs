//! Devices by sysfs: a tree of which each file says what it wants.

use std::fs;
use std::hint::black_box;
use std::sync::OnceLock;

use tempfile::TempDir;
use uverbs::device::Discovery;

/// The files whose contents are fuzzed, of one device with one port.
const FILES: [&str; 14] = [
    "class/infiniband/rxe0/node_type",
    "class/infiniband/rxe0/node_guid",
    "class/infiniband/rxe0/fw_ver",
    "class/infiniband/rxe0/ports/1/state",
    "class/infiniband/rxe0/ports/1/phys_state",
    "class/infiniband/rxe0/ports/1/link_layer",
    "class/infiniband/rxe0/ports/1/lid",
    "class/infiniband/rxe0/ports/1/pkeys/0",
    "class/infiniband/rxe0/ports/1/gids/0",
    "class/infiniband/rxe0/ports/1/gid_attrs/types/0",
    "class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0",
    "class/infiniband_verbs/uverbs0/ibdev",
    "class/infiniband_verbs/uverbs0/abi_version",
    "class/infiniband_verbs/uverbs0/dev",
];

/// Reads everything of a device. The bytes are the contents of the files, with a 0 between two; what is left
/// out is a file that is not there.
pub(crate) fn read(bytes: &[u8]) {
    static TREE: OnceLock<Option<TempDir>> = OnceLock::new();
    let Some(root) = TREE.get_or_init(tree) else {
        return;
    };
    let mut contents = bytes.split(|byte| *byte == 0);
    for file in FILES {
        let path = root.path().join(file);
        let _ = match contents.next() {
            Some(content) => fs::write(path, content),
            None => fs::remove_file(path),
        };
    }
    let sysfs = Discovery::Sysfs(root.path().to_owned());
    let Ok(devices) = sysfs.devices() else {
        return;
    };
    for device in devices {
        black_box(format!("{device:?} {:?}", device.path()));
        black_box(device.ports().map_err(|error| error.to_string()).is_ok());
        black_box(
            device
                .gid_table(1)
                .map_err(|error| error.to_string())
                .is_ok(),
        );
        black_box(device.pkeys(1).map_err(|error| error.to_string()).is_ok());
    }
}

/// The tree, without contents. It lies in memory where there is such a place: it is written anew each time.
fn tree() -> Option<TempDir> {
    let root = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .ok()?;
    for file in FILES {
        fs::create_dir_all(root.path().join(file).parent()?).ok()?;
    }
    Some(root)
}
