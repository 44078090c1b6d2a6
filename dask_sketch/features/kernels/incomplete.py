"""Exact sums over rows with missing values: each frequency counts the rows that observe it.

A row observes a frequency if it has finite values in all features that the frequency uses. Rows
come with zeros in place of missing values, and with an array of the same shape that is one where a
value is observed. Basis values are those of :mod:`dask_sketch.features.kernels.structured`, times
the indicators of the features in use, so that a row adds nothing to the frequencies that it does
not observe. Sums are added to those of rows without missing values, in the layout of the kernel.

The weights of the rows that observe each frequency, and each pair of features, are counted exactly:
a set of features has one bit for each row, and each binary digit of the weights is counted alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.kernels.dense import DenseKernel
from dask_sketch.features.kernels.fixed_point import FRACTION, LOW_BITS, WEIGHT_BITS
from dask_sketch.features.kernels.llvm_vectors import SOURCE_MARK, VECTOR_BITS, Vectors
from dask_sketch.features.kernels.prepared import Kernel
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.features.kernels.structured import (
    AHEAD,
    BLOCK,
    N_BASIS,
    make_basis,
    multiply_basis,
    pointer_at,
    transpose_square,
)
from dask_sketch.features.kernels.structured_code import add_values, put_present
from dask_sketch.features.kernels.structured_frequencies import GROUP, SIDE, split_exactly
from dask_sketch.validation.compilation import cached_njit, compiled_once

_MASK = 2**LOW_BITS - 1
_MAX_PAIRED = 1024  # features up to which pairs are counted: the counters take 8 d**2 bytes


def _ones(typing: Any, a: Any) -> Any:
    signature = types.int64(types.int64)
    return signature, lambda context, builder, sig, args: builder.ctpop(args[0])


_count_ones: Any = intrinsic(_ones)


def _masked(typing: Any, indicators: Any, i: Any, pitch: Any, bases: Any, j: Any, n_used: Any,
            weights: Any, v: Any, basis: Any, k: Any, weighted: Any, mark: Any) -> Any:  # fmt: skip
    """Multiply cosines and sines at ``basis[k:]`` by indicators, and by ``weights[v:]``."""
    kind, use_weights = indicators.dtype.name, bool(weighted.literal_value)
    signature = types.void(
        indicators, i, pitch, bases, j, n_used, weights, v, basis, k, weighted, mark
    )  # fmt: skip

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        pi, pb, pv, po = (
            pointer_at(context, b, sig, args, array, array + 1) for array in (0, 3, 6, 8)
        )
        row_weights = pv if use_weights else None
        put_present(Vectors(b, kind), pi, args[2], pb, args[5], row_weights, po, AHEAD)
        return context.get_dummy_value()

    return signature, emit


def _summed(typing: Any, basis: Any, k: Any, pitch: Any, n_rows: Any, sums: Any, s: Any) -> Any:
    """Add the cosines and the sines at ``basis[k:]`` to ``sums[s:]``."""
    kind = basis.dtype.name
    signature = types.void(basis, k, pitch, n_rows, sums, s)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        values, place = (pointer_at(context, b, sig, args, array, array + 1) for array in (0, 4))
        add_values(Vectors(b, kind), values, args[2], args[3], place, 2)
        return context.get_dummy_value()

    return signature, emit


# the type checker knows intrinsics by the arguments of their definition, and without a result
_make_basis: Any = make_basis
mask_basis: Any = intrinsic(prefer_literal=True)(_masked)
_sum_basis: Any = intrinsic(_summed)
_multiply_basis: Any = multiply_basis
_transpose: Any = transpose_square


@numba.njit(nogil=True, error_model="numpy")
def _put_columns(values, first, rows, used, n, d, elements, columns, pitch):  # type: ignore[no-untyped-def]
    """Transpose some rows to columns; rows of padding are zero."""
    # squares as wide as a vector, which may extend beyond a row, but not beyond the samples
    whole = max(min(rows, n - first - (elements + d - 1) // d) // elements * elements, 0)
    for r in range(0, whole, elements):
        for f in range(0, d, elements):
            _transpose(values, (first + r) * d + f, d, columns, f * pitch + r, pitch)
    for r in range(whole, used):
        for f in range(d):
            columns[f * pitch + r] = values[(first + r) * d + f] if r < rows else 0.0


def _structured_loop(dtype: str, tile: int, bits: int) -> Callable[..., None]:
    """Compile the loop for sums of base frequencies, or load it from numba's cache."""
    elements = VECTOR_BITS // (64 if dtype == "float64" else 32)
    step = AHEAD * elements
    mark = SOURCE_MARK

    def add_rows(x, observed, packed, sums, weights):  # type: ignore[no-untyped-def]
        n, d = x.shape
        n_used = packed.shape[2]
        samples, seen, bases = x.reshape(-1), observed.reshape(-1), packed.reshape(-1)
        width = min(BLOCK, (n + step - 1) // step * step)
        pitch = width + elements  # not a power of two, so that columns lie in different cache sets
        wide = (d + elements - 1) // elements * elements
        columns = np.zeros((wide + 1) * pitch, x.dtype)
        indicators = np.ones((wide + 1) * pitch, x.dtype)  # the last one is for no feature
        basis = np.empty(2 * N_BASIS * pitch, x.dtype)
        padded = np.zeros(width, x.dtype)
        for start in range(0, n, width):
            rows = min(width, n - start)
            used = (rows + step - 1) // step * step
            _put_columns(samples, start, rows, used, n, d, elements, columns, pitch)
            _put_columns(seen, start, rows, used, n, d, elements, indicators, pitch)
            if weights.size:
                for r in range(used):
                    padded[r] = weights[start + r] if r < rows else 0.0
            for group in range(packed.shape[0] // N_BASIS):
                for base in range(N_BASIS):
                    j, k = (group * N_BASIS + base) * 2 * n_used, 2 * base * pitch
                    for r in range(0, used, step):
                        _make_basis(columns, r, pitch, bases, j, n_used, padded, r, basis, k + r,
                                   0, 1, AHEAD, mark)  # fmt: skip
                        if weights.size and base >= SIDE:
                            mask_basis(indicators, r, pitch, bases, j, n_used, padded, r,
                                       basis, k + r, 1, mark)  # fmt: skip
                        else:
                            mask_basis(indicators, r, pitch, bases, j, n_used, padded, r,
                                       basis, k + r, 0, mark)  # fmt: skip
                for i in range(0, N_BASIS, tile):
                    for j in range(0, N_BASIS, tile):
                        k = (group * N_BASIS + i) * N_BASIS + j * tile
                        _multiply_basis(basis, i * pitch, (N_BASIS + j) * pitch, pitch, used,
                                       sums, k, tile, bits)  # fmt: skip

    return _compiled(add_rows, dtype)


def _single_loop(dtype: str) -> Callable[..., None]:
    """Compile the loop for frequencies that are not such sums, or load it from numba's cache."""
    elements = VECTOR_BITS // (64 if dtype == "float64" else 32)
    step = AHEAD * elements
    mark = SOURCE_MARK

    def add_rows(x, observed, packed, sums, weights, tile):  # type: ignore[no-untyped-def]
        n, d = x.shape
        n_used = packed.shape[2]
        samples, seen, bases = x.reshape(-1), observed.reshape(-1), packed.reshape(-1)
        width = min(BLOCK, (n + step - 1) // step * step)
        pitch = width + elements
        wide = (d + elements - 1) // elements * elements
        columns = np.zeros((wide + 1) * pitch, x.dtype)
        indicators = np.ones((wide + 1) * pitch, x.dtype)
        basis, totals = np.empty(2 * pitch, x.dtype), np.zeros(2, np.int64)
        padded = np.zeros(width, x.dtype)
        for start in range(0, n, width):
            rows = min(width, n - start)
            used = (rows + step - 1) // step * step
            _put_columns(samples, start, rows, used, n, d, elements, columns, pitch)
            _put_columns(seen, start, rows, used, n, d, elements, indicators, pitch)
            if weights.size:
                for r in range(used):
                    padded[r] = weights[start + r] if r < rows else 0.0
            for number in range(packed.shape[0]):
                j = number * 2 * n_used
                for r in range(0, used, step):
                    _make_basis(columns, r, pitch, bases, j, n_used, padded, r, basis, r,
                               0, 1, AHEAD, mark)  # fmt: skip
                    if weights.size:
                        mask_basis(indicators, r, pitch, bases, j, n_used, padded, r,
                                   basis, r, 1, mark)  # fmt: skip
                    else:
                        mask_basis(indicators, r, pitch, bases, j, n_used, padded, r,
                                   basis, r, 0, mark)  # fmt: skip
                totals[0] = totals[1] = 0
                _sum_basis(basis, 0, pitch, used, totals, 0)
                place = number // tile * 2 * tile + number % tile
                sums[place] -= totals[0]  # sum of one minus the cosine, where the one is not added
                sums[place + tile] += totals[1]

    return _compiled(add_rows, dtype, types.int64)


def _compiled(loop: Callable[..., None], dtype: str, *more: types.Type) -> Callable[..., None]:
    real = numba.from_dtype(np.dtype(dtype))
    table, cube = (types.Array(real, n, "C", readonly=True) for n in (2, 3))
    vector = types.Array(real, 1, "C", readonly=True)
    signature = types.void(table, table, cube, types.int64[::1], vector, *more)
    compiled: Callable[..., None] = cached_njit(signature, nogil=True, error_model="numpy")(loop)
    return compiled


@cached_njit(nogil=True, error_model="numpy")
def _count(observed, sets, sizes, quanta, totals):  # type: ignore[no-untyped-def]
    """Fill the sums of the weights of the rows that observe all features of each set."""
    n, d = observed.shape
    words = (n + 63) // 64
    seen = np.zeros((d, words), np.int64)
    digits = np.int64(0)
    for i in range(n):
        word, bit = i >> 6, np.int64(1) << np.int64(i & 63)
        digits |= quanta[i]
        for f in range(d):
            if observed[i, f] > 0.0:
                seen[f, word] |= bit
    planes = np.zeros((_count_ones(digits), words), np.int64)
    shifts = np.empty(len(planes), np.int64)
    plane = 0
    for shift in range(63):
        if digits >> shift & 1:
            shifts[plane] = shift
            for i in range(n):
                planes[plane, i >> 6] |= (quanta[i] >> shift & 1) << np.int64(i & 63)
            plane += 1
    both = np.empty(words, np.int64)
    for s in range(sets.shape[0]):
        for word in range(words):
            both[word] = seen[sets[s, 0], word]
        for entry in range(1, sizes[s]):
            feature = sets[s, entry]
            for word in range(words):
                both[word] &= seen[feature, word]
        total = np.int64(0)
        for p in range(len(planes)):
            n_rows = np.int64(0)
            for word in range(words):
                n_rows += _count_ones(both[word] & planes[p, word])
            total += n_rows << shifts[p]
        totals[s] = total


@cached_njit(nogil=True, error_model="numpy")
def _count_missing(  # type: ignore[no-untyped-def]
    missing, order, starts, ends, quanta, sets, sizes, set_of_frequency, d, frequencies, pairs
):
    """Fill the weights of the rows of each group that miss a feature of each set.

    The weights of up to 64 rows are either those of their binary digits, or of each row alone.
    """
    n_sets, n_words, n_pairs = sets.shape[0], pairs.shape[0], pairs.shape[2]
    missed, totals = np.empty(d, np.int64), np.empty((2, n_sets), np.int64)
    planes, factors = np.empty(64, np.int64), np.empty(64, np.int64)
    for g in range(starts.size):
        for s in range(n_sets):
            totals[0, s] = totals[1, s] = 0
        for begin in range(starts[g], ends[g], 64):
            n = min(ends[g] - begin, 64)
            for f in range(d):
                missed[f] = 0
            for i in range(n):
                row, bit = order[begin + i], np.int64(1) << np.int64(i)
                for f in range(d):
                    if missing[row, f >> 6] >> np.uint64(f & 63) & np.uint64(1):
                        missed[f] |= bit
            n_planes, planes[0], factors[0] = 1, -1, 1
            if quanta.size:
                digits = np.int64(0)
                for i in range(n):
                    digits |= quanta[order[begin + i]]
                n_planes = 0
                if _count_ones(digits) < n:
                    for shift in range(63):
                        if digits >> shift & 1:
                            plane = np.int64(0)
                            for i in range(n):
                                plane |= (quanta[order[begin + i]] >> shift & 1) << np.int64(i)
                            planes[n_planes], factors[n_planes] = plane, np.int64(1) << shift
                            n_planes += 1
                else:
                    for i in range(n):
                        planes[i], factors[i] = np.int64(1) << np.int64(i), quanta[order[begin + i]]
                    n_planes = n
            for s in range(n_sets):
                some = missed[sets[s, 0]]
                for entry in range(1, sizes[s]):
                    some |= missed[sets[s, entry]]
                for p in range(n_planes):
                    totals[0, s] += _count_ones(some & planes[p]) * factors[p]
                if n_words > 1:
                    totals[1, s] += totals[0, s] >> LOW_BITS
                    totals[0, s] &= _MASK
        for word in range(n_words):
            for j in range(set_of_frequency.size):
                frequencies[word, g, j] = totals[word, set_of_frequency[j]]
            for j in range(n_pairs):
                pairs[word, g, j] = totals[word, n_sets - n_pairs + j]


@cached_njit(nogil=True, error_model="numpy")
def _find_missing(x, counts, bits):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        for f in range(x.shape[1]):
            if not math.isfinite(x[i, f]):
                counts[i] += 1
                bits[i, f >> 6] |= np.uint64(1) << np.uint64(f & 63)


def missing_values(x: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Find the values of rows that are not finite.

    Parameters
    ----------
    x
        Rows, shape (n, n_features), any real dtype.

    Returns
    -------
    counts
        Number of missing values of each row, shape (n,).
    bits
        The missing values, 64 features in a number, shape (n, ceil(n_features / 64)).

    Examples
    --------
    >>> counts, bits = missing_values(np.array([[0.0, np.nan, np.inf], [1.0, 2.0, 3.0]]))
    >>> counts, bits.ravel()
    (array([2, 0]), array([6, 0], dtype=uint64))
    """
    n, d = x.shape
    counts, bits = np.zeros(n, np.int64), np.zeros((n, (d + 63) // 64), np.uint64)
    read = np.ascontiguousarray(x, dtype=native_type(x.dtype)).view()
    read.flags.writeable = False  # so that one loop is compiled
    _find_missing(read, counts, bits)
    return counts, bits


@cached_njit(nogil=True, error_model="numpy")
def split_incomplete(raw, weights, center, filled, observed, positions, low, high):  # type: ignore[no-untyped-def]
    """Copy the rows of which some values are finite, and not all.

    Missing values become those of the center, whose moments are zero. Bounds of the others are
    updated. Returns the number of copied rows, and of rows without any finite value.
    """
    taken = empty = 0
    for i in range(raw.shape[0]):
        finite = 0
        for f in range(raw.shape[1]):
            finite += math.isfinite(raw[i, f])
        if finite == raw.shape[1]:
            continue
        if not finite:
            empty += 1
            continue
        bounds = weights.size == 0 or weights[i] > 0.0
        for f in range(raw.shape[1]):
            value = np.float64(raw[i, f])
            if math.isfinite(value):
                filled[taken, f], observed[taken, f] = value, 1.0
                if bounds:
                    low[f], high[f] = min(low[f], value), max(high[f], value)
            else:
                filled[taken, f], observed[taken, f] = center[f], 0.0
        positions[taken] = i
        taken += 1
    return taken, empty


def pairs_of(n_features: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Features of each pair whose weights are counted; of many features, none but themselves.

    Examples
    --------
    >>> [part.tolist() for part in pairs_of(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    if n_features > _MAX_PAIRED:
        each = np.arange(n_features)
        return each, each
    return np.triu_indices(n_features)


def used_features(cycles: NDArray[np.floating], structured: bool) -> NDArray[np.bool_]:
    """Whether each frequency uses each feature, shape (n_frequencies, n_features).

    Parameters
    ----------
    cycles
        Frequencies in cycles, shape (n_features, n_frequencies).
    structured
        Whether they are sums of base frequencies, all of whose features are in use.
    """
    d, m = cycles.shape
    if not structured:
        return np.ascontiguousarray(cycles.T != 0)
    sides = (split_exactly(cycles) != 0)[:, :, :, None]  # (n_groups, 2, SIDE, 1, n_features)
    both = sides[:, 0] | sides[:, 1].swapaxes(1, 2)  # (n_groups, SIDE, SIDE, n_features)
    return np.repeat(both.reshape(-1, d), GROUP // SIDE**2, axis=0)[:m]


@compiled_once
def _loop(dtype: str, tile: int, bits: int) -> Callable[..., None]:
    """Compiled loop of a precision: for structured frequencies if ``bits`` is not zero."""
    return _structured_loop(dtype, tile, bits) if bits else _single_loop(dtype)


class IncompleteKernel:
    """Sums over rows with missing values, beside the kernel of complete rows.

    Parameters
    ----------
    kernel
        Kernel of complete rows.
    cycles
        Frequencies in cycles, shape (n_features, n_frequencies).

    Attributes
    ----------
    sets
        Sets of features whose weights are counted: the numbers of the features, of which some are
        repeated, shape (n_sets, width). First the distinct sets of all frequencies, then the
        pairs of features.
    set_of_frequency
        Set of each frequency, shape (n_frequencies,).
    n_features
        Number of features.
    n_pairs
        Number of pairs, which are the last sets.
    packed
        Base frequencies, or frequencies, for the sums of many groups, shape (n, 2, n_used): the
        numbers of the features in use, or ``n_features`` for none, and the frequencies there.
    """

    def __init__(self, kernel: Kernel, cycles: NDArray[np.floating]):
        self.dtype = kernel.dtype
        columns = VECTOR_BITS // (8 * self.dtype.itemsize)
        self.n_features = d = len(cycles)
        structured = not isinstance(kernel, DenseKernel)
        bases = split_exactly(cycles).reshape(-1, d) if structured else cycles.T
        n_used = max(int(np.count_nonzero(bases, axis=1).max(initial=0)), 1)
        order = np.argsort(bases == 0, axis=1, kind="stable")[:, :n_used]
        entries = np.take_along_axis(bases, order, axis=1)
        order[entries == 0] = -(-d // columns) * columns  # a column that is always observed
        packed = np.ascontiguousarray(np.stack([order, entries], axis=1), dtype=self.dtype)
        packed.flags.writeable = False
        self._packed = packed
        self.packed = packed.copy()
        self.packed[:, 0] = np.where(order < d, order, d)
        self.packed.flags.writeable = False
        uses = used_features(cycles, structured)
        distinct, set_of = np.unique(uses, axis=0, return_inverse=True)
        self.set_of_frequency = set_of.reshape(-1)
        first, second = pairs_of(d)
        self.n_pairs = len(first)
        width = max(int(distinct.sum(axis=1).max(initial=0)), 2)
        members = np.argsort(~distinct, axis=1, kind="stable")[:, :width]
        members = np.where(np.take_along_axis(distinct, members, axis=1), members, members[:, :1])
        of_pairs = np.stack([first, *[second] * (members.shape[1] - 1)], axis=1)
        self.sets = np.ascontiguousarray(np.concatenate([members, of_pairs]), np.int64)
        of_sets = distinct.sum(axis=1), np.full(len(first), min(2, self.sets.shape[1]))
        self._sizes = np.concatenate(of_sets).astype(np.int64)
        self._more: tuple[int, ...]
        if isinstance(kernel, DenseKernel):
            self._add, self._more = _loop(str(self.dtype), 0, 0), (kernel.elements,)
        else:
            self._more = ()
            self._add = _loop(str(self.dtype), kernel.tile, kernel.bits)

    def add(
        self,
        x: NDArray[np.floating],
        observed: NDArray[np.floating],
        sums: NDArray[np.int64],
        weights: NDArray[np.floating] | None = None,
    ) -> None:
        """Add the rows of one block to ``sums`` of the kernel of complete rows, in place.

        Parameters
        ----------
        x
            Centred rows, shape (n, n_features), C-contiguous, of the kernel's dtype, zero where a
            value is missing.
        observed
            One where a value is observed, zero where it is missing, of the shape and type of ``x``.
        sums
            Sums of the kernel, of at most its ``capacity`` rows in total.
        weights
            Weights of the rows, shape (n,), of the kernel's dtype, in [0, 1]; all one by default.
        """
        if len(x):
            row_weights = np.empty(0, self.dtype) if weights is None else weights
            self._add(x, observed, self._packed, sums, row_weights, *self._more)

    def count(
        self, observed: NDArray[np.floating], weights: NDArray[np.floating] | None = None
    ) -> NDArray[np.int64]:
        """Weights of the rows that observe all features of each set, in quanta of ``2**-48``.

        Parameters
        ----------
        observed, weights
            Arguments of :meth:`add`, of at most 8192 rows.

        Returns
        -------
        totals
            Shape (n_sets,).
        """
        totals = np.zeros(len(self.sets), np.int64)
        if weights is None:
            quanta = np.full(len(observed), 1 << WEIGHT_BITS)
        else:
            quanta = np.rint(weights.astype(np.float64) * 2.0**WEIGHT_BITS).astype(np.int64)
        _count(observed, self.sets, self._sizes, quanta, totals)
        return totals

    def count_missing(
        self,
        missing: NDArray[np.uint64],
        order: NDArray[np.uint32],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        quanta: NDArray[np.int64] | None,
    ) -> tuple[StackedFixedPoint, StackedFixedPoint]:
        """Weights of the rows of each group that miss a feature of each frequency, and each pair.

        Parameters
        ----------
        missing
            Missing values of each row, from :func:`missing_values`.
        order
            Numbers of the rows, group by group.
        starts, ends
            Positions of the rows of each group in ``order``, shape (n_groups,).
        quanta
            Weights of the rows in quanta of ``2**-48``, at most 1, shape (n,); None if they are
            one.

        Returns
        -------
        frequencies, pairs
            In quanta of ``2**-48``, without weights as multiples of ``2**71``; shapes
            (n_groups, n_frequencies) and (n_groups, n_pairs).
        """
        most, shift = int((ends - starts).max(initial=0)), FRACTION
        if quanta is not None:
            most, shift = most << WEIGHT_BITS, 0
        kind = np.dtype("i4" if quanta is None else "i8")
        n_words, n_groups = 1 + (most >= 2**62), len(starts)
        frequencies = np.empty((n_words, n_groups, len(self.set_of_frequency)), kind)
        pairs = np.empty((n_words, n_groups, self.n_pairs), kind)
        row_quanta = np.empty(0, np.int64) if quanta is None else quanta
        _count_missing(
            missing, order, np.ascontiguousarray(starts), np.ascontiguousarray(ends), row_quanta,
            self.sets, self._sizes, self.set_of_frequency, self.n_features, frequencies, pairs,
        )  # fmt: skip
        return StackedFixedPoint(frequencies, shift, most), StackedFixedPoint(pairs, shift, most)
