"""gatund under peers that are broken, slow, hostile or simply too many; and that everything they took comes back.

Usage: daemon_hostile_test.py BIN [unittest arguments]    BIN is the folder with gatund
"""

import os
import random
import socket
import struct
import sys
import unittest

import daemon_client as client
from daemon_client import Daemon, Rank, frame, join_frame, packet, run_job, sum_bytes, until

CYCLES = 500
STEADY = ("jobs", "lane trees", "memory", "offers", "connections", "descriptors", "links", "peers")


def steady(daemon):
    counters = daemon.counters()
    threads = len(os.listdir(f"/proc/{daemon.process.pid}/task"))
    return {"threads": threads, **{name: counters[name] for name in STEADY}}


def connect(daemon):
    return socket.create_connection(("127.0.0.1", daemon.port), timeout=client.PATIENCE_S)


def close_hard(sock):
    """Ends the connection by a reset, as a killed process with unread data does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Garbage(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon()
        self.random = random.Random(1)
        self.before = steady(self.daemon)

    def tearDown(self):
        self.daemon.kill()

    def back(self):
        until(lambda: steady(self.daemon) == self.before, f"back to {self.before}, not {self.daemon.counters()}")

    def still_serves(self):
        self.back()
        ranks = run_job(self.daemon, 2)
        self.assertEqual(sum_bytes(ranks, 0, [1, 2]), [bytes([3]) * 64] * 2)
        for rank in ranks:
            rank.close()
        self.back()

    def test_random_bytes_on_tcp(self):
        for length in [1, 5, 6, 100, 5000] * 20:
            with connect(self.daemon) as tcp:
                try:
                    tcp.sendall(self.random.randbytes(length))
                except (BrokenPipeError, ConnectionResetError):
                    pass
        with connect(self.daemon) as tcp:
            tcp.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.assertIn(b"does not speak Gatun's control protocol", tcp.recv(1000))
        self.still_serves()

    def test_mutated_messages_on_tcp(self):
        messages = [join_frame(0, 1), frame("Ready"), frame("Leave"), frame("KeepAlive", bytes(9)),
                    frame("Report", bytes(27)), frame("Stalled", struct.pack(">IHH", 0, 0, 0))]
        for _ in range(300):
            stream = bytearray(b"".join(self.random.choices(messages, k=3)))
            for _ in range(self.random.randrange(4)):
                stream[self.random.randrange(len(stream))] = self.random.randrange(256)
            with connect(self.daemon) as tcp:
                try:
                    tcp.sendall(stream)
                    tcp.shutdown(socket.SHUT_WR)
                except OSError:  # it has already hung up
                    pass
        self.still_serves()

    def test_random_and_mutated_packets(self):
        ranks = run_job(self.daemon, 2)
        job = ranks[0].admit["job"]
        valid = [packet(kind, job, child, bytes(8) if kind == 4 else bytes(64), seq=seq, elems=0 if kind == 4 else 64)
                 for kind in (1, 4) for child in (0, 1) for seq in (0, 1, 2**32 - 1)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            where = ("127.0.0.1", ranks[0].admit["port"])
            for number in range(4000):
                if number % 2:
                    data = self.random.randbytes(self.random.randrange(200))
                else:
                    data = bytearray(self.random.choice(valid))
                    data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                self.random.choice([stranger, ranks[0].udp, ranks[1].udp]).sendto(data, where)
        self.assertEqual(sum_bytes(ranks, 0, [7, 8]), [bytes([15]) * 64] * 2)
        for rank in ranks:
            rank.close()
        self.still_serves()


class Slow(unittest.TestCase):
    def test_half_a_message_holds_up_nobody_and_is_closed(self):
        with Daemon() as daemon:
            before = steady(daemon)
            whole = join_frame(0, 1, job="half")
            stalled = [connect(daemon) for _ in range(20)]
            for number, tcp in enumerate(stalled):
                tcp.sendall(whole[:number])
            for rank in run_job(daemon, 2):
                rank.close()
            for tcp in stalled:  # after the hello timeout of 10 s
                self.assertIn(b"did not join within", tcp.recv(1000))
                tcp.close()
            until(lambda: steady(daemon) == before, "everything is back")

    def test_a_rank_that_does_not_read_is_dropped_alone(self):
        with Daemon() as daemon:
            deaf, other = run_job(daemon, 1, job="deaf")[0], run_job(daemon, 1, job="other")[0]
            deaf.tcp.settimeout(0.5)
            question = frame("KeepAlive", struct.pack(">BII", 1, 0, 0)) * 2000
            try:
                for _ in range(2000):  # each is answered, nobody reads the answers
                    deaf.tcp.sendall(question)
            except (TimeoutError, ConnectionError):
                pass
            until(lambda: daemon.counters()["connections"] == 1, "it is dropped")
            self.assertEqual(sum_bytes([other], 0, [5]), [bytes([5]) * 64])
            deaf.close()
            other.close()

    def test_without_descriptors_it_turns_callers_away_and_lives(self):
        with Daemon(files_max=64) as daemon:
            before = steady(daemon)
            callers = []
            for _ in range(120):
                callers.append(connect(daemon))
            until(lambda: "no file descriptors left" in daemon.log(), "it says what is missing")
            for caller in callers:
                caller.close()
            until(lambda: steady(daemon) == before, "everything is back")
            for rank in run_job(daemon, 2):
                rank.close()


class Cycles(unittest.TestCase):
    """Jobs that are killed in every state leave nothing behind."""

    def cycle(self, daemon, number, identity):
        shm = identity != "elsewhere"
        ranks = [Rank(daemon).join(rank, 3, job=f"cycle{number % 7}", transport=0, identity=identity) for rank in range(3)]
        stage = number % 4
        if stage > 0:
            for rank in ranks:
                rank.admitted()
        if stage > 1 and not shm:
            for rank in ranks:
                rank.prove()
        if stage > 2 and not shm:
            for rank in ranks:
                rank.hear("Start")
            data = packet(1, ranks[0].admit["job"], 0, b"1" * 64, elems=64)
            ranks[0].udp.sendto(data, ("127.0.0.1", ranks[0].admit["port"]))  # held until the others come: never
        for rank in ranks:
            close_hard(rank.tcp) if number % 2 else rank.tcp.close()
            rank.udp.close()

    def check(self, identity):
        with Daemon("--log", "info") as daemon:
            before = steady(daemon)
            for number in range(CYCLES):
                self.cycle(daemon, number, identity)
            until(lambda: steady(daemon) == before, f"back to {before}, not {daemon.counters()}")
            for rank in run_job(daemon, 2):
                rank.close()

    def test_udp(self):
        self.check("elsewhere")

    def test_shm(self):
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot = file.read().strip()
        self.check(f"{boot}/{os.stat('/proc/self/ns/net').st_ino}")


if __name__ == "__main__":
    client.BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
