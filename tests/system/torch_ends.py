"""Ends that nobody planned: Ctrl-C, groups left while a rank is stopped, aborts in every order, errors that nobody reads."""

import contextlib
import datetime
import gc
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from torch_ranks import OLD, OP_TIMEOUT, Run, check, init, raises, run, shared, wait_for  # first: it may skip

import torch
import torch.distributed as dist

import gatun

Failure = getattr(dist, "DistBackendError", RuntimeError)
NOBODY = "127.0.0.1:1"  # no gatund listens there
SOON = 8  # seconds: a multiple of what anything here takes, a fraction of the time limits it must not wait for


def say(name):
    with open(f"{shared()}/{name}", "w"):
        pass


def said(name):
    wait_for(lambda: os.path.exists(f"{shared()}/{name}"), name, 25)


@contextlib.contextmanager
def soon(what):
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    check(took < SOON, f"{what} took {took:.1f} s")


@contextlib.contextmanager
def ctrl_c():
    """The block waits for another rank and must end by KeyboardInterrupt."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with soon("seeing Ctrl-C"):
        try:
            yield
        except KeyboardInterrupt:
            return
        finally:
            timer.join()
    raise AssertionError("no KeyboardInterrupt")


def interrupted(rank, size, address=None):
    """Ctrl-C ends the wait; the operation goes on, and all ranks stay in step."""
    if address:
        os.environ["GATUN_ADDRESS"] = address
    init(rank, size)
    tensor = torch.full((1000,), float(rank + 1))
    started = []

    def start():
        started.append(dist.all_reduce(tensor, async_op=True))
        return started[-1]

    def behind_others():
        start()
        dist.barrier()

    calls = dict(call=lambda: dist.all_reduce(tensor), handle=lambda: start().wait(), barrier=behind_others)
    calls["bounded"] = lambda: start().wait(datetime.timedelta(seconds=20))
    if not OLD:
        calls["bundle"] = lambda: dist.group.WORLD.allreduce_coalesced([tensor]).wait()
    for name, call in calls.items():
        tensor.fill_(rank + 1)
        if rank == 0:
            with ctrl_c():
                call()
            check(not (started and started[-1].is_completed()), "it completed without the other rank")
            say(f"{name} interrupted")
            if started:
                started.pop().wait()
        else:
            said(f"{name} interrupted")
            call()
        dist.barrier()
        check(bool((tensor == sum(range(size + 1))).all()), f"{name}: the sum is {tensor[:3]}")


def interrupted_on_ring(rank, size):
    interrupted(rank, size, NOBODY)


def interrupted_behind_gather(rank, size):
    """A barrier that waits for an operation of the inner group: the next barrier still waits for it."""
    init(rank, size)
    parts = [torch.empty(3) for _ in range(size)] if rank == 0 else None
    if rank == 0:
        work = dist.gather(torch.ones(3), parts, dst=0, async_op=True)
        with ctrl_c():
            dist.barrier()
        say("interrupted")
        dist.barrier()
        check(work.is_completed() and bool((parts[1] == 1).all()), "the barrier overtook the gather")
    else:
        said("interrupted")
        dist.gather(torch.ones(3), parts, dst=0)
        dist.barrier()


def handlers_run(rank, size):
    """Other signals have their Python handlers run while an operation waits, which then goes on."""
    init(rank, size)
    tensor = torch.ones(10)
    if rank == 0:
        signal.signal(signal.SIGUSR2, lambda *_: say("handled"))
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2))
        timer.start()
        dist.all_reduce(tensor)
        timer.join()
    else:
        said("handled")
        dist.all_reduce(tensor)
    check(bool((tensor == size).all()), f"{tensor}")


def interrupted_arrays(rank, size):
    """gatun.Communicator: the interrupted call goes on; the communicator can be used, and closed at once."""
    import numpy as np

    with gatun.Communicator(rank, size, job="arrays", timeout=25, join_timeout=20) as comm:
        array = np.full(1000, rank + 1.0)
        if rank == 0:
            with ctrl_c():
                comm.allreduce(array)
            say("allreduce interrupted")
            with ctrl_c():
                comm.barrier()
            say("barrier interrupted")
        else:
            said("allreduce interrupted")
            comm.allreduce(array)
            said("barrier interrupted")
            comm.barrier()
        check(comm.allreduce(np.ones(3)).tolist() == [size] * 3, "after the interrupts")
        check(bool((array == sum(range(size + 1))).all()), f"the sum is {array[:3]}")
        if rank == 0:
            with ctrl_c():
                comm.allreduce(array)
            with soon("closing"):
                comm.close()
            say("closed")
        else:
            said("closed")
            raises(gatun.Error, lambda: comm.allreduce(array), "rank 0")


SCRIPT = """
import os, sys, threading, time, signal, torch, torch.distributed as dist
folder, rank, size, groups, after = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
dist.init_process_group("gatun", init_method=f"file://{folder}/{after}{groups}", rank=rank, world_size=size)
all_groups = [dist.group.WORLD] + [dist.new_group() for _ in range(groups - 1)]
for group in all_groups:
    dist.all_reduce(torch.ones(10), group=group)
