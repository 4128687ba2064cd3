"""What goes wrong: ranks that disagree, die, are late or leave; no switch, a switch that dies; always a Python exception."""

import datetime
import os
import signal
import threading
import time

from torch_ranks import OLD, Run, Switch, check, init, raises, run, shared, wait_for  # first: it may skip

import torch
import torch.distributed as dist

import gatun

Failure = getattr(dist, "DistBackendError", RuntimeError)
os.environ.setdefault("GATUN_FALLBACK", "off")  # what is tested is the way through the switch
BOUND = 25  # seconds in which everything here must have ended; far more than it takes


class Bounded:
    """The block must end in time; a hang would be cut by the time limit of the Run, this catches slow ends."""

    def __init__(self, what, seconds=BOUND):
        self.what, self.seconds = what, seconds

    def __enter__(self):
        self.began = time.monotonic()

    def __exit__(self, kind, *_):
        took = time.monotonic() - self.began
        check(kind or took < self.seconds, f"{self.what} took {took:.1f} s")


def say(name):
    with open(f"{shared()}/{name}", "w"):
        pass


def said(name):
    wait_for(lambda: os.path.exists(f"{shared()}/{name}"), name, BOUND)


def mismatch(rank, size):
    """Ranks that disagree all get the error, no result is written, and the group goes on."""
    init(rank, size)
    ones = torch.ones

    def usable():
        tensor = ones(100)
        dist.all_reduce(tensor)
        check(bool((tensor == size).all()), f"after a mismatch: {tensor}")

    tensor = ones(409_600 if rank == 0 else 409_598)
    text = raises(Failure, lambda: dist.all_reduce(tensor), "409600", "409598", "rank")
    check("all_reduce" in text, f"the operation is not named: {text}")
    check(bool((tensor == 1).all()), "a result was written")
    usable()
    raises(Failure, lambda: dist.all_reduce(ones(10, dtype=torch.float64 if rank == 1 else torch.float32)), "f64", "f32")
    usable()
    raises(Failure, lambda: dist.all_reduce(ones(10), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM), "max", "sum")
    usable()
    raises(Failure, lambda: dist.broadcast(ones(10), 0) if rank == 1 else dist.all_reduce(ones(10)))
    usable()
    raises(Failure, lambda: dist.broadcast(ones(10), rank % 2))
    usable()
    # The same bytes in another layout, and another type of the same width.
    options = dist.AllreduceCoalescedOptions()
    tensors = [ones(2), ones(2)] if rank == 1 else [ones(4)]
    raises(Failure, lambda: dist.group.WORLD.allreduce_coalesced(tensors, options).wait())
    check(all(bool((each == 1).all()) for each in tensors), "a result was written")
    usable()
    kinds = [torch.uint8, torch.bool]
    raises(Failure, lambda: dist.all_reduce(ones(8).to(kinds[rank % 2]), dist.ReduceOp.MAX))
    usable()
    works = [dist.all_reduce(ones(50 + (n == 3 and rank == 0)), async_op=True) for n in range(6)]
    for n, work in enumerate(works):
        if n == 3:
            raises(Failure, work.wait)
            check(not work.is_success(), "a failed handle reports success")
        else:
            work.wait()
    usable()
    future = dist.all_reduce(ones(5 + rank), async_op=True).get_future()
    raises(RuntimeError, future.wait)
    usable()


def arguments(rank, size):
    """Wrong calls fail on the rank that makes them, before anything is sent."""
    init(rank, size)
    wrong = [torch.empty(3) for _ in range(size)]
    backend = dist.group.WORLD if OLD else dist.group.WORLD._get_backend(torch.device("cpu"))
    raises((ValueError, RuntimeError), lambda: backend.allgather([wrong], [torch.ones(2)]).wait(), "as long as")
    raises((ValueError, RuntimeError), lambda: backend._allgather_base(torch.empty(5), torch.ones(2)).wait(), "elements")
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    check(tensor.tolist() == [size, size], "after wrong calls")


def killed(rank, size):
    """SIGKILL in the middle: the others get an error that names the rank, and leave in time."""
    init(rank, size)
    dist.all_reduce(torch.ones(10))
    if rank == 2:
        dist.all_reduce(torch.ones(1_000_000), async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    with Bounded("learning of the dead rank"):
        works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(2)]  # the first may still complete
        raises(Failure, lambda: ([work.wait() for work in works], dist.barrier()), "rank 2")
        raises(Failure, lambda: dist.all_reduce(torch.ones(10)), "rank 2")
        wait_for(lambda: all(work.is_completed() for work in works), "pending handles")
    with Bounded("destroy_process_group"):
        dist.destroy_process_group()


