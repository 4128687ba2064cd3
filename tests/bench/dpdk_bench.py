"""What DPDK gives: ratios of what is measured in turns in one run, on devices in network namespaces made for it.

  gatund to testpmd   packets per second that gatund takes in while it sums four workers' chunks and sends each the result,
                      to those that dpdk-testpmd sends back (5tswap). The same workers (dpdk_load) on the same device:
                      af_packet on a veth pair; vhost, whose peer is virtio_user. They are on one core, the switch on
                      another, which testpmd polls without pause. Where their core is the limit of both, the ratio is 1.
  gatund to memory    bytes per second into and out of gatund, to those that the same core reads and writes when it only
                      adds four arrays from memory (memory_rate)
  dpdk to udp         time of an all-reduce of four ranks over kernel sockets, to that over DPDK's af_packet, on the same
                      veth pairs and bridge. The kernel takes many packets per call and carries them on together.

Each turn measures everything once. A row shows the medians, the median of the turns' ratios, and the lowest and highest of
them. Above 1 is better. Usage: dpdk_bench.py BIN [--quick]
"""

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import dpdk_net  # noqa: E402
from dpdk_net import Net, kernel_ip  # noqa: E402

BIN = sys.argv[1]
TURNS = 1 if "--quick" in sys.argv else 5
RANKS = 4
SECONDS = 1.0  # of one rate
SIZES = ("4K", "64K", "1M")
SMALL, LARGE = 1408, 8896  # payloads for MTU 1500 and 9000
LOAD_NODE = 1


class Device:
    """One link for switch and workers, by the words that gatund, testpmd and dpdk_load have for its ends."""

    def __init__(self, kind, mtu, folder):
        self.kind, self.socket = kind, f"{folder}/vhost"
        if kind == "af_packet":
            name = "net_af_packet0,iface=direct"
            self.switch, self.workers = (f"{name} 10.78.0.{host}/24 mtu={mtu}" for host in (1, 2))
            self.testpmd = f"{name},framesz=2048,blocksz=16384,framecnt=2048,qdisc_bypass=0"  # as gatund opens it
        else:
            self.testpmd = f"net_vhost0,iface={self.socket}"
            self.switch = f"{self.testpmd} 10.78.0.1/24 mtu={mtu}"
            self.workers = (f"net_virtio_user0,path={self.socket},queue_size=1024 mac=02:00:00:00:78:02 10.78.0.2/24 "
                            f"mtu={mtu}")

    def forget(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)


def environment(**extra):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("GATUN_", "OMPI_"))}
    return {**clean, **extra}


class Program:
    """In a node, killed at the end. core: it has this one, and comes before what else this machine does."""

    def __init__(self, net, node, *command, core=None, **options):
        words = net.inside(node, *command)
        if core is not None:
            words = ["sh", "-c", 'echo -19 >/proc/self/autogroup; exec "$@"', "sh", "taskset", "-c", str(core), *words]
        self.process = subprocess.Popen(words, text=True, start_new_session=core is not None,
                                        **{"env": environment(), "stderr": subprocess.DEVNULL, **options})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def output(self):
        out, _ = self.process.communicate(timeout=120)
        if self.process.returncode != 0:
            raise RuntimeError(f"{' '.join(self.process.args)} failed")
        return out


def start_gatund(net, transport, device, core=None):
    words = ["--listen", kernel_ip(0), "--metrics", "off", "--transport", transport, "--keepalive", "60s"]
    daemon = Program(net, 0, f"{BIN}/gatund", *words, *(["--device", device] if device else []), core=core,
                     stderr=subprocess.PIPE)
    said = []
    for line in daemon.process.stderr:
        said.append(line)
        if "serves" in line:
            return daemon
    raise RuntimeError("gatund does not serve: " + "".join(said))


