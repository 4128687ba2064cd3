"""gatund and ranks over DPDK's af_packet on veth, in network namespaces of the test's own; some ranks with kernel sockets.

Usage: dpdk_test.py BIN [unittest arguments]    BIN is the folder with gatund and gatun
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import dpdk_net
from dpdk_net import Net, dpdk_ip, kernel_ip

BIN = sys.argv.pop(1)
PATIENCE_S = 100


def environment(**extra):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("GATUN_", "OMPI_"))}
    return {**clean, **extra}


class Program:
    """A program in a node, with its output in files. Ended by its process id."""

    def __init__(self, net, node, *command, **extra):
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        words = net.inside(node, f"{BIN}/{command[0]}", *command[1:])
        self.process = subprocess.Popen(words, env=environment(**extra), stdout=self.out, stderr=self.err)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()
        self.err.close()

    def text(self, file):
        file.seek(0)
        return file.read()

    def wait(self):
        code = self.process.wait(PATIENCE_S)
        return code, self.text(self.out), self.text(self.err)


def daemon(net, *flags, device=True, transport="dpdk"):
    with_device = ["--device", device if isinstance(device, str) else net.device(0)] if device else []
    program = Program(net, 0, "gatund", "--listen", kernel_ip(0), "--metrics", "off", "--transport", transport, *with_device,
                      *flags)
    deadline = time.monotonic() + PATIENCE_S
    while "serves" not in program.text(program.err):
        if program.process.poll() is not None or time.monotonic() > deadline:
            with program:
                raise AssertionError(f"gatund does not serve: {program.text(program.err)}")
        time.sleep(0.05)
    return program


def rank(net, kinds, index, *flags, **extra):
    facts = {"OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_SIZE": str(len(kinds)), "GATUN_ADDRESS": kernel_ip(0),
             "GATUN_TRANSPORT": kinds[index], "GATUN_FALLBACK": "off"}
    if kinds[index] != "udp":
        facts["GATUN_DEVICE"] = net.device(1 + index)
    return Program(net, 1 + index, "gatun", "perf", *flags, **{**facts, **extra})


class Dpdk(unittest.TestCase):
    def run_ranks(self, net, kinds, *flags, **extra):
        """The output of rank 0, when all ranks are well and every element of every row is right."""
        ranks = [rank(net, kinds, index, *flags, **extra) for index in range(len(kinds))]
        try:
            ends = [one.wait() for one in ranks]
        finally:
            for one in ranks:
                one.__exit__()
        for index, (code, out, err) in enumerate(ends):
            self.assertEqual(code, 0, f"rank {index}: {err}\n{out}")
        self.assertRegex(ends[0][1], r"Out of bounds values : 0 OK")
        return ends[0][1]

    def test_ranks_with_and_without_dpdk_share_a_switch(self):
        kinds = ["dpdk", "udp", "dpdk", "udp"]
        with Net(5) as net, daemon(net) as switch:
            out = self.run_ranks(net, kinds, "-b", "4", "-e", "1M", "-f", "8", "-n", "5", "-w", "1")
            self.assertIn("transport dpdk", out)
            self.assertIn(f"dpdk on net_af_packet0,iface=eth0 ({dpdk_ip(0)}", switch.text(switch.err))

    def test_ranks_with_dpdk_at_a_switch_without(self):
        with Net(3) as net, daemon(net, device=False, transport="udp"):
            out = self.run_ranks(net, ["dpdk", "dpdk"], "-b", "1K", "-e", "1M", "-f", "32", "-n", "5", "-w", "1")
            self.assertIn("transport dpdk", out)

    def test_ipv6_and_jumbo_frames(self):
        with Net(3, mtu=9000) as net:
            net.device = lambda node: f"net_af_packet0,iface=eth0 fd77::{101 + node}/64"
            with daemon(net):
                out = self.run_ranks(net, ["dpdk", "dpdk"], "-b", "64K", "-e", "1M", "-f", "16", "-n", "5", "-w", "1")
                self.assertRegex(out, r"payload 8\d\d\d bytes")

    def test_several_lanes_on_one_queue(self):
        with Net(3) as net, daemon(net, "--lanes", "3"):
            out = self.run_ranks(net, ["dpdk", "udp"], "-b", "64K", "-e", "1M", "-f", "16", "-n", "5", "-w", "1",
                                 GATUN_TREES="3")
            self.assertIn("trees 3", out)

    def test_lost_packets_are_sent_again(self):
        with Net(3) as net, daemon(net):
            # A queue of ten packets, which every window overflows.
            queue = "root tbf rate 200mbit burst 16kb limit 15k"
            dpdk_net.run(*net.inside(0, "tc", "qdisc", "add", "dev", "eth0", *queue.split()))
            out = self.run_ranks(net, ["dpdk", "udp"], "-b", "1M", "-e", "1M", "-n", "5", "-w", "1")
            row = [line.split() for line in out.splitlines() if re.match(r"\s+1048576 ", line)][0]
            self.assertGreater(int(row[-1]), 0, out)  # resent

    def test_the_switch_dies_in_the_middle_and_comes_back(self):
        kinds = ["dpdk", "dpdk"]
        with Net(3) as net:
            with daemon(net) as switch:
                flags = ("-b", "1M", "-e", "1M", "-n", "150", "-w", "1")
                ranks = [rank(net, kinds, index, *flags, GATUN_FALLBACK="ring") for index in range(2)]
                try:
                    deadline = time.monotonic() + PATIENCE_S
                    while "Switch:" not in ranks[0].text(ranks[0].out) and time.monotonic() < deadline:
                        time.sleep(0.05)
                    time.sleep(0.3)
                    switch.process.send_signal(signal.SIGKILL)
                    switch.process.wait()
                    with daemon(net):
                        ends = [one.wait() for one in ranks]
                        self.run_ranks(net, kinds, "-b", "1K", "-e", "64K", "-f", "64", "-n", "5", "-w", "1")
                finally:
                    for one in ranks:
                        one.__exit__()
            for code, out, err in ends:
                self.assertEqual(code, 0, err)
            self.assertRegex(ends[0][1], r"Out of bounds values : 0 OK")

    def test_a_rank_that_dies_is_named(self):
        kinds = ["dpdk", "dpdk"]
        with Net(3) as net, daemon(net):
            ranks = [rank(net, kinds, index, "-b", "1M", "-e", "1M", "-n", "100000", "-w", "1") for index in range(2)]
            try:
                deadline = time.monotonic() + PATIENCE_S
                while "Switch:" not in ranks[0].text(ranks[0].out) and time.monotonic() < deadline:
                    time.sleep(0.05)
                ranks[1].process.send_signal(signal.SIGKILL)
                code, _, err = ranks[0].wait()
                self.assertNotEqual(code, 0)
                self.assertIn("rank 1", err)
            finally:
                for one in ranks:
                    one.__exit__()
            self.run_ranks(net, kinds, "-b", "1K", "-e", "1K", "-n", "5", "-w", "1")  # the switch is well

    @contextlib.contextmanager
    def switch_on(self, folder, device):
        """gatund on a device that needs no network, its address and what it has said."""
        port_file, log_file = f"{folder}/port", f"{folder}/log"
        words = [f"{BIN}/gatund", "--port", "0", "--port-file", port_file, "--metrics", "off", "--transport", "dpdk",
                 "--device", f"{device} 10.77.0.101/24"]
        with open(log_file, "w") as log:
            switch = subprocess.Popen(words, env=environment(), stderr=log)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not os.path.exists(port_file) and switch.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            with open(port_file) as port, open(log_file) as log:
                yield switch, "127.0.0.1:" + port.read().strip(), log.read()
        finally:
            switch.kill()
            switch.wait()

    def explain(self, address, device):
        return [f"{BIN}/gatun", "explain", "--address", address, "--transport", "dpdk", "--device",
                f"{device} 10.77.0.102/24"]

    def test_memif_works_and_both_ends_are_warned(self):
        warning = "device net_memif can crash this process when the peer's process dies"
        with tempfile.TemporaryDirectory() as folder:
            memif = f"net_memif0,id=0,socket={folder}/memif,socket-abstract=no,role="
            with self.switch_on(folder, memif + "server") as (_, address, said):
                self.assertIn(warning, said)
                peer = subprocess.run(self.explain(address, memif + "client"), env=environment(GATUN_LOG="warn"),
                                      capture_output=True, text=True, timeout=PATIENCE_S)
                self.assertIn("over dpdk", peer.stdout, peer.stderr)
                self.assertIn(warning, peer.stderr)

    def test_vhost_takes_one_peer_after_another(self):
        with tempfile.TemporaryDirectory() as folder:
            socket = f"{folder}/vhost"
            with self.switch_on(folder, f"net_vhost0,iface={socket}") as (switch, address, _):
                peer = self.explain(address, f"net_virtio_user0,path={socket},queue_size=1024")
                for _ in range(2):
                    said = subprocess.run(peer, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
                    self.assertIn("over dpdk", said.stdout, said.stderr)
                    killed = subprocess.Popen(peer, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    time.sleep(1.5)  # somewhere between its start and its end
                    killed.kill()
                    killed.wait()
                    self.assertIsNone(switch.poll())
                said = subprocess.run(peer, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
                self.assertIn("over dpdk", said.stdout, said.stderr)

    def refusal(self, net, *flags, through=()):
        run = subprocess.run(net.inside(0, *through, f"{BIN}/gatund", "--port", "0", "--metrics", "off", *flags),
                             env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def test_wrong_settings_are_named(self):
        with Net(1) as net:
            self.assertIn("the setting device is none", self.refusal(net, "--transport", "dpdk"))
            for device, words in (("eth0 10.77.0.101/24", "'eth0' is not"),
                                  ("net_af_packet0,iface=eth0", "needs this end's address"),
                                  ("net_af_packet0,iface=eth9 10.77.0.101/24", "no interface eth9"),
                                  ("net_af_packet0,iface=eth0 10.77.0.101/24 mtu=9000", "ip link set eth0 mtu 9000"),
                                  ("net_af_packet0,iface=eth0,framesz=1024,blocksz=4096,framecnt=64 10.77.0.101/24",
                                   "set framesz to 1580 or more"),
                                  ("0000:ff:1f.7 10.77.0.101/24", "dpdk-devbind.py -s"),
                                  ("net_af_packet0,iface=eth0 10.77.0.101/24 eal=--no-such", "--no-such")):
                with self.subTest(device=device):
                    self.assertIn(words, self.refusal(net, "--transport", "dpdk", "--device", device))

    def test_info_lists_what_the_setting_device_can_name(self):
        run = subprocess.run([f"{BIN}/gatun", "info", "-d"], env=environment(), capture_output=True, text=True,
                             timeout=PATIENCE_S)
        lines = [line.split(None, 1)[1] for line in run.stdout.splitlines() if line.startswith("  DPDK ")]
        self.assertRegex(lines[-1], "^virtual devices .* net_af_packet0,iface=NAME")
        cards = [name for name in os.listdir("/sys/bus/pci/devices") if
                 open(f"/sys/bus/pci/devices/{name}/class", encoding="ascii").read().startswith("0x0200")]
        self.assertEqual([line.split()[0] for line in lines[:-1]], sorted(cards))

    def test_auto_goes_on_without_a_device_that_cannot_be_opened(self):
        with Net(2) as net:
            with daemon(net, device="0000:ff:1f.7 10.77.0.101/24", transport="auto") as switch:
                self.assertIn("data goes by kernel sockets", switch.text(switch.err))
                self.assertIn("kernel sockets, since its device cannot be opened", switch.text(switch.err))
            with daemon(net, transport="auto") as switch:
                self.assertIn("dpdk on net_af_packet0", switch.text(switch.err))

    def test_auto_says_once_why_it_took_what_it_took(self):
        flags = ("-b", "1K", "-e", "1K", "-n", "2", "-w", "1")
        for device, words in ((True, "takes dpdk: the switch at 10.77.0.1:7117 shares no memory with this process, and the "
                                     "setting device names one"),
                              (False, "takes udp: the switch at 10.77.0.1:7117 shares no memory with this process, and DPDK "
                                      "has no device (the setting device is none)")):
            with self.subTest(device=device), Net(3) as net, daemon(net, device=device, transport="auto") as switch:
                others = "dpdk, since the setting device names" if device else "kernel sockets, since the setting device is"
                self.assertRegex(switch.text(switch.err), "ranks on this host go by shared memory, .*, others by " + others)
                extra = {} if device else {"GATUN_DEVICE": "none"}
                ranks = [rank(net, ["auto", "auto"], index, *flags, **extra) for index in range(2)]
                try:
                    ends = [one.wait() for one in ranks]
                finally:
                    for one in ranks:
                        one.__exit__()
                said = ends[0][2] + ends[1][2]
                self.assertIn(words, said)
                self.assertEqual(said.count("transport auto"), 1, said)

    def test_without_root_the_device_is_refused_by_name(self):
        with Net(1) as net:
            nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            self.assertIn("is not root", self.refusal(net, "--transport", "dpdk", "--device", net.device(0), through=nobody))


if __name__ == "__main__":
    why = dpdk_net.missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(verbosity=2)