def next_job(rank, size):
    """After ranks died, the same switch serves a new group."""
    init(rank, size)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    check(bool((tensor == size).all()), "sum")


def late(rank, size):
    """A rank that does not call: the others fail at the group's time limit, naming it."""
    init(rank, size, timeout=datetime.timedelta(seconds=2))
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        said("all failed 0"), said("all failed 2")
    else:
        with Bounded("the time limit"):
            raises(Failure, lambda: dist.all_reduce(torch.ones(10)), "rank 1" if size > 2 else "rank")
        say(f"all failed {rank}")
    with Bounded("destroy_process_group"):
        dist.destroy_process_group()


def never_waited(rank, size):
    """A group is destroyed although an operation is pending that the other rank never joins."""
    init(rank, size)
    dist.all_reduce(torch.ones(10))
    if rank == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        with Bounded("destroy_process_group", 40):
            dist.destroy_process_group()
        say("destroyed")
        if not OLD:
            check(work.is_completed() and not work.is_success(), "the pending handle is not failed")
    else:
        said("destroyed")


def aborted(rank, size):
    """abort() from another thread releases everyone who waits."""
    init(rank, size)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 0:
        threading.Timer(0.2, backend.abort).start()
        with Bounded("the abort"):
            raises(Failure, lambda: dist.all_reduce(torch.ones(10)), "abort")
            raises(Failure, lambda: dist.all_reduce(torch.ones(10)), "abort")
        say("released")
    else:
        said("released")
        with Bounded("the abort"):
            raises(Failure, lambda: dist.all_reduce(torch.ones(10)))


def no_switch(rank, size):
    """Nobody at the address: a sentence that names it and the fix. One rank needs no switch."""
    os.environ["GATUN_ADDRESS"] = "127.0.0.1:1"
    with Bounded("joining"):
        raises(Failure, lambda: init(rank, size, name="nobody"), "127.0.0.1:1", "gatund")
    if rank == 0:
        init(0, 1, name="alone")
        tensor = torch.tensor([2.0, 3.0])
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True).get_future().wait()
        dist.barrier()
        outputs = [torch.empty(2)]
        dist.all_gather(outputs, tensor)
        check(outputs[0].tolist() == [2, 3] and gatun.stats()["transport"] == "self", f"one rank: {outputs}")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()


def switch_dies(rank, size):
    """The daemon is killed: an error in time, and the group can be left."""
    if rank == 0:
        switch = Switch()
        with open(f"{shared()}/address.new", "w") as file:
            file.write(switch.address)
        os.rename(f"{shared()}/address.new", f"{shared()}/address")
    said("address")
    with open(f"{shared()}/address") as file:
        os.environ["GATUN_ADDRESS"] = file.read()
    init(rank, size)
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    if rank != 0:
        say("ready")  # the barrier's result is here; the switch may die
    else:
        said("ready")
        switch.process.kill()
        switch.process.wait()
        say("killed")
    said("killed")
    with Bounded("learning of the dead switch"):
        raises(Failure, lambda: dist.all_reduce(torch.ones(10)))
    with Bounded("destroy_process_group"):
        dist.destroy_process_group()


def leaves_early(rank, size):
    """A rank that is done leaves at once; the others still get the results of what it took part in."""
    for turn in range(10):
        init(rank, size, name=f"turn{turn}")
        tensor = torch.ones(200_000)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == turn % size:
            work.wait()
        else:
            time.sleep(0.05)
            work.wait()
        check(bool((tensor == size).all()), "a result was lost with the rank that left")
        dist.destroy_process_group()


if __name__ == "__main__":
    new = "" if not OLD else f"PyTorch {torch.__version__} has no abort"
    run([
        Run(mismatch, 2), Run(mismatch, 4), Run(arguments, 2), Run(killed, 4, ends={2: -9}), Run(next_job, 4), Run(late, 3),
        Run(never_waited, 2, seconds=90), Run(aborted, 2, needs=new), Run(no_switch, 2), Run(switch_dies, 2),
        Run(leaves_early, 3),
    ])  # fmt: skip
