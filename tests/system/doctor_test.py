"""gatun doctor on hosts and paths where something is wrong, in network namespaces of the test's own.

Usage: doctor_test.py BIN [unittest arguments]    BIN is the folder with gatund and gatun
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import daemon_client
import dpdk_net
from daemon_client import environment, until
from dpdk_net import Net, kernel_ip

BIN = daemon_client.BIN = sys.argv.pop(1)
LIMIT_S = 60  # of one run: everything in it is bounded, on a slow machine too
PORT = 7117


class Switch:
    """gatund in node 0 of a net. Ended by its process id."""

    def __init__(self, net, *flags):
        self.log = tempfile.TemporaryFile("w+")
        words = [f"{BIN}/gatund", "--listen", kernel_ip(0), "--metrics", "off", *flags]
        self.process = subprocess.Popen(net.inside(0, *words), env=environment(), stderr=self.log)
        try:
            until(lambda: " serves " in self.text() or self.process.poll() is not None, "gatund serves")
        except BaseException:
            self.__exit__()
            raise

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Said:
    """What one run of the doctor said."""

    def __init__(self, command, **settings):
        run = subprocess.run([*command, "--json"], env=environment(**settings), capture_output=True, text=True,
                             timeout=LIMIT_S)
        self.code, self.stderr = run.returncode, run.stderr
        self.json = json.loads(run.stdout)
        self.sections = {section["name"]: section for section in self.json["sections"]}

    def finding(self, section, name):
        for finding in self.sections[section]["findings"]:
            if finding["name"] == name:
                return finding
        raise AssertionError(f"{section} says nothing of {name}: {json.dumps(self.sections[section], indent=2)}")


class Case(unittest.TestCase):
    def must(self, said, section, name, level, text="", fix=""):
        finding = said.finding(section, name)
        self.assertEqual(finding["level"], level, finding)
        self.assertIn(text, finding["text"])
        self.assertIn(fix, finding["fix"])
        if level == "ok":
            self.assertEqual(finding["fix"], "", finding)
        elif name not in ("data path", "mesh", "refusal"):  # whose sentences say the fix
            self.assertNotEqual(finding["fix"], "", finding)


def doctor(*flags, through=(), **settings):
    return Said([*through, f"{BIN}/gatun", "doctor", *flags], **settings)


def free_port():
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        return tcp.getsockname()[1]


class OnThisHost(Case):
    def test_all_is_well(self):
        with daemon_client.Daemon() as daemon:
            said = doctor(GATUN_ADDRESS=f"127.0.0.1:{daemon.port}")
            self.assertEqual(said.code, 0, said.json)
            self.must(said, "switch", "control", "ok", f"127.0.0.1:{daemon.port}")
            self.must(said, "switch", "version", "ok", "control protocol 2")
            for transport in ("shm", "udp"):
                self.must(said, transport, "data path", "ok", "pass both ways")
                self.assertTrue(said.sections[transport]["ready"])
            self.assertTrue(said.sections["shm"]["needed"])
            self.assertFalse(said.sections["udp"]["needed"])
            self.must(said, "udp", "ECN", "ok")
            if any(finding["name"] == "Gloo" for finding in said.sections["fallback"]["findings"]):
                self.must(said, "fallback", "Gloo", "warn", "exchange directly", "apt-get install libgloo-dev")
            else:
                self.must(said, "fallback", "mesh", "ok", "ring")
            self.assertIn("shm and udp are ready", said.json["summary"])
            self.assertTrue(daemon.alive())

    def test_people_read_text_with_the_summary_last(self):
        address = f"127.0.0.1:{free_port()}"
        run = subprocess.run([f"{BIN}/gatun", "doctor", "--transport", "udp", "--address", address], env=environment(),
                             capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(run.returncode, 1)
        lines = run.stdout.splitlines()
        at = lines.index("switch")
        self.assertRegex(lines[at + 1], rf"^  missing  control +no gatund: {address}: Connection refused$")
        self.assertRegex(lines[at + 2], rf"^ +fix: on its host: gatund --listen 127.0.0.1 --port {address[10:]};")
        self.assertRegex(lines[-1], r"^1 problem, (no|\d+) warnings?: udp waits for the switch$")
        self.assertNotIn("dpdk", run.stdout)

    def test_what_is_not_here_is_a_problem_only_if_it_is_asked_for(self):
        with daemon_client.Daemon() as daemon:
            address = f"127.0.0.1:{daemon.port}"
            for transport in ("verbs", "dpdk"):
                said = doctor("--transport", transport, "--address", address)
                self.assertEqual(said.code, 1, said.json)
                self.assertTrue(said.sections[transport]["needed"])
                self.assertEqual(said.sections[transport]["findings"][0]["level"], "missing")
                self.assertNotIn("udp", said.sections)
            self.must(said, "dpdk", "device", "missing", "names none", "GATUN_DEVICE=")

    def test_without_the_modules(self):
        with daemon_client.Daemon() as daemon, tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{BIN}/gatun", folder)
            said = Said([f"{folder}/gatun", "doctor"], GATUN_ADDRESS=f"127.0.0.1:{daemon.port}")
            self.assertEqual(said.code, 0, said.json)
            self.must(said, "verbs", "module", "missing", "libgatun_verbs.so", "apt-get install libibverbs-dev")
            self.must(said, "dpdk", "module", "missing", "libgatun_dpdk.so", "apt-get install libdpdk-dev")

    def test_a_card_that_is_not_there(self):
        said = doctor("--transport", "dpdk", "--device", "0000:ff:1f.7 10.77.0.101/24", "--address", "127.0.0.1:1")
        self.must(said, "dpdk", "device", "missing", "no PCI device 0000:ff:1f.7", "lspci")

    def test_a_stopped_switch_is_told_from_none(self):
        with daemon_client.Daemon() as daemon:
            daemon.process.send_signal(signal.SIGSTOP)
            said = doctor(GATUN_ADDRESS=f"127.0.0.1:{daemon.port}")
            self.assertEqual(said.code, 1)
            self.must(said, "switch", "control", "missing", "says nothing for 2s", "kill -CONT")
            self.assertFalse(said.sections["udp"]["ready"])

    def test_another_version(self):
        sentence = daemon_client.text("the peer speaks control protocol 2, this is 9")
        refused = daemon_client.frame("Refused", sentence, version=9)
        for name, answer, words in (
            ("version", struct.pack(">IBB", 4, 9, 4) + b"xx", "speaks control protocol 9, this is 2"),
            ("refusal", refused, "speaks control protocol 2, this is 9"),
            ("version", b"HTTP/1.0 400 Bad Request\r\n\r\n", "does not speak Gatun's control protocol"),
            ("control", b"", "closes the connection without a word"),
        ):
            with self.subTest(answer=answer), socket.create_server(("127.0.0.1", 0)) as server:
                def serve(answer=answer, server=server):
                    peer = server.accept()[0]
                    with peer:
                        peer.recv(65536)
                        peer.sendall(answer)
                thread = threading.Thread(target=serve)
                thread.start()
                said = doctor("--transport", "udp", "--address", "127.0.0.1:%d" % server.getsockname()[1])
                thread.join()
                self.assertEqual(said.code, 1)
                self.must(said, "switch", name, "missing", words)

    def test_a_switch_that_stops_after_its_first_word(self):
        waiting = daemon_client.frame("Waiting", daemon_client.text("rank 1 of 2"))
        with socket.create_server(("127.0.0.1", 0)) as server:
            peers = []

            def serve():
                with contextlib.suppress(OSError):  # the server's end
                    while True:
                        peers.append(server.accept()[0])
                        peers[-1].sendall(waiting)
            thread = threading.Thread(target=serve)
            thread.start()
            try:
                said = doctor("--transport", "udp", "--address", "127.0.0.1:%d" % server.getsockname()[1])
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()
                for peer in peers:
                    peer.close()
            self.assertEqual(said.code, 1)
            self.must(said, "udp", "data path", "missing", "did not start in time")

    def test_a_switch_that_refuses_such_jobs(self):
        with daemon_client.Daemon("--transport", "udp") as daemon:
            said = doctor("--transport", "verbs", GATUN_ADDRESS=f"127.0.0.1:{daemon.port}")
        self.assertEqual(said.code, 1)
        self.must(said, "switch", "refusal", "missing", "refuses: ")

    def test_a_switch_that_is_full(self):
        with daemon_client.Daemon("--jobs", "1") as daemon:
            ranks = daemon_client.run_job(daemon, 1)
            said = doctor(GATUN_ADDRESS=f"127.0.0.1:{daemon.port}")
            for rank in ranks:
                rank.close()
        self.assertEqual(said.code, 1)
        self.must(said, "udp", "data path", "missing", "its maximum of 1 jobs")

    def test_settings(self):
        said = doctor(GATUN_ADDRESS="127.0.0.1:1", GATUN_ADRESS="x")
        self.must(said, "host", "settings", "warn", "GATUN_ADDRESS")
        said = doctor(GATUN_ADDRESS="no-such-host.invalid:7117")
        self.must(said, "switch", "control", "missing", "no-such-host.invalid", "GATUN_ADDRESS=")
        for flags, words in ((("--config", "/nowhere"), "/nowhere"), (("--what",), "'--what'"),
                             (("--transport", "tcp"), "it must be auto, shm, udp, verbs or dpdk")):
            run = subprocess.run([f"{BIN}/gatun", "doctor", *flags], env=environment(), capture_output=True, text=True,
                                 timeout=LIMIT_S)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)

    def test_more_ranks_than_cores(self):
        said = doctor(GATUN_ADDRESS="127.0.0.1:1", LOCAL_WORLD_SIZE="100000", GATUN_BUSY_POLL="50us")
        self.must(said, "host", "cores", "warn", "100000 ranks", "GATUN_BUSY_POLL=0")

    def test_without_fallback(self):
        said = doctor("--fallback", "off", "--address", "127.0.0.1:1")
        self.must(said, "fallback", "mesh", "ok", "end with an error")
        self.must(said, "fallback", "GPU", "ok")


@unittest.skipIf(os.geteuid() != 0, "limits are changed as root")
class WithoutPrivileges(Case):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def test_locked_memory(self):
        low = ["prlimit", "--memlock=65536:65536"]
        flags = ("--transport", "verbs", "--address", "127.0.0.1:1")
        said = doctor(*flags, through=[*low, *self.nobody])
        self.must(said, "verbs", "locked memory", "missing", "at most 64 KiB", "ulimit -l unlimited")
        self.must(doctor(*flags, through=low), "verbs", "locked memory", "ok", "no limit")  # root's

    def test_small_socket_buffers(self):
        with open("/proc/sys/net/core/rmem_max", encoding="ascii") as file:
            limit = int(file.read())
        said = doctor("--transport", "udp", "--address", "127.0.0.1:1", through=self.nobody)
        if limit < 16 << 20:
            self.must(said, "udp", "buffers", "warn", "of 16M", "sysctl -w net.core.rmem_max=16777216")
        else:
            self.must(said, "udp", "buffers", "ok")


class OnTheWay(Case):
    def setUp(self):
        self.net = self.enterContext(Net(2))
        self.address = f"{kernel_ip(0)}:{PORT}"

    def doctor(self, *flags):
        return doctor(*flags, "--address", self.address, through=self.net.inside(1))

    def filter(self, hook, priority, *rule):
        """In the switch's node, on what comes in."""
        nft = self.net.inside(0, "nft")
        dpdk_net.run(*nft, "add", "table", "inet", "test")
        dpdk_net.run(*nft, "add", "chain", "inet", "test", hook,
                     f"{{ type filter hook {hook} priority {priority}; }}")
        dpdk_net.run(*nft, "add", "rule", "inet", "test", hook, *rule)

    def test_all_is_well(self):
        with Switch(self.net):
            said = self.doctor()
            self.assertEqual(said.code, 0, said.json)
            self.must(said, "udp", "data path", "ok", f"{kernel_ip(1)} to {self.address}: packets of 1468 bytes")
            self.must(said, "udp", "ECN", "ok")
            self.must(said, "shm", "switch", "missing", "shares no memory", "run gatund on this host")
            self.must(said, "fallback", "rendezvous", "warn", "127.0.0.1:7119", "GATUN_RENDEZVOUS=")
            self.assertTrue(said.sections["udp"]["needed"])

    def test_udp_does_not_get_through(self):
        self.filter("input", "0", "udp", "dport", str(PORT), "drop")
        with Switch(self.net):
            said = self.doctor("--transport", "udp")
            self.assertEqual(said.code, 1)
            self.must(said, "switch", "control", "ok")
            self.must(said, "udp", "data path", "missing", "although the control channel works",
                      f"iptables -I INPUT -p udp --dport {PORT} -j ACCEPT")

    def test_tcp_does_not_get_through(self):
        self.filter("input", "0", "tcp", "dport", str(PORT), "drop")
        with Switch(self.net):
            said = self.doctor("--transport", "udp")
            self.assertEqual(said.code, 1)
            self.must(said, "switch", "control", "missing", "timed out",
                      f"iptables -I INPUT -p tcp --dport {PORT} -j ACCEPT")

    def test_a_smaller_mtu_on_the_way(self):
        with Switch(self.net):
            # What passes then is up to 1222 bytes, and 18 that the kernel allows for tags: a payload of 1152, not of 1216.
            dpdk_net.run("ip", "-n", self.net.name("hub"), "link", "set", "port0", "mtu", "1222")
            said = self.doctor("--transport", "udp")
            self.assertEqual(said.code, 1)
            self.must(said, "udp", "MTU", "missing", "packets of 1212 bytes pass, of 1468 do not, and eth0 (MTU 1500)",
                      "ip link set eth0 mtu 1212")
            self.must(said, "udp", "MTU", "missing", fix="GATUN_PAYLOAD=1152")
            for number in ("1212", "1152"):  # the fixes are right
                if number == "1212":
                    dpdk_net.run("ip", "-n", self.net.name(1), "link", "set", "eth0", "mtu", number)
                    flags = ()
                else:
                    dpdk_net.run("ip", "-n", self.net.name(1), "link", "set", "eth0", "mtu", "1500")
                    flags = ("--payload", number)
                self.must(self.doctor("--transport", "udp", *flags), "udp", "data path", "ok", "1212 bytes")

    def test_marks_are_cleared_on_the_way(self):
        self.filter("prerouting", "-150", "ip", "ecn", "set", "not-ect")
        with Switch(self.net):
            said = self.doctor("--transport", "udp")
            self.assertEqual(said.code, 0, said.json)
            self.must(said, "udp", "data path", "ok")
            self.must(said, "udp", "ECN", "warn", "cleared on the way", "RFC 6040")

    def test_marked_packets_are_dropped_on_the_way(self):
        self.filter("input", "0", "ip", "ecn", "ce", "drop")
        with Switch(self.net):
            said = self.doctor("--transport", "udp")
            self.assertEqual(said.code, 1)
            self.must(said, "udp", "data path", "ok")
            self.must(said, "udp", "ECN", "missing", "dropped on the way", "RFC 6040")

    def test_no_route(self):
        with Switch(self.net):
            said = doctor("--transport", "udp", "--address", "192.0.2.1", through=self.net.inside(1))
            self.assertEqual(said.code, 1)
            self.must(said, "switch", "control", "missing", "Network is unreachable")
            self.must(said, "udp", "route", "missing", "192.0.2.1", "ip route get")

    def test_dpdk(self):
        # The thread sanitizer does not see into DPDK, which is built without it: what it says there is no verdict.
        options = os.environ.get("TSAN_OPTIONS", "") + " exitcode=0"
        with Switch(self.net), mock.patch.dict(os.environ, TSAN_OPTIONS=options):
            said = self.doctor("--transport", "dpdk", "--device", self.net.device(1))
            if said.finding("dpdk", "module")["level"] != "ok":
                self.skipTest("built without DPDK")
            self.assertEqual(said.code, 0, said.json)
            self.must(said, "dpdk", "data path", "ok")
            said = self.doctor("--transport", "dpdk", "--device", self.net.device(1).replace("eth0", "eth9"))
            self.assertEqual(said.code, 1)
            self.must(said, "dpdk", "data path", "missing", "no interface eth9")


if __name__ == "__main__":
    why = dpdk_net.missing() or ("" if shutil.which("nft") else "there is no 'nft' (package nftables)")
    if why:
        print(f"skipped: {why}")
        OnTheWay.__unittest_skip__, OnTheWay.__unittest_skip_why__ = True, why
    unittest.main(verbosity=2)
