"""One side of transfers by Mooncake's engine over RDMA.

    transfer.py DIRECTORY target|host LAYOUT ADDRESS DEVICE[,DEVICE...]

DIRECTORY is where the wheel is unpacked. Either side has the regions of the layout; hosts read the first half
of each region's blocks and write the second. A target prints its address and where its regions lie, and for
each line that it reads whether all blocks have what hosts write there. A host reads lines, `once` or
`until_failure` and what a target has printed. It prints `begun` when it is about to transfer, and then how
that ended: `right`, `other bytes`, or `failed` and the engine's status.
"""

import ctypes
import mmap
import os
import random
import sys

# The sizes of each region's blocks, and how many there are.
LAYOUTS = {
    # Each block by a call of its own.
    "sizes": [(4096, 2), (65536, 2), (1 << 20, 2)],
    # Keys and values of sixteen layers, and a few larger regions. All blocks in one batch.
    "cache": [(128 << 10, 8)] * 32 + [(1 << 20, 4)] * 4,
}

TARGETS, HOSTS = 1, 2


def contents(seed, region, block, size):
    """So many bytes that differ by seed, region, block and page."""
    page = random.Random(f"{seed} {region} {block}").randbytes(4092)
    return b"".join(number.to_bytes(4, "little") + page for number in range(size // 4096))


def check(status, what):
    if status != 0:
        sys.exit(f"{what}: {status}")


class Regions:
    """Registered memory."""

    def __init__(self, engine, layout):
        self.of_targets, self.of_hosts, self.starts = [], [], []
        for region, (size, count) in enumerate(layout):
            memory = mmap.mmap(-1, count * size)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            check(engine.register_memory(start, count * size), f"register {count * size} bytes")
            self.starts.append(start)
            for block in range(count):
                half = self.of_targets if block < count // 2 else self.of_hosts
                half.append((region, block, size, memory))

    def fill(self, blocks, seed):
        for region, block, size, memory in blocks:
            memory[block * size : (block + 1) * size] = contents(seed, region, block, size)

    def clear(self, blocks):
        for _, block, size, memory in blocks:
            memory[block * size : (block + 1) * size] = bytes(size)

    def are_right(self, blocks, seed):
        return all(
            memory[block * size : (block + 1) * size] == contents(seed, region, block, size)
            for region, block, size, memory in blocks
        )

    def transfers(self, blocks, there):
        """Where the blocks lie here and there, and their sizes."""
        here = [self.starts[region] + block * size for region, block, size, _ in blocks]
        there = [there[region] + block * size for region, block, size, _ in blocks]
        return here, there, [size for _, _, size, _ in blocks]


def transfer(engine, regions, at_once, target, there):
    """Writes and reads all blocks; gives what came of it."""
    regions.clear(regions.of_targets)
    for blocks, of_batch, of_one in [
        (regions.of_hosts, engine.batch_transfer_sync_write, engine.transfer_sync_write),
        (regions.of_targets, engine.batch_transfer_sync_read, engine.transfer_sync_read),
    ]:
        lists = regions.transfers(blocks, there)
        calls = [(of_batch, lists)] if at_once else [(of_one, one) for one in zip(*lists)]
        for call, arguments in calls:
            status = call(target, *arguments)
            if status != 0:
                return f"failed {status}"
    return "right" if regions.are_right(regions.of_targets, TARGETS) else "other bytes"


def main():
    directory, role, layout, address, devices = sys.argv[1:]
    sys.path.insert(0, directory)
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    check(engine.initialize(address, "P2PHANDSHAKE", "rdma", devices), "initialize")
    regions = Regions(engine, LAYOUTS[layout])
    if role == "target":
        regions.fill(regions.of_targets, TARGETS)
        print(f"{address}:{engine.get_rpc_port()}", *regions.starts, flush=True)
        for _ in sys.stdin:
            print("right" if regions.are_right(regions.of_hosts, HOSTS) else "other bytes", flush=True)
            regions.clear(regions.of_hosts)
    else:
        regions.fill(regions.of_hosts, HOSTS)
        for line in sys.stdin:
            how, target, *there = line.split()
            print("begun", flush=True)
            while True:
                ended = transfer(engine, regions, layout == "cache", target, list(map(int, there)))
                if how == "once" or ended != "right":
                    break
            print(ended, flush=True)
    # The engine's threads hang in the interpreter's end.
    os._exit(0)


main()
