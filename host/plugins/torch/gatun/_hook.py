"""The communication hook of DistributedDataParallel: gradients through Gatun, the rest through the group's backend."""

import datetime
import weakref

import torch.distributed as dist

from gatun import _torch

_DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)


class HookState:
    """The communicator that ddp_hook uses: a job of its own with the ranks of a process group.

    All ranks of the group make one. options are those of pg_options: address, job, transport, trees, window, payload.
    """

    def __init__(self, process_group=None, timeout=_DEFAULT_TIMEOUT, **options):
        group = process_group or dist.group.WORLD
        ranks = _ranks_of(group)
        store = dist.PrefixStore(
            "gatun_hook/" + "_".join(map(str, ranks)), dist.distributed_c10d._get_default_store()
        )
        self.backend = _torch.create(
            store, dist.get_rank(group), len(ranks), timeout, "ddp_hook", options, inner=False
        )
        self.average = dist.AllreduceOptions()
        self.average.reduceOp = dist.ReduceOp.AVG


def _ranks_of(group):
    if hasattr(dist, "get_process_group_ranks"):
        return dist.get_process_group_ranks(group)
    ranks = dist.distributed_c10d._pg_group_ranks.get(group) or {}
    return sorted(ranks) or list(range(dist.get_world_size(group)))


_default_states = weakref.WeakKeyDictionary()  # process group: its HookState


def _state_of(group):
    group = group or dist.group.WORLD
    if group not in _default_states:
        _default_states[group] = HookState(group)
    return _default_states[group]


def ddp_hook(state, bucket):
    """model.register_comm_hook(state, gatun.ddp_hook): averages each bucket in the switch.

    state is a HookState, or a process group or None (the default group) to have one made at the first bucket.
    """
    if not isinstance(state, HookState):
        state = _state_of(state)
    work = state.backend.allreduce([bucket.buffer()], state.average)
    return work.get_future().then(lambda done: done.value()[0])
