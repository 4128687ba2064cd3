"""Communicator: the blocking half of Gatun's C API for NumPy arrays and PyTorch CPU tensors, through ctypes."""

import ctypes
import time

from gatun import _library

_TYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_U8 = 1
_SLICE_MS = 100  # of a wait
_GRACE = 1  # seconds that close() gives to operations whose call was interrupted


class Error(RuntimeError):
    """What Gatun says; code is one of the C API's GATUN_* numbers."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("address", ctypes.c_char_p), ("job", ctypes.c_char_p), ("transport", ctypes.c_char_p),
        ("trees", ctypes.c_int), ("window", ctypes.c_int), ("payload_bytes", ctypes.c_int),
        ("timeout_ms", ctypes.c_int64), ("join_timeout_ms", ctypes.c_int64), ("fallback", ctypes.c_char_p),
        ("rendezvous", ctypes.c_char_p), ("detect_ms", ctypes.c_int64), ("store", ctypes.c_void_p),
    ]  # fmt: skip


class _Stats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("rank", ctypes.c_int), ("nranks", ctypes.c_int), ("trees", ctypes.c_int),
        ("window", ctypes.c_int), ("payload_bytes", ctypes.c_uint32), ("transport", ctypes.c_char * 16),
        ("address", ctypes.c_char * 64),
    ] + [(name, ctypes.c_uint64) for name in (
        "wire_bytes_sent", "wire_bytes_received", "packets_sent", "packets_received", "packets_resent", "packets_dropped",
        "packets_marked", "operations", "ring_operations", "ring_bytes", "failovers",
    )] + [("why", ctypes.c_char * 256), ("payload_bytes_copied", ctypes.c_uint64)]  # fmt: skip


_loaded = None


def _api():
    global _loaded
    if _loaded is None:
        api = ctypes.CDLL(_library.library())
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        api.gatun_last_error.argtypes, api.gatun_last_error.restype = [pointer], ctypes.c_char_p
        api.gatun_comm_create.argtypes = [ctypes.POINTER(pointer), number, number, ctypes.POINTER(_Options)]
        api.gatun_comm_destroy.argtypes = api.gatun_comm_abort.argtypes = [pointer]
        api.gatun_comm_stats.argtypes = [pointer, ctypes.POINTER(_Stats)]
        started = [pointer, pointer, ctypes.POINTER(pointer)]  # communicator, call, request
        api.gatun_iallreduce.argtypes = [pointer, pointer, size, number, number, *started]
        api.gatun_ireduce_scatter.argtypes = [pointer, pointer, size, number, number, *started]
        api.gatun_iallgather.argtypes = [pointer, pointer, size, number, *started]
        api.gatun_ibroadcast.argtypes = [pointer, pointer, size, number, number, *started]
        api.gatun_ireduce.argtypes = [pointer, pointer, size, number, number, number, *started]
        api.gatun_ibarrier.argtypes = started
        api.gatun_register.argtypes = [pointer, pointer, size]
        api.gatun_deregister.argtypes = [pointer, pointer]
        api.gatun_test.argtypes = [ctypes.POINTER(pointer)]
        api.gatun_wait.argtypes = [ctypes.POINTER(pointer), ctypes.c_int64]
        _loaded = api
    return _loaded


class _Array:
    """Address, type and size of a NumPy array or a PyTorch tensor, which must be contiguous and in host memory."""

    def __init__(self, array, writes):
        if not (hasattr(array, "dtype") and (hasattr(array, "data_ptr") or hasattr(array, "ctypes"))):
            raise TypeError(f"gatun: a NumPy array or a PyTorch tensor is needed, not {type(array).__name__}")
        self.array = array  # kept alive
        kind = str(array.dtype).replace("torch.", "")
        if hasattr(array, "data_ptr"):
            usable = array.device.type == "cpu" and array.is_contiguous()
            self.address, self.count = array.data_ptr(), array.numel()
            self.bytes = self.count * array.element_size()
        else:
            usable = array.flags.c_contiguous and (array.flags.writeable or not writes)
            self.address, self.count, self.bytes = array.ctypes.data, array.size, array.nbytes
        if not usable:
            raise ValueError("gatun: the array must be contiguous, in host memory" + (" and writable" if writes else ""))
        self.kind, self.type = kind, _TYPES.get(kind)

    def element_type(self):
        if self.type is None:
            raise ValueError(f"gatun: elements of type {self.kind} cannot be reduced; there are: {', '.join(_TYPES)}")
        return self.type


def _op(name):
    if name not in _OPS:
        raise ValueError(f"gatun: unknown operator {name!r}; there are: {', '.join(_OPS)}")
    return _OPS[name]


class Communicator:
    """One rank of a job. All ranks call the same operations in the same order; each blocks until it is complete.

    Settings that are not given come from GATUN_* and the settings file. Times are in seconds.

    Ctrl-C, or a signal handler that raises, ends a call at once by its exception. The operation goes on: the arrays stay in
    use until the next call that follows it has returned, and the other ranks get their results.
    """

    def __init__(self, rank, nranks, job=None, address=None, transport=None, trees=0, window=0, payload=0, timeout=0,
                 join_timeout=0):  # fmt: skip
        text = [None if value is None else str(value).encode() for value in (address, job, transport)]
        options = _Options(ctypes.sizeof(_Options), *text, trees, window, payload, int(timeout * 1000),
                           int(join_timeout * 1000))  # fmt: skip
        self._comm = ctypes.c_void_p()
        self._going_on = []  # of calls that were interrupted: request and arrays
        self._registered = []  # kept alive
        self.rank, self.nranks = rank, nranks
        code = _api().gatun_comm_create(ctypes.byref(self._comm), nranks, rank, ctypes.byref(options))
        if code < 0:
            self._comm = ctypes.c_void_p()
            raise Error(code, _api().gatun_last_error(None).decode())

    def _call(self, name, arrays, *arguments):
        """Starts an operation and waits in slices: between two of them, Python runs the handlers of signals."""
        if not self._comm:
            raise ValueError("gatun: the communicator is closed")
        api, request = _api(), ctypes.c_void_p()
        try:
            code = getattr(api, "gatun_i" + name)(*arguments, self._comm, None, ctypes.byref(request))
            while request:
                code = api.gatun_wait(ctypes.byref(request), _SLICE_MS)
        except BaseException:
            if request:
                self._going_on.append((request, arrays))
            raise
        if code < 0:
            raise Error(code, api.gatun_last_error(self._comm).decode())
        self._forget_ended()

    def _forget_ended(self):
        for request, _ in self._going_on:
            _api().gatun_test(ctypes.byref(request))  # empties it when it is complete
        self._going_on = [pending for pending in self._going_on if pending[0]]

    def allreduce(self, array, op="sum", out=None):
        """Reduces over all ranks into out, or in place; returns it."""
        source, target = _Array(array, False), _Array(array if out is None else out, True)
        if (source.count, source.kind) != (target.count, target.kind):
            raise ValueError("gatun: out must have the type and the number of elements of the array")
        both = source, target
        self._call("allreduce", both, source.address, target.address, source.count, source.element_type(), _op(op))
        return array if out is None else out

    def reduce(self, array, op="sum", root=0):
        """Reduces over all ranks, in place at the root; returns the array."""
        it = _Array(array, True)
        target = it.address if self.rank == root else None
        self._call("reduce", it, it.address, target, it.count, it.element_type(), _op(op), root)
        return array

    def reduce_scatter(self, array, out, op="sum"):
        """Reduces and gives each rank its nth part in out; returns it."""
        source, target = _Array(array, False), _Array(out, True)
        if source.count != target.count * self.nranks or source.kind != target.kind:
            raise ValueError("gatun: the array must be as long as out times the number of ranks, and of one type")
        both = source, target
        self._call("reduce_scatter", both, source.address, target.address, target.count, source.element_type(), _op(op))
        return out

    def allgather(self, array, out):
        """Puts the arrays of all ranks one after another into out; returns it. Any element type."""
        source, target = _Array(array, False), _Array(out, True)
        if target.bytes != source.bytes * self.nranks:
            raise ValueError("gatun: out must be as long as the array times the number of ranks")
        both = source, target
        self._call("allgather", both, source.address, target.address, source.bytes, _U8)
        return out

    def broadcast(self, array, root=0):
        """Overwrites the array with the root's; returns it. Any element type."""
        it = _Array(array, True)
        self._call("broadcast", it, it.address, it.address, it.bytes, _U8, root)
        return array

    def barrier(self):
        self._call("barrier", None)

    def register(self, array):
        """Operations on this array, or on parts of it, go without copies where the transport can (verbs). Returns the array,
        whose memory must stay where it is until deregister() or close()."""
        it = _Array(array, False)
        self._memory("register", it.address, it.bytes)
        self._registered.append(it)
        return array

    def deregister(self, array):
        it = _Array(array, False)
        self._memory("deregister", it.address)
        index = next(i for i, registered in enumerate(self._registered) if registered.address == it.address)
        del self._registered[index]

    def _memory(self, name, *arguments):
        if not self._comm:
            raise ValueError("gatun: the communicator is closed")
        code = getattr(_api(), "gatun_" + name)(self._comm, *arguments)
        if code < 0:
            raise Error(code, _api().gatun_last_error(self._comm).decode())

    def stats(self):
        stats = _Stats(ctypes.sizeof(_Stats))
        if not self._comm:
            raise ValueError("gatun: the communicator is closed")
        _api().gatun_comm_stats(self._comm, ctypes.byref(stats))
        values = {name: getattr(stats, name) for name, *_ in _Stats._fields_ if name != "size"}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    def abort(self):
        """Fails everything pending on all ranks; from any thread."""
        if self._comm:
            _api().gatun_comm_abort(self._comm)

    def close(self):
        """Leaves the job. Idempotent."""
        if self._comm:
            end = time.monotonic() + _GRACE
            for request, _ in self._going_on:
                _api().gatun_wait(ctypes.byref(request), int(1000 * max(0, end - time.monotonic())))
            if any(request for request, _ in self._going_on):
                self.abort()
                for request, _ in self._going_on:
                    if request:
                        _api().gatun_wait(ctypes.byref(request), -1)
            comm, self._comm = self._comm, ctypes.c_void_p()
            _api().gatun_comm_destroy(comm)
            self._registered = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_comm", None):
            self.close()
