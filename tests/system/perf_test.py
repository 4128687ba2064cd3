"""gatun as people run it: perf over real switches and transports, its errors, its ends, and info.

Usage: perf_test.py BIN [unittest arguments]    BIN is the folder with gatun and gatund
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = ""
TIMEOUT_S = 120
TYPES = 12
OPS = 5


def environment(**extra):
    """This environment without what would make perf something else."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GATUN_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC"))}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    return {**kept, **extra}


def gatun(*arguments, program=None, **extra):
    return subprocess.run(
        [program or f"{BIN}/gatun", *arguments], env=environment(**extra), capture_output=True, text=True, timeout=TIMEOUT_S
    )


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, limit_s=10):
    end = time.monotonic() + limit_s
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def descendants(pid):
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            for child in file.read().split():
                found += [int(child), *descendants(int(child))]
    except FileNotFoundError:
        pass
    return found


class Started:
    """A gatun perf that runs until it is ended, with its ranks known."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [f"{BIN}/gatun", "perf", "-g", "3", "-b", "64K", "-e", "64K", "-N", "0", "-n", "50", *arguments],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.ranks, self.lines = [], []
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.match(r"#  Rank +\d+ Pid +(\d+) ", line):
                self.ranks.append(int(match[1]))
            if not line.startswith("#"):
                break  # the first row: all ranks are at work
        self.children = descendants(self.process.pid)

    def end(self):
        try:
            _, error = self.process.communicate(timeout=60)
            return self.process.returncode, error
        finally:
            self.process.kill()


class Numbers(unittest.TestCase):
    def check(self, *arguments, rows=None):
        run = gatun("perf", *arguments)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("# Out of bounds values : 0 OK", run.stdout)
        got = [line.split() for line in run.stdout.splitlines() if not line.startswith("#")]
        if rows is not None:
            self.assertEqual(len(got), rows, run.stdout)
        for row in got:
            self.assertEqual((row[8], row[12]), ("0", "0"), run.stdout)
        return run.stdout

    def all_types_and_ops(self, transport, *more):
        self.check("-g", "3", "-b", "40", "-e", "5K", "-f", "128", "-d", "all", "-o", "all", "-n", "1", "-w", "0",
                   "--transport", transport, *more, rows=2 * TYPES * OPS)

    def test_every_type_and_op_over_shm(self):
        self.all_types_and_ops("shm")

    def test_every_type_and_op_over_udp(self):
        self.all_types_and_ops("udp")

    def test_every_type_and_op_over_two_trees(self):
        self.all_types_and_ops("udp", "--trees", "2")

    def test_every_collective(self):
        for transport in ("shm", "udp"):
            for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce"):
                with self.subTest(transport=transport, collective=collective):
                    self.check("-g", "4", "-b", "4", "-e", "1M", "-f", "64", "-n", "2", "-w", "0", "-c", "2", "-r", "all",
                               "--collective", collective, "--transport", transport)
            with self.subTest(transport=transport, collective="barrier"):
                self.check("-g", "4", "-n", "20", "--collective", "barrier", "--transport", transport, rows=1)

    def test_sizes_that_are_no_multiple_of_anything(self):
        for transport in ("shm", "udp"):
            with self.subTest(transport=transport):
                self.check("-g", "2", "-b", "65531", "-e", "65549", "-i", "1", "-d", "int8", "-n", "1", "-w", "0", "-u", "1",
                           "--transport", transport, rows=19)

    def test_operations_in_flight(self):
        self.check("-g", "4", "-b", "1K", "-e", "256K", "-f", "16", "-m", "8", "-n", "3", "-c", "2")

    def test_zero_bytes_and_one_rank(self):
        self.check("-g", "4", "-b", "0", "-e", "4", "-f", "2", "-n", "2", rows=4)
        self.check("-g", "1", "-b", "4", "-e", "1M", "-f", "64", "-n", "2")

    def test_a_result_that_is_not_written_is_wrong(self):
        """The check itself: without a reduction every element of a small run must be counted."""
        run = gatun("perf", "-g", "2", "-b", "1K", "-e", "1K", "-n", "1", "--skip-collective")
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"Out of bounds values : [1-9]\d* FAILED")


class Output(unittest.TestCase):
    def test_columns_are_those_of_nccl_tests(self):
        run = gatun("perf", "-g", "2", "-b", "1K", "-e", "4K", "-f", "2", "-n", "2")
        names = next(line for line in run.stdout.splitlines() if "redop" in line).split()[1:]
        self.assertEqual(
            names,
            "size count type redop root time algbw busbw #wrong time algbw busbw #wrong wirebw resent".split(),
        )
        rows = [line.split() for line in run.stdout.splitlines() if not line.startswith("#")]
        want = [[str(size), str(size // 4), "float", "sum", "-1"] for size in (1024, 2048, 4096)]
        self.assertEqual([row[:5] for row in rows], want)

    def test_json(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            run = gatun("perf", "-g", "2", "-b", "1K", "-e", "4K", "-f", "2", "-n", "2", "-R", "1", "-J", path)
            self.assertEqual(run.returncode, 0, run.stderr)
            with open(path, encoding="utf-8") as file:
                out = json.load(file)
        self.assertEqual([row["size"] for row in out["results"]], [1024, 2048, 4096])
        for row in out["results"]:
            for half in ("out_of_place", "in_place"):
                self.assertEqual(row[half]["nwrong"], 0)
                self.assertGreater(row[half]["time"], 0)
                self.assertGreater(row[half]["wire_bytes"], row["size"])
        self.assertEqual(len(out["ranks"]), 2)
        self.assertEqual(out["out_of_bounds"], {"count": 0, "okay": True})
        self.assertGreater(out["copies_per_byte"], 0.5)  # into shared memory, and out of it; a repeat is not copied
        self.assertLessEqual(out["copies_per_byte"], 1)

    def test_comparison_ends_with_the_worst_ratio(self):
        peers = [p for p in ("gloo", "mpi") if os.path.exists(f"{BIN}/../lib/libgatun_perf_{p}.so")]
        if "mpi" in peers and shutil.which("mpirun") is None:
            peers.remove("mpi")
        if not peers:
            self.skipTest("neither Gloo nor Open MPI was there at build time")
        run = gatun("perf", "-g", "2", "-b", "1K", "-e", "16K", "-f", "16", "--quick", "--reps", "2",
                    "--vs", ",".join(peers))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout.splitlines()[-1], r"^worst ratio: \d+\.\d\d \((1K|16K) vs (gloo|mpi)\)$")
        self.assertEqual(run.stdout.count(" | "), len(peers) * 5, run.stdout)

    def test_explain(self):
        run = gatun("explain", "--address", "127.0.0.1:1")
        self.assertEqual(run.returncode, 0, run.stderr)
        way = r"\((ring|exact: by direct exchange.*)\)"  # the latter where Gloo is not there
        self.assertRegex(run.stdout, rf"Operations go without a switch {way}: no gatund at 127\.0\.0\.1:1 ")
        run = gatun("explain", "--address", "127.0.0.1:1", "--fallback", "off")
        self.assertEqual(run.returncode, 1)
        self.assertIn("Operations fail: no gatund at 127.0.0.1:1", run.stdout)
        self.assertIn("--bogus", gatun("explain", "--bogus").stderr)
        self.assertIn("ring, exact or off", gatun("explain", "--fallback", "bridge").stderr)

    def test_info(self):
        run = gatun("info", "--json", "--trees", "2", GATUN_WINDOW="64")
        self.assertEqual(run.returncode, 0, run.stderr)
        info = json.loads(run.stdout)
        self.assertEqual(info["settings"]["trees"], {"value": "2", "source": "flag", "where": "--trees"})
        self.assertEqual(info["settings"]["window"], {"value": "64", "source": "environment", "where": "GATUN_WINDOW"})
        self.assertEqual(info["settings"]["job"]["source"], "default")
        self.assertIn("lo", [device["name"] for device in info["devices"]])
        nccl = info["host"]["features"]["nccl"]
        self.assertRegex(nccl["detail"], "^NCCL 2" if nccl["there"] else "^no ring of GPU memory: .*(NCCL|CUDA)")
        text = gatun("info").stdout
        for word in ("Build", "Host", "Devices", "Switch", "Settings", "udp_gso", "nccl"):
            self.assertIn(word, text)


class Errors(unittest.TestCase):
    def named(self, run, *words, code=2):
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)

    def test_bad_flags_are_named(self):
        self.named(gatun("perf", "--bogus"), "--bogus")
        self.named(gatun("perf", "-d", "int7"), "int7", "bfloat16")
        self.named(gatun("perf", "-b", "3X"), "--minbytes", "3X")
        self.named(gatun("perf", "--transport", "pigeon"), "--transport", "pigeon", "udp")
        self.named(gatun("perf", "-g", "2", "-J", "/nowhere/x.json"), "/nowhere/x.json")
        self.named(gatun("info", "--bogus"), "--bogus")
        self.named(gatun("perf", GATUN_LANES="x"), "GATUN_LANES")
        for command in ("perf", "info"):
            self.assertIn("--lanes", gatun(command, "--help", GATUN_LANES="x").stdout)

    def test_root_that_is_no_rank(self):
        run = gatun("perf", "-g", "2", "--collective", "broadcast", "-r", "7", "-b", "4", "-e", "4")
        self.named(run, "--root 7", "0 to 1", code=1)
        self.assertEqual(run.stderr.count("--root 7"), 1, run.stderr)  # once, not once per rank

    def test_no_switch_program(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{BIN}/gatun", folder)
            run = gatun("perf", "-g", "2", program=f"{folder}/gatun", PATH="/nowhere", LD_LIBRARY_PATH=f"{BIN}/../lib")
        self.named(run, "gatund is neither beside", code=1)

    def test_switch_that_ends_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{BIN}/gatun", folder)
            with open(f"{folder}/gatund", "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho no room at the inn >&2\nexit 3\n")
            os.chmod(f"{folder}/gatund", 0o755)
            run = gatun("perf", "-g", "2", program=f"{folder}/gatun", LD_LIBRARY_PATH=f"{BIN}/../lib")
        self.named(run, "ended with code 3", "no room at the inn", code=1)

    def test_no_switch_at_the_address(self):
        run = gatun("perf", "-g", "2", "--address", "127.0.0.1:1", "--join-timeout", "2s")
        self.named(run, "127.0.0.1:1", code=1)

    def test_launcher_variables(self):
        self.named(gatun("perf", RANK="2", WORLD_SIZE="2", MASTER_ADDR="h"), "RANK=2", "WORLD_SIZE=2")
        self.named(gatun("perf", "-g", "2", RANK="0", WORLD_SIZE="2", MASTER_ADDR="h"), "torchrun", "-g")

    def test_commands(self):
        self.named(gatun("nonsense"), "nonsense", "gatun-nonsense", "perf, doctor, explain, info")
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/gatun-hello", "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\necho "hello $1"\nexit 5\n')
            os.chmod(f"{folder}/gatun-hello", 0o755)
            path = folder + ":" + os.environ["PATH"]
            run = gatun("hello", "you", PATH=path)
            self.assertEqual((run.returncode, run.stdout), (5, "hello you\n"))
            self.assertIn("hello", gatun("--help", PATH=path).stdout)
        self.assertRegex(gatun("--version").stdout, r"^gatun \d+\.\d+\.\d+\n$")


class Ends(unittest.TestCase):
    def test_killed_rank(self):
        run = Started()
        os.kill(run.ranks[1], signal.SIGKILL)
        code, error = run.end()
        self.assertEqual(code, 1, error)
        self.assertIn(f"rank 1: process {run.ranks[1]} was killed by signal 9", error)
        self.assertTrue(gone(run.children))

    def test_killed_switch(self):
        run = Started("--timeout", "20s")
        switch = [pid for pid in run.children if pid not in run.ranks]
        self.assertEqual(len(switch), 1)
        os.kill(switch[0], signal.SIGKILL)
        code, error = run.end()
        self.assertEqual(code, 1, error)
        self.assertIn("gatund was killed by signal 9", error)
        self.assertTrue(gone(run.children))

    def test_killed_parent(self):
        run = Started()
        run.process.kill()
        run.process.communicate(timeout=60)
        self.assertTrue(gone(run.children))

    def test_interrupt(self):
        run = Started()
        run.process.send_signal(signal.SIGINT)
        code, error = run.end()
        self.assertEqual(code, 130, error)
        self.assertTrue(gone(run.children))


class Launched(unittest.TestCase):
    def test_two_ranks_of_torchrun(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        port_file = f"{folder.name}/port"
        switch = subprocess.Popen([f"{BIN}/gatund", "--port", "0", "--port-file", port_file, "--metrics", "off"],
                                  env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ranks = []
        try:
            while not os.path.exists(port_file) and switch.poll() is None:
                time.sleep(0.01)
            with open(port_file, encoding="utf-8") as file:
                address = f"127.0.0.1:{file.read().strip()}"
            for rank in range(2):
                env = environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
                                  GATUN_ADDRESS=address)
                command = [f"{BIN}/gatun", "perf", "-b", "1K", "-e", "64K", "-f", "8", "-n", "3"]
                ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            outputs = [rank.communicate(timeout=60) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
            self.assertIn("# Out of bounds values : 0 OK", outputs[0][0])
            self.assertEqual(outputs[1][0], "")
        finally:
            for process in [*ranks, switch]:
                process.kill()
                process.communicate()


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
