"""Runs Python functions as the ranks of a process group, for the torch_* tests.

A test script defines functions f(rank, size) and ends with run([Run(f, size), ...]). The parent starts gatund on a free
port, imports PyTorch once and forks the ranks of one Run after another; each has a time limit, after which every rank shows
its stacks and is killed by its process id. Exit code 0 passes, 77 skips and 1 fails.
"""

import ctypes
import datetime
import faulthandler
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

if importlib.util.find_spec("torch") is None:
    print(f"[skipped] {os.path.basename(sys.argv[0])}: no PyTorch in {sys.executable}")
    sys.exit(77)

import torch
import torch.distributed as dist

import gatun

if gatun._build.TORCH is None:
    print(f"[skipped] {os.path.basename(sys.argv[0])}: this build has no PyTorch backend")
    sys.exit(77)

OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 0)
OP_TIMEOUT = datetime.timedelta(seconds=30)


class Run:
    """f as the ranks of a group. ends: exit codes of ranks that do not end with 0. Not run if `needs` is a sentence."""

    def __init__(self, function, size, seconds=60, ends=None, needs=None):
        self.function, self.size, self.seconds = function, size, seconds
        self.ends, self.needs = ends or {}, needs
        self.name = f"{function.__name__} of {size}"


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def init(rank, size, backend="gatun", name="default", timeout=OP_TIMEOUT, **options):
    dist.init_process_group(
        backend, init_method=f"file://{shared()}/{name}", rank=rank, world_size=size, timeout=timeout, **options
    )


def shared():
    """A folder that all ranks of one Run share."""
    return os.environ["GATUN_TEST_FOLDER"]


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def raises(kind, function, *parts):
    """Calls function, which must raise `kind` with all the parts in its text; returns the text."""
    try:
        function()
    except kind as error:
        text = str(error)
        for part in parts:
            check(part.lower() in text.lower(), f"{part!r} is not in: {text}")
        return text
    raise AssertionError(f"nothing was raised; expected {kind.__name__} with {parts}")


def wait_for(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"waited {seconds} s for {what}")
        time.sleep(0.01)


class Switch:
    """A gatund on this machine, on a free port unless one is named."""

    def __init__(self, *flags, port=0):
        program = os.environ.get("GATUND") or "gatund"
        self.output = tempfile.TemporaryFile()
        with tempfile.TemporaryDirectory(prefix="gatun-test-") as folder:
            command = [program, "--port", str(port), "--port-file", f"{folder}/port", "--metrics", "off", *flags]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, preexec_fn=die_with_parent
            )
            try:
                wait_for(lambda: os.path.exists(f"{folder}/port") or self.process.poll() is not None, "gatund to serve")
                with open(f"{folder}/port") as port:
                    self.address = f"127.0.0.1:{int(port.read())}"
            except (OSError, AssertionError) as error:
                self.close()
                raise RuntimeError(f"gatund does not serve: {error}\n{self.log()}") from error

    def log(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.terminate()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _rank(test, rank, folder):
    """The whole life of a forked rank."""
    log = os.open(f"{folder}/{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        die_with_parent()
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        torch.set_num_threads(1)
        os.environ.update(GATUN_TEST_FOLDER=folder, RANK=str(rank), WORLD_SIZE=str(test.size), LOCAL_RANK=str(rank))
        test.function(rank, test.size)
        if OLD:  # its Gloo can hang when it is taken down; the groups of Gatun leave as they would at the end of a script
            gatun._torch.extension().leave_all()
        elif dist.is_initialized():
            dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(children, seconds):
    """Exit codes by rank; None for a rank that had to be killed."""
    codes, end = {}, time.monotonic() + seconds
    while len(codes) < len(children) and time.monotonic() < end:
        for rank, pid in children.items():
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    late = {rank: pid for rank, pid in children.items() if rank not in codes}
    for pid in late.values():
        os.kill(pid, signal.SIGUSR1)
    if late:
        time.sleep(1)
    for rank, pid in late.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        codes[rank] = None
    return codes


def _run(test):
    with tempfile.TemporaryDirectory(prefix="gatun-test-") as folder:
        children = {}
        sys.stdout.flush()
        for rank in range(test.size):
            pid = os.fork()
            if pid == 0:
                _rank(test, rank, folder)
            children[rank] = pid
        codes = _reap(children, test.seconds)
        if all(codes[rank] == test.ends.get(rank, 0) for rank in children):
            return True
        for rank in children:
            ended = "did not end" if codes[rank] is None else f"ended with {codes[rank]}"
            print(f"--- {test.name}: rank {rank} {ended}")
            with open(f"{folder}/{rank}.log", errors="replace") as log:
                print(log.read()[-6000:])
        return False


def run(tests):
    chosen = sys.argv[1:]  # names of functions, for a person who looks for a fault
    switch = Switch()
    os.environ["GATUN_ADDRESS"] = switch.address
    failed = []
    for test in tests:
        if chosen and test.function.__name__ not in chosen:
            continue
        if test.needs:
            print(f"[not run] {test.name}: {test.needs}")
            continue
        began = time.monotonic()
        good = _run(test)
        print(f"{'passed' if good else 'FAILED'}  {test.name}  {time.monotonic() - began:.1f} s", flush=True)
        if not good:
            failed.append(test.name)
    if failed:
        print(f"--- gatund said:\n{switch.log()[-4000:]}")
    code = switch.close()
    if code != 0:
        failed.append(f"gatund ended with {code}")
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all passed")
    sys.exit(1 if failed else 0)
