"""The backend "gatun" of torch.distributed: registration, settings, rendezvous. The work is done by the extension _gatun."""

import atexit
import inspect
import os
import secrets

import torch
import torch.distributed as dist

from gatun import _build

_extension = None

# Settings a group takes in pg_options=dict(...); anything not given comes from GATUN_* and the settings file.
_WORDS = ("address", "job", "transport", "fallback")
_NUMBERS = ("trees", "window", "payload")
_SECONDS = ("join_timeout", "detect")


def extension():
    """The compiled part, loaded when the first group is made, so that importing PyTorch stays cheap and safe."""
    global _extension
    if _extension is None:
        here = ".".join(torch.__version__.split(".")[:2])
        if _build.TORCH is None:
            raise RuntimeError("this gatun was built without PyTorch; install PyTorch, then gatun again")
        if _build.TORCH != here:
            raise RuntimeError(
                f"gatun was built for PyTorch {_build.TORCH} and this is {torch.__version__}; build it for this one: "
                "pip install --force-reinstall --no-cache-dir . in Gatun's folder, or ./dev build"
            )
        from gatun import _gatun

        atexit.register(_gatun.leave_all)
        _extension = _gatun
    return _extension


def register():
    if not dist.is_available() or hasattr(dist.Backend, "GATUN"):
        return
    more = {}
    if "devices" in inspect.signature(dist.Backend.register_backend).parameters:
        more["devices"] = ["cpu", "cuda"]
    dist.Backend.register_backend("gatun", _create_group, extended_api=True, **more)


def settings_of(options):
    """Splits pg_options into words and numbers of gatun_options_t."""
    options = dict(options or {})
    words = {key: str(options.pop(key)) for key in _WORDS if options.get(key) is not None}
    numbers = {key: int(options.pop(key)) for key in _NUMBERS if options.get(key) is not None}
    for key in _SECONDS:
        if options.get(key) is not None:
            numbers[key + "_ms"] = int(float(options.pop(key)) * 1000)
    unknown = [key for key, value in options.items() if value is not None]
    if unknown:
        known = ", ".join(_WORDS + _NUMBERS + _SECONDS)
        raise ValueError(f"gatun: unknown option {unknown[0]!r} in pg_options; there are: {known}")
    return words, numbers


def meet(store, rank, size, words):
    """Gives all ranks of one group the same job name, which no other group and no earlier run has.

    Returns the store's prefix for this meeting: the same store may serve a group that is destroyed and made again.
    """
    name = words.get("job") or os.environ.get("GATUN_JOB") or "torch"
    if size == 1:
        words["job"] = f"{name}-{secrets.token_hex(8)}"
        return "gatun/0"
    meeting = f"gatun/{(store.add('gatun/members', 1) - 1) // size}"
    if rank == 0:
        store.set(f"{meeting}/job", f"{name}-{secrets.token_hex(8)}")
    words["job"] = store.get(f"{meeting}/job").decode()
    return meeting


def create(store, rank, size, timeout, name, options, inner=True):
    """A c10d backend (PyTorch 1.13: process group) that is a member of its own job."""
    words, numbers = settings_of(options)
    ext = extension()
    meeting = meet(store, rank, size, words)
    numbers.setdefault("join_timeout_ms", max(1, int(timeout.total_seconds() * 1000)))
    numbers.setdefault("timeout_ms", numbers["join_timeout_ms"])
    gloo = _gloo(store, meeting, rank, size, timeout) if inner else None
    nccl = (lambda: _nccl(store, meeting, rank, size, timeout)) if inner else None
    place = dist.PrefixStore(f"{meeting}/ranks", store)
    return ext.create(rank, size, name, timeout, words, numbers, place, gloo, nccl)


def _gloo(store, meeting, rank, size, timeout):
    maker = getattr(dist, "ProcessGroupGloo", None)
    return maker(dist.PrefixStore(f"{meeting}/gloo", store), rank, size, timeout=timeout) if maker else None


def _nccl(store, meeting, rank, size, timeout):
    maker = getattr(dist, "ProcessGroupNCCL", None)
    if maker is None or not torch.cuda.is_available():
        return None
    options = maker.Options()
    options._timeout = timeout
    return maker(dist.PrefixStore(f"{meeting}/nccl", store), rank, size, options)


def _create_group(opts, pg_options):
    if pg_options is not None and not isinstance(pg_options, dict):
        kind = type(pg_options).__name__
        raise TypeError(f"gatun: pg_options must be a dict such as dict(address='host:7117'), not {kind}")
    name = getattr(opts, "group_id", "") or "default"
    return create(opts.store, opts.group_rank, opts.group_size, opts.timeout, name, pg_options)


def backend_of(group=None):
    """The gatun backend behind a process group."""
    group = group or dist.group.WORLD
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
    return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it


def stats(group=None):
    return extension().stats(backend_of(group))
