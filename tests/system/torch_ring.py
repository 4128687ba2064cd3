"""Without a switch: training that never had one, whose daemon dies and comes back, whose rank dies; elastic restarts."""

import os
import signal
import subprocess
import sys
import tempfile
import time

from torch_ranks import OLD, Run, Switch, check, init, raises, run, shared, wait_for  # first: it may skip

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import gatun

Failure = getattr(dist, "DistBackendError", RuntimeError)
NOBODY = "127.0.0.1:1"  # no gatund listens there


def bits(model):
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def train(rank, size, steps, each=lambda step: None):
    """A small network on numbers of its own for every rank and step; the final parameters, the same on all ranks."""
    torch.manual_seed(7)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5)), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        each(step)
        numbers = torch.Generator().manual_seed(step * size + rank)
        loss = (model(torch.randn(16, 40, generator=numbers)) - torch.randn(16, 5, generator=numbers)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mine = bits(model)
    everyone = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everyone, mine)
    check(all(torch.equal(mine.view(torch.int32), other.view(torch.int32)) for other in everyone), "ranks differ")
    return mine


def nobody_anywhere(rank, size):
    os.environ["GATUN_ADDRESS"] = NOBODY
    init(rank, size)
    with_gatun = train(rank, size, 20)
    stats = gatun.stats()
    check(stats["transport"] == "ring" and "no gatund" in stats["why"], f"{stats}")
    check(stats["ring_operations"] == stats["operations"] > 0 and stats["packets_sent"] == 0, f"{stats}")
    raises(Failure, lambda: dist.all_reduce(torch.ones(10 + rank)), "allreduce of 10", "allreduce of 11")
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    init(rank, size, "gloo", name="gloo")
    with_gloo = train(rank, size, 20)
    check(torch.allclose(with_gatun, with_gloo, atol=1e-5), f"apart by {(with_gatun - with_gloo).abs().max()}")


def address_of_switch(rank, switch):
    path = f"{shared()}/address"
    if rank == 0:
        with open(path + ".new", "w") as file:
            file.write(switch.address)
        os.rename(path + ".new", path)
    wait_for(lambda: os.path.exists(path), "the address")
    with open(path) as file:
        return file.read()


def daemon_dies_and_comes_back(rank, size):
    """With fallback=exact the parameters at the end have the bits of a run that nothing disturbed."""
    switch = Switch() if rank == 0 else None
    os.environ.update(GATUN_ADDRESS=address_of_switch(rank, switch), GATUN_FALLBACK="exact")
    init(rank, size)
    undisturbed = train(rank, size, 60)
    check(gatun.stats()["why"] == "", f"not on the switch: {gatun.stats()['why']}")

    def disturb(step):
        nonlocal switch
        if rank == 0 and step == 10:
            switch.kill()
        if rank == 0 and step == 25:
            switch = Switch(port=int(os.environ["GATUN_ADDRESS"].rsplit(":", 1)[1]))
        if step > 25:
            time.sleep(0.01)  # so that the switch is found while there is something to do

    disturbed = train(rank, size, 60, disturb)
    check(torch.equal(undisturbed.view(torch.int32), disturbed.view(torch.int32)), "the bits differ")
    check(gatun.stats()["failovers"] == 1, f"{gatun.stats()}")
    back = torch.zeros(1)
    for _ in range(2000):
        back.fill_(float(gatun.stats()["why"] == ""))
        dist.all_reduce(back)
        if back.item() == size:
            break
        time.sleep(0.005)
    check(back.item() == size, f"not back on the switch: {gatun.stats()['why']}")
    dist.destroy_process_group()
    if rank == 0:
        switch.close()


def killed_rank(rank, size):
    os.environ["GATUN_ADDRESS"] = NOBODY
    init(rank, size)
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    raises(Failure, lambda: [dist.all_reduce(torch.ones(100_000)) for _ in range(100_000)], "rank 1")
    check(time.monotonic() - began < 10, "the error came late")
    began = time.monotonic()
    dist.destroy_process_group()
    check(time.monotonic() - began < 3, "destroying took long")


ELASTIC = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gatun")
folder, rank = os.environ["GATUN_TEST_FOLDER"], dist.get_rank()
state = folder + "/checkpoint"
value = torch.load(state) if os.path.exists(state) else torch.zeros(4)
first = int(value[0].item())
for step in range(first, 20):
    each = torch.full((4,), 0.5)
    dist.all_reduce(each)
    value += each
    if rank == 0:
        torch.save(value, state + ".new")
        os.rename(state + ".new", state)
    dist.barrier()
    if step == 9 and rank == 1 and first == 0:
        os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} began at {first} and ended with {value.tolist()}", flush=True)
