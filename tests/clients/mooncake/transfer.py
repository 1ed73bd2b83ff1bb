"""One side of a transfer by Mooncake's engine over RDMA.

    transfer.py DIRECTORY target ADDRESS DEVICE
    transfer.py DIRECTORY once|forever ADDRESS DEVICE PORT REGION...

DIRECTORY is where the wheel is unpacked. The target has a region for each size in SIZES. It prints its port
and the regions' addresses, and for each line that it reads whether the second half of each region has what a
host writes there. A host writes these halves and reads the first ones, once or until it is killed.
"""

import ctypes
import mmap
import os
import sys

SIZES = [4096, 65536, 1 << 20]

TARGETS, HOSTS = 1, 2


def contents(seed, size):
    """So many bytes that differ by seed, size and page."""
    word = (seed * 2654435761 + size) % 2**32 | 1
    page = bytearray()
    while len(page) < 4096:
        word ^= word << 13 & 0xFFFFFFFF
        word ^= word >> 17
        word ^= word << 5 & 0xFFFFFFFF
        page += word.to_bytes(4, "little")
    pages = (number.to_bytes(4, "little") + page[4:] for number in range(size // 4096))
    return b"".join(pages)


def check(status, what):
    if status != 0:
        sys.exit(f"{what}: {status}")


def main():
    directory, role, address, device, *peer = sys.argv[1:]
    sys.path.insert(0, directory)
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    check(engine.initialize(address, "P2PHANDSHAKE", "rdma", device), "initialize")
    regions = []
    for size in SIZES:
        memory = mmap.mmap(-1, 2 * size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        check(engine.register_memory(start, 2 * size), f"register {size} bytes")
        regions.append((size, memory, start))
    if role == "target":
        for size, memory, _ in regions:
            memory[:size] = contents(TARGETS, size)
        print(engine.get_rpc_port(), *(start for _, _, start in regions), flush=True)
        for _ in sys.stdin:
            wrong = [size for size, memory, _ in regions if memory[size:] != contents(HOSTS, size)]
            print(f"wrong: {wrong}" if wrong else "right", flush=True)
            for size, memory, _ in regions:
                memory[size:] = bytes(size)
        # Its threads hang in the interpreter's end.
        os._exit(0)
    port, *remote = peer
    target = f"{address}:{port}"
    while True:
        for (size, memory, start), there in zip(regions, map(int, remote), strict=True):
            memory[size:] = contents(HOSTS, size)
            check(engine.transfer_sync_write(target, start + size, there + size, size), f"write {size} bytes")
            check(engine.transfer_sync_read(target, start, there, size), f"read {size} bytes")
            if memory[:size] != contents(TARGETS, size):
                sys.exit(f"other bytes of {size} are read")
        print("right", flush=True)
        if role == "once":
            os._exit(0)


main()
