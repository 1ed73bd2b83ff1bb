//! QEMU's command line, built from a typed description of the machine.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::arch::Arch;

/// A QEMU and how it is started.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Qemu {
    /// The emulator.
    pub(crate) program: PathBuf,
    /// The loader to start it with and the library path to give that; none for a QEMU of the system.
    pub(crate) loader: Option<(PathBuf, String)>,
    /// Directories with firmware.
    pub(crate) data: Vec<PathBuf>,
    /// The directory with QEMU's own modules, if not the built-in one.
    pub(crate) modules: Option<PathBuf>,
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Accelerator {
    /// The processor itself.
    Kvm,
    /// QEMU's translator: slow, and everywhere.
    Tcg,
    /// The translator with a clock that counts: each instruction takes a nanosecond, of whichever processor.
    Icount,
}

/// The processor for QEMU's translator: all that it knows, but for what the guest's kernel would use and what
/// costs a translator more than it saves. Without fast strings the kernel copies memory by words and not by
/// single bytes; page tables have four levels and not five; and no code runs with rights to user memory
/// switched off and on. Tests take a tenth to a quarter less time. Every QEMU since 4.0 knows these names.
const TRANSLATED: &str = "max,-erms,-fsrm,-la57,-smap,-smep";

/// A directory of the host that the guest can mount by 9p, read-only.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// The name to mount it by.
    pub(crate) tag: &'static str,
    /// The directory.
    pub(crate) path: PathBuf,
}

/// A machine to boot.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// What it is a machine of.
    pub(crate) arch: Arch,
    /// What runs it.
    pub(crate) accelerator: Accelerator,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Number of processors.
    pub(crate) cpus: u32,
    /// Whether memory and processors are halved over two NUMA nodes.
    pub(crate) two_nodes: bool,
    /// The kernel's image.
    pub(crate) kernel: PathBuf,
    /// The initramfs.
    pub(crate) initramfs: PathBuf,
    /// The kernel's command line.
    pub(crate) append: String,
    /// The file that takes the serial console's output.
    pub(crate) console: PathBuf,
    /// Directories of the host.
    pub(crate) shares: Vec<Share>,
    /// The socket of the agent's port, inherited by QEMU under this number.
    pub(crate) agent: Option<RawFd>,
    /// The same for the port to the adapter.
    pub(crate) hca_control: Option<RawFd>,
    /// An Ethernet adapter whose other end another machine has.
    pub(crate) wire: Option<Wire>,
    /// The socket of QEMU's monitor, through which the turns of several counted processors are set.
    pub(crate) monitor: Option<PathBuf>,
    /// Further arguments to `-device`, one for each device.
    pub(crate) devices: Vec<String>,
}

/// One end of an Ethernet wire between two machines.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    /// The sockets of the two ends, this machine's first.
    sockets: [PathBuf; 2],
    /// The number of this end.
    end: u16,
}

impl Wire {
    /// The end of the machine of this number, 0 or 1, with the sockets in this directory.
    pub(crate) fn between_two(directory: &Path, end: u16) -> Self {
        let sockets = [end, 1 - end].map(|end| directory.join(format!("wire-{end}")));
        Self { sockets, end }
    }

    fn arguments(&self) -> Vec<String> {
        let [own, other] = self.sockets.each_ref().map(|socket| escaped(socket));
        words(&[
            "-netdev",
            &format!(
                "dgram,id=wire,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"
            ),
            "-device",
            &format!(
                "virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:0{}",
                self.end + 1
            ),
        ])
    }
}

/// The name of the port that the guest's agent speaks on.
pub(crate) const AGENT_PORT: &str = "vm.agent";

/// The name of the port on which programs of the guest speak to the adapter made of software.
const HCA_PORT: &str = "vm.hca";

impl Qemu {
    /// A QEMU of the system.
    pub(crate) fn system(program: &Path) -> Self {
        Self {
            program: program.to_path_buf(),
            loader: None,
            data: Vec::new(),
            modules: None,
        }
    }

