"""Sum chunks on the GPU: prepare the arrays of ``moments.cu``, and launch its kernels.

CuPy is imported when a chunk needs it, and no GPU is accessed before. The frequencies are sampled
on the host and sent to the device in parts; a few float64 sums are returned. A chunk is read in
batches, so that additional memory is bounded: two batches at most, since one is copied from the
host while the device sums the one before it. The order of all sums depends only on the numbers of
rows and frequencies: the same chunk has the same bits in every run, and on every device whose
tensor cores round alike.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.validation.device import cupy, on_device

DEPTH, TILE, FLUSH, SLAB, PART = 16, 16, 4, 8192, 1024  # sizes that the CUDA source states as well
GROUP = 128  # frequencies of one block
EXACT_GROUP = 512  # frequencies of one block of the float64 kernel
BLOCKS = 8192  # blocks of one launch, which occupy every device of today
BATCH_BYTES = 128 * 1024**2  # size of the rows of one batch in the order of the kernel
_RAW = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
}
_TAKEN, _FAR_AWAY = 0, 3  # states of rows in the source


@dataclass(frozen=True)
class ChunkSums:
    """Sums of one chunk, with the names of the sums of a sketch.

    Attributes
    ----------
    refused
        Index of the first row with invalid values or weight; -1 if there is none. Otherwise the
        other attributes are not valid.
    """

    moment_sum: NDArray[np.complex128]
    total_weight: float
    squared_weight: float
    count: int
    omitted: int
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_moment: NDArray[np.float64]
    second_moment: NDArray[np.float64]
    refused: int


def cut(values: NDArray[np.float64], axis: int) -> NDArray[np.uint16]:
    """Split each value into three bfloat16 parts, as bits, stacked on a new first axis.

    The first two are multiples of a power of two that is common to a line of the array: ``2**-7``
    and ``2**-16`` of that of its largest value.
    """
    _, exponents = np.frexp(np.abs(values).max(axis=axis, keepdims=True))
    exponents = np.maximum(exponents - 1, -100)
    first = np.ldexp(np.rint(np.ldexp(values, 7 - exponents)), exponents - 7)
    rest = values - first
    second = np.ldexp(np.rint(np.ldexp(rest, 16 - exponents)), exponents - 16)
    bits = np.stack([first, second, rest - second]).astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)  # changes none of the first two
    return (rounded >> 16).astype(np.uint16)


def arrange(cycles: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Arrange frequencies, shape (n_features, n_frequencies), in the order of the tensor cores.

    The result has shape (columns, steps, 3, 32, 4): columns of 8 frequencies, steps of 16 features,
    parts, threads of a warp, and words. It is padded with zeros to full blocks of frequencies.
    """
    d, m = cycles.shape
    steps, width = -(-d // DEPTH), -(-m // GROUP) * GROUP
    padded = np.zeros((steps * DEPTH, width))
    padded[:d, :m] = cycles
    parts = cut(padded, axis=0).reshape(3, steps, 2, 4, 2, width // 8, 8)
    # part, step, side, member, low or high, column, frequency
    ordered = np.ascontiguousarray(parts.transpose(5, 1, 0, 6, 3, 2, 4), dtype="<u2")
    return ordered.reshape(width // 8, steps, 3, 32, 4).view("<u4").astype(np.uint32, copy=False)


@dataclass(frozen=True, eq=False)
class HostFrequencies:
    """Frequencies of one feature map in the memory of the host, with their center and precision.

    Two of them are equal if their digests are.

    Attributes
    ----------
    digest
        Digest of the feature map.
    cycles_per_unit
        Frequencies divided by ``2 pi``, float64, shape (n_features, n_frequencies).
    center
        Point that is subtracted from rows, shape (n_features,).
    dtype
        Precision of the features, ``"float32"`` or ``"float64"``.
    """

    digest: str
    cycles_per_unit: NDArray[np.float64]
    center: NDArray[np.float64]
    dtype: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostFrequencies) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


class DeviceFrequencies:
    """Frequencies of one feature map in the memory of one device."""

    def __init__(self, cp: Any, host: HostFrequencies):
        cycles = host.cycles_per_unit
        self.shape = cycles.shape
        self.center = cp.asarray(host.center)
        # powers of two that make the largest frequency of each feature less than one
        largest = np.abs(cycles).max(axis=1)
        exponents = np.clip(np.frexp(largest)[1], -126, 127)
        self.scales = cp.asarray(np.where(largest > 0, np.ldexp(1.0, exponents), 0).astype("f4"))
        self.arranged = None
        if host.dtype == "float32":
            self.arranged = cp.asarray(arrange(np.ldexp(cycles, -exponents[:, None])))
        self._host_cycles = cycles
        self._cycles: Any = None
        self._cp = cp

    @property
    def cycles_per_unit(self) -> Any:
        """Frequencies in cycles, float64, shape (n_features, n_frequencies)."""
        if self._cycles is None:
            self._cycles = self._cp.asarray(self._host_cycles)
        return self._cycles


_LOCK = threading.Lock()


@lru_cache(maxsize=8)
def _frequencies(host: HostFrequencies, device: int) -> DeviceFrequencies:
    return DeviceFrequencies(cupy(), host)


@lru_cache(maxsize=64)
def _module(n_features: int, raw: str, dtype: str, device: int) -> Any:
    return cupy().RawModule(code=source(n_features, raw, dtype), options=OPTIONS)


@lru_cache(maxsize=8)
def _copying(device: int) -> Any:
    """Stream of copies from the host to one device, beside its kernels."""
    return cupy().cuda.Stream(non_blocking=True)


def forget() -> None:
    """Release the kernels and frequencies that are kept on devices."""
    with _LOCK:
        _copying.cache_clear()
        _frequencies.cache_clear()
        _module.cache_clear()


OPTIONS = ("--std=c++17", "--fmad=false")


def source(n_features: int, raw: str, dtype: str) -> str:
    """CUDA source for a number of features, a type of rows and a precision.

    Examples
    --------
    >>> print(source(12, "float32", "float64").splitlines()[0])
    #define N_FEATURES 12
    """
    real = {"float32": "float", "float64": "double"}[dtype]
    given = f"#define N_FEATURES {n_features}\n#define RAW {_RAW[raw]}\n#define REAL {real}\n"
    return given + files("dask_sketch.features.kernels").joinpath("moments.cu").read_text("utf-8")


def sum_chunk(samples: Any, weights: Any, frequencies: HostFrequencies, *, omit: bool) -> ChunkSums:
    """Sum one chunk on the GPU that holds it, or on the current GPU.

    Parameters
    ----------
    samples
        Rows, shape (n, n_features), any real dtype; arrays of NumPy are copied batch by batch.
    weights
        Weights of the rows, shape (n,), real, of CuPy or NumPy, or None.
    frequencies
        Frequencies of the feature map.
    omit
        Whether to omit rows with NaN or infinite values instead of refusing them.

    Raises
    ------
    DeviceError
        If there is no suitable GPU.
    """
    cp = cupy()
    if on_device(samples):
        with samples.device:
            return _sum_chunk(cp, samples, weights, frequencies, omit)
    return _sum_chunk(cp, samples, weights, frequencies, omit)


def prepare_device(frequencies: HostFrequencies, dtype: np.dtype[Any]) -> None:
    """Compile for rows of one type and send the frequencies, before the first chunk is read.

    Raises
    ------
    DeviceError
        If there is no suitable GPU.
    """
    module, _ = _prepared(cupy(), frequencies, dtype)
    module.compile()


def _prepared(
    cp: Any, host: HostFrequencies, dtype: np.dtype[Any]
) -> tuple[Any, DeviceFrequencies]:
    device = int(cp.cuda.Device().id)
    with _LOCK:
        raw = native_type(dtype).name
        module = _module(len(host.center), raw, host.dtype, device)
        return module, _frequencies(host, device)


def _sum_chunk(cp: Any, samples: Any, weights: Any, host: HostFrequencies, omit: bool) -> ChunkSums:
    module, frequencies = _prepared(cp, host, samples.dtype)
    chunk = _Chunk(cp, module, frequencies)
    step = batch_rows(len(host.center))
    # A batch is copied from the host while the device sums the one before it.
    waiting: tuple[int, _Batch] | None = None
    for start in (*range(0, len(samples), step), None):
        launched = None
        if start is not None:
            stop = start + step
            rows = _native(cp, samples[start:stop], native_type(samples.dtype))
            given = None if weights is None else _native(cp, weights[start:stop], np.float64)
            launched = start, chunk.launch(rows, given)
        if waiting is not None:
            refused = chunk.finish(waiting[1], omit)
            if refused >= 0:
                return chunk.sums(weights is not None, waiting[0] + refused)
        waiting = launched
    return chunk.sums(weights is not None, -1)


def _native(cp: Any, values: Any, dtype: npt.DTypeLike) -> Any:
    """Contiguous values of one type on the device."""
    if on_device(values):
        return cp.ascontiguousarray(values.astype(dtype, copy=False))
    given = np.ascontiguousarray(values, dtype=dtype)
    copying = _copying(int(cp.cuda.Device().id))
    # Twice as fast as `asarray`, which allocates a buffer on the host. The memory is that of the
    # stream, which may reuse it once it is released: when the kernels that read it have ended.
    with copying:
        there = cp.empty(given.shape, dtype=given.dtype)
    there.set(given, stream=copying)
    copying.synchronize()
    return there


def batch_rows(n_features: int) -> int:
    """Number of rows of one batch, a multiple of all block sizes of the kernels."""
    return max(BATCH_BYTES // (6 * DEPTH * -(-n_features // DEPTH)) // SLAB, 1) * SLAB


class _Batch(NamedTuple):
    """Arrays of one batch on the device: what it was given, and what the kernels say of it.

    All are held until the batch is finished, since kernels may read them until then.
    """

    rows: Any
    weights: Any
    row_weights: Any
    states: Any
    counts: Any
    features: Any


class _Chunk:
    """Sums over the batches of one chunk."""

    def __init__(self, cp: Any, module: Any, frequencies: DeviceFrequencies):
        self._cp, self._module, self._frequencies = cp, module, frequencies
        _, m = self._shape = frequencies.shape
        self._width = -(-m // GROUP) * GROUP
        # sums of w sin**2 and w sin cos of half the angle; and sums of w cos and w sin
        self._halves = cp.zeros(2 * self._width, dtype=np.float64)
        self._exact = cp.zeros(2 * m, dtype=np.float64)
        self._counts: list[NDArray[np.float64]] = []
        self._features: list[NDArray[np.float64]] = []

    def _run(self, name: str, grid: tuple[int, ...], block: int, *arguments: Any) -> None:
        self._module.get_function(name)(grid, (block,), arguments)

    def launch(self, rows: Any, weights: Any) -> _Batch:
        """Begin with one batch; the device works on it after the return."""
        cp, d, frequencies = self._cp, self._shape[0], self._frequencies
        n, single = len(rows), frequencies.arranged is not None
        n_tiles = -(-n // (TILE * FLUSH)) * FLUSH
        steps = -(-d // DEPTH)
        parts = cp.empty(n_tiles * steps * 3 * 32 * 4 if single else 4, dtype=np.uint32)
        row_weights = cp.empty(n_tiles * TILE, dtype=np.float64)
        states = cp.empty(n_tiles * TILE, dtype=np.uint8)
        self._run(
            "take_rows", (-(-n_tiles // 8),), 256, rows, np.int64(n), frequencies.center,
            row_weights if weights is None else weights, np.int32(weights is not None),
            frequencies.scales, np.int64(n_tiles), parts, row_weights, states,
        )  # fmt: skip
        slabs, described_slabs = -(-n // SLAB), -(-n // PART)
        counts = cp.empty((slabs, 8), dtype=np.float64)
        described = cp.empty((described_slabs, 4, d), dtype=np.float64)
        features = cp.empty((4, d), dtype=np.float64)
        self._run("count_rows", (slabs,), 256, row_weights, states, np.int64(n), counts)
        self._run(
            "describe_features", (described_slabs, -(-d // 256)), 256,
            rows, np.int64(n), frequencies.center, row_weights, described,
        )  # fmt: skip
        self._run(
            "join_descriptions", (4 * d,), 256, described, np.int64(described_slabs), features
        )
        if single:
            self._add_halves(parts, row_weights, weights is not None, n_tiles)
        else:
            self._add_exact(rows, row_weights, states, _TAKEN)
        return _Batch(rows, weights, row_weights, states, counts, features)

    def finish(self, batch: _Batch, omit: bool) -> int:
        """Wait for one batch; return its first refused row, or -1."""
        n = len(batch.rows)
        found = batch.counts.get()  # synchronises
        refused = min(found[:, 7].min(), math.inf if omit else found[:, 6].min())
        if refused < n:
            return int(refused)
        if found[:, 1].any():
            self._add_exact(batch.rows, batch.row_weights, batch.states, _FAR_AWAY)
        self._counts.append(found)
        self._features.append(batch.features.get())
        return -1

    def _add_halves(self, parts: Any, row_weights: Any, weighted: bool, n_tiles: int) -> None:
        groups = self._width // GROUP
        splits = min(max(BLOCKS // groups, 1), n_tiles // FLUSH)
        per_split = -(-n_tiles // (splits * FLUSH)) * FLUSH
        splits = -(-n_tiles // per_split)
        partial = self._cp.empty(splits * 2 * self._width, dtype=np.float64)
        self._run(
            "sum_weighted" if weighted else "sum_moments", (groups, splits), GROUP,
            parts, self._frequencies.arranged, row_weights, np.int64(n_tiles), np.int32(per_split),
            np.int64(self._width), partial,
        )  # fmt: skip
        self._collect(partial, splits, self._halves)

    def _add_exact(self, rows: Any, row_weights: Any, states: Any, state: int) -> None:
        m = self._shape[1]
        groups = -(-m // EXACT_GROUP)
        per_split = -(-len(rows) // (2 * max(BLOCKS // groups, 1))) * 2
        splits = -(-len(rows) // per_split)
        partial = self._cp.empty(splits * 2 * m, dtype=np.float64)
        self._run(
            "sum_exact", (groups, splits), 128, rows, np.int64(len(rows)), self._frequencies.center,
            row_weights, states, np.int32(state), self._frequencies.cycles_per_unit,
            np.int32(per_split),
            np.int64(m), partial,
        )  # fmt: skip
        self._collect(partial, splits, self._exact)

    def _collect(self, partial: Any, splits: int, sums: Any) -> None:
        n = sums.size
        self._run(
            "add_partials", (-(-n // 128),), 128, partial, np.int32(splits), np.int64(n), sums
        )

    def sums(self, weighted: bool, refused: int) -> ChunkSums:
        """Return the sums of all batches."""
        d, m = self._shape
        counts = np.concatenate([np.empty((0, 8)), *self._counts])
        features = np.reshape(self._features, (-1, 4, d))
        near, far = math.fsum(counts[:, 3]), math.fsum(counts[:, 4])
        squares, products = self._halves.get().reshape(2, -1)[:, :m]
        cosine, sine = self._exact.get().reshape(2, m)
        taken = int(counts[:, 0].sum() + counts[:, 1].sum())
        if self._frequencies.arranged is not None:
            cosine = near - 2.0 * squares + cosine
            sine = 2.0 * products + sine
        return ChunkSums(
            moment_sum=cosine - 1j * sine,
            total_weight=near + far if weighted else float(taken),
            squared_weight=math.fsum(counts[:, 5]) if weighted else float(taken),
            count=taken,
            omitted=int(counts[:, 2].sum()),
            minimum=features[:, 0].min(axis=0, initial=np.inf),
            maximum=features[:, 1].max(axis=0, initial=-np.inf),
            first_moment=features[:, 2].sum(axis=0),
            second_moment=features[:, 3].sum(axis=0),
            refused=refused,
        )
