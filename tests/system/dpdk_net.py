"""A network for tests: namespaces on one bridge, each with the interface eth0, made as root and removed whatever happens.

Node 0 is the switch, 1 and up the workers. A node has two addresses: 10.77.0.(1 + node) is the kernel's,
10.77.0.(101 + node) is DPDK's, on the same interface.
"""

import os
import shutil
import subprocess


def missing():
    """Why there can be no such network; "" if nothing speaks against it."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("ethtool", "ethtool")):
        if not shutil.which(program):
            return f"there is no '{program}' (package {package})"
    tried = subprocess.run(["unshare", "-n", "ip", "link", "add", "name", "bridge0", "type", "bridge"], capture_output=True)
    return "" if tried.returncode == 0 else "no bridges in network namespaces here"


def kernel_ip(node):
    return f"10.77.0.{1 + node}"


def dpdk_ip(node):
    return f"10.77.0.{101 + node}"


class Net:
    def __init__(self, nodes, mtu=1500):
        self.prefix = f"gatun-{os.getpid()}-"
        self.nodes = range(nodes)
        self.mtu = mtu

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def name(self, node):
        return f"{self.prefix}{node}"

    def make(self):
        hub = self.name("hub")
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "name", "bridge0", "type", "bridge", "mcast_snooping", "0")
        run("ip", "-n", hub, "link", "set", "bridge0", "mtu", str(self.mtu), "up")
        for node in self.nodes:
            name, port = self.name(node), f"port{node}"
            run("ip", "netns", "add", name)
            run("ip", "-n", hub, "link", "add", port, "mtu", str(self.mtu), "type", "veth", "peer", "name", "eth0", "mtu",
                str(self.mtu), "netns", name)
            run("ip", "-n", hub, "link", "set", port, "master", "bridge0", "up")
            run("ip", "-n", name, "addr", "add", f"{kernel_ip(node)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            # A veth passes merged packets on unsplit, which a network would not.
            run(*self.inside(node, "ethtool", "-K", "eth0", "tx", "off", "gso", "off", "tx-udp-segmentation", "off"))

    def remove(self):
        for node in [*self.nodes, "hub"]:
            subprocess.run(["ip", "netns", "del", self.name(node)], capture_output=True)

    def inside(self, node, *command):
        return ["ip", "netns", "exec", self.name(node), *command]

    def device(self, node, *words):
        return " ".join([f"net_af_packet0,iface=eth0 {dpdk_ip(node)}/24", *words])


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
