"""One rank that sums until it is told to stop: allreduce_rank.py LIBRARY RANK RANKS FOLDER. Runs in the emulated machine.

Every operation's result is compared with what it must be. FOLDER/N.RANK says how far it came and which way it goes; when
FOLDER/stop is there, all ranks end after the same operation.
"""

import array
import ctypes
import os
import sys

FLOAT, SUM, MAX, I32 = 7, 0, 2, 2
COUNT = 100_000


class Stats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("rank", ctypes.c_int), ("nranks", ctypes.c_int), ("trees", ctypes.c_int),
        ("window", ctypes.c_int), ("payload_bytes", ctypes.c_uint32), ("transport", ctypes.c_char * 16),
        ("address", ctypes.c_char * 64), ("counters", ctypes.c_uint64 * 11), ("why", ctypes.c_char * 256),
    ]


def main():
    library, rank, ranks, folder = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    library.gatun_last_error.restype = ctypes.c_char_p
    library.gatun_last_error.argtypes = [ctypes.c_void_p]
    comm = ctypes.c_void_p()

    def must(code, what):
        if code != 0:
            sys.exit(f"rank {rank}: {what}: {library.gatun_last_error(comm).decode()}")

    def sum_of(values, type_code, operator):
        data = (ctypes.c_char * (len(values) * values.itemsize)).from_buffer(values)
        must(library.gatun_allreduce(data, data, ctypes.c_size_t(len(values)), type_code, operator, comm), "all-reduce")

    must(library.gatun_comm_create(ctypes.byref(comm), ranks, rank, None), "joining")
    for number in range(1_000_000):
        base = number % 1000
        values = array.array("f", [base + rank + i % 7 for i in range(7)]) * (COUNT // 7)
        sum_of(values, FLOAT, SUM)
        expected = array.array("f", [ranks * (base + i % 7) + ranks * (ranks - 1) // 2 for i in range(7)]) * (COUNT // 7)
        if values != expected:
            sys.exit(f"rank {rank}: wrong sums in operation {number}")
        stop = array.array("i", [os.path.exists(f"{folder}/stop")])
        sum_of(stop, I32, MAX)
        stats = Stats(size=ctypes.sizeof(Stats))
        must(library.gatun_comm_stats(comm, ctypes.byref(stats)), "statistics")
        with open(f"{folder}/new.{rank}", "w") as file:
            file.write(f"{number} {stats.transport.decode()} {stats.counters[10]} {stats.why.decode()}")
        os.replace(f"{folder}/new.{rank}", f"{folder}/state.{rank}")
        if stop[0]:
            break
    must(library.gatun_comm_destroy(comm), "leaving")


main()
