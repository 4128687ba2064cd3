"""One rank that sums until it is told to stop: allreduce_rank.py LIBRARY RANK RANKS FOLDER [MODE]. Runs in the emulated
machine.

Every operation's result is compared with what it must be. FOLDER/state.RANK says how far it came, which way it goes, and how
often each byte of the tensor was copied; when FOLDER/stop is there, all ranks end after the same operation.

MODE registered: the tensor is. MODE too-much: more is registered than may be locked, which must be refused.
"""

import array
import ctypes
import mmap
import os
import sys

FLOAT, SUM, MAX, I32 = 7, 0, 2, 2
SYSTEM, INVALID = -8, -1
COUNT = 100_002
TOO_MUCH = 1 << 30


class Stats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("rank", ctypes.c_int), ("nranks", ctypes.c_int), ("trees", ctypes.c_int),
        ("window", ctypes.c_int), ("payload_bytes", ctypes.c_uint32), ("transport", ctypes.c_char * 16),
        ("address", ctypes.c_char * 64), ("counters", ctypes.c_uint64 * 11), ("why", ctypes.c_char * 256),
        ("copied", ctypes.c_uint64),
    ]


def main():
    library, rank, ranks, folder = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    mode = sys.argv[5] if len(sys.argv) > 5 else ""
    library.gatun_last_error.restype = ctypes.c_char_p
    library.gatun_last_error.argtypes = [ctypes.c_void_p]
    comm = ctypes.c_void_p()

    def must(code, what):
        if code != 0:
            sys.exit(f"rank {rank}: {what}: {library.gatun_last_error(comm).decode()}")

    def memory(values):
        return (ctypes.c_char * (len(values) * values.itemsize)).from_buffer(values)

    def statistics():
        stats = Stats(size=ctypes.sizeof(Stats))
        must(library.gatun_comm_stats(comm, ctypes.byref(stats)), "statistics")
        return stats

    def sum_of(values, type_code, operator):
        data = memory(values)
        must(library.gatun_allreduce(data, data, ctypes.c_size_t(len(values)), type_code, operator, comm), "all-reduce")

    must(library.gatun_comm_create(ctypes.byref(comm), ranks, rank, None), "joining")
    values = array.array("f", bytes(4 * COUNT))
    tensor = memory(values)
    if mode:
        must(library.gatun_register(comm, tensor, ctypes.c_size_t(4 * COUNT)), "registering")
    if mode == "too-much":
        large = (ctypes.c_char * TOO_MUCH).from_buffer(mmap.mmap(-1, TOO_MUCH))
        if library.gatun_register(comm, large, ctypes.c_size_t(TOO_MUCH)) != SYSTEM:
            sys.exit(f"rank {rank}: {TOO_MUCH} bytes could be registered")
        print(library.gatun_last_error(comm).decode(), file=sys.stderr, flush=True)
        if library.gatun_deregister(comm, large) != INVALID:
            sys.exit(f"rank {rank}: what was refused is registered")
    for number in range(1_000_000):
        base = number % 1000
        values[:] = array.array("f", [base + rank + i % 7 for i in range(7)]) * (COUNT // 7)
        copied = statistics().copied
        sum_of(values, FLOAT, SUM)
        expected = array.array("f", [ranks * (base + i % 7) + ranks * (ranks - 1) // 2 for i in range(7)]) * (COUNT // 7)
        if values != expected:
            sys.exit(f"rank {rank}: wrong sums in operation {number}")
        stats = statistics()
        copies = (stats.copied - copied) / (4 * COUNT)
        stop = array.array("i", [os.path.exists(f"{folder}/stop")])
        sum_of(stop, I32, MAX)
        with open(f"{folder}/new.{rank}", "w") as file:
            file.write(f"{number} {stats.transport.decode()} {stats.counters[10]} {copies} {stats.why.decode()}")
        os.replace(f"{folder}/new.{rank}", f"{folder}/state.{rank}")
        if stop[0]:
            break
    if mode:
        must(library.gatun_deregister(comm, tensor), "deregistering")
    must(library.gatun_comm_destroy(comm), "leaving")


main()
