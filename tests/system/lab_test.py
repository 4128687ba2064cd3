#!/usr/bin/env python3
"""gatun lab: real programs in namespaces, and nothing left behind, whatever ends the tool.

Usage: lab_test.py BIN    folder of gatun, gatund and gatun-lab
"""

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BIN = os.path.abspath(sys.argv.pop(1))
LAB = os.path.join(BIN, "gatun-lab")
HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES = os.path.join(HERE, "..", "..", "experiments", "lab")
sys.path.insert(0, SAMPLES)
import marker  # noqa: E402
import network  # noqa: E402
import topology  # noqa: E402

PERF = [os.path.join(BIN, "gatun"), "perf"]


def no_marks():
    """Why the kernel cannot set ECN marks for a lab; "" if it can."""
    try:
        os.close(marker.bpf(marker.MAP_CREATE, struct.pack("<IIII", marker.ARRAY, 4, 8, 1)))
    except topology.Bad as why:
        return str(why)
    return ""


def no_faults():
    """Why nftables cannot put faults on a link; "" if it can."""
    table = 'table netdev t { chain c { type filter hook egress device "lo" priority 0; } }'
    tried = subprocess.run(["unshare", "-n", "nft", table], capture_output=True, text=True)
    return f"this kernel has no egress hook of nftables: {tried.stderr.strip()[:200]}" if tried.returncode else ""


WHY_NOT = network.missing()
NO_MARKS, NO_FAULTS = WHY_NOT or no_marks(), WHY_NOT or no_faults()


def lab(*arguments, check=True, **options):
    done = subprocess.run([LAB, *arguments], capture_output=True, text=True, timeout=100, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"gatun lab {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}")
    return done


def sample(name):
    return os.path.join(SAMPLES, name)


def own_id(word):
    return f"test{os.getpid()}-{word}"


def left_of(name):
    """What there is of a lab: namespaces, processes in them, files, mounts; and devices outside, where none may be."""
    with open("/proc/mounts", encoding="utf-8") as file:
        mounts = [line.split()[1] for line in file]
    found = [*network.namespaces(name), *network.processes(name), *(m for m in mounts if f"gatun-lab/{name}/" in m)]
    for folder in ("/run/gatun-lab", "/etc/netns"):
        with contextlib.suppress(FileNotFoundError):
            found += [entry for entry in os.listdir(folder) if name in entry]
    return found


def devices():
    return set(os.listdir("/sys/class/net"))


