"""Makes a topology of namespaces, veth pairs and queues, all inside namespaces of the lab: removing those removes all.

A link is shaped at both ends by a token bucket, whose burst is 2 ms of the link: below, the kernel's timers cost rate.
Before that queue stand, at the way out of each device, the faults (nftables) and the ECN marks (marker.py): what would wait
in the queue for longer than 1 ms, or behind one packet of the largest that offloads make, is marked if it says ECT.
"""

import os
import shutil
import subprocess

import marker
from topology import Bad, End

BURST_MS, MARK_MS = 2, 1
BURST_MIN, QUEUE_MIN = 64 << 10, 256 << 10  # bytes: one packet of the largest that offloads make, and four
HELD_MARK = 0x67  # of a packet that was held back: it has met its fault


def run(*command, text=None):
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip() or f"ended with {done.returncode}"
        raise Bad(f"{' '.join(command)}: {words.splitlines()[0]}")
    return done.stdout


def missing():
    """Why there can be no lab here; "" if nothing speaks against it."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root, or with sudo"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables"), ("ethtool", "ethtool")):
        if not shutil.which(program):
            return f"there is no '{program}'; apt-get install {package}"
    probe = "ip link add name b type bridge && tc qdisc add dev b root tbf rate 1mbit burst 64kb limit 64kb"
    tried = subprocess.run(["unshare", "-n", "sh", "-c", probe], capture_output=True, text=True)
    return (
        f"this kernel has no bridge or token bucket in network namespaces: {tried.stderr.strip()}"
        if tried.returncode
        else ""
    )


def namespace(lab, node):
    return f"gatun-lab.{lab}.{node}"


def namespaces(lab):
    """Those that are there, whoever made them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    return [name for name in names if name.startswith(f"gatun-lab.{lab}.")]


def burst_bytes(kind):
    return max(BURST_MIN, int(kind.rate * BURST_MS / 8000))


