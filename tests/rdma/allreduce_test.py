"""gatund and ranks over RDMA, and what may go wrong: allreduce_test.py BIN. Runs in the emulated machine (machine.sh)."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import daemon_client  # noqa: E402
from daemon_client import Daemon, environment, until  # noqa: E402

daemon_client.BIN = sys.argv[1]
LIBRARY = f"{daemon_client.BIN}/../lib/libgatun.so"
RANK = pathlib.Path(__file__).with_name("allreduce_rank.py")
SWITCH = "10.77.0.1"
PORT = 7117
RANKS = 3
LIMIT_S = 60  # the machine is slow


def limited_to(kib):
    """Before a command: it may lock so much memory."""
    return ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "sh", "-c", f'ulimit -l {kib}; exec "$@"', "sh"]


def run(command):
    subprocess.run(command.split(), check=True)


def info():
    return subprocess.run([f"{daemon_client.BIN}/gatun", "info", "-d"], capture_output=True, text=True, check=True).stdout


def setUpModule():
    route_by_the_cable()


def route_by_the_cable():
    """Ranks find the switch from the other device's address, not from its own; the route is lost with the address."""
    run(f"ip route replace local {SWITCH} dev veth0 table local src 10.77.0.2")


def serve(*flags):
    return Daemon("--listen", SWITCH, "--port", str(PORT), "--transport", "verbs", *flags)


