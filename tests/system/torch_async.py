"""Operations in flight: handles, futures and their callbacks, coalescing, object collectives, barriers, time limits."""

import datetime
import time

from torch_ranks import OLD, Run, check, init, raises, run, wait_for  # first: it may skip

import torch
import torch.distributed as dist


def handles(rank, size):
    """Many at once; waited for in any order, polled, or not at all."""
    init(rank, size)
    tensors = [torch.full((n * n * 7,), float(rank + n)) for n in range(60)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for work in reversed(works[20:]):
        work.wait()
    wait_for(lambda: all(work.is_completed() for work in works), "handles to complete while nobody waits")
    for n, tensor in enumerate(tensors):
        want = float(sum(range(size)) + n * size)
        check(bool((tensor == want).all()), f"tensor {n}: {tensor[:4]}, not {want}")
    check(all(work.is_success() for work in works), "a handle reports failure")
    works[0].wait()
    works[0].wait()  # again is allowed
    del works
    for n in range(200):  # handles that nobody keeps
        dist.all_reduce(tensors[n % 60], dist.ReduceOp.MAX, async_op=True)
    dist.barrier()


def futures(rank, size):
    init(rank, size)
    tensor = torch.ones(1000) * (rank + 1)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    total = size * (size + 1) / 2
    check(bool((doubled == 2 * total).all()), f"then: {doubled[:4]}")
    check(future.done(), "the future is not done")

    # A callback that starts another operation and waits for it, and one that waits for a barrier.
    def again(done):
        more = done.value()[0].clone()
        dist.all_reduce(more)
        dist.barrier()
        return more

    for _ in range(20):
        tensor = torch.ones(10)
        nested = dist.all_reduce(tensor, async_op=True).get_future().then(again)
        check(bool((nested.wait() == size * size).all()), "nested all_reduce")
    late = dist.all_reduce(torch.ones(3), async_op=True)
    late.wait()
    check(bool((late.get_future().wait()[0] == size).all()), "a future asked for after completion")
    gathered = [torch.empty(4) for _ in range(size)]
    dist.all_gather(gathered, torch.ones(4) * rank, async_op=True).get_future().wait()
    check(all(bool((gathered[r] == r).all()) for r in range(size)), "the future of all_gather completed before its results")


def barrier_orders(rank, size):
    """A barrier is over only when everything this rank started before it is."""
    init(rank, size)
    for turn in range(10):
        big = torch.ones(300_000)
        strided = torch.ones(500, 4).t()[::2]
        works = [dist.all_reduce(big, async_op=True), dist.all_reduce(strided, async_op=True)]
        if rank == turn % size:
            time.sleep(0.02)
        if turn % 2:
            dist.barrier()
        else:
            dist.barrier(async_op=True).wait()
        check(all(work.is_completed() for work in works), "the barrier overtook an all_reduce")
        check(bool((big == size).all()) and bool((strided == size).all()), "a result is missing after the barrier")
    gathered = [torch.empty(50_000) for _ in range(size)] if rank == 0 else None
    work = dist.gather(torch.ones(50_000) * rank, gathered, dst=0, async_op=True)
    dist.barrier()
    check(work.is_completed(), "the barrier overtook a gather of the inner group")
    if rank == 0:
        message = torch.empty(1)
        work = dist.irecv(message, 1)
        dist.barrier()  # must not wait for a message that is sent after it
        work.wait()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0)


def coalescing(rank, size):
    init(rank, size)
    total = float(sum(range(1, size + 1)))
    tensors = [torch.full((n,), float(rank + 1)) for n in (3, 0, 1000, 1)] + [torch.full((4, 6), float(rank + 1)).t()]
    if OLD:
        dist.all_reduce_coalesced(tensors)
    else:
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
    check(all(bool((tensor == total).all()) for tensor in tensors), f"coalesced: {[t.flatten()[:2] for t in tensors]}")
    if OLD:
        return
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
    manager.wait()
    check(all(bool((tensor == total).all()) for tensor in tensors), "coalesced average")
    outputs = [torch.empty(size * n) for n in (5, 2)]
    with dist._coalescing_manager():
        for output, n in zip(outputs, (5, 2)):
            dist.all_gather_into_tensor(output, torch.full((n,), float(rank)))
    for output, n in zip(outputs, (5, 2)):
        check(torch.equal(output, torch.arange(float(size)).repeat_interleave(n)), f"coalesced all_gather: {output}")
    outputs = [torch.empty(n) for n in (5, 2)]
    with dist._coalescing_manager():
        for output, n in zip(outputs, (5, 2)):
            dist.reduce_scatter_tensor(output, torch.arange(float(size)).repeat_interleave(n))
    check(all(bool((output == rank * size).all()) for output in outputs), f"coalesced reduce_scatter: {outputs}")
    tensor = torch.ones(4) * rank
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(tensor, 1)
    manager.wait()
    check(bool((tensor == 1).all()), f"broadcast inside the manager: {tensor}")
    peers = (rank + 1) % size, (rank - 1) % size
    message = torch.empty(1)
    ops = [dist.P2POp(dist.isend, torch.ones(1) * rank, peers[0]), dist.P2POp(dist.irecv, message, peers[1])]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    check(message.item() == peers[1], f"batch of messages: {message}")


def objects(rank, size):
    init(rank, size)
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * (100 * rank)})
    check([each["rank"] for each in everyone] == list(range(size)), f"all_gather_object: {everyone}")
    sent = ["a", {"b": 2}, None] if rank == 1 else [None] * 3
    dist.broadcast_object_list(sent, src=1)
    check(sent == ["a", {"b": 2}, None], f"broadcast_object_list: {sent}")
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 11, gathered, dst=0)
    check(rank != 0 or gathered == [11 * r for r in range(size)], f"gather_object: {gathered}")
    mine = [None]
    dist.scatter_object_list(mine, list("abcdefgh")[:size] if rank == 0 else [None] * size, src=0)
    check(mine == ["abcdefgh"[rank]], f"scatter_object_list: {mine}")


def limits(rank, size):
    """A wait may be shorter than the operation: it fails, the operation goes on."""
    init(rank, size)
    tensor = torch.ones(10)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        raises(RuntimeError, lambda: work.wait(datetime.timedelta(milliseconds=50)), "timed out")
        dist.distributed_c10d._get_default_store().set("go", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_store().get("go")
        dist.all_reduce(tensor)
    check(bool((tensor == size).all()), f"after the short wait: {tensor}")


def autograd_leaves(rank, size):
    """Results go into tensors that require gradients, as a model's parameters do."""
    init(rank, size)
    parameter = torch.nn.Parameter(torch.ones(3, 4) * rank)
    dist.broadcast(parameter.data, 1)
    outputs = [torch.nn.Parameter(torch.zeros(4)) for _ in range(size)]
    dist.all_gather([each.detach() for each in outputs], torch.ones(4) * rank)
    strided = torch.nn.Parameter(torch.ones(4, 4))
    with torch.no_grad():
        dist.all_reduce(strided.t()[:, ::2], async_op=True).wait()
    check(bool((parameter == 1).all()) and all(bool((outputs[r] == r).all()) for r in range(size)), "values in leaves")
    check(bool((strided.t()[:, ::2] == size).all()), "a strided view of a leaf")


def profiled(rank, size):
    init(rank, size)
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(5))
    names = {event.name for event in profile.function_events}
    check("gatun:all_reduce" in names, f"the profiler saw {sorted(names)}")


if __name__ == "__main__":
    functions = [handles, futures, barrier_orders, coalescing, objects, limits, autograd_leaves, profiled]
    run([Run(function, 3, seconds=60) for function in functions])