dist.destroy_process_group()
"""


def torchrun(script, folder, address):
    """Runs the script as two ranks that are started again once; what they printed."""
    with open(f"{folder}/job.py", "w") as file:
        file.write(script)
    environment = dict(os.environ, GATUN_ADDRESS=address, GATUN_TEST_FOLDER=folder)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    ended = subprocess.run([*command, f"{folder}/job.py"], env=environment, capture_output=True, text=True, timeout=100)
    check(ended.returncode == 0, ended.stdout + ended.stderr)
    return ended.stdout


def elastic_restart(rank, size):
    """Rank 1 dies once; torchrun starts the job again, which goes on from its checkpoint."""
    with tempfile.TemporaryDirectory(prefix="gatun-test-") as folder:
        printed = torchrun(ELASTIC, folder, NOBODY)
        for each in range(2):
            check(f"rank {each} began at 10 and ended with [20.0, 20.0, 20.0, 20.0]" in printed, printed)


# In its first life rank 1 is a process that torchrun does not know: it stops in the middle of its operations, and is still
# there when the next life has begun.
STOPPED = """
import os, signal, sys, time, numpy, torch, torch.distributed as dist, gatun
folder, rank = os.environ["GATUN_TEST_FOLDER"], int(os.environ["RANK"])
pid_file, word_file = folder + "/stopped", folder + "/word"
first = not os.path.exists(pid_file)
if first and rank == 1:
    old = os.fork()
    if old:
        os.waitid(os.P_PID, old, os.WSTOPPED | os.WEXITED)
        sys.exit(1)
dist.init_process_group("gatun")
comm = gatun.Communicator(rank, 2, job="same", join_timeout=30)
array, tensor = numpy.empty(100_000, numpy.float32), torch.empty(100_000)

def put(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)

def life():
    number, over = 0, torch.zeros(1)
    while number < 200 or not over:
        array.fill(number + rank)
        tensor.fill_(number - rank)
        work = dist.all_reduce(tensor, async_op=True)
        if first and rank == 1 and number == 5:
            put(pid_file, str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        if not first and rank == 1 and number == 100:
            os.kill(int(open(pid_file).read()), signal.SIGCONT)
        comm.allreduce(array)
        work.wait()
        assert (array == 2 * number + 1).all() and bool((tensor == 2 * number - 1).all()), (number, array, tensor)
        number += 1
        over.fill_(os.path.exists(word_file))
        dist.broadcast(over, 1)

if first and rank == 1:
    try:
        life()
    except Exception as error:
        put(word_file, str(error))
    os._exit(0)
life()
print(f"rank {rank} is through", flush=True)
comm.close()
dist.destroy_process_group()
"""


def restarted_beside_a_stopped_rank(rank, size, address):
    """The next life of a job works, under the same name, also when the stopped rank of the old one goes on."""
    with tempfile.TemporaryDirectory(prefix="gatun-test-") as folder:
        try:
            printed = torchrun(STOPPED, folder, address)
            check("rank 0 is through" in printed and "rank 1 is through" in printed, printed)
            with open(f"{folder}/word") as word:
                check("rank 0" in word.read(), "the old rank does not say that rank 0 is lost")
        finally:
            if os.path.exists(f"{folder}/stopped") and not os.path.exists(f"{folder}/word"):
                with open(f"{folder}/stopped") as pid:
                    os.kill(int(pid.read()), signal.SIGKILL)


def restarted_at_switch(rank, size):
    restarted_beside_a_stopped_rank(rank, size, os.environ["GATUN_ADDRESS"])


def restarted_on_ring(rank, size):
    restarted_beside_a_stopped_rank(rank, size, NOBODY)


if __name__ == "__main__":
    old = "PyTorch before 2 has another elastic agent" if OLD else None
    run([
        Run(nobody_anywhere, 3, seconds=60),
        Run(daemon_dies_and_comes_back, 3, seconds=90),
        Run(killed_rank, 3, seconds=60, ends={1: -signal.SIGKILL}),
        Run(elastic_restart, 1, seconds=110, needs=old),
        Run(restarted_at_switch, 1, seconds=110, needs=old),
        Run(restarted_on_ring, 1, seconds=110, needs=old),
    ])  # fmt: skip
