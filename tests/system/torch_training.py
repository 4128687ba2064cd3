"""Training over Gatun against the same training over Gloo: DDP, its hooks and corners, sharded optimizer and parameters."""

from torch_ranks import OLD, Run, check, init, run  # first: it may skip

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import gatun

if not OLD:
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401  they take seconds: here once, not in every rank
FIRST_BUCKET = 1000  # bytes; else the first bucket holds the whole small model
dist._DEFAULT_FIRST_BUCKET_BYTES = FIRST_BUCKET


class Net(torch.nn.Module):
    def __init__(self, odd=False):
        super().__init__()
        self.first = torch.nn.Linear(20, 64)
        self.middle = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        self.last = torch.nn.Linear(64, 3)
        self.unused = torch.nn.Linear(5, 5)
        self.odd = odd  # leaves out a layer that differs by step

    def forward(self, x, step):
        x = torch.relu(self.first(x))
        for number, layer in enumerate(self.middle):
            if not self.odd or number != step % len(self.middle):
                x = torch.relu(layer(x))
        if not self.odd:
            x = x + 0 * self.unused(x[:, :5]).sum()
        return self.last(x)


def batches(rank, steps):
    generator = torch.Generator().manual_seed(77 + rank)
    for _ in range(steps):
        x = torch.randn(16, 20, generator=generator)
        yield x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


def train(rank, group, steps=8, odd=False, hook=None, optimizer=None, join=False, **more):
    """Parameters and last loss after some steps from the same start."""
    torch.manual_seed(5)
    model = DDP(Net(odd), process_group=group, find_unused_parameters=odd, **more)
    if hook:
        model.register_comm_hook(*hook)
    step_with = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))(model.parameters())

    def loop():
        for step, (x, y) in enumerate(batches(rank, steps)):
            step_with.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x, step), y)
            loss.backward()
            step_with.step()
        return loss.item()

    if join:
        with model.join():
            loss = loop()
    else:
        loss = loop()
    return [each.detach().clone() for each in model.module.parameters()], loss


def same_on_all(rank, size, parameters, what):
    flat = torch.cat([each.reshape(-1) for each in parameters]).view(torch.int32)
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    check(all(torch.equal(each, flat) for each in everyone), f"{what}: the ranks hold different parameters")


def against_gloo(rank, size, what, close=1e-5, ours=None, **arguments):
    gloo = dist.new_group(backend="gloo")
    mine, loss = train(rank, None, **{**arguments, **(ours or {})})
    theirs, gloo_loss = train(rank, gloo, **arguments)
    same_on_all(rank, size, mine, what)
    for a, b in zip(mine, theirs):
        far = (a - b).abs().max()
        check(torch.allclose(a, b, rtol=close, atol=close), f"{what}: parameters differ from Gloo's by {far}")
    check(abs(loss - gloo_loss) < max(close, 1e-4), f"{what}: loss {loss}, Gloo's {gloo_loss}")


def ddp(rank, size):
    init(rank, size)
    before = gatun.stats()["operations"]
    against_gloo(rank, size, "DDP", steps=20)
    check(gatun.stats()["operations"] - before >= 20, "the gradients did not go through Gatun")


def buckets(rank, size):
    """Small buckets: several all-reduces are in flight during the backward pass."""
    init(rank, size)
    before = gatun.stats()["operations"]
    against_gloo(rank, size, "small buckets", bucket_cap_mb=0.01)
    check(gatun.stats()["operations"] - before >= 8 * 4, "the buckets were not cut")
    against_gloo(rank, size, "gradients as views of the buckets", gradient_as_bucket_view=True, bucket_cap_mb=0.02)


def unused(rank, size):
    init(rank, size)
    against_gloo(rank, size, "parameters that are not used in each step", odd=True, bucket_cap_mb=0.01)


def uneven(rank, size):
    """join(): ranks with fewer batches shadow the collectives of the others."""
    init(rank, size)
    against_gloo(rank, size, "uneven inputs", join=True, steps=4 + rank)


def hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    init(rank, size)
    gloo = dist.new_group(backend="gloo")
    against_gloo(rank, size, "all-reduce hook", ours=dict(hook=(None, default_hooks.allreduce_hook)))
    against_gloo(rank, size, "float16 hook", close=2e-2, ours=dict(hook=(None, default_hooks.fp16_compress_hook)))

    def scaled(state, bucket):  # a hook written in Python, with two operations one after the other
        first = dist.all_reduce(bucket.buffer().div_(2 * size), async_op=True).get_future()
        return first.then(lambda done: done.value()[0].mul_(2))

    against_gloo(rank, size, "hook in Python", ours=dict(hook=(None, scaled)), bucket_cap_mb=0.01)
    # PowerSGD starts all-reduces in callbacks, and waits for some there: with one bucket, so that their order is certain.
    power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 20
    parameters, _ = train(rank, None, hook=(power, powerSGD_hook.powerSGD_hook))
    dist._DEFAULT_FIRST_BUCKET_BYTES = FIRST_BUCKET
    same_on_all(rank, size, parameters, "PowerSGD")
    # Gatun's hook over a group of another backend, with a communicator of its own; made by itself, and given.
    for state in (gloo, gatun.HookState(gloo, window=16)):
        parameters, loss = train(rank, gloo, hook=(state, gatun.ddp_hook), bucket_cap_mb=0.01)
        same_on_all(rank, size, parameters, "ddp_hook over Gloo")
        theirs, gloo_loss = train(rank, gloo, bucket_cap_mb=0.01)
        close = all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(parameters, theirs))
        check(close, "ddp_hook and Gloo differ")
    operations = gatun.stats(state.backend)["operations"]
    check(operations >= 8 * 4, f"the hook's communicator has done {operations} operations")


def zero(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    init(rank, size)
    gloo = dist.new_group(backend="gloo")

    def sharded(group):
        return lambda p: ZeroRedundancyOptimizer(p, optimizer_class=torch.optim.Adam, lr=0.01, process_group=group)

    mine, _ = train(rank, None, optimizer=sharded(dist.group.WORLD))
    theirs, _ = train(rank, gloo, optimizer=sharded(gloo))
    same_on_all(rank, size, mine, "ZeroRedundancyOptimizer")
    check(all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(mine, theirs)), "ZeRO over Gatun and Gloo differ")


def fsdp(rank, size):
    """Parameters in shards: all_gather and reduce_scatter in each step."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    init(rank, size)
    gloo = dist.new_group(backend="gloo")

    def sharded(group, strategy):
        torch.manual_seed(5)
        model = FullyShardedDataParallel(
            Net(), process_group=group, sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step, (x, y) in enumerate(batches(rank, 5)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x, step), y).backward()
            optimizer.step()
        with FullyShardedDataParallel.summon_full_params(model):
            return [each.detach().clone() for each in model.parameters()]

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        mine, theirs = sharded(dist.group.WORLD, strategy), sharded(gloo, strategy)
        same_on_all(rank, size, mine, f"FSDP {strategy}")
        close = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(mine, theirs))
        check(close, f"FSDP {strategy} over Gatun and Gloo differ")


def fsdp2(rank, size):
    """fully_shard: sharded tensors over a device mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    init(rank, size)
    torch.manual_seed(5)
    model, whole = Net(), Net()
    whole.load_state_dict(model.state_dict())
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer, reference = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, whole))
    for step, everyone in enumerate(zip(*(batches(each, 5) for each in range(size)))):
        for each in (optimizer, reference):
            each.zero_grad()
        torch.nn.functional.cross_entropy(model(everyone[rank][0], step), everyone[rank][1]).backward()
        sum(torch.nn.functional.cross_entropy(whole(x, step), y) for x, y in everyone).div(size).backward()
        for each in (optimizer, reference):
            each.step()
    for a, b in zip(model.parameters(), whole.parameters()):
        check(torch.allclose(a.full_tensor(), b, rtol=1e-4, atol=1e-5), "fully_shard and training in one process differ")


if __name__ == "__main__":
    new = "" if not OLD else f"PyTorch {torch.__version__} does not have it for the CPU"
    run([
        Run(ddp, 4), Run(ddp, 2), Run(buckets, 4), Run(unused, 2), Run(uneven, 3), Run(hooks, 2, seconds=90), Run(zero, 2),
        Run(fsdp, 2, needs=new), Run(fsdp2, 2, needs=new),
    ])  # fmt: skip