class Builder:
    """Needs a folder for what is pinned while it builds."""

    def __init__(self, lab, topology, folder):
        self.lab, self.topology, self.pins = lab, topology, folder
        self.rules = {}  # node -> chains

    def make(self):
        if not any(link.kind.mark for link in self.topology.links):
            self.make_all()
            return
        os.makedirs(self.pins)
        run("mount", "-t", "bpf", "none", self.pins)
        try:
            self.make_all()
        finally:
            unmount(self.pins)

    def make_all(self):
        for node in [*self.topology.switches, *self.topology.hosts]:
            run("ip", "netns", "add", self.name(node.name))
            self.ip(node.name, "link set lo up")
        for switch in self.topology.switches:
            self.bridge(switch)
        for link in self.topology.links:
            self.link(link)
        for host in self.topology.hosts:
            self.routes_of_host(host)
        for switch in self.topology.switches:
            self.routes_of_switch(switch)
        for node, chains in self.rules.items():
            self.inside(node, "nft", "-f", "-", text="table netdev lab {\n" + "\n".join(chains) + "\n}\n")

    def name(self, node):
        return namespace(self.lab, node)

    def ip(self, node, *lines):
        run("ip", "-n", self.name(node), "-batch", "-", text="\n".join(lines) + "\n")

    def inside(self, node, *command, text=None):
        return run("ip", "netns", "exec", self.name(node), *command, text=text)

    def bridge(self, switch):
        mine = [
            link.kind for link in self.topology.links if switch.name in [end.node for end in link.ends] and not link.routed
        ]
        mtu = min((kind.mtu for kind in mine), default=1500)
        self.ip(
            switch.name,
            "link add name br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
            f"link set br0 mtu {mtu} up",
            f"addr add {switch.address}/24 dev br0",
        )
        settings = "cd /proc/sys/net/ipv4 && echo 1 > ip_forward && echo 1 > fib_multipath_hash_policy"
        self.inside(switch.name, "sh", "-c", settings)
        if any(kind.faulty() for kind in mine):
            self.split_packets(switch.name, "br0")

    def link(self, link):
        (a, b), kind = link.ends, link.kind
        self.ip(
            a.node,
            f"link add name {a.device} mtu {kind.mtu} type veth peer name {b.device} mtu {kind.mtu} "
            f"netns {self.name(b.node)}",
        )
        for end in link.ends:
            if link.routed:
                self.ip(end.node, f"addr add {end.address}/30 dev {end.device}")
            elif end is a:
                self.ip(end.node, f"addr add {end.address}/24 dev {end.device}")
            else:
                self.ip(end.node, f"link set {end.device} master br0")
            self.ip(end.node, f"link set {end.device} up")
            self.shape(end, kind)
            self.rule(end, kind)

    def shape(self, end, kind):
        queue = max(QUEUE_MIN, int(kind.rate * kind.queue_ms / 8000))
        self.tc(end, f"root handle 1: tbf rate {kind.rate}bit burst {burst_bytes(kind)} limit {queue}")
        if kind.delay_ms:
            self.tc(end, f"parent 1:1 handle 2: netem delay {kind.delay_ms}ms limit 100000")
        if kind.faulty():
            self.split_packets(end.node, end.device)
        if kind.mark:
            path = os.path.join(self.pins, f"{end.node}-{end.device}")
            burst_ns = int(burst_bytes(kind) * 8e9 / kind.rate)
            marker.pin(path, kind.rate, burst_ns, max(int(MARK_MS * 1e6), int(BURST_MIN * 8e9 / kind.rate)))
            self.tc(end, "clsact")
            self.inside(end.node, "tc", "filter", "add", "dev", end.device, "egress", "bpf", "da", "object-pinned", path)

    def tc(self, end, words):
        try:
            self.inside(end.node, "tc", "qdisc", "add", "dev", end.device, *words.split())
        except Bad as error:
            if "netem" in words:
                raise Bad(
                    "delay_ms needs the kernel's netem (CONFIG_NET_SCH_NETEM), which is not here: leave it out"
                ) from None
            raise error

    def split_packets(self, node, device):
        """Offloads make one packet of many, which would meet one fault."""
        self.inside(node, "ethtool", "-K", device, "tso", "off", "gso", "off", "tx-udp-segmentation", "off")

    def rule(self, end, kind):
        chance = "numgen random mod 1000000 <"
        lines = []
        if kind.faulty():
            lines += [f"meta mark {HELD_MARK} accept"]
        if kind.loss:
            lines += [f"{chance} {round(kind.loss * 1e6)} counter drop"]
        if kind.duplicate:
            lines += [f'{chance} {round(kind.duplicate * 1e6)} counter dup to "{end.device}"']
        if kind.reorder:
            late = self.detour(end, kind)
            lines += [f'{chance} {round(kind.reorder * 1e6)} meta mark set {HELD_MARK} counter fwd to "{late}"']
        if lines:
            head = f'  chain {end.device} {{ type filter hook egress device "{end.device}" priority 0;'
            self.rules.setdefault(end.node, []).append("\n    ".join([head, *lines]) + "\n  }")

    def detour(self, end, kind):
        """A slow way round the queue: the packets that take it are overtaken by others."""
        number = sum("_in" in chain for chain in self.rules.get(end.node, []))
        out, back = f"late{number}", f"late{number}_in"
        rate = max(int(kind.rate * kind.reorder * 2), 8000)
        self.ip(
            end.node,
            f"link add name {out} mtu {kind.mtu} type veth peer name {back} mtu {kind.mtu}",
            f"link set {out} up",
            f"link set {back} up",
        )
        self.tc(End(end.node, out, ""), f"root tbf rate {rate}bit burst {kind.mtu + 100} limit {64 * kind.mtu}")
        head = f'  chain {back} {{ type filter hook ingress device "{back}" priority 0;'
        self.rules.setdefault(end.node, []).append(f'{head}\n    fwd to "{end.device}"\n  }}')
        return out

    def routes_of_host(self, host):
        """TCP's law is chosen by route: a namespace may not be allowed to change its default."""
        switch = self.topology.switch(host.switch)
        subnet = switch.address.rsplit(".", 1)[0] + ".0/24"
        self.ip(
            host.name,
            f"route replace {subnet} dev eth0 src {host.address} proto kernel scope link congctl cubic",
            f"route add default via {switch.address} dev eth0 congctl cubic",
        )

    def routes_of_switch(self, switch):
        subnet = switch.address.rsplit(".", 1)[0] + ".0/24"
        lines = [f"route replace {subnet} dev br0 src {switch.address} proto kernel scope link congctl cubic"]
        for other in self.topology.switches:
            if other is not switch:
                hops = " ".join(f"nexthop via {hop.address}" for hop in self.topology.next_hops(switch.name, other.name))
                subnet = other.address.rsplit(".", 1)[0] + ".0/24"
                lines.append(f"route add {subnet} src {switch.address} congctl cubic {hops}")
        self.ip(switch.name, *lines)


def processes(lab):
    """Process ids in the lab's namespaces, without this one and what started it."""
    found = set()
    for name in namespaces(lab):
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
        found |= {int(pid) for pid in listed.split()}
    return sorted(found - ancestry())


def unmount(folder):
    if os.path.ismount(folder):
        run("umount", folder)
    if os.path.isdir(folder):
        os.rmdir(folder)


def ancestry():
    found, pid = set(), os.getpid()
    while pid:
        found.add(pid)
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            pid = int(stat.read().rsplit(")", 1)[1].split()[1])
    return found


def remove(lab):
    for name in namespaces(lab):
        run("ip", "netns", "del", name)