works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in all_groups]
gathered = dist.gather(torch.ones(3), [torch.empty(3) for _ in range(size)] if rank == 0 else None, dst=0, async_op=True)
if "interrupt" in after:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
if after == "interrupt":
    works[0].wait()
if after == "interrupted destroy":
    dist.destroy_process_group()
    time.sleep(20)
if after == "destroy":
    began = time.monotonic()
    dist.destroy_process_group()
    print("took", time.monotonic() - began)
    states = [(work.is_completed(), work.is_success()) for work in works]
    assert states == [(True, False)] * groups, states
if after == "error":
    raise ValueError("of the script")
"""


def script(rank, size, groups, after):
    """Runs a script that ends while operations are pending that rank size - 1, which is this test's, never joins."""
    command = [sys.executable, "-c", "import gatun\n" + SCRIPT, shared(), str(rank), str(size), str(groups), after]
    began = time.monotonic()
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    return done, time.monotonic() - began


def stopped_peer(rank, size, address, ends):
    """The end of a script and destroy_process_group, with one group and many, take as long beside a stopped rank."""
    os.environ["GATUN_ADDRESS"] = address
    want = {"exit": 0, "destroy": 0, "error": 1, "interrupt": -signal.SIGINT, "interrupted destroy": -signal.SIGINT,
            "interrupted exit": 0}  # fmt: skip
    for after, groups in ends:
        if rank == size - 1:
            child = os.fork()
            if child == 0:
                stand_by(rank, size, groups, after)
            os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED)
            wait_for(lambda: all(os.path.exists(f"{shared()}/{after}{groups}ended{r}") for r in range(size - 1)), after, 55)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        else:
            done, took = script(rank, size, groups, after)
            say(f"{after}{groups}ended{rank}")
            check(done.returncode == want[after], f"{after} of {groups}: {done.returncode} {done.stdout} {done.stderr}")
            check(took < 20, f"{after} of {groups} groups took {took:.1f} s")
            if after == "destroy":
                spent = float(done.stdout.split()[1])
                check(spent < SOON / 2, f"destroying {groups} groups took {spent:.1f} s")
        said(f"{after}{groups}ended0")


def stand_by(rank, size, groups, after):
    init(rank, size, name=f"{after}{groups}")
    all_groups = [dist.group.WORLD] + [dist.new_group() for _ in range(groups - 1)]
    for group in all_groups:
        dist.all_reduce(torch.ones(10), group=group)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)


def stopped_peer_at_switch(rank, size):
    stopped_peer(rank, size, os.environ["GATUN_ADDRESS"], [("exit", 1), ("exit", 8), ("destroy", 8), ("interrupt", 1)])


def stopped_peer_on_ring(rank, size):
    stopped_peer(rank, size, NOBODY, [("exit", 8), ("destroy", 1), ("destroy", 8), ("error", 1)])


def interrupted_at_the_end(rank, size):
    """Ctrl-C while groups end, which wait for what a stopped rank never brings: they end all the same."""
    stopped_peer(rank, size, NOBODY, [("interrupted destroy", 1), ("interrupted destroy", 3), ("interrupted exit", 1)])


def interrupted_in_destructor(rank, size):
    """The same where the last reference goes, which can raise nothing."""
    os.environ["GATUN_ADDRESS"] = NOBODY

    def made():
        store = dist.FileStore(f"{shared()}/store", size)
        backend = gatun._torch.create(store, rank, size, OP_TIMEOUT, "dropped", None)
        backend.allreduce([torch.ones(10)]).wait()
        return backend

    if rank == size - 1:
        child = os.fork()
        if child == 0:
            backend = made()
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED)
        said("dropped")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        backend = made()
        options = dist.GatherOptions()
        options.rootRank = 0
        pending = backend.gather([[torch.empty(3) for _ in range(size)]], [torch.ones(3)], options)
        with ctrl_c():
            del backend
            for _ in range(20 * SOON):  # Python runs the handler between two calls only
                time.sleep(0.05)
        check(not pending.is_completed(), "the gather completed without the other rank")
        say("dropped")


def backend_of(group):
    return gatun._torch.backend_of(group)