class Files(unittest.TestCase):
    def complaint(self, text):
        with self.assertRaises(topology.Bad) as caught:
            topology.parse("f.toml", text)
        return str(caught.exception)

    def test_bad(self):
        good = "[switch.s0]\nhosts = 2\n"
        for text, line, words in (
            ("[switch.s0\nhosts = 2\n", 1, "not TOML"),
            ("", 1, r"add \[switch.s0\]"),
            ("\n[lnks]\n" + good, 2, "did you mean links"),
            ('[links]\nrate = "fast"\n' + good, 2, 'such as "200mbit"'),
            ("[links]\nrte = 1\n" + good, 2, "did you mean rate"),
            ("[links]\nloss = 2\n" + good, 2, "share of packets"),
            ("[links]\nmtu = 10\n" + good, 2, "from 576"),
            ("[links]\nqueue_ms = true\n" + good, 2, "from 0 to 1000"),
            ("[links]\nmark = 1\n" + good, 2, "true or false"),
            ("[switch.s0]\n\nhosts = -1\n", 3, "from 0 to 200"),
            ("[switch.s0]\nhosts = 0\n", 1, "no switch has hosts"),
            ("[switch.h1]\nhosts = 1\n", 1, "a name has"),
            ("[switch.s0]\nhosts = 1\ngatund = 7\n", 3, "settings such as"),
            (good + "[switch.s1]\n", 3, "no way from s0 to s1"),
            (good + '[[link]]\nends = ["s0", "s9"]\n', 4, "there is no 's9'"),
            (good + '[[link]]\nends = ["s0", "h1"]\n\n[[link]]\nends = ["h0", "h1"]\n', 7, "its own switch only"),
            (good + '[[link]]\nends = ["s0", "h1"]\nrate = 5\n', 5, "rate is '5'"),
        ):
            with self.subTest(text):
                self.assertRegex(self.complaint(text), rf"^f\.toml:{line}: .*{words}")

    def test_links(self):
        made = topology.read(sample("leaf_spine.toml"))
        self.assertEqual([hop.node for hop in made.next_hops("leaf0", "leaf1")], ["spine0", "spine1"])
        self.assertEqual(sorted(link.kind.rate for link in made.links), [10**8] + [5 * 10**8] * 7)
        self.assertEqual(made.gatund_of(made.hosts[0]).name, "spine0")

    def test_no_file(self):
        done = lab("up", "/nowhere/x.toml", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^gatun lab: /nowhere/x.toml: No such file or directory; name a topology file")

    @unittest.skipIf(os.geteuid() != 0, "only root can become another user")
    def test_no_root(self):
        done = lab("up", sample("star.toml"), check=False, user=65534)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^gatun lab: network namespaces need root: .* sudo$")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Labs(unittest.TestCase):
    def setUp(self):
        self.made, self.devices = [], devices()

    def tearDown(self):
        for name in self.made:
            lab("down", name)
            self.assertEqual(left_of(name), [])
        self.assertEqual(devices() - self.devices, set())

    def up(self, word, file, *arguments):
        name = own_id(word)
        self.made.append(name)
        lab("up", sample(file), "--id", name, *arguments)
        return name

    def test_run(self):
        name = self.up("run", "star.toml", "--set", "mtu=9000", "--set", "rate=500mbit")
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "perf.json")
            done = lab("run", "--id", name, "all", "--", *PERF, "-b", "1M", "-e", "1M", "-n", "3", "-J", report)
            with open(report, encoding="utf-8") as file:
                result = json.load(file)
        self.assertNotIn("warning", done.stdout + done.stderr)
        self.assertEqual([rank["hostname"] for rank in result["ranks"]], ["h0", "h1", "h2", "h3"])
        self.assertEqual(result["switch"]["transport"], "udp")
        self.assertGreater(result["switch"]["payload_bytes"], 8000)
        self.assertEqual(result["out_of_bounds"], {"count": 0, "okay": True})
        # The links are what is slow, whatever else this machine does: no faster than their rate.
        self.assertLess(result["results"][0]["in_place"]["alg_bw"], 0.5 / 8 * 1.25)

    def test_run_ends(self):
        name = self.up("ends", "star.toml")
        done = lab(
            "run", "--id", name, "h1,h3", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE; exit $((3 * RANK))", check=False
        )
        self.assertEqual(sorted(done.stdout.splitlines()), ["h1 | 0 of 2", "h3 | 1 of 2"])
        self.assertEqual(done.returncode, 3)
        done = lab("run", "--id", name, "--timeout", "0.5", "all", "--", "sleep", "60", check=False)
        self.assertRegex(done.stderr, "after 0.5 s not all of h0, h1, h2, h3 had ended")
        self.assertEqual(len(network.processes(name)), 1)  # gatund
        done = lab("run", "--id", name, "h9", "--", "true", check=False)
        self.assertRegex(done.stderr, "there is no host 'h9'")
        self.assertRegex(lab("up", sample("star.toml"), "--id", name, check=False).stderr, f"is up.* gatun lab down {name}")

    @unittest.skipIf(NO_MARKS, NO_MARKS)
    def test_marks(self):
        name = self.up("marks", "star.toml", "--set", "rate=50mbit", "--set", "mark=true")
        lab("run", "--id", name, "all", "--", *PERF, "-b", "4M", "-e", "4M", "-n", "1", "-w", "0")
        text = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:7118/metrics').read().decode())"
        inside = ["ip", "netns", "exec", network.namespace(name, "s0"), sys.executable, "-c", text]
        metrics = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=30).stdout
        self.assertRegex(metrics, r'gatun_congested_packets_total\{lane="0"\} [1-9]')

    @unittest.skipIf(NO_FAULTS, NO_FAULTS)
    def test_faults(self):
        name = self.up("faults", "faulty.toml")
        done = lab("run", "--id", name, "all", "--", *PERF, "-b", "1M", "-e", "1M", "-n", "3")
        self.assertRegex(done.stdout, "Out of bounds values : 0 OK")
        rules = subprocess.run(
            ["ip", "netns", "exec", network.namespace(name, "h0"), "nft", "list", "ruleset"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        for fault in ("drop", "dup to", "fwd to"):
            self.assertRegex(rules, rf"counter packets [1-9]\d* bytes \d+ {fault}")

    def test_switches(self):
        name = self.up("switches", "leaf_spine.toml")
        done = lab("run", "--id", name, "all", "--", *PERF, "-b", "256K", "-e", "256K", "-n", "3")
        self.assertRegex(done.stdout, "Out of bounds values : 0 OK")

    def test_two(self):
        one, other = self.up("one", "star.toml"), self.up("other", "star.toml", "--set", "rate=100mbit")
        for name in (one, other):
            self.assertRegex(lab("run", "--id", name, "h0", "--", "cat", "/proc/sys/kernel/hostname").stdout, "^h0$")
        lab("down", one)
        self.assertEqual(left_of(one), [])
        lab("run", "--id", other, "h0,h1", "--", *PERF, "-b", "64K", "-e", "64K", "-n", "1")
        self.assertIn(other, [entry["id"] for entry in json.loads(lab("status", "--json").stdout)])

    def test_killed_up(self):
        """Killed at several points of its work, down clears what is there."""
        for step, word in enumerate(("a", "b", "c", "d")):
            name = own_id(f"killed-{word}")
            self.made.append(name)
            process = subprocess.Popen(
                [LAB, "up", sample("star.toml"), "--id", name, *([] if NO_MARKS else ["--set", "mark=true"])],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            end = time.monotonic() + 30
            while len(network.namespaces(name)) <= step and process.poll() is None and time.monotonic() < end:
                pass
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.assertNotEqual(left_of(name), [])
            lab("down", name)
            self.assertEqual(left_of(name), [])

    def test_killed_run(self):
        name = self.up("killed-run", "star.toml")
        process = subprocess.Popen([LAB, "run", "--id", name, "all", "--", "sleep", "1000"], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while len(network.processes(name)) < 5 and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertEqual(len(network.processes(name)), 5)
        lab("down", name)
        self.assertEqual(left_of(name), [])

    def test_gatund_refuses(self):
        name = own_id("refuses")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('[switch.s0]\nhosts = 1\ngatund = { window = "3" }\n')
            file.flush()
            done = lab("up", file.name, "--id", name, check=False)
        self.assertRegex(done.stderr, re.escape("gatund of s0 does not serve: ") + ".*window.*power of two")
        self.assertEqual(left_of(name), [])


if __name__ == "__main__":
    for tests, why in (("Labs", WHY_NOT), ("Labs.test_marks", NO_MARKS), ("Labs.test_faults", NO_FAULTS)):
        if why:
            print(f"[skipped] {tests}: {why}")
    unittest.main()
