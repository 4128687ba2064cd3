"""gatund as people and hostile peers meet it: start and stop, bad input, lost ranks, refusals, counts that come back.

Usage: daemon_test.py BIN [unittest arguments]    BIN is the folder with gatund
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import daemon_client as client
from daemon_client import Daemon, Rank, frame, join_frame, packet, run_job, sum_bytes, text, until


def gatund(*arguments, **extra):
    return subprocess.run([f"{client.BIN}/gatund", *arguments], env=client.environment(**extra), capture_output=True,
                          text=True, timeout=client.PATIENCE_S)


class Command(unittest.TestCase):
    def test_help_version_config(self):
        shown = gatund("--help")
        self.assertEqual(shown.returncode, 0)
        for word in ("--port ", "--listen ", "--memory ", "--port-file"):
            self.assertIn(word, shown.stdout)
        self.assertRegex(gatund("--version").stdout, r"^gatund \d+\.\d+\.\d+\n$")
        self.assertIn('# memory = "256M"', gatund("--print-config").stdout)

    def test_bad_arguments(self):
        for arguments, words in (
            (["--prot", "1"], ["'--prot'", "--port"]),
            (["what"], ["'what'", "--help"]),
            (["--lanes", "0"], ["--lanes is '0'; it must be a number from 1 to 64"]),
            (["--port"], ["--port needs a value"]),
            (["--memory=lots"], ["--memory is 'lots'", "256M"]),
            (["--config", "/nowhere"], ["/nowhere", "No such file"]),
            (["--port-file", ""], ["--port-file needs a path"]),
        ):
            run = gatund(*arguments)
            self.assertEqual(run.returncode, 2, arguments)
            for word in words:
                self.assertIn(word, run.stderr)

    def test_bad_file_and_environment(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('port = 7118\nlanse = 2\n')
            file.flush()
            run = gatund("--config", file.name)
            self.assertEqual(run.returncode, 2)
            self.assertIn(f"{file.name}:2: unknown setting 'lanse'; the nearest is 'lanes'", run.stderr)
        run = gatund(GATUN_PORT="many")
        self.assertEqual(run.returncode, 2)
        self.assertIn("GATUN_PORT is 'many'", run.stderr)

    def test_address_that_is_not_here(self):
        run = gatund("--port", "0", "--listen", "192.0.2.1")
        self.assertEqual(run.returncode, 1)
        self.assertIn("192.0.2.1", run.stderr)
        self.assertIn("listen", run.stderr)

    def test_what_cannot_be_served(self):
        for arguments, words in (
            (["--lanes", "64", "--port", "65500"], ["65500", "64 lanes", "--port"]),
            (["--port", "0", "--port-file", "/nowhere/port"], ["/nowhere/port", "No such file"]),
        ):
            run = gatund(*arguments)
            self.assertEqual(run.returncode, 1, arguments)
            for word in words:
                self.assertIn(word, run.stderr)

    def test_port_in_use(self):
        with Daemon() as daemon:
            run = gatund("--port", str(daemon.port))
            self.assertEqual(run.returncode, 1)
            self.assertIn(f":{daemon.port}: the port is in use", run.stderr)
            self.assertIn("--port", run.stderr)
            self.assertTrue(daemon.alive())

    def test_udp_port_in_use(self):
        address = "127.0.0.3"  # of this test's own: nobody else takes the same port for TCP there
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind((address, 0))
            port = udp.getsockname()[1]
            run = gatund("--listen", address, "--port", str(port))
            self.assertEqual(run.returncode, 1)
            self.assertIn(f"UDP {address}:{port}", run.stderr)

    def test_start_line_says_where_and_how_much(self):
        with Daemon("--memory", "64M", "--lanes", "2", "--log", "error") as daemon:
            line = rf"gatund: \d+\.\d+\.\d+ serves 127\.0\.0\.1:{daemon.port}.*2 lanes.*64M of memory"
            self.assertRegex(daemon.log(), line)

    def test_unknown_variable_is_only_a_warning(self):
        with Daemon(GATUN_PROT="1") as daemon:
            self.assertIn("GATUN_PROT", daemon.log())
            self.assertIn("GATUN_PORT", daemon.log())


class Stop(unittest.TestCase):
    def test_every_stopping_signal_ends_in_order(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with Daemon() as daemon:
                self.assertEqual(daemon.terminate(number), 0)
                self.assertIn("gatund: stopped", daemon.log())

    def test_jobs_are_told(self):
        with Daemon() as daemon:
            running = run_job(daemon, 2)
            waiting = Rank(daemon).join(0, 2, job="other")
            until(lambda: daemon.counters()["connections"] == 3, "all are connected")
            daemon.process.send_signal(signal.SIGTERM)
            for rank in (*running, waiting):
                self.assertIn("is stopping", rank.sentence("Closing"))
                self.assertTrue(rank.ended())
                rank.close()
            self.assertEqual(daemon.process.wait(timeout=client.PATIENCE_S), 0)

    def test_a_peer_that_does_not_close_cannot_hold_it(self):
        with Daemon() as daemon:
            ranks = run_job(daemon, 1)
            self.assertEqual(daemon.terminate(), 0)
            ranks[0].close()


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--jobs", "2", "--memory", "16M")

    @classmethod
    def tearDownClass(cls):
        cls.daemon.kill()

    def refused(self, data):
        rank = Rank(self.daemon).say(data)
        sentence = rank.sentence("Refused")
        self.assertTrue(rank.ended())
        rank.close()
        return sentence

    def test_alone(self):
        self.assertIn("rank 4 is out of range: a job of 4 ranks has ranks 0 to 3", self.refused(join_frame(4, 4)))
        self.assertIn("takes at most 64 ranks", self.refused(join_frame(64, 65)))
        self.assertIn("the job name is empty", self.refused(join_frame(0, 1, job="")))
        self.assertIn("shares no memory", self.refused(join_frame(0, 1, transport=1)))
        self.assertIn("sent Ready before it had joined", self.refused(frame("Ready")))

    def test_another_version_hears_both(self):
        self.assertIn("speaks control protocol 9, this is 2", self.refused(frame("Join", b"whatever", version=9)))

    def test_contradictions_name_both_sides(self):
        for change, words in (({"size": 3}, ["says 3 ranks", "says 2"]),
                              ({"window": 32}, ["setting window differs", "has auto", "has 32"]),
                              ({"payload": 4096}, ["setting payload differs", "has 4096"])):
            first = Rank(self.daemon).join(0, 2)
            until(lambda: self.daemon.counters()["connections"] == 1, "the first is here")
            sentence = self.refused(join_frame(1, change.pop("size", 2), **change))
            self.assertEqual(sentence, first.sentence("Refused"))
            for word in (*words, "rank 0 (host0, pid 1000)", "rank 1 (host1, pid 1001)"):
                self.assertIn(word, sentence)
            first.close()
            until(lambda: self.daemon.counters()["connections"] == 0, "all are gone")

    def test_duplicate_rank_and_name_in_use(self):
        ranks = [Rank(self.daemon).join(0, 2)]
        until(lambda: self.daemon.counters()["connections"] == 1, "the first is here")
        self.assertIn("rank 0 of job 'test' is already taken by rank 0 (host0, pid 1000)", self.refused(join_frame(0, 2)))
        ranks.append(Rank(self.daemon).join(1, 2))
        for rank in ranks:
            rank.admitted()
        self.assertIn("is in use by a running job of 2 ranks", self.refused(join_frame(1, 2)))
        for rank in ranks:
            rank.close()
        until(lambda: self.daemon.counters()["jobs"] == 0, "the job is gone")

    def test_too_many_jobs(self):
        ranks = [Rank(self.daemon).join(0, 1, job=f"job{i}") for i in range(2)]
        for rank in ranks:
            rank.admitted()
        self.assertIn("maximum of 2 jobs", self.refused(join_frame(0, 1, job="third")))
        for rank in ranks:
            rank.close()
        until(lambda: self.daemon.counters()["connections"] == 0, "all are gone")

    def test_too_much_memory_takes_no_other_job_along(self):
        ranks = [Rank(self.daemon).join(rank, 2, job="large", trees=16, payload=1 << 20, window=4096) for rank in range(2)]
        for rank in ranks:
            rank.admitted()  # small enough by a smaller window, as udp carries 64 KiB at most
            self.assertLessEqual(16 * 2 * rank.admit["window"] * rank.admit["payload"], 16 << 20)
            rank.close()
        until(lambda: self.daemon.counters()["jobs"] == 0, "the job is gone")
        for rank in (ranks := run_job(self.daemon, 2)):
            rank.close()

    def test_join_deadline_names_who_is_missing(self):
        rank = Rank(self.daemon).join(2, 4, join_timeout_ms=200)
        self.assertIn("waiting for ranks 0, 1, 3 of 4; joined: 2 (host2, pid 1002)", rank.sentence("Refused"))
        rank.close()


class Loss(unittest.TestCase):
    def test_killed_rank_is_named_to_all_others(self):
        with Daemon() as daemon:
            ranks = run_job(daemon, 4)
            ranks[2].close()
            for rank in (ranks[0], ranks[1], ranks[3]):
                self.assertIn("rank 2 (host2, pid 1002) is lost: its connection closed without leave", rank.sentence("Lost"))
                rank.close()
            for rank in run_job(daemon, 4):  # the name is free
                rank.close()

    def test_silent_rank_is_named(self):
        with Daemon("--keepalive", "2s") as daemon:  # long enough for a busy machine to get from the join to the first word
            ranks = run_job(daemon, 2)
            for _ in range(100):
                ranks[0].say(frame("KeepAlive", struct.pack(">BII", 0, 0, 0)))
                ranks[0].tcp.settimeout(0.1)
                try:
                    sentence = ranks[0].sentence("Lost")
                    break
                except TimeoutError:
                    continue
            self.assertIn("rank 1 (host1, pid 1001) is lost: nothing was heard from it", sentence)
            for rank in ranks:
                rank.close()

    def test_leave_and_abort(self):
        with Daemon() as daemon:
            ranks = run_job(daemon, 2)
            ranks[0].say(frame("Leave"))
            self.assertIn("rank 0 (host0, pid 1000) left the job", ranks[1].sentence("Left"))
            ranks[1].say(frame("Leave"))
            until(lambda: daemon.counters()["jobs"] == 0, "the job has ended")
            again = run_job(daemon, 2)
            again[1].say(frame("Abort", struct.pack(">IB", 0, 0) + text("enough")))
            self.assertIn("rank 1 (host1, pid 1001) aborted the job: enough", again[0].sentence("Abort"))
            for rank in (*ranks, *again):
                rank.close()


class Data(unittest.TestCase):
    def test_two_jobs_at_once_do_not_mix(self):
        with Daemon() as daemon:
            one, two = run_job(daemon, 2, job="one"), run_job(daemon, 3, job="two")
            for seq in range(5):
                self.assertEqual(sum_bytes(one, seq, [1, 2]), [bytes([3]) * 64] * 2)
                self.assertEqual(sum_bytes(two, seq, [10, 20, 30]), [bytes([60]) * 64] * 3)
            one[0].close()
            self.assertEqual(sum_bytes(two, 5, [1, 1, 1]), [bytes([3]) * 64] * 3)
            for rank in (one[1], *two):
                rank.close()

    def test_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("this host has no ::1")
        with Daemon() as daemon:
            ranks = run_job(daemon, 2, host="::1")
            self.assertEqual(sum_bytes(ranks, 0, [4, 5]), [bytes([9]) * 64] * 2)
            for rank in ranks:
                rank.close()

    def test_only_the_token_opens_the_data_path(self):
        with Daemon() as daemon:
            rank = Rank(daemon).join(0, 1).admitted()
            stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            where = ("127.0.0.1", rank.admit["port"])
            before = daemon.counters()
            stranger.sendto(packet(4, rank.admit["job"], payload=struct.pack(">Q", rank.admit["token"] ^ 1)), where)
            stranger.sendto(packet(1, rank.admit["job"], payload=b"x" * 64, elems=64), where)
            stranger.sendto(packet(1, rank.admit["job"] ^ 1024, payload=b"x" * 64, elems=64), where)
            stranger.sendto(b"x", where)
            until(lambda: daemon.counters()["foreign"] >= before["foreign"] + 3, "they are counted as foreign")
            until(lambda: daemon.counters()["runt"] >= 1, "and the runt")
            self.assertEqual(daemon.counters()["peers"], 0)
            rank.prove().hear("Start")
            self.assertEqual(daemon.counters()["peers"], 1)
            rank.close()
            stranger.close()
            until(lambda: daemon.counters()["peers"] == 0, "its place is free again")

    def test_a_rank_cannot_fill_the_table_of_peers(self):
        with Daemon() as daemon:
            rank = Rank(daemon).join(0, 1).admitted()
            probe = packet(4, rank.admit["job"], 0, struct.pack(">Q", rank.admit["token"]))
            for _ in range(50):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
                    source.sendto(probe, ("127.0.0.1", rank.admit["port"]))
            until(lambda: daemon.counters()["received"] >= 50, "all have come")
            self.assertLessEqual(daemon.counters()["peers"], 4)
            rank.close()


if __name__ == "__main__":
    client.BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