class Ranks:
    """Ranks that sum without end until stop()."""

    def __init__(self, mode="", prefix=(), **settings):
        self.folder = tempfile.TemporaryDirectory(prefix="ranks")
        self.processes = []
        for rank in range(RANKS):
            with open(f"{self.folder.name}/log.{rank}", "wb") as log:
                settings = {"GATUN_ADDRESS": SWITCH, "GATUN_TRANSPORT": "verbs", **settings}
                self.processes.append(subprocess.Popen(
                    [*prefix, sys.executable, str(RANK), LIBRARY, str(rank), str(RANKS), self.folder.name, mode],
                    stderr=log, env=environment(**settings)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()

    def log(self, rank):
        return pathlib.Path(f"{self.folder.name}/log.{rank}").read_text(encoding="utf-8")

    def state(self, rank):
        path = pathlib.Path(f"{self.folder.name}/state.{rank}")
        text = path.read_text(encoding="utf-8") if path.exists() else "-1  0 0 "
        number, way, failovers, copies, why = text.split(" ", 4)
        return int(number), way, int(failovers), float(copies), why

    def copies(self):
        """How often each byte of the tensor was copied in the latest sum, on all ranks."""
        return {self.state(rank)[3] for rank in range(RANKS)}

    def must_live(self):
        for rank, process in enumerate(self.processes):
            if process.poll() is not None:
                raise AssertionError(f"rank {rank} ended: {self.log(rank)}")

    def go_by(self, way, more=3):
        """Until every rank has summed some more, all of it that way."""
        begin = max(self.state(rank)[0] for rank in range(RANKS))

        def summed():
            self.must_live()
            states = [self.state(rank) for rank in range(RANKS)]
            return all(number >= begin + more and now == way for number, now, *_ in states)

        try:
            until(summed, f"sums by {way}", LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {[self.state(r) for r in range(RANKS)]}; {self.log(0)}") from None

    def stop(self):
        pathlib.Path(f"{self.folder.name}/stop").touch()
        for rank, process in enumerate(self.processes):
            if process.wait(timeout=LIMIT_S) != 0:
                raise AssertionError(f"rank {rank} failed: {self.log(rank)}")


class Sums(unittest.TestCase):
    def test_verbs__sums_and_leaves(self):
        with serve() as daemon, Ranks() as ranks:
            ranks.go_by("verbs")
            self.assertIn("(0 by shm, 3 by verbs)", daemon.log())
            ranks.stop()
            until(lambda: daemon.counters()["jobs"] == 0, "the job is gone", LIMIT_S)
            self.assertEqual(daemon.counters()["links"], 0)
            self.assertEqual(daemon.counters()["invalid"], 0)

    def test_verbs__large_chunks(self):
        with serve(), Ranks(GATUN_PAYLOAD="1M", GATUN_WINDOW="2") as ranks:
            ranks.go_by("verbs")
            ranks.stop()

    def test_verbs__beside_ranks_by_other_transports(self):
        with Daemon("--listen", SWITCH, "--port", str(PORT)) as daemon:
            self.assertIn("those with transport verbs by RDMA, others by kernel sockets", daemon.log())
            for transport in ("verbs", "shm", "udp"):
                with Ranks(GATUN_TRANSPORT=transport) as ranks:
                    ranks.go_by(transport)
                    ranks.stop()
            self.assertTrue(daemon.alive())


class Registered(unittest.TestCase):
    """The switch's side needs no copy at all; a rank's needs one each way, and none on the way out of registered memory."""

    def test_registered__is_sent_from_where_it_is(self):
        with serve() as daemon:
            for mode, copies in (("", 2), ("registered", 1)):
                with Ranks(mode) as ranks:
                    ranks.go_by("verbs")
                    self.assertEqual(ranks.copies(), {copies})
                    ranks.stop()
            self.assertEqual(daemon.counters()["invalid"], 0)

    def test_registered__again_when_the_switch_is_back(self):
        with serve() as daemon, Ranks("registered") as ranks:
            ranks.go_by("verbs")
            daemon.process.send_signal(signal.SIGKILL)
            ranks.go_by("ring")
            with serve():
                ranks.go_by("verbs")
                self.assertEqual(ranks.copies(), {1})
                ranks.stop()

    def test_registered__more_than_may_be_locked(self):
        with serve(), Ranks("too-much", prefix=limited_to(65536)) as ranks:
            ranks.go_by("verbs")
            self.assertEqual(ranks.copies(), {1})
            ranks.stop()
            for rank in range(RANKS):
                self.assertRegex(ranks.log(rank), "gatun_register: cannot register 1048576 KiB of memory on rxe1: .*; this "
                                 "process may lock 65536 KiB of memory and needs 10[56][0-9]{4} KiB: raise the limit")


class Info(unittest.TestCase):
    def test_info__lists_the_devices_with_their_addresses(self):
        listed = info()
        for address, device in ((SWITCH, "rxe0"), ("10.77.0.2", "rxe1")):
            line = next(line for line in listed.splitlines() if f" {device} (" in line)
            self.assertIn("port 1 active, RoCE MTU 4096", line)
            self.assertIn(f"] {address} RoCE v2 on port 1", line)
            self.assertIn("no dma-buf for GPU memory", line)  # soft-RoCE of this kernel


class Doctor(unittest.TestCase):
    def doctor(self, *prefix, address=SWITCH):
        """The findings about verbs as {name: (level, text, fix)}, and the exit code."""
        command = [*prefix, f"{daemon_client.BIN}/gatun", "doctor", "--json", "--transport", "verbs", "--address", address]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=2 * LIMIT_S)
        section = next(section for section in json.loads(done.stdout)["sections"] if section["name"] == "verbs")
        return {f["name"]: (f["level"], f["text"], f["fix"]) for f in section["findings"]}, done.returncode

    def test_doctor__all_is_well(self):
        with serve():
            found, code = self.doctor()
        self.assertEqual((code, {level for level, _, _ in found.values()}), (0, {"ok"}), found)
        self.assertIn("10.77.0.2 is a RoCE v2 address of rxe1", found["address"][1])
        self.assertIn("4096 bytes in a RoCE packet, the MTU of veth1 being 4200", found["MTU"][1])
        self.assertIn("pass both ways", found["data path"][1])

    def test_doctor__small_mtu(self):
        run("ip link set veth1 mtu 1500")
        try:
            level, text, fix = self.doctor()[0]["MTU"]
            self.assertEqual((level, fix.split(" (")[0]), ("warn", "ip link set veth1 mtu 4200"))
            self.assertIn("1024 bytes in a RoCE packet, the MTU of veth1 being 1500", text)
        finally:
            run("ip link set veth1 mtu 4200")

    def test_doctor__address_of_no_device(self):
        found, code = self.doctor(address="127.0.0.1")
        self.assertEqual(code, 1)
        level, text, _ = found["address"]
        self.assertEqual(level, "missing")
        for device in ("rxe0 (", "rxe1 ("):  # the whole table
            self.assertIn(device, text)

    def test_doctor__low_memlock(self):
        found, code = self.doctor(*limited_to(64))
        self.assertEqual((code, found["locked memory"][0]), (1, "missing"))
        self.assertIn("at most 64 KiB", found["locked memory"][1])
        with serve():
            self.assertNotIn("data path", self.doctor(*limited_to(64))[0])


class Faults(unittest.TestCase):
    def test_rank__killed_is_named_and_the_daemon_serves_on(self):
        with serve() as daemon:
            with Ranks() as ranks:
                ranks.go_by("verbs")
                ranks.processes[1].kill()
                for rank in (0, 2):
                    self.assertNotEqual(ranks.processes[rank].wait(timeout=LIMIT_S), 0)
                    self.assertIn("rank 1", ranks.log(rank))
            with Ranks() as ranks:
                ranks.go_by("verbs")
                ranks.stop()
            self.assertTrue(daemon.alive())

    def test_daemon__killed_and_back(self):
        with serve() as daemon, Ranks() as ranks:
            ranks.go_by("verbs")
            daemon.process.send_signal(signal.SIGKILL)
            ranks.go_by("ring")
            with serve():
                ranks.go_by("verbs")
                ranks.stop()

    def test_port__down_and_up(self):
        with serve() as daemon, Ranks() as ranks:
            ranks.go_by("verbs")
            run("ip link set veth0 down")
            try:
                ranks.go_by("ring")
            finally:
                run("ip link set veth0 up")
                route_by_the_cable()
            ranks.go_by("verbs")
            ranks.stop()
            self.assertTrue(daemon.alive())

    def test_gid__at_another_place_in_the_table(self):
        with serve():
            run(f"ip addr del {SWITCH}/24 dev veth0")
            run("ip addr add 10.77.9.9/24 dev veth0")
            run(f"ip addr add {SWITCH}/24 dev veth0")
            route_by_the_cable()
            try:
                with Ranks() as ranks:
                    ranks.go_by("verbs")
                    ranks.stop()
            finally:
                run("ip addr del 10.77.9.9/24 dev veth0")

    # Not under a running job: this kernel's soft-RoCE then tries for ever to send frames that no longer fit, and the
    # machine's only processor does nothing else.
    def test_mtu__smaller_at_one_end(self):
        with serve() as daemon:
            run("ip link set veth1 mtu 1500")
            try:
                for mtu in (1024, 4096):
                    self.assertIn(f"RoCE MTU {mtu}", info())
                with Ranks() as ranks:
                    ranks.go_by("verbs")
                    ranks.stop()
            finally:
                run("ip link set veth1 mtu 4200")
            self.assertTrue(daemon.alive())

    def test_memlock__low_limit_is_named_and_the_ranks_go_on(self):
        with serve(), Ranks(prefix=limited_to(64)) as ranks:
            ranks.go_by("ring")
            self.assertTrue(any("may lock 64 KiB of memory" in ranks.log(rank) for rank in range(RANKS)), ranks.log(0))
            ranks.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
