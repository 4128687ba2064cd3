"""The ECN marks of a link: a program of the kernel (cls_bpf) that follows the token bucket behind it.

Kept is the time at which the link will have sent all that it was given; a packet that finds it further ahead of now than
the threshold gets CE if it says ECT, as it would from a queue that marks above K. tbf does not mark, and the kernel's queues
that do are rarely all there. It needs the rate and burst of the bucket, and is exact whatever the offloads do.
"""

import ctypes
import os
import struct

from topology import Bad

SYSCALL = {"x86_64": 321, "aarch64": 280}
MAP_CREATE, PROG_LOAD, OBJ_PIN = 0, 5, 6
ARRAY, SCHED_CLS = 2, 3
LOOKUP, KTIME, SET_CE = 1, 5, 97  # helpers of the kernel
WIRE_LEN = 160  # of __sk_buff: with the headers of each packet that an offload holds
SCALE = 16  # bits of fraction in nanoseconds a byte


def instruction(code, target=0, source=0, offset=0, value=0):
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


def wide(target, value, source=0):
    """Two instructions that load 64 bits; source 1: a map."""
    return struct.pack("<BBhi", 0x18, target | source << 4, 0, value & 0xFFFFFFFF) + struct.pack(
        "<BBhi", 0, 0, 0, value >> 32
    )


def program(map_fd, rate, burst_ns, threshold_ns):
    """r6 packet, r7 when the link is free, r8 now."""
    return b"".join(
        [
            instruction(0xBF, 6, 1),  # r6 = packet
            instruction(0x62, 10, 0, -4, 0),  # key 0
            wide(1, map_fd, 1),
            instruction(0xBF, 2, 10),
            instruction(0x07, 2, 0, 0, -4),
            instruction(0x85, value=LOOKUP),
            instruction(0x55, 0, 0, 2, 0),  # found: over the way out
            instruction(0xB7, 0),
            instruction(0x95),
            instruction(0xBF, 7, 0),
            instruction(0x85, value=KTIME),
            instruction(0xBF, 8, 0),
            instruction(0x79, 9, 7),  # r9 = free
            instruction(0xBF, 1, 8),
            wide(2, burst_ns),
            instruction(0x1F, 1, 2),  # r1 = now - burst
            instruction(0x3D, 9, 1, 1),
            instruction(0xBF, 9, 1),  # r9 = max(r9, r1)
            instruction(0x61, 2, 6, WIRE_LEN),
            wide(3, round(8e9 / rate * (1 << SCALE))),
            instruction(0x2F, 2, 3),
            instruction(0x77, 2, 0, 0, SCALE),
            instruction(0x0F, 9, 2),
            instruction(0x7B, 7, 9),  # free = r9 += time to send
            instruction(0x1F, 9, 8),
            wide(2, threshold_ns),
            instruction(0xDD, 9, 2, 2),  # r9 - now <= threshold: over the mark
            instruction(0xBF, 1, 6),
            instruction(0x85, value=SET_CE),
            instruction(0xB7, 0),
            instruction(0x95),
        ]
    )


def bpf(command, attributes):
    machine = os.uname().machine
    if machine not in SYSCALL:
        raise Bad(f"mark = true is not there on {machine}; leave it out")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"))
    fd = libc.syscall(SYSCALL[machine], command, buffer, 128)
    if fd < 0:
        error = os.strerror(ctypes.get_errno())
        raise Bad(
            f"mark = true needs the kernel's BPF (CONFIG_BPF_SYSCALL, NET_CLS_BPF), and it says: {error}; leave it out"
        )
    return fd


def pin(path, rate, burst_ns, threshold_ns):
    """Loads a marker for a link and leaves it at path, in a bpf file system, for tc to attach."""
    state = bpf(MAP_CREATE, struct.pack("<IIII", ARRAY, 4, 8, 1))
    code = ctypes.create_string_buffer(program(state, rate, burst_ns, threshold_ns))
    license_name = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(1 << 16)
    loaded = bpf(
        PROG_LOAD,
        struct.pack(
            "<IIQQIIQ",
            SCHED_CLS,
            (len(code) - 1) // 8,
            ctypes.addressof(code),
            ctypes.addressof(license_name),
            1,
            len(log),
            ctypes.addressof(log),
        ),
    )
    name = ctypes.create_string_buffer(path.encode())
    bpf(OBJ_PIN, struct.pack("<QI", ctypes.addressof(name), loaded))
    os.close(loaded)
    os.close(state)
