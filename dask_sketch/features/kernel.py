"""The one hot loop: exact sums of ``exp(-2 pi i t)`` over samples, for every frequency.

Phases are counted in *turns*, ``t = (omega / 2 pi) . (x - center)``, so that the range reduction
is one subtraction of a rounded number. :mod:`dask_sketch.features.step` is the arithmetic; here it
is compiled for one number of features and run over a block of samples. No fast-math flag is used
anywhere, and the bits do not depend on the machine: see :mod:`dask_sketch.features.vectors`.

What a row contributes is rounded to a grid by arithmetic of that row alone, and grid numbers are
added as integers: in 32 bits for FLUSH rows, whose sums stay in the first cache, then in 64. The
sums are the same for every order of the rows and every way to cut them into blocks, and what was
added can be subtracted without a trace. That costs 3 percent at most, 5 with weights.

Errors, for ``float32``: the polynomials are exact to 1e-7 and, as rounded, a cosine or sine is
within 6e-7, at random, of which ``2**-23`` is the grid; the phase is rounded to float32 at each
addition, that is to 2**-24 of its own size, at random. A weight is rounded to the grid too. For
phases within 50 radians of the center the moments, averages over a thousand samples or more, are
within 2e-7 of float64; with fewer samples, or beyond 50 radians, the error is what that rounding
explains: up to 1e-5 for a single sample, in proportion to the phase. The kernel for ``float64`` is
the reference: 1e-13.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.step import ROWS, add_rows, module
from dask_sketch.features.vectors import FRACTION, PRODUCT, SQUARE, Vectors, bits_of

# rows whose sums are kept in 32 bits: a whole number of steps, at most 255
FLUSH = 255 // ROWS * ROWS
CAPACITY = {"float32": 2**40, "float64": 2**12}  # rows: a sum is at most 2**62 steps, or so
# further bits of the total weight, in which weights over 1/16 are exact: were it rounded to the
# grid, that would be the same in every row of the same weight, and not less for more rows
FINER = {"float32": 5, "float64": 0}
GROUP_BYTES = 16 * 1024  # of panels with their sums, that stay in the first cache


def vector_bits() -> int:
    """Width of a panel on this machine; it changes no bit of the sums.

    512 where there are 32 registers of that size. Else 256, one register of AVX2 and two of NEON:
    the phases of ROWS samples then fit into 16 and into 32 registers.
    """
    config: Any = numba.config
    given = config.CPU_FEATURES  # NUMBA_CPU_FEATURES, of which numba thinks as of the machine's
    features = get_host_cpu_features().flatten() if given is None else given
    return 512 if "+avx512f" in features.split(",") else 256


@intrinsic(prefer_literal=True)
def _step(typing: Any, x: Any, i: Any, w: Any, j: Any, sums: Any, k: Any, weights: Any, v: Any,
          n_features: Any, weighted: Any, lanes: Any, mark: Any) -> Any:  # fmt: skip
    """Add ROWS samples to one panel: ``x[i:]``, ``w[j:]``, ``sums[k:]``, ``weights[v:]``."""
    kind, d, use_weights = x.dtype.name, n_features.literal_value, bool(weighted.literal_value)
    bits = lanes.literal_value * x.dtype.bitwidth
    signature = types.void(
        x, i, w, j, sums, k, weights, v, n_features, weighted, lanes, mark
    )  # fmt: skip

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def start(array: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[array + 1]])

        share = start(6) if use_weights else None
        add_rows(Vectors(b, kind, bits), d, start(0), start(2), start(4), share)
        return context.get_dummy_value()

    return signature, emit


def _specialised(n_features: int, dtype: str, lanes: int, weighted: int) -> Callable[..., None]:
    """The block loop for one number of features; compiled now, and cached on disk."""
    panel = n_features * lanes
    size = np.dtype(dtype).itemsize
    group = max(1, GROUP_BYTES // (size * (panel + 2 * lanes)))
    # numba looks at this file and at constants when it loads from its cache: the arithmetic is told
    # by a checksum
    mark = crc32(str(module(n_features, dtype, 8 * size * lanes, bool(weighted))).encode())

    integer = numba.from_dtype(np.dtype(dtype.replace("float", "int")))
    along = bits_of(SQUARE, dtype), bits_of(PRODUCT, dtype)  # added with the steps of every row

    def add_blocks(x, frequencies, sums, weights):  # type: ignore[no-untyped-def]
        panels = frequencies.size // panel
        rows = x.size // n_features
        short = np.zeros(2 * lanes * min(group, panels), integer)
        for first in range(0, panels, group):
            used = min(group, panels - first)
            for start in range(0, rows, FLUSH):
                stop = min(start + FLUSH, rows)
                for row in range(start, stop, ROWS):
                    for p in range(used):
                        _step(  # type: ignore[call-arg]  # numba hides the typing context
                            x, row * n_features, frequencies, (first + p) * panel, short,
                            p * 2 * lanes, weights, row, n_features, weighted, lanes, mark,
                        )  # fmt: skip
                for part in range(2 * used):
                    added = (stop - start) * along[part % 2]
                    for k in range(part * lanes, (part + 1) * lanes):
                        sums[first * 2 * lanes + k] += integer(short[k] - added)  # wraps around
                        short[k] = 0

    real = numba.from_dtype(np.dtype(dtype))
    given = types.Array(real, 1, "C", readonly=True)
    signature = types.void(given, given, types.int64[::1], given)
    compiled: Callable[..., None] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(add_blocks)
    return compiled


class MomentKernel:
    """Sums of cosines and sines for one number of features and one precision.

    Instances come from :func:`moment_kernel`, which compiles each kind once per process.

    Attributes
    ----------
    fraction
        Sums count steps of ``2.0**-fraction``.
    capacity
        Rows that sums can take before they must be unpacked.
    """

    def __init__(self, n_features: int, dtype: str):
        self.n_features = n_features
        self.dtype = np.dtype(dtype)
        self._finer = FINER[dtype]
        self.fraction = FRACTION[dtype] + self._finer
        self.plain_fraction = FRACTION[dtype]
        self.capacity = CAPACITY[dtype] >> self._finer
        self._lanes = vector_bits() // (8 * self.dtype.itemsize)
        self._plain = _specialised(n_features, dtype, self._lanes, 0)
        self._weighted = _specialised(n_features, dtype, self._lanes, 1)

    def pack(self, turns: NDArray[np.floating]) -> NDArray[np.floating]:
        """Frequencies in turns (n_features, n_frequencies) to panels, zero-padded."""
        d, m = turns.shape
        panels = -(-m // self._lanes)
        padded = np.zeros((d, panels * self._lanes), dtype=self.dtype)
        padded[:, :m] = turns
        return np.ascontiguousarray(padded.reshape(d, panels, self._lanes).swapaxes(0, 1)).ravel()

    def zeros(self, packed: NDArray[np.floating]) -> NDArray[np.int64]:
        """Fresh sums for :meth:`add`: of each panel, and the total weight."""
        return np.zeros(packed.size // self.n_features * 2 + 1, dtype=np.int64)

    def add(
        self,
        x: NDArray[np.floating],
        packed: NDArray[np.floating],
        sums: NDArray[np.int64],
        weights: NDArray[np.floating] | None = None,
    ) -> None:
        """Add the samples of one block to ``sums``, in place.

        Parameters
        ----------
        x
            Centred samples, shape (n, n_features), C-contiguous, of the kernel's dtype. They and
            their phases must be finite: the sums do not tell.
        packed
            Frequencies from :meth:`pack`.
        sums
            Sums from :meth:`zeros`; of at most ``capacity`` rows in all.
        weights
            Weights of the samples, shape (n,), of the kernel's dtype, in [0, 1]; all one
            when not given.
        """
        flat = x.reshape(-1)
        full = len(x) // ROWS * ROWS
        run = self._plain if weights is None else self._weighted
        used = np.empty(0, dtype=self.dtype) if weights is None else weights
        run(flat[: full * self.n_features], packed, sums, used[:full])
        rest = len(x) - full
        if rest:  # the last rows stand beside empty ones, which add nothing to 1 - cos and sin
            tail = np.zeros((ROWS, self.n_features), dtype=self.dtype)
            tail[:rest] = x[full:]
            share = np.zeros(ROWS, dtype=self.dtype)
            share[: len(used[full:])] = used[full:]
            run(tail.reshape(-1), packed, sums, share)
        one = 2**self.fraction
        if weights is None:
            sums[-1] += len(x) * one
        else:  # rounded row by row, as everything
            sums[-1] += np.rint(weights.astype(np.float64) * one).astype(np.int64).sum()

    def unpack(self, sums: NDArray[np.int64], n_frequencies: int) -> NDArray[np.int64]:
        """Sums of ``exp(-2 pi i t)`` in steps, shape (2, n_frequencies): real, imaginary part."""
        panels = sums[:-1].reshape(-1, 2, self._lanes)
        versine, sine = panels[:, 0].reshape(-1), panels[:, 1].reshape(-1)
        versine, sine = (part[:n_frequencies] << self._finer for part in (versine, sine))
        return np.stack([sums[-1] - versine, -sine])


COMPILING = threading.Lock()  # of this package: one compilation for all threads that wait


@lru_cache(maxsize=64)
def _kernel(n_features: int, dtype: str) -> MomentKernel:
    return MomentKernel(n_features, dtype)


def moment_kernel(n_features: int, dtype: str = "float32") -> MomentKernel:
    """The compiled kernel for ``n_features`` features in ``"float32"`` or ``"float64"``.

    The first call in a process compiles (about a second) or loads from numba's cache on disk;
    threads that ask meanwhile wait for that one compilation.

    Examples
    --------
    >>> kernel = moment_kernel(2, "float64")
    >>> frequencies = kernel.pack(np.array([[0.25], [0.0]]))
    >>> sums = kernel.zeros(frequencies)
    >>> kernel.add(np.array([[0.0, 3.0], [1.0, 5.0]]), frequencies, sums)
    >>> real, imaginary = kernel.unpack(sums, 1) * 2.0**-kernel.fraction  # 1 + exp(-i pi / 2)
    >>> real.round(12), imaginary.round(12)
    (array([1.]), array([-1.]))
    """
    with COMPILING:
        return _kernel(n_features, dtype)
