"""Several process groups: subgroups, groups made and destroyed in one process, threads, debug mode, meshes; NumPy."""

import os
import subprocess
import sys
import threading

from torch_ranks import OLD, Run, check, init, raises, run, shared  # first: it may skip

import torch
import torch.distributed as dist

import gatun

if not OLD:  # they take seconds: here once, not in every rank
    import torch._dynamo
    import torch.distributed._functional_collectives
    import torch.distributed.device_mesh  # noqa: F401


def sum_of(rank, group=None, elements=1000):
    tensor = torch.full((elements,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    check(bool((tensor == tensor[0]).all()), "the elements differ")
    return int(tensor[0].item())


def subgroups(rank, size):
    init(rank, size)
    for members in ([0, 1], [2, 3], [1, 2, 3], [0, 3], [2]):
        group = dist.new_group(members)
        if rank in members:
            want = sum(member + 1 for member in members)
            check(sum_of(rank, group) == want, f"sum over {members}")
            dist.barrier(group)
            everyone = [None] * len(members)
            dist.all_gather_object(everyone, rank, group=group)
            check(everyone == members, f"objects of {members}: {everyone}")
            tensor = torch.ones(3) * rank
            dist.broadcast(tensor, members[-1], group=group)
            check(bool((tensor == members[-1]).all()), f"broadcast in {members}: {tensor}")
    check(sum_of(rank) == 10, "the default group after its subgroups")
    many = [dist.new_group() for _ in range(50)]
    works = [dist.all_reduce(torch.ones(100), group=group, async_op=True) for group in many]
    for work in reversed(works):
        work.wait()
    for group in many[::2]:
        dist.destroy_process_group(group)
    check(all(sum_of(rank, group) == 10 for group in many[1::2]), "groups whose neighbours were destroyed")


def again(rank, size):
    """Destroyed and made again in one process: over new stores, and over one store that stays."""
    for turn in range(4):
        init(rank, size, name=f"turn{turn}")
        check(sum_of(rank) == 3, f"turn {turn}")
        dist.destroy_process_group()
    store = dist.FileStore(f"{shared()}/kept", size)
    for turn in range(1 if OLD else 4):  # PyTorch 1.13 itself hangs on a store that was used before
        dist.init_process_group("gatun", store=store, rank=rank, world_size=size)
        check(sum_of(rank) == 3, f"turn {turn} over the kept store")
        dist.destroy_process_group()
    init(rank, size, name="last")
    group = dist.group.WORLD
    dist.destroy_process_group()
    if not OLD:
        raises(RuntimeError, lambda: group.allreduce([torch.ones(1)]), "destroyed")


def opposite_order(rank, size):
    """Two threads, two groups; the ranks start them in opposite order."""
    init(rank, size)
    groups = [dist.new_group(), dist.new_group()]
    errors = []

    def work(which):
        try:
            for turn in range(200):
                tensor = torch.full((17,), float(which * 1000 + turn + rank))
                dist.all_reduce(tensor, group=groups[which])
                want = size * (which * 1000 + turn) + sum(range(size))
                check(bool((tensor == want).all()), f"group {which} turn {turn}: {tensor[0]}, not {want}")
        except Exception as error:
            errors.append(error)

    order = [0, 1] if rank % 2 else [1, 0]
    threads = [threading.Thread(target=work, args=(which,)) for which in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not errors, f"{errors}")


def detail(rank, size):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend in PyTorch's own checker."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    init(rank, size)
    check(sum_of(rank) == 3 and gatun.stats()["operations"] > 0, "sum")
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.ones(3, 4)).sum().backward()
    raises(RuntimeError, lambda: dist.all_reduce(torch.ones(3 + rank)), "mismatch" if not OLD else "")


def other_names(rank, size):
    """Gatun for one kind of device only, and the settings a group takes."""
    if not OLD:
        init(rank, size, "cpu:gatun,cuda:gloo", name="mixed")
        check(sum_of(rank) == 3 and gatun.stats()["operations"] > 0, "cpu:gatun,cuda:gloo")
        dist.destroy_process_group()
    options = dict(transport="udp", trees=2, window=8)
    init(rank, size, name="options", pg_options=options)
    check(sum_of(rank) == 3, "with options")
    stats = gatun.stats()
    got = {key: stats[key] for key in ("transport", "trees", "window", "nranks")}
    check(got == dict(options, nranks=size), f"the options became {got}")
    dist.destroy_process_group()
    raises(ValueError, lambda: init(rank, size, name="bad", pg_options=dict(tree=2)), "unknown option 'tree'", "trees")
    raises(TypeError, lambda: init(rank, size, name="worse", pg_options=7), "dict")


def mesh(rank, size):
    """Functional collectives and a two-dimensional mesh, as tensor-parallel code uses them."""
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    init(rank, size)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    total = functional.all_reduce(torch.ones(5) * rank, "sum", grid["columns"])
    check(bool((total == (1 if rank < 2 else 5)).all()), f"sum over columns: {total}")
    gathered = functional.all_gather_tensor(torch.ones(2) * rank, 0, grid["rows"])
    check(gathered.tolist() == [rank % 2] * 2 + [rank % 2 + 2] * 2, f"gather over rows: {gathered}")
    scattered = functional.reduce_scatter_tensor(torch.arange(8.0), "avg", 0, dist.group.WORLD)
    check(scattered.tolist() == [2 * rank, 2 * rank + 1], f"reduce_scatter: {scattered}")


def arrays(rank, size):
    """gatun.Communicator: NumPy arrays and tensors, without a process group."""
    import numpy as np

    with gatun.Communicator(rank, size, job="arrays", timeout=20, join_timeout=20) as comm:
        array = np.arange(10, dtype=np.float32) * (rank + 1)
        out = comm.allreduce(array, out=np.empty_like(array))
        check(np.array_equal(out, np.arange(10) * 3) and array[1] == rank + 1, f"allreduce: {out}")
        check(comm.allreduce(torch.tensor([1, 2]), "max").tolist() == [1, 2], "allreduce of a tensor")
        check(comm.allreduce(np.array([1.0, 3.0]), "avg").tolist() == [1.0, 3.0], "average")
        check(comm.broadcast(np.array([rank + 5]), root=1).tolist() == [6], "broadcast")
        check(comm.allgather(np.array([rank], np.int16), np.empty(size, np.int16)).tolist() == [0, 1], "allgather")
        check(comm.reduce_scatter(np.array([1, 2]), np.empty(1, np.int64)).tolist() == [2 * (rank + 1)], "reduce_scatter")
        check(comm.reduce(np.array([rank]), root=1).tolist() == [rank], "reduce")
        comm.barrier()
        check(comm.stats()["operations"] >= 7 and comm.stats()["nranks"] == size, f"stats: {comm.stats()}")
        check(comm.register(array) is array, "registering")
        check(np.array_equal(comm.allreduce(array[2:4]), [6, 9]), "a part of a registered array")
        comm.deregister(array)
        raises(gatun.Error, lambda: comm.deregister(array), "no memory that begins at this address is registered")
        raises(ValueError, lambda: comm.allreduce(np.zeros(3, np.complex64)), "complex64")
        raises(ValueError, lambda: comm.allreduce(np.zeros((4, 4))[:, 1]), "contiguous")
        raises(ValueError, lambda: comm.allreduce(np.zeros(3), "mean"), "mean", "avg")
        raises(gatun.Error, lambda: comm.allreduce(np.zeros(3 + rank)), "rank")
        check(comm.allreduce(np.ones(2)).tolist() == [size, size], "after the mismatch")
    raises(ValueError, comm.barrier, "closed")


def autoload(rank, size):
    """Current PyTorch finds the backend without an import, and survives a broken one; the end of a script leaves the job."""
    script = "import torch.distributed as d; assert 'gatun' in d.Backend.backend_list, d.Backend.backend_list"
    if rank == 0:
        subprocess.run([sys.executable, "-c", "import torch; " + script], check=True, timeout=60)
    end = (
        "import torch, torch.distributed as d, os; r = int(os.environ['RANK'])\n"
        f"d.init_process_group('gatun', init_method='file://{shared()}/script', rank=r, world_size={size})\n"
        "t = torch.ones(5); d.all_reduce(t); assert t[0] == 2\n"  # and no destroy_process_group
    )
    done = subprocess.run([sys.executable, "-c", "import gatun\n" + end], timeout=60, capture_output=True, text=True)
    lost = [line for line in done.stderr.splitlines() if "lost" in line or "Error" in line]
    check(done.returncode == 0 and not lost, f"a script without destroy_process_group: {done.returncode} {done.stderr}")


if __name__ == "__main__":
    new = "" if not OLD else f"PyTorch {torch.__version__} does not have it"
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    run([
        Run(subgroups, 4), Run(again, 2), Run(opposite_order, 4), Run(detail, 2), Run(other_names, 2),
        Run(mesh, 4, needs=new), Run(arrays, 2), Run(autoload, 2, seconds=120, needs=new),
    ])  # fmt: skip