def aborts_in_every_order(rank, size, address):
    """Groups with pending operations and a rank that died are aborted in every order, from another thread."""
    os.environ["GATUN_ADDRESS"] = address
    for turn, order in enumerate(itertools.permutations(range(3))):
        init(rank, size, name=f"turn{turn}")
        groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
        for group in groups:
            dist.all_reduce(torch.ones(10), group=group)
        say(f"{rank} ready turn {turn}")
        for other in range(size):
            said(f"{other} ready turn {turn}")
        if turn == 5 and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2:  # takes no part, and aborts nothing
            said(f"0 ended turn {turn}"), said(f"1 ended turn {turn}")
            dist.destroy_process_group()
            continue
        works = [dist.all_reduce(torch.ones(100), group=group, async_op=True) for group in groups for _ in range(2)]
        say(f"{rank} waits turn {turn}")
        said(f"{1 - rank} waits turn {turn}")
        if rank == 1:
            order = order[::-1]

        def abort(which):
            with soon("an abort"):
                backend_of(groups[which]).abort()

        def abort_all():
            for which in order:
                abort(which)
            say(f"{rank} aborted turn {turn}")

        with soon("aborting all"):
            thread = threading.Thread(target=abort_all)
            thread.start()
            for work in works:
                raises(Failure, work.wait)
            thread.join()
        said(f"{rank} aborted turn {turn}")
        with soon("destroying"):
            dist.destroy_process_group()
        say(f"{rank} ended turn {turn}")


def aborts_at_switch(rank, size):
    aborts_in_every_order(rank, size, os.environ["GATUN_ADDRESS"])


def aborts_on_ring(rank, size):
    aborts_in_every_order(rank, size, NOBODY)


def left_from_any_thread(rank, size):
    """Groups shut down by threads at once and in any order, twice, dropped in callbacks, and used all the while."""
    init(rank, size)
    groups = [dist.new_group() for _ in range(6)]
    for group in groups:
        dist.all_reduce(torch.ones(10), group=group)
    dist.barrier()
    errors = []

    def leave(group):
        try:
            backend_of(group).shutdown()
        except Exception as error:
            errors.append(error)

    pending = [dist.all_reduce(torch.ones(10), group=group, async_op=True) for group in groups] if rank == 0 else []
    order = groups if rank else groups[::-1]
    threads = [threading.Thread(target=leave, args=(group,)) for group in order for _ in range(2)]
    with soon("leaving"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    check(not errors, f"{errors}")
    check(all(work.is_completed() and not work.is_success() for work in pending), "a pending handle is not failed")
    for group in groups:
        raises(RuntimeError, lambda: dist.all_reduce(torch.ones(1), group=group), "destroyed")
    # The last reference to a group goes in a callback of a future of another, which may then end as well.
    held = [dist.new_group()]
    dropped = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    again = dropped.then(lambda _: (dist.destroy_process_group(held.pop()), gc.collect()))
    with soon("dropping a group in a callback"):
        again.wait()
    dist.all_reduce(torch.ones(3))


def nobody_reads_errors(rank, size):
    """Errors of handles, futures and callbacks that nobody waits for end nothing but their operation."""
    init(rank, size, timeout=datetime.timedelta(seconds=1))
    dist.all_reduce(torch.ones(10))
    if rank == 0:
        def throws(future):
            raise ValueError("of the callback")

        for _ in range(20):
            dist.all_reduce(torch.ones(5), async_op=True)
            future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
            future.then(throws)
            future.add_done_callback(throws)
        last = dist.all_reduce(torch.ones(5), async_op=True)
        wait_for(last.is_completed, "the time limit")
        del future
        gc.collect()
        raises(Failure, last.wait)
        say("failed")
    said("failed")
    with soon("destroying"):
        dist.destroy_process_group()
    init(rank, size, name="next")
    tensor = torch.ones(7)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    raises(RuntimeError, future.then(lambda _: 1 / 0).wait, "zero")
    dist.all_reduce(tensor)
    check(bool((tensor == size * size).all()), f"the next group: {tensor}")


def no_more_threads(rank, size):
    """Where the system gives no thread to complete what nobody waits for, a wait does it, or the end of the group."""
    init(rank, size)
    dist.all_reduce(torch.ones(10))
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)  # the limit is not root's
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        tensors = [torch.ones(10) for _ in range(5)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        time.sleep(0.3)  # until they are done
        works[3].wait()
        check(bool((tensors[3] == size).all()), f"{tensors[3]}")
        dist.destroy_process_group()
        check(all(work.is_success() and bool((t == size).all()) for work, t in zip(works, tensors)), "a result is missing")
    else:
        print("[not run] this system gives threads without a limit")


if __name__ == "__main__":
    new = "" if not OLD else f"PyTorch {torch.__version__} has no abort or shutdown"
    run([
        Run(interrupted, 2), Run(interrupted_on_ring, 2), Run(interrupted_behind_gather, 2), Run(handlers_run, 2),
        Run(interrupted_arrays, 2), Run(stopped_peer_at_switch, 3, seconds=200, needs=new),
        Run(stopped_peer_on_ring, 3, seconds=200, needs=new), Run(interrupted_at_the_end, 3, seconds=200, needs=new),
        Run(interrupted_in_destructor, 2, needs=new),
        Run(aborts_at_switch, 3, seconds=90, ends={2: -signal.SIGKILL}, needs=new),
        Run(aborts_on_ring, 3, seconds=90, ends={2: -signal.SIGKILL}, needs=new),
        Run(left_from_any_thread, 2, needs=new), Run(nobody_reads_errors, 2), Run(no_more_threads, 2),
    ])  # fmt: skip
