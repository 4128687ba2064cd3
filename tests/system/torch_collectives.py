"""Every collective x element type x shape x operator, against what the inputs of all ranks say and against Gloo."""

import itertools
import sys

from torch_ranks import OLD, Run, check, init, run  # first: it may skip

import torch
import torch.distributed as dist


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
NARROW = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
WIDE = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
SHAPES = [(), (1,), (0,), (7,), (3, 0, 2), (33, 65), (4, 5, 6), (70_001,)]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]


def values(dtype, shape, rank, salt=0):
    """What this rank brings: any rank can compute it. Small whole numbers, so that sums are exact in most types."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    low, high = (0, 2) if dtype == torch.bool else (0, 4) if not dtype.is_signed else (-3, 4)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def expected(op, inputs):
    dtype = inputs[0].dtype
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    stack = torch.stack([each.to(wide) for each in inputs])
    if op == "SUM":
        out = stack.sum(0)
    elif op == "AVG":
        out = stack.sum(0) / len(inputs)
        out = out if dtype.is_floating_point else torch.trunc(out)
    elif op == "PRODUCT":
        out = stack.prod(0)
    else:
        out = stack.amin(0) if op == "MIN" else stack.amax(0)
    return out.to(dtype)


def same(got, want, what):
    kinds = (got.dtype, got.shape), (want.dtype, want.shape)
    check(kinds[0] == kinds[1], f"{what}: {kinds[0]}, not {kinds[1]}")
    equal = torch.equal(got.view(torch.uint8), want.view(torch.uint8)) if got.dtype in NARROW and got.dim() else None
    if equal is None:
        equal = bool((got.to(torch.float64) == want.to(torch.float64)).all())
    check(equal, f"{what}: got {got.flatten()[:8]}, expected {want.flatten()[:8]}")


def reductions():
    for dtype, shape, op in itertools.product(FLOATS + INTEGERS + NARROW + WIDE, SHAPES, OPS):
        yield dtype, shape, op
    for shape, op in itertools.product(SHAPES, ["SUM", "PRODUCT", "MIN", "MAX"]):
        yield torch.bool, shape, op


def all_reduce(rank, size):
    init(rank, size)
    for number, (dtype, shape, op) in enumerate(reductions()):
        inputs = [values(dtype, shape, each, number) for each in range(size)]
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        same(tensor, expected(op, inputs), f"all_reduce {dtype} {shape} {op}")


def all_reduce_layouts(rank, size):
    """Strided, overlapping-free and offset tensors; complex numbers; random floats against Gloo."""
    init(rank, size)
    gloo = dist.new_group(backend="gloo")
    base = [torch.arange(600.0).reshape(20, 30) * (each + 1) for each in range(size)]
    views = {
        "transposed": lambda t: t.t(),
        "every second": lambda t: t[:, ::2],
        "offset": lambda t: t.flatten()[1:],
        "inner block": lambda t: t[3:7, 5:9],
    }
    for name, view in views.items():
        whole = base[rank].clone()
        dist.all_reduce(view(whole))
        want = base[rank].clone()
        view(want).copy_(sum(view(each) for each in base))
        same(whole, want, name)
    for op in ["SUM", "AVG"]:
        tensor = torch.complex(torch.ones(9) * rank, torch.ones(9))
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        scale = size if op == "AVG" else 1
        want = torch.complex(torch.ones(9) * sum(range(size)) / scale, torch.ones(9) * size / scale)
        check(torch.equal(tensor, want), f"complex {op}: {tensor}")
    generator = torch.Generator().manual_seed(rank)
    for dtype, close in [(torch.float32, 1e-6), (torch.float64, 1e-14)]:
        ours = torch.randn(100_003, generator=generator, dtype=dtype)
        theirs = ours.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        check(torch.allclose(ours, theirs, rtol=close, atol=close * 10), f"{dtype} is far from Gloo's")
        everyone = [torch.empty_like(ours) for _ in range(size)]
        dist.all_gather(everyone, ours, group=gloo)
        check(all(torch.equal(each, ours) for each in everyone), f"{dtype}: the ranks hold different bits")


def special_values(rank, size):
    """NaN and infinities go by IEEE's rules; 16-bit sums are rounded once."""
    init(rank, size)
    inf, nan = float("inf"), float("nan")
    for dtype in FLOATS:
        tensor = torch.tensor([inf, -inf if rank else inf, nan if rank else 1.0, -0.0], dtype=dtype)
        dist.all_reduce(tensor)
        check(tensor[0] == inf and tensor[1].isnan() and tensor[2].isnan() and tensor[3] == 0, f"{dtype}: {tensor}")
        tensor = torch.tensor([nan if rank else 1.0, float(rank)], dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        check(tensor[0].isnan() and tensor[1] == size - 1, f"{dtype} maximum: {tensor}")
    generators = [torch.Generator().manual_seed(each) for each in range(size)]
    inputs = [((torch.rand(5000, generator=each) * 2 - 1) * 65504).to(torch.float16) for each in generators]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    total = inputs[0].float()
    for each in inputs[1:]:
        total = total + each.float()
    check(torch.equal(tensor, total.to(torch.float16)), "float16: not the float32 sum in rank order, rounded once")


def others(rank, size):
    """Collectives that move or scatter: against the inputs, and Gloo's answer where Gloo has one."""
    init(rank, size)
    for number, (dtype, shape) in enumerate(itertools.product(FLOATS + INTEGERS + [torch.bool], SHAPES)):
        inputs = [values(dtype, shape, each, number) for each in range(size)]
        for root in range(size):
            tensor = inputs[rank].clone()
            dist.broadcast(tensor, root)
            same(tensor, inputs[root], f"broadcast {dtype} {shape}")
            if dtype != torch.bool:
                tensor = inputs[rank].clone()
                dist.reduce(tensor, root)
                same(tensor, expected("SUM", inputs) if rank == root else inputs[rank], f"reduce {dtype} {shape}")
        outputs = [torch.empty_like(inputs[0]) for _ in range(size)]
        dist.all_gather(outputs, inputs[rank])
        for each in range(size):
            same(outputs[each], inputs[each], f"all_gather {dtype} {shape}")
        flat = torch.empty((size * inputs[0].numel(),), dtype=dtype)
        gather_flat = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        gather_flat(flat, inputs[rank].reshape(-1))
        same(flat, torch.cat([each.reshape(-1) for each in inputs]), f"all_gather_into_tensor {dtype} {shape}")


def reduce_scatter(rank, size):
    init(rank, size)
    scatter_flat = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    for number, (dtype, shape, op) in enumerate(reductions()):
        inputs = [[values(dtype, shape, 10 * each + part, number) for part in range(size)] for each in range(size)]
        want = expected(op, [each[rank] for each in inputs]) if dtype != torch.bool else None
        if want is None:
            continue
        output = torch.empty_like(want)
        dist.reduce_scatter(output, inputs[rank], getattr(dist.ReduceOp, op))
        same(output, want, f"reduce_scatter {dtype} {shape} {op}")
        output = torch.empty((want.numel(),), dtype=dtype)
        flat = torch.cat([each.reshape(-1) for each in inputs[rank]])
        scatter_flat(output, flat, getattr(dist.ReduceOp, op))
        same(output, want.reshape(-1), f"reduce_scatter_tensor {dtype} {shape} {op}")


def through_gloo(rank, size):
    """What the inner group does: gather, scatter, all_to_all, messages, bitwise operators, sparse tensors."""
    init(rank, size)
    mine = torch.arange(5) + 10 * rank
    gathered = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
    dist.gather(mine, gathered, dst=1)
    check(rank != 1 or all(torch.equal(gathered[r], torch.arange(5) + 10 * r) for r in range(size)), f"gather: {gathered}")
    part = torch.empty(3)
    dist.scatter(part, [torch.ones(3) * r for r in range(size)] if rank == 0 else None, src=0)
    check(torch.equal(part, torch.ones(3) * rank), f"scatter: {part}")
    swapped = torch.empty(size, dtype=torch.int64)
    dist.all_to_all_single(swapped, torch.arange(size) + 100 * rank)
    check(torch.equal(swapped, torch.arange(size) * 100 + rank), f"all_to_all_single: {swapped}")
    token = torch.zeros(1)
    if rank == 0:
        dist.send(torch.ones(1), 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        dist.send(token + 1, (rank + 1) % size)
    check(token.item() == (size if rank == 0 else rank), f"ring of messages: {token}")
    if rank == 0:
        senders = sorted(dist.recv(token) for _ in range(size - 1))
        check(senders == list(range(1, size)), f"any source: {senders}")
    else:
        dist.isend(torch.ones(1), 0).wait()
    bits = torch.tensor([1 << rank, 3])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    check(bits.tolist() == [(1 << size) - 1, 3], f"bitwise or: {bits}")
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    dist.all_reduce(sparse)
    check(torch.equal(sparse.to_dense(), torch.ones(size)), f"sparse: {sparse}")
    if not OLD:
        dist.monitored_barrier()


if __name__ == "__main__":
    functions = [all_reduce, all_reduce_layouts, special_values, others, reduce_scatter, through_gloo]
    run([Run(function, size, seconds=120) for size in (2, 4) for function in functions])
    sys.exit(1)
