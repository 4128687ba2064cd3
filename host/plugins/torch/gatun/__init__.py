"""Gatun: all-reduce summed by an aggregation switch in software.

With PyTorch, the backend "gatun" (current PyTorch finds it by itself; before 2.5, import gatun):

    torch.distributed.init_process_group("gatun")

or only the gradients of a model, over any backend:

    model.register_comm_hook(None, gatun.ddp_hook)

Without PyTorch, a communicator for NumPy arrays:

    with gatun.Communicator(rank, nranks, job="mine") as communicator:
        communicator.allreduce(array)

Ctrl-C, or any signal handler that raises, ends a wait for an operation within a moment by its exception, in Python's main
thread. The operation goes on and the group stays usable: wait for it again, or end the process; then the other ranks get an
error that names this one. PyTorch's own waits, of futures and while groups are made, see signals when they end.

Ending groups takes at most about a second, however many there are: so long they may still complete what is pending.

The switch is the program gatund, at 127.0.0.1:7117 or where GATUN_ADDRESS says.
"""

import importlib.util as _util

from gatun._build import VERSION as __version__
from gatun._communicator import Communicator, Error

__all__ = ["Communicator", "Error", "HookState", "ddp_hook", "register", "stats"]


def register():
    """Makes the backend "gatun" known to torch.distributed. Done by import; safe to repeat."""
    import torch  # noqa: F401  first, and whole: PyTorch's own import comes here too

    from gatun import _torch

    _torch.register()


def _autoload():
    """What PyTorch calls at the end of its own import, where an exception would break every user of PyTorch."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f"gatun: the backend could not be registered: {error}", stacklevel=2)


def stats(group=None):
    """What the communicator of a process group is and has done: a dict of gatun_stats_t's fields."""
    from gatun import _torch

    return _torch.stats(group)


def __getattr__(name):
    if name in ("ddp_hook", "HookState"):
        from gatun import _hook

        return getattr(_hook, name)
    raise AttributeError(f"module 'gatun' has no attribute '{name}'")


if _util.find_spec("torch"):
    register()