    /// The command that boots the machine.
    pub(crate) fn command(&self, machine: &Machine) -> Command {
        let mut command = match &self.loader {
            Some((loader, library_path)) => {
                let mut command = Command::new(loader);
                command
                    .arg("--library-path")
                    .arg(library_path)
                    .arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        for directory in &self.data {
            command.arg("-L").arg(directory);
        }
        if let Some(modules) = &self.modules {
            command.env("QEMU_MODULE_DIR", modules);
        }
        command.args(machine.arguments());
        command
    }
}

impl Machine {
    /// QEMU's arguments.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = self.board();
        arguments.extend(self.boot());
        for share in &self.shares {
            arguments.extend(share.arguments());
        }
        let ports = [
            ("agent", AGENT_PORT, self.agent),
            ("hca", HCA_PORT, self.hca_control),
        ];
        if ports.iter().any(|(.., socket)| socket.is_some()) {
            arguments.extend(words(&["-device", "virtio-serial-pci,id=serial0"]));
        }
        for (id, name, socket) in ports {
            if let Some(socket) = socket {
                arguments.extend(serial_port(id, name, socket));
            }
        }
        arguments.extend(self.wire.iter().flat_map(Wire::arguments));
        for device in &self.devices {
            arguments.extend(["-device".to_owned(), device.clone()]);
        }
        arguments
    }

    fn board(&self) -> Vec<String> {
        let board = match self.arch {
            Arch::X86_64 => "q35,usb=off,vmport=off",
            Arch::Arm64 => "virt,gic-version=3",
        };
        let (accelerator, cpu) = match (self.accelerator, self.arch) {
            (Accelerator::Kvm, _) => ("kvm", "host"),
            (Accelerator::Tcg, Arch::X86_64) => ("tcg,thread=multi", TRANSLATED),
            (Accelerator::Icount, Arch::X86_64) => ("tcg,thread=single", "max"),
            // With all that QEMU knows, signing of pointers is emulated at great cost.
            (Accelerator::Tcg, Arch::Arm64) => ("tcg,thread=multi", "neoverse-n1"),
            (Accelerator::Icount, Arch::Arm64) => ("tcg,thread=single", "neoverse-n1"),
        };
        let mut arguments = self.memory_and_processors(board);
        arguments.extend(words(&[
            "-accel",
            accelerator,
            "-cpu",
            cpu,
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ]));
        if self.accelerator == Accelerator::Icount {
            // An idle processor waits in the host's time: an adapter in another process takes some of that.
            arguments.extend(words(&["-icount", "shift=0,sleep=on"]));
        }
        if let Some(monitor) = &self.monitor {
            arguments.extend(turns(monitor));
        }
        arguments
    }

    /// The memory is a shared file, or one for each node, so that a device in another process can map it.
    fn memory_and_processors(&self, board: &str) -> Vec<String> {
        let memory = |id: &str, size| format!("memory-backend-memfd,id={id},size={size}M,share=on");
        let (cpus, size) = (self.cpus, format!("{}M", self.memory));
        if !self.two_nodes {
            let board = format!("{board},memory-backend=ram");
            let ram = memory("ram", self.memory);
            let cpus = cpus.to_string();
            return words(&[
                "-machine", &board, "-object", &ram, "-m", &size, "-smp", &cpus,
            ]);
        }
        // A socket for each processor: one that is in two nodes is no machine that there is.
        let sockets = format!("{cpus},sockets={cpus}");
        let mut arguments = words(&["-machine", board, "-m", &size, "-smp", &sockets]);
        let (half, of_first) = (self.memory / 2, cpus.div_ceil(2));
        for (node, megabytes, first, last) in [
            (0, half, 0, of_first),
            (1, self.memory - half, of_first, cpus),
        ] {
            let ram = memory(&format!("ram{node}"), megabytes);
            let cpus = match first < last {
                true => format!(",cpus={first}-{}", last - 1),
                false => String::new(),
            };
            let node = format!("node,nodeid={node},memdev=ram{node}{cpus}");
            arguments.extend(words(&["-object", &ram, "-numa", &node]));
        }
        arguments
    }

    fn boot(&self) -> Vec<String> {
        words(&[
            "-kernel",
            &self.kernel.display().to_string(),
            "-initrd",
            &self.initramfs.display().to_string(),
            "-append",
            &self.append,
            "-chardev",
            &format!("file,id=console,path={}", escaped(&self.console)),
            "-serial",
            "chardev:console",
        ])
    }
}

impl Share {
    fn arguments(&self) -> Vec<String> {
        let (tag, path) = (self.tag, escaped(&self.path));
        words(&[
            "-fsdev",
            &format!("local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"),
            "-device",
            &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ])
    }
}

fn serial_port(id: &str, name: &str, socket: RawFd) -> Vec<String> {
    words(&[
        "-chardev",
        &format!("socket,id={id},fd={socket}"),
        "-device",
        &format!("virtserialport,bus=serial0.0,chardev={id},name={name}"),
    ])
}

/// The object whose timer ends turns; see [`Machine::monitor`].
pub(crate) const TURN: &str = "/objects/turn";

/// QEMU runs counted processors in turn, and a turn goes up to the next timer of the machine: milliseconds,
/// in which a processor that polls waits in vain for one that does not run. A filter through which no packets
/// go has a timer. It is off until the monitor's client switches it on, since a timer costs the host more
/// than the guest.
fn turns(monitor: &Path) -> Vec<String> {
    words(&[
        "-netdev",
        "hubport,id=turns,hubid=1",
        "-object",
        "filter-buffer,id=turn,netdev=turns,interval=1000,status=off",
        "-qmp",
        &format!("unix:{},server=on,wait=off", escaped(monitor)),
    ])
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// In QEMU's options a comma ends a value, unless it is doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            arch: Arch::X86_64,
            accelerator: Accelerator::Tcg,
            memory: 2048,
            cpus: 2,
            two_nodes: false,
            kernel: "/k/vmlinuz".into(),
            initramfs: "/k/initramfs".into(),
            append: "console=ttyS0 quiet".to_owned(),
            console: "/a,b/console".into(),
            shares: vec![Share {
                tag: "root",
                path: "/".into(),
            }],
            agent: Some(7),
            hca_control: None,
            wire: None,
            monitor: None,
            devices: vec!["edu".to_owned()],
        }
    }

    #[test]
    fn values_with_commas_and_blanks_stay_whole() {
        let arguments = machine().arguments();
        assert!(
            arguments.contains(&"file,id=console,path=/a,,b/console".to_owned()),
            "{arguments:?}"
        );
        assert!(
            arguments.contains(&"console=ttyS0 quiet".to_owned()),
            "{arguments:?}"
        );
    }

    #[test]
    fn nodes_halve_memory_and_processors() {
        let machine = Machine {
            two_nodes: true,
            memory: 2049,
            cpus: 3,
            ..machine()
        };
        let arguments = machine.arguments().join(" ");
        for part in [
            "id=ram0,size=1024M",
            "id=ram1,size=1025M",
            "nodeid=0,memdev=ram0,cpus=0-1",
            "nodeid=1,memdev=ram1,cpus=2-2",
        ] {
            assert!(arguments.contains(part), "{part} in {arguments}");
        }
    }

    #[test]
    fn the_root_is_shared_read_only() {
        let arguments = machine().arguments();
        let share = arguments
            .iter()
            .find(|argument| argument.starts_with("local,id=root"));
        assert!(
            share.is_some_and(|share| share.contains("readonly=on")),
            "{arguments:?}"
        );
    }

    #[test]
    fn a_qemu_of_its_own_is_started_by_its_own_loader() {
        let qemu = Qemu {
            program: "/q/bin/qemu".into(),
            loader: Some(("/q/ld.so".into(), "/q/lib".to_owned())),
            data: vec!["/q/share".into()],
            modules: None,
        };
        let command = qemu.command(&machine());
        let words: Vec<_> = command.get_args().take(5).collect();
        assert_eq!(command.get_program(), "/q/ld.so");
        assert_eq!(
            words,
            ["--library-path", "/q/lib", "/q/bin/qemu", "-L", "/q/share"]
        );
    }
}
