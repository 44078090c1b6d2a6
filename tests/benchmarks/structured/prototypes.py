"""Moment sums for frequencies that share work, each in a first good form.

The sums of the library are in :mod:`dask_sketch.features.kernels.structured`. Here are features
that most
frequencies do not use left out (:func:`sparse`), multiples of one phase by the addition theorem
(:func:`harmonics`), one matrix product of two sets (:func:`product`) and Hadamard-diagonal
transforms (:func:`hadamard`). All take float32 samples, a multiple of ROWS of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_sketch.features.kernels.llvm_vectors import Vectors
from dask_sketch.features.kernels.structured import pointer_at, transpose_square
from dask_sketch.features.kernels.structured_code import exchange, zeros

ROWS = 256  # of one block
TRANSFORMED = 64  # of one block that is transformed: in the first cache, for 64 features
_LANES = 16
_AHEAD = 2
_WORD = ir.IntType(64)

Sums = Callable[[np.ndarray], np.ndarray]


@intrinsic(prefer_literal=True)
def _add(typing: Any, x: Any, i: Any, pitch: Any, base: Any, j: Any, n_used: Any, sums: Any,
         k: Any, rows: Any, harmonics: Any) -> Any:  # fmt: skip
    """Add cosines and sines of 1, 2, ... times the phases of one base frequency, over rows."""
    kind, count, vectors = x.dtype.name, harmonics.literal_value, rows.literal_value // _LANES
    signature = types.void(x, i, pitch, base, j, n_used, sums, k, rows, harmonics)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vec = Vectors(b, kind)
        px, ps = pointer_at(context, b, sig, args, 0, 1), pointer_at(context, b, sig, args, 6, 7)
        pb = pointer_at(context, b, sig, args, 3, 4)
        totals = zeros(b, vec.type, 2 * count)
        with cgutils.for_range(b, _WORD(vectors // _AHEAD)) as step:
            cycles = zeros(b, vec.type, _AHEAD)
            first = b.gep(px, [b.mul(step.index, _WORD(_LANES * _AHEAD))])
            with cgutils.for_range(b, args[5]) as loop:
                feature = b.fptosi(b.load(b.gep(pb, [loop.index])), _WORD)
                turn = vec.spread(b.load(b.gep(pb, [b.add(args[5], loop.index)])))
                column = b.gep(first, [b.mul(feature, args[2])])
                for n, slot in enumerate(cycles):
                    value = vec.load(b.gep(column, [_WORD(n * _LANES)]), vec.type, 4)
                    b.store(vec.multiply_add(turn, value, b.load(slot)), slot)
            for slot in cycles:
                now = vec.cosine_sine(b.load(slot))
                twice = b.fadd(now[0], now[0])
                before = vec.constant(1.0), vec.constant(0.0)
                for h in range(count):
                    for part, total in zip(now, totals[2 * h : 2 * h + 2], strict=True):
                        b.store(b.fadd(b.load(total), part), total)
                    then = (
                        vec.multiply_add(twice, now[0], b.fneg(before[0])),
                        vec.multiply_add(twice, now[1], b.fneg(before[1])),
                    )
                    before, now = now, then
        for n, total in enumerate(totals):
            elements, stride = b.load(total), vec.elements // 2
            while stride:
                elements = b.fadd(*exchange(vec, elements, elements, stride))
                stride //= 2
            value = b.fpext(b.extract_element(elements, _WORD(0)), ir.DoubleType())
            place = b.gep(ps, [_WORD(n)])
            b.store(b.fadd(b.load(place), value), place)
        return context.get_dummy_value()

    return signature, emit


@lru_cache
def _harmonic_kernel(count: int) -> Callable[..., None]:
    def add_rows(x, packed, sums):  # type: ignore[no-untyped-def]
        n, d = x.shape
        n_used, samples, bases = packed.shape[2], x.reshape(-1), packed.reshape(-1)
        pitch = ROWS + _LANES
        columns = np.zeros((d + 2 * _LANES) * pitch, x.dtype)
        for start in range(0, n, ROWS):
            for r in range(0, ROWS, _LANES):
                inside = (start + r + _LANES - 1) * d + d + _LANES <= x.size
                for f in range(0, d, _LANES):
                    if inside:
                        transpose_square(
                            samples, (start + r) * d + f, d, columns, f * pitch + r, pitch
                        )  # type: ignore[call-arg]
                if not inside:
                    for q in range(r, r + _LANES):
                        for f in range(d):
                            columns[f * pitch + q] = x[start + q, f]
            for base in range(packed.shape[0]):
                _add(columns, 0, pitch, bases, base * 2 * n_used, n_used, sums, 2 * count * base,
                     ROWS, count)  # type: ignore[call-arg]  # fmt: skip

    rows, bases = (types.Array(types.float32, k, "C", readonly=True) for k in (2, 3))
    compiled: Callable[..., None] = numba.njit(
        types.void(rows, bases, types.float64[::1]), nogil=True, error_model="numpy"
    )(add_rows)
    return compiled


def harmonics(bases: np.ndarray, count: int) -> Sums:
    """Sums at ``1, 2, ... count`` times the base frequencies (n_features, n_bases), in cycles."""
    cycles = bases.T
    n_used = max(int(np.count_nonzero(cycles, axis=1).max()), 1)
    order = np.argsort(cycles == 0, axis=1, kind="stable")[:, :n_used]
    packed = np.stack([order, np.take_along_axis(cycles, order, axis=1)], axis=1)
    packed = np.ascontiguousarray(packed, dtype=np.float32)
    kernel = _harmonic_kernel(count)

    def run(x: np.ndarray) -> np.ndarray:
        sums = np.zeros(2 * count * len(packed))
        kernel(x, packed, sums)
        parts = sums.reshape(-1, count, 2)
        total: np.ndarray = (parts[..., 0] - 1j * parts[..., 1]).T.reshape(-1)
        return total  # all bases, then all of them twice, ...

    return run


def sparse(cycles: np.ndarray) -> Sums:
    """Sums at any frequencies, with the multiply-adds that their features need."""
    return harmonics(cycles, 1)


def product(u: np.ndarray, v: np.ndarray) -> Sums:
    """Sums at ``u_i + v_j`` and ``u_i - v_j``: cosines and sines of NumPy, one sgemm a block."""
    omega = (2 * np.pi * np.concatenate([u, v], axis=1)).astype(np.float32)
    p, q = u.shape[1], v.shape[1]

    def run(x: np.ndarray) -> np.ndarray:
        total = np.zeros((2, p, 2, q))
        for start in range(0, len(x), ROWS):
            phases = x[start : start + ROWS] @ omega
            basis = np.stack([np.cos(phases), np.sin(phases)], axis=1)
            left, right = basis[:, :, :p].reshape(-1, 2 * p), basis[:, :, p:].reshape(-1, 2 * q)
            total += (left.T @ right).reshape(2, p, 2, q)
        cc, cs, sc, ss = total[0, :, 0], total[0, :, 1], total[1, :, 0], total[1, :, 1]
        return np.stack([cc - ss - 1j * (sc + cs), cc + ss - 1j * (sc - cs)], axis=-1).reshape(-1)

    return run


@lru_cache
def _hadamard_kernel(size: int) -> Callable[..., None]:
    def add_rows(x, signs, packed, sums):  # type: ignore[no-untyped-def]
        n, d = x.shape
        bases = packed.reshape(-1)
        pitch = TRANSFORMED + _LANES
        columns = np.zeros(size * pitch, x.dtype)
        y = np.zeros(size * pitch, x.dtype)
        for start in range(0, n, TRANSFORMED):
            for r in range(TRANSFORMED):
                for f in range(d):
                    columns[f * pitch + r] = x[start + r, f]
            for block in range(signs.shape[0]):
                for f in range(size):
                    sign = signs[block, 0, f]
                    for r in range(TRANSFORMED):
                        y[f * pitch + r] = sign * columns[f * pitch + r]
                for turn in range(2):
                    h = 1
                    while h < size:
                        for i in range(0, size, 2 * h):
                            for j in range(i, i + h):
                                one, other = j * pitch, (j + h) * pitch
                                for r in range(TRANSFORMED):
                                    a, b = y[one + r], y[other + r]
                                    y[one + r], y[other + r] = a + b, a - b
                        h *= 2
                    if turn == 0:
                        for f in range(size):
                            sign = signs[block, 1, f]
                            for r in range(TRANSFORMED):
                                y[f * pitch + r] *= sign
                for f in range(size):
                    base = block * size + f
                    _add(y, 0, pitch, bases, base * 2, 1, sums, 2 * base,
                         TRANSFORMED, 1)  # type: ignore[call-arg]  # fmt: skip

    rows, bases = (types.Array(types.float32, k, "C", readonly=True) for k in (2, 3))
    compiled: Callable[..., None] = numba.njit(
        types.void(rows, bases, bases, types.float64[::1]), nogil=True, error_model="numpy"
    )(add_rows)
    return compiled


def hadamard(signs: np.ndarray, radii: np.ndarray) -> Sums:
    """Sums at the rows of ``H diag(s_1) H diag(s_0)``, each times its radius over ``size``.

    ``signs`` has shape (n_blocks, 2, size) for a power of two ``size``, at least ``n_features``;
    ``radii`` (n_blocks * size,), in cycles.
    """
    size = signs.shape[2]
    feature = np.arange(len(radii)) % size
    packed = np.ascontiguousarray(
        np.stack([feature, radii / size], axis=1)[:, :, None], dtype=np.float32
    )
    kernel = _hadamard_kernel(size)
    given = np.ascontiguousarray(signs, dtype=np.float32)

    def run(x: np.ndarray) -> np.ndarray:
        sums = np.zeros(2 * len(radii))
        kernel(x, given, packed, sums)
        total: np.ndarray = sums[0::2] - 1j * sums[1::2]
        return total

    return run
