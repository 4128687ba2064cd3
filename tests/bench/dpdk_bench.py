"""What DPDK gives: ratios of things that are measured in turns on the same interfaces, in namespaces made for it.

  dpdk to udp           time of an all-reduce of four ranks over kernel sockets, to that over DPDK's af_packet
  gatund to testpmd     packets per second that gatund takes in while it reduces for four ranks, to those that dpdk-testpmd
                        sends back (5tswap) for four senders of the same packets with the same window

Above 1 is better. Usage: dpdk_bench.py BIN [--quick]
"""

import ctypes
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import dpdk_net  # noqa: E402
from dpdk_net import Net, dpdk_ip, kernel_ip  # noqa: E402

BIN = sys.argv[1]
QUICK = "--quick" in sys.argv
RANKS = 4
TURNS = 1 if QUICK else 3
SIZES = ("4K", "64K", "1M", "16M")
WINDOW, PAYLOAD, SECONDS = 64, 1408, 2.0
TESTPMD_MAC = "02:67:0a:4d:00:65"
PORT = 7117


def environment(**extra):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("GATUN_", "OMPI_"))}
    return {**clean, **extra}


class Daemon:
    def __init__(self, net, transport):
        words = ["--listen", kernel_ip(0), "--metrics", "off", "--transport", transport]
        if transport == "dpdk":
            words += ["--device", net.device(0)]
        self.process = subprocess.Popen(net.inside(0, f"{BIN}/gatund", *words), env=environment(), stderr=subprocess.PIPE,
                                        text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if "serves" in line:
                break
        else:
            raise RuntimeError("gatund does not serve: " + "".join(self.lines))
        threading.Thread(target=self.lines.extend, args=(self.process.stderr,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def received(self):
        """Packets so far, and when that was."""
        seen = len(self.lines)
        self.process.send_signal(10)
        while not any("counters:" in line for line in self.lines[seen:]):
            time.sleep(0.005)
        line = [line for line in self.lines[seen:] if "counters:" in line][-1]
        return int(re.search(r"received (\d+)", line).group(1)), time.monotonic()


def start_ranks(net, transport, *flags, **extra):
    ranks = []
    for index in range(RANKS):
        facts = {"OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_SIZE": str(RANKS), "GATUN_ADDRESS": kernel_ip(0),
                 "GATUN_TRANSPORT": transport, "GATUN_FALLBACK": "off", **extra}
        if transport == "dpdk":
            facts["GATUN_DEVICE"] = net.device(1 + index)
        ranks.append(subprocess.Popen(net.inside(1 + index, f"{BIN}/gatun", "perf", *flags), env=environment(**facts),
                                      stdout=subprocess.PIPE if index == 0 else subprocess.DEVNULL,
                                      stderr=None if index == 0 else subprocess.DEVNULL, text=True))
    return ranks


def all_reduce_us(net, transport):
    """In-place time by size."""
    with Daemon(net, transport):
        ranks = start_ranks(net, transport, "-b", SIZES[0], "-e", SIZES[-1], "-f", "16", "--quick", "-c", "0")
        out, _ = ranks[0].communicate(timeout=300)
        for rank in ranks:
            if rank.wait() != 0:
                raise RuntimeError("a rank failed: " + out)
    rows = [line.split() for line in out.splitlines() if re.match(r"\s+\d+ ", line)]
    return [float(row[9]) for row in rows]


def gatund_rate(net):
    with Daemon(net, "dpdk") as daemon:
        ranks = start_ranks(net, "dpdk", "-b", "4M", "-e", "4M", "-n", "100000", "-c", "0", GATUN_WINDOW=str(WINDOW),
                            GATUN_PAYLOAD=str(PAYLOAD))
        time.sleep(3)
        before, since = daemon.received()
        time.sleep(SECONDS)
        after, until = daemon.received()
        for rank in ranks:
            rank.kill()
            rank.wait()
    return (after - before) / (until - since)


def answer_arp(net, stop):
    """testpmd does not say where it is. In a thread that has entered node 0's namespace."""
    space = os.open(f"/var/run/netns/{net.name(0)}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(space, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(space)
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
    link.bind(("eth0", 0x0806))
    link.settimeout(0.1)
    mac, ip = bytes.fromhex(TESTPMD_MAC.replace(":", "")), socket.inet_aton(dpdk_ip(0))
    while not stop.is_set():
        try:
            frame = link.recv(2048)
        except TimeoutError:
            continue
        if frame[20:22] == b"\0\1" and frame[38:42] == ip:
            link.send(frame[6:12] + mac + frame[12:20] + struct.pack(">H", 2) + mac + ip + frame[22:32])


def testpmd_rate(net):
    stop = threading.Event()
    answers = threading.Thread(target=answer_arp, args=(net, stop))
    answers.start()
    device = "net_af_packet0,iface=eth0,framesz=2048,blocksz=16384,framecnt=2048,qdisc_bypass=0"
    testpmd = subprocess.Popen(
        net.inside(0, "dpdk-testpmd", "--no-huge", "--no-shconf", "-m", "512", "--no-pci", "--no-telemetry", "-l", "0,1",
                   "--vdev", device, "--", "--forward-mode=5tswap", "--port-topology=loop", "--total-num-mbufs=8192",
                   "--auto-start"),
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        loads = [subprocess.Popen(net.inside(1 + index, f"{BIN}/dpdk_load", net.device(1 + index), dpdk_ip(0), str(PORT),
                                             str(PAYLOAD), str(WINDOW), str(SECONDS)), env=environment(),
                                  stdout=subprocess.PIPE, text=True) for index in range(RANKS)]
        rates = [float(load.communicate(timeout=60)[0] or 0) for load in loads]
    finally:
        testpmd.kill()
        testpmd.wait()
        stop.set()
        answers.join()
    return sum(rates)


def main():
    why = dpdk_net.missing() or ("" if shutil.which("dpdk-testpmd") else "there is no dpdk-testpmd (package dpdk-dev)")
    if why:
        print(f"dpdk bench: skipped: {why}")
        return 77
    rows = []
    with Net(RANKS + 1) as net:
        times = {"udp": [], "dpdk": []}
        rates = {"testpmd": [], "gatund": []}
        for turn in range(TURNS):
            print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
            for transport, results in times.items():
                results.append(all_reduce_us(net, transport))
            rates["testpmd"].append(testpmd_rate(net))
            rates["gatund"].append(gatund_rate(net))
    print(f"{'row':<20} {'other':>12} {'ours':>12} {'ratio':>7}")
    for index, size in enumerate(SIZES):
        udp, dpdk = (statistics.median(turn[index] for turn in times[name]) for name in ("udp", "dpdk"))
        rows.append((f"dpdk to udp {size}", udp / dpdk))
        print(f"{rows[-1][0]:<20} {udp:>9.0f} us {dpdk:>9.0f} us {rows[-1][1]:>7.2f}")
    testpmd, gatund = statistics.median(rates["testpmd"]), statistics.median(rates["gatund"])
    rows.append(("gatund to testpmd", gatund / testpmd if testpmd else 0))
    print(f"{rows[-1][0]:<20} {testpmd:>10.0f}/s {gatund:>10.0f}/s {rows[-1][1]:>7.2f}")
    worst = min(rows, key=lambda row: row[1])
    print(f"worst ratio: {worst[1]:.2f} ({worst[0]})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