def start_testpmd(net, device, core):
    command = ["dpdk-testpmd", "--no-huge", "--no-shconf", "--single-file-segments", "-m", "512", "--no-pci",
               "--no-telemetry", "--lcores", f"0@{core},1@{core}", "--vdev", device.testpmd, "--", "--forward-mode=5tswap",
               "--port-topology=loop", "--total-num-mbufs=8192", "--rxd=1024", "--txd=1024", "--auto-start"]
    testpmd = Program(net, 0, *command, core=core, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while device.kind == "vhost" and not os.path.exists(device.socket) and testpmd.process.poll() is None:
        time.sleep(0.05)
    return testpmd


def rate(net, cores, device, payload, switch):
    """Packets per second through gatund, or testpmd."""
    device.forget()
    with start_gatund(net, "dpdk", device.switch, cores[1]) if switch == "gatund" else start_testpmd(net, device, cores[1]):
        end = ["gatund", kernel_ip(0)] if switch == "gatund" else ["echo"]
        with Program(net, LOAD_NODE, f"{BIN}/dpdk_load", device.workers, str(payload), str(SECONDS), *end, core=cores[0],
                     stdout=subprocess.PIPE, stderr=None) as load:
            return float(load.output().split()[0])


def memory_rate(net, core):
    with Program(net, 0, f"{BIN}/memory_rate", core=core, stdout=subprocess.PIPE) as program:
        return float(program.output())


def all_reduce_us(net, transport):
    """In-place time by size."""
    flags = ["-b", SIZES[0], "-e", SIZES[-1], "-f", "16", "--quick", "-c", "0"]
    ranks = []
    with start_gatund(net, transport, net.device(0) if transport == "dpdk" else None):
        try:
            for index in range(RANKS):
                facts = {"OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_SIZE": str(RANKS),
                         "GATUN_ADDRESS": kernel_ip(0), "GATUN_TRANSPORT": transport, "GATUN_FALLBACK": "off"}
                if transport == "dpdk":
                    facts["GATUN_DEVICE"] = net.device(1 + index)
                ranks.append(Program(net, 1 + index, f"{BIN}/gatun", "perf", *flags, env=environment(**facts),
                                     stdout=subprocess.PIPE if index == 0 else subprocess.DEVNULL, stderr=None))
            out = ranks[0].output()
        finally:
            for rank in ranks:
                rank.__exit__()
    rows = [line.split() for line in out.splitlines() if re.match(r"\s+\d+ ", line)]
    return [float(row[9]) for row in rows]


def measure_turn(net, cores, folder, turn):
    """Each row's (other, ours), both as more-is-better."""
    packet, small, large = (Device("af_packet", 1500, folder), Device("vhost", 1500, folder), Device("vhost", 9000, folder))
    found = {}

    def compare(name, device, payload):
        order = ("testpmd", "gatund") if turn % 2 else ("gatund", "testpmd")
        rates = {switch: rate(net, cores, device, payload, switch) for switch in order}
        found[name] = rates["testpmd"], rates["gatund"], "/s"

    compare(f"gatund to testpmd, af_packet, {SMALL} B", packet, SMALL)
    compare(f"gatund to testpmd, vhost, {SMALL} B", small, SMALL)
    memory = memory_rate(net, cores[1])
    moved = rate(net, cores, large, LARGE, "gatund") * 2 * LARGE
    found[f"gatund to memory, vhost, {LARGE} B"] = memory / 1e6, moved / 1e6, " MB/s"
    times = {transport: all_reduce_us(net, transport) for transport in (("udp", "dpdk") if turn % 2 else ("dpdk", "udp"))}
    for size, udp, dpdk in zip(SIZES, times["udp"], times["dpdk"]):
        found[f"dpdk to udp, all-reduce of {size}"] = udp, dpdk, " us"
    return found


def print_table(turns):
    print(f"{'row':<38} {'other':>14} {'ours':>14} {'ratio':>6} {'lowest':>7} {'highest':>7}")
    ratios = {}
    for name, (_, _, unit) in turns[0].items():
        other, ours = (statistics.median(turn[name][side] for turn in turns) for side in (0, 1))
        each = [turn[name][0] / turn[name][1] if unit == " us" else turn[name][1] / turn[name][0] for turn in turns]
        ratios[name] = statistics.median(each)
        print(f"{name:<38} {f'{other:.0f}{unit}':>14} {f'{ours:.0f}{unit}':>14} {ratios[name]:>6.2f} {min(each):>7.2f} "
              f"{max(each):>7.2f}")
    worst = min(ratios, key=ratios.get)
    print(f"worst ratio: {ratios[worst]:.2f} ({worst})")


def main():
    cores = sorted(os.sched_getaffinity(0))
    why = dpdk_net.missing() or ("" if shutil.which("dpdk-testpmd") else "there is no dpdk-testpmd (package dpdk-dev)")
    why = why or ("" if os.path.exists(f"{BIN}/dpdk_load") else "Gatun was built without DPDK (libdpdk-dev)")
    why = why or ("" if len(cores) > 1 else "it needs two cores")
    if why:
        print(f"dpdk bench: skipped: {why}")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what removes the namespaces
    turns = []
    with Net(RANKS + 1) as net, tempfile.TemporaryDirectory() as folder:
        dpdk_net.run("ip", "-n", net.name(0), "link", "add", "direct", "type", "veth", "peer", "name", "direct", "netns",
                     net.name(LOAD_NODE))
        for node in (0, LOAD_NODE):
            dpdk_net.run("ip", "-n", net.name(node), "link", "set", "direct", "up")
        for turn in range(TURNS):
            print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
            turns.append(measure_turn(net, (cores[0], cores[-1]), folder, turn))
    print_table(turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
