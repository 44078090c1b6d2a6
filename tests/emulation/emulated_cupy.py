"""Emulation of the parts of CuPy used here; kernels are compiled by g++ and run on the CPU.

Like those of CuPy, its arrays are converted to NumPy by :meth:`ndarray.get` only.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

HEADER = Path(__file__).with_name("cuda.hpp")
COMPILER = shutil.which("g++")
_BUILDS = Path(tempfile.mkdtemp(prefix="emulated-cuda-"))
_LOCK = threading.Lock()  # the emulation runs one launch at a time

settings = SimpleNamespace(backwards=False)  # the order in which threads take turns


class _Device:
    id = 0
    compute_capability = "90"
    attributes: ClassVar = {"MultiProcessorCount": 132, "ClockRate": 1_980_000}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class ndarray:
    """An array that cannot be read from the host."""

    __array_priority__ = 100
    device = _Device()

    def __init__(self, host):
        self._host = host

    dtype = property(lambda self: self._host.dtype)
    shape = property(lambda self: self._host.shape)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)

    @property
    def __cuda_array_interface__(self):
        return dict(self._host.__array_interface__, version=3)

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __array_function__(self, function, types, args, kwargs):
        return NotImplemented

    def __len__(self):
        return len(self._host)

    def __getitem__(self, index):
        return ndarray(self._host[index._host if isinstance(index, ndarray) else index])

    def reshape(self, *shape):
        return ndarray(self._host.reshape(*shape))

    def astype(self, dtype, copy=True):
        return ndarray(self._host.astype(dtype, copy=copy))

    def get(self):
        return self._host.copy()

    def set(self, host, stream):
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        assert host.flags.c_contiguous
        self._host[...] = host


def asarray(x):
    return x if isinstance(x, ndarray) else ndarray(np.array(x))


def ascontiguousarray(x):
    return ndarray(np.ascontiguousarray(x._host))


def empty(shape, dtype):
    """Not zeros: what is never written must not be read."""
    out = np.empty(shape, dtype=dtype)
    out.view(np.uint8)[...] = 0xFF  # NaN, in floating point
    return ndarray(out)


def zeros(shape, dtype):
    return ndarray(np.zeros(shape, dtype=dtype))


class RawModule:
    """Kernels compiled as C++."""

    def __init__(self, *, code, options):
        assert "--fmad=false" in options
        names = re.findall(r'"C" __global__ void(?: __launch_bounds__\([^)]*\))?\s+(\w+)', code)
        key = hashlib.sha256((code + HEADER.read_text()).encode()).hexdigest()[:16]
        library = _BUILDS / f"{key}.so"
        with _LOCK:
            if not library.exists():
                _build(code, names, library)
        self._library = ctypes.CDLL(str(library))

    def compile(self):
        """Done already."""

    def get_function(self, name):
        launch = getattr(self._library, f"launch_{name}")

        def run(grid, block, arguments):
            values = [_value(argument) for argument in arguments]
            sizes = (ctypes.c_int * len(values))(*(ctypes.sizeof(value) for value in values))
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
            dims = [(ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, block)]
            assert len(block) == 1
            assert len(grid) <= 2
            with _LOCK:
                wrong = launch(*dims, int(settings.backwards), len(values), sizes, pointers)
            assert not wrong, f"the arguments of {name} do not fit its parameters"

        return run


def _value(argument):
    if isinstance(argument, ndarray):
        assert argument._host.flags.c_contiguous
        return ctypes.c_void_p(argument._host.ctypes.data)
    return {np.int32: ctypes.c_int32, np.int64: ctypes.c_int64}[type(argument)](int(argument))


def _build(code, names, library):
    source = library.with_suffix(".cpp")
    entries = "\n".join(f"ENTRY({name})" for name in names)
    source.write_text(f'#include "{HEADER}"\n{code}\n{entries}\n')
    fused = ["-mfma"] if platform.machine() == "x86_64" else []
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", "-ffp-contract=off", *fused, "-shared", "-fPIC",
         "-o", str(library), str(source)],
        check=True,
    )  # fmt: skip


class _Stream(contextlib.nullcontext):
    def __init__(self, *, non_blocking):
        super().__init__()

    def synchronize(self):
        """Done already."""


cuda = SimpleNamespace(
    Device=_Device,
    Stream=_Stream,
    runtime=SimpleNamespace(getDeviceCount=lambda: 1),
)
