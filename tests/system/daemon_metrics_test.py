"""gatund's /metrics and /health: what they say of real jobs, of a rank that sleeps, and under callers who mean no good.

Usage: daemon_metrics_test.py BIN [unittest arguments]    BIN is the folder with gatund and gatun
"""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import unittest
import urllib.parse

import daemon_client as client
from daemon_client import Daemon, Rank, frame, packet, run_job, sum_bytes, until

ANY_PORT = ("--metrics", "127.0.0.1:0", "--keepalive", "10m")  # the ranks of daemon_client send no signs of life
DEFAULT = ("127.0.0.1", 7118)
STATS = ("jobs", "connections", "descriptors", "lane trees", "memory")

SERIES = re.compile(r'([a-zA-Z_:][\w:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')


def place(daemon):
    """Host and port of its metrics, from its log."""
    found = re.search(r"metrics and health at http://([\d.]+):(\d+)", daemon.log())
    return (found[1], int(found[2])) if found else None


def get(where, path):
    connection = http.client.HTTPConnection(*where, timeout=client.PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def health(where, job=None):
    status, kind, body = get(where, "/health" + ("?" + urllib.parse.urlencode({"job": job}) if job is not None else ""))
    assert kind == "application/json", kind
    return status, json.loads(body)


def parse(text):
    """{(name, ((label, value), ...)): number}; whatever Prometheus would not take is an error."""
    values, types = {}, {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.split(" ", 3)[2] not in types, line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "summary") and name not in types, line
            types[name] = kind
        else:
            match = SERIES.fullmatch(line)
            assert match, line
            name, labels, value = match[1], tuple(sorted(LABEL.findall(match[2] or ""))), float(match[3])
            family = name if name in types else re.sub("_(sum|count)$", "", name)
            assert family in types and (family == name or types[family] == "summary"), line
            assert (name, labels) not in values, line
            assert types[family] != "counter" or (name.endswith("_total") and value >= 0), line
            values[name, labels] = value
    return values


class Metrics:
    def __init__(self, where):
        status, kind, text = get(where, "/metrics")
        assert status == 200 and kind.startswith("text/plain; version=0.0.4"), (status, kind, text)
        self.values = parse(text)

    def __call__(self, name, **labels):
        return self.values.get(("gatun_" + name, tuple(sorted(labels.items()))))

    def jobs(self):
        return {value for _, labels in self.values for label, value in labels if label == "job"}


def without_metrics(where):
    """Why this gatund has no metrics, or None."""
    status, _, text = get(where, "/metrics")
    return text if status == 501 else None


class Setting(unittest.TestCase):
    def test_default_address_or_a_warning(self):
        with contextlib.closing(socket.socket()) as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind(DEFAULT)
                holder.listen()
            except OSError:
                pass  # somebody else has it, which is as good
            with Daemon(default_metrics=True) as daemon:
                self.assertIn("warning: no metrics and health at 127.0.0.1:7118", daemon.log())
                self.assertEqual(daemon.log().count("warning"), 1)
                for words in ("in use", "--metrics HOST:PORT", "--metrics off"):
                    self.assertIn(words, daemon.log())
                self.assertIsNone(place(daemon))
                for rank in run_job(daemon, 2):
                    rank.close()

    def test_an_address_that_was_named_is_an_error(self):
        with Daemon(*ANY_PORT) as daemon:
            run = subprocess.run([f"{client.BIN}/gatund", "--port", "0", "--metrics", "%s:%d" % place(daemon)],
                                 env=client.environment(), capture_output=True, text=True, timeout=client.PATIENCE_S)
            self.assertEqual(run.returncode, 1)
            self.assertIn("error: no metrics and health at 127.0.0.1:", run.stderr)
            self.assertIn("--metrics HOST:PORT", run.stderr)

    def test_off_and_variable(self):
        with Daemon("--metrics", "off") as daemon:
            self.assertNotIn("metrics", daemon.log())
        with Daemon(*ANY_PORT) as daemon:
            self.assertEqual(get(place(daemon), "/")[0], 200)
            self.assertEqual(get(place(daemon), "/etc/passwd")[0], 404)
        shown = subprocess.run([f"{client.BIN}/gatund", "--print-config"], capture_output=True, text=True, check=True)
        self.assertIn('# metrics = "127.0.0.1:7118"', shown.stdout)


class Values(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(*ANY_PORT)
        self.addCleanup(self.daemon.kill)
        self.where = place(self.daemon)
        if why := without_metrics(self.where):
            self.skipTest(why)

    def metrics(self):
        return Metrics(self.where)

    def test_two_jobs_are_apart_and_go_when_they_end(self):
        empty = self.metrics()
        self.assertEqual(empty.jobs(), set())
        self.assertEqual(empty("jobs", state="running"), 0)
        one, two = run_job(self.daemon, 2, job='one "1"\\'), run_job(self.daemon, 3, job="two", failovers=4)
        for seq in range(5):
            sum_bytes(one, seq, [1, 2])
        sum_bytes(two, 0, [1, 2, 3])
        until(lambda: self.metrics()("job_chunks_total", job="two") == 1, "the counters have moved")
        metrics = self.metrics()
        first = {"job": 'one \\"1\\"\\\\'}  # as it stands in the text
        for name, one_is, two_is in (("job_ranks", 2, 3), ("job_joined", 2, 3), ("job_trees", 1, 1), ("job_stalled", 0, 0),
                                     ("job_chunks_total", 5, 1), ("job_reduced_bytes_total", 320, 64),
                                     ("job_reduce_seconds_count", 5, 1), ("job_open_banks", 0, 0),
                                     ("job_failovers_total", 0, 4)):
            self.assertEqual((metrics(name, **first), metrics(name, job="two")), (one_is, two_is), name)
        self.assertGreaterEqual(metrics("job_contributions_total", **first), 10)
        self.assertGreater(metrics("job_reduce_seconds_sum", **first), 0)
        self.assertEqual(metrics("jobs", state="running"), 2)
        self.assertEqual(metrics("control_connections"), 5)
        self.assertEqual(metrics("memory_bytes"),
                         metrics("job_memory_bytes", **first) + metrics("job_memory_bytes", job="two"))
        self.assertGreaterEqual(metrics("packets_received_total", lane="0", kind="data"), 13)
        self.assertGreaterEqual(metrics("packets_sent_total", lane="0", kind="result"), 13)
        self.assertGreater(metrics("lane_busy_seconds_total", lane="0"), 0)
        for rank in one:
            rank.close()
        until(lambda: self.metrics().jobs() == {"two"}, "the first job's series are gone")
        self.assertEqual(self.metrics()("job_chunks_total", job="two"), 1)
        for rank in two:
            rank.close()
        until(lambda: self.metrics().jobs() == set(), "all are gone")
        self.assertGreaterEqual(self.metrics()("packets_sent_total", lane="0", kind="result"), 13)  # the lane's stay

    def test_drops_and_refusals(self):
        rank = Rank(self.daemon).join(4, 4)
        rank.sentence("Refused")
        rank.close()
        ranks = run_job(self.daemon, 2)
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(stranger.close)
        where = ("127.0.0.1", ranks[0].admit["port"])
        stranger.sendto(b"x", where)
        stranger.sendto(packet(1, ranks[0].admit["job"] ^ 1024, payload=b"x" * 64, elems=64), where)
        stranger.sendto(packet(1, ranks[0].admit["job"], payload=b"x" * 64, elems=64)[:-1] + b"y", where)
        until(lambda: all(self.metrics()("drops_total", lane="0", reason=reason) == 1
                          for reason in ("runt", "foreign", "checksum")), "each is counted under its reason")
        self.assertEqual(self.metrics()("refusals_total"), 1)
        for rank in ranks:
            rank.close()

    def test_who_is_missing(self):
        ranks = run_job(self.daemon, 3)
        data = packet(1, ranks[1].admit["job"], 1, bytes(64), elems=64)
        self.assertEqual(ranks[1].exchange(data) and ranks[1].exchange(data)[:1], b"\x13")  # the second is a repeat: STATUS
        until(lambda: self.metrics()("job_missing_seconds", job="test", rank="2"), "ranks 0 and 2 are missing")
        metrics = self.metrics()
        self.assertGreater(metrics("job_missing_seconds", job="test", rank="0"), 0)
        self.assertIsNone(metrics("job_missing_seconds", job="test", rank="1"))
        self.assertEqual(metrics("job_open_banks", job="test"), 1)
        self.assertGreaterEqual(metrics("job_status_answers_total", job="test"), 1)
        for rank in ranks:
            rank.close()


class Churn(unittest.TestCase):
    def test_every_scrape_is_whole_while_jobs_come_and_go(self):
        with Daemon(*ANY_PORT, "--lanes", "2", "--jobs", "128") as daemon:
            where, done, seen = place(daemon), threading.Event(), []
            if why := without_metrics(where):
                self.skipTest(why)
            steady = run_job(daemon, 2, job="steady")
            sum_bytes(steady, 0, [1, 2])
            until(lambda: Metrics(where)("job_chunks_total", job="steady") == 1, "it is shown")

            def scrape():
                while not done.is_set():
                    seen.append(Metrics(where))

            scraper = threading.Thread(target=scrape)
            scraper.start()
            try:
                for turn in range(300):
                    for rank in run_job(daemon, 1, job=f"job{turn}"):
                        rank.close()
            finally:
                done.set()
                scraper.join()
            self.assertGreater(len(seen), 5)
            for metrics in seen:
                self.assertLessEqual(len(metrics.jobs()), 10)
                self.assertEqual((metrics("job_chunks_total", job="steady"), metrics("job_trees", job="steady")), (1, 1))
            for rank in steady:
                rank.close()


class Health(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(*ANY_PORT, "--stall-warning", "300ms")
        self.addCleanup(self.daemon.kill)
        self.where = place(self.daemon)

    def test_a_job_that_joins(self):
        self.assertEqual(health(self.where), (200, {"status": "ok", "jobs": []}))
        rank = Rank(self.daemon).join(0, 2, job="a b")
        until(lambda: health(self.where)[1]["jobs"], "it is known")
        status, job = health(self.where, "a b")
        self.assertEqual((status, job["state"], job["ranks"], job["joined"]), (200, "joining", 2, 1))
        self.assertEqual(health(self.where, "nobody")[0], 404)
        rank.close()
        until(lambda: health(self.where)[1]["jobs"] == [], "it is gone")

    def test_a_rank_that_sleeps_in_mid_run_is_named(self):
        ranks = []
        for rank in range(3):
            env = client.environment(RANK=str(rank), WORLD_SIZE="3", GATUN_JOB="asleep", MASTER_ADDR="127.0.0.1",
                                     MASTER_PORT="29511", GATUN_ADDRESS=f"127.0.0.1:{self.daemon.port}")
            command = [f"{client.BIN}/gatun", "perf", "-b", "64K", "-e", "64K", "-n", "1000000", "-c", "0"]
            process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            ranks.append(process)
        other = run_job(self.daemon, 2, job="other")

        def operations():
            jobs = [job for job in health(self.where)[1]["jobs"] if job["job"] == "asleep"]
            return jobs[0]["operations"] if jobs else 0

        for turn, sleeper in enumerate((1, 2)):
            before = operations()
            until(lambda: operations() > before + 20, "the job runs")
            os.kill(ranks[sleeper].pid, signal.SIGSTOP)
            until(lambda: health(self.where, "asleep")[1]["stalled_ranks"] == [sleeper], "its job is stalled and names it")
            self.assertEqual(health(self.where, "asleep")[0], 503)
            status, everything = health(self.where)
            self.assertEqual((status, everything["status"]), (200, "stalled"))
            job = health(self.where, "asleep")[1]
            self.assertEqual((job["state"], job["stalled_ranks"]), ("stalled", [sleeper]))
            self.assertGreater(job["stalled_for_ms"], 300)
            self.assertIn(job["operation"], (job["operations"] - 1, job["operations"]))
            if not without_metrics(self.where):
                metrics = Metrics(self.where)
                self.assertEqual((metrics("job_stalled", job="asleep"), metrics("job_stalled", job="other")), (1, 0))
                self.assertGreater(metrics("job_missing_seconds", job="asleep", rank=str(sleeper)), 0.3)
            self.assertEqual(health(self.where, "other")[1]["state"], "running")
            self.assertEqual(sum_bytes(other, turn, [3, 4]), [bytes([7]) * 64] * 2)
            stood = operations()
            os.kill(ranks[sleeper].pid, signal.SIGCONT)
            until(lambda: operations() > stood + 20, "it goes on")
            until(lambda: health(self.where)[1]["status"] == "ok", "all is well again")
            self.assertEqual(health(self.where, "asleep")[0], 200)
        for rank in other:
            rank.close()


class Hostile(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(*ANY_PORT)
        self.addCleanup(self.daemon.kill)
        self.where = place(self.daemon)
        self.before = {name: self.daemon.counters()[name] for name in STATS}

    def back(self):
        until(lambda: {name: self.daemon.counters()[name] for name in STATS} == self.before,
              f"back to {self.before}, not {self.daemon.counters()}")

    def connect(self):
        return socket.create_connection(self.where, timeout=client.PATIENCE_S)

    def test_the_job_and_other_callers_do_not_notice(self):
        ranks = run_job(self.daemon, 2)
        seq, open_ones = 0, []
        attacks = (b"", b"G", b"GET /metrics HTTP/1.1\r\n", b"\x00\xff" * 500, b"POST / HTTP/1.1\r\n\r\n", b"A" * 20000,
                   b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /health?job=" + b"%" * 7000 + b" HTTP/1.1\r\n\r\n",
                   frame("Ready"))
        for attack in attacks:
            for _ in range(100):
                sock = self.connect()
                with contextlib.suppress(ConnectionError):
                    sock.sendall(attack)
                open_ones.append(sock)  # and nothing is read
            self.assertEqual(sum_bytes(ranks, seq, [seq, 1]), [bytes([seq + 1]) * 64] * 2)
            self.assertEqual(health(self.where, "test")[1]["state"], "running")
            seq += 1
            for sock in open_ones[:-100]:
                sock.close()
            del open_ones[:-100]
        # The ranks', 16 callers', and one that takes the place of another.
        self.assertLessEqual(self.daemon.counters()["descriptors"], self.before["descriptors"] + 2 + 16 + 1)
        for sock in open_ones:
            sock.close()
        for rank in ranks:
            rank.close()
        self.back()

    def test_a_flood_of_scrapes(self):
        ranks = run_job(self.daemon, 2)
        for seq in range(20):
            for _ in range(50):
                self.assertIn(get(self.where, "/metrics")[0], (200, 501))
            self.assertEqual(sum_bytes(ranks, seq, [seq, 2]), [bytes([seq + 2]) * 64] * 2)
        for rank in ranks:
            rank.close()
        self.back()

    def test_slow_callers_are_given_up(self):
        with self.connect() as slow:
            while True:  # a byte now and then does not buy more time
                try:
                    slow.sendall(b"G")
                    if select.select([slow], [], [], 0.2)[0] and not slow.recv(100):
                        break
                except ConnectionError:
                    break
        self.back()

    def test_it_stops_with_callers_connected(self):
        silent, half = self.connect(), self.connect()
        half.sendall(b"GET /metrics HT")
        get(self.where, "/health")
        self.assertEqual(self.daemon.terminate(), 0)
        self.assertIn("gatund: stopped", self.daemon.log())
        for sock in (silent, half):
            self.assertEqual(sock.recv(100), b"")
            sock.close()

    def test_while_it_stops_it_says_so(self):
        rank = run_job(self.daemon, 1)[0]  # which does not close: the daemon waits a moment for it
        self.assertEqual(health(self.where, "test")[0], 200)
        self.daemon.process.send_signal(signal.SIGTERM)
        rank.sentence("Closing")
        with contextlib.suppress(ConnectionError, TimeoutError, http.client.HTTPException):
            self.assertEqual(health(self.where)[1]["status"], "stopping")
        self.assertEqual(self.daemon.process.wait(timeout=client.PATIENCE_S), 0)
        rank.close()


if __name__ == "__main__":
    client.BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
