"""Fixed-point sums of many sketches in one array, in as few words as hold all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.fixed_point import LOW_BITS, FixedPoint
from dask_sketch.validation.arrays import FrozenDataclass
from dask_sketch.validation.compilation import cached_njit, compiled_once

_MASK = 2**LOW_BITS - 1


def add_stacked(out: Any, words: Any, places: Any, shift: int) -> None:
    """Add ``2**shift`` times the rows of one stack to rows of another, in place.

    Parameters
    ----------
    out
        Words of the sums, shape (n_words, n, ...), int32 or int64: ``sum_k out[k] 2**(56 k)``, all
        words but the last in 0 to ``2**56 - 1``. They must hold the sums: this is not checked.
    words
        Words to add, shape (m, n_rows, ...) with ``m <= n_words``, of integers that are not longer.
    places
        Row of ``out`` for each row, shape (n_rows,), int64; rows may repeat.
    shift
        Number of bits, ``>= 0``.

    Examples
    --------
    >>> out = np.zeros((1, 2, 1), dtype=np.int64)
    >>> add_stacked(out, np.array([[[3], [4], [5]]], dtype=np.int32), np.array([0, 1, 1]), 1)
    >>> out.ravel()
    array([ 6, 18])
    """
    if not words.size:
        return
    n_words, n = out.shape[:2]
    flat = np.ascontiguousarray(words).reshape(len(words), words.shape[1], -1).view()
    flat.flags.writeable = False  # like the words of a stack, so that one loop is compiled
    loop = _loop(n_words == 1, out.dtype, flat.dtype)
    loop(out.reshape(n_words, n, -1), flat, places.astype(np.int64, copy=False), shift)


@compiled_once
def _loop(one_word: bool, kind: Any, kind_of_part: Any) -> Callable[..., None]:
    signature = types.void(
        types.Array(numba.from_dtype(kind), 3, "C"),
        types.Array(numba.from_dtype(kind_of_part), 3, "C", readonly=True),
        types.Array(types.int64, 1, "C"),
        types.int64,
    )
    compiled: Callable[..., None] = cached_njit(signature, nogil=True, error_model="numpy")(
        _add_word if one_word else _add_words
    )
    return compiled


def _add_word(out: Any, words: Any, places: Any, shift: int) -> None:
    for i in range(words.shape[1]):
        row = places[i]
        if shift == 0:
            for j in range(words.shape[2]):
                out[0, row, j] += words[0, i, j]
        else:
            for j in range(words.shape[2]):
                out[0, row, j] += words[0, i, j] << shift


def _add_words(out: Any, words: Any, places: Any, shift: int) -> None:
    n_words, n_given = out.shape[0], words.shape[0]
    first, above = shift // LOW_BITS, shift % LOW_BITS
    for i in range(words.shape[1]):
        row = places[i]
        for j in range(words.shape[2]):
            carry = np.int64(0)
            for k in range(first, n_words):
                total = carry
                source = k - first
                if source < n_given:
                    word = np.int64(words[source, i, j])
                    if k == n_words - 1:
                        total += word << above
                    else:
                        total += (word & (_MASK >> above)) << above
                if 0 < source <= n_given:
                    total += np.int64(words[source - 1, i, j]) >> (LOW_BITS - above)
                total += out[k, row, j]
                if k < n_words - 1:
                    carry = total >> LOW_BITS
                    total &= _MASK
                out[k, row, j] = total


_LIMIT = 2**118  # bound of a number, as in FixedPoint
_SMALL_BITS, _WORD_BITS = 31, 62  # bits of numbers in one word
_BLOCK_SIZE = 2**16  # numbers that are compared together, in the second-level cache
Words = NDArray[Any]
Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class StackedFixedPoint(FrozenDataclass):
    """Stack of integer arrays, one for each of many sketches: ``sum_k words[k] 2**(56 k + shift)``.

    The sum of a moment over ten samples has 26 bits in the quanta of the kernel, and a chunk may
    hold 10**5 groups of ten samples. Therefore one word of 32 bits replaces the two of 64 that
    :class:`FixedPoint` has, as long as it holds all numbers, and words are added when needed. The
    numbers are the same, and so are their sums, in any order.

    Attributes
    ----------
    words
        Words, shape (n_words, n_groups, ...), int32 or int64. All but the last are in 0 to
        ``2**56 - 1``.
    shift
        Number of low bits, ``>= 0``, that are zero in all numbers.
    largest
        Bound: no absolute value exceeds ``largest * 2**shift``. It determines the number of words.

    Examples
    --------
    >>> stack = StackedFixedPoint.of(np.array([[1, -2], [3, 4]]), shift=44)
    >>> total = StackedFixedPoint.sum([stack, stack], [np.array([0, 1]), np.array([1, 2])], 3)
    >>> total.shift, total.words
    (44, array([[[ 1, -2],
        [ 4,  2],
        [ 3,  4]]], dtype=int32))
    """

    words: Words
    shift: int
    largest: int

    def __post_init__(self) -> None:
        self.words.flags.writeable = False

    @classmethod
    def of(cls, values: Words, shift: int = 0, largest: int | None = None) -> StackedFixedPoint:
        """``values * 2**shift``, int32 or int64; ``largest`` bounds absolute values, if known."""
        bound = 2**_WORD_BITS - 1 if largest is None else largest
        stack = cls(values[np.newaxis], shift, bound)
        return stack.tight() if largest is None else stack

    @classmethod
    def from_fixed_point(cls, parts: Sequence[FixedPoint]) -> StackedFixedPoint:
        """Stack one array for each sketch, at least one."""
        low, high = ([getattr(part, name) for part in parts] for name in ("low", "high"))
        return cls(np.stack([np.stack(low), np.stack(high)]), 0, _LIMIT - 1).tight()

    @classmethod
    def from_integers(cls, values: Sequence[int]) -> StackedFixedPoint:
        """Stack one non-negative Python integer for each sketch.

        Examples
        --------
        >>> StackedFixedPoint.from_integers([2**127, 3]).integers()
        [170141183460469231731687303715884105728, 3]
        """
        most = max(values, default=0)
        n_words = _n_words(most)
        words = [[value >> LOW_BITS * k & _MASK for value in values] for k in range(n_words - 1)]
        words.append([value >> LOW_BITS * (n_words - 1) for value in values])
        return cls(np.array(words, dtype=_kind(most)).reshape(n_words, len(values)), 0, most)

    @classmethod
    def sum(
        cls,
        parts: Sequence[StackedFixedPoint],
        places: Sequence[Places],
        n_groups: int,
        max_bits: int | None = 118,
    ) -> StackedFixedPoint:
        """Add the rows of several stacks to the rows of a new stack.

        Parameters
        ----------
        parts
            Stacks, at least one, whose rows have the same shape.
        places
            Row of the new stack for each row of a part, ascending; rows may repeat.
        n_groups
            Number of rows of the new stack.
        max_bits
            Largest number of bits, as for :class:`FixedPoint`; unlimited if None.

        Raises
        ------
        CapacityError
            If a number has more bits.
        """
        shift = min((part.shift for part in parts if part.largest), default=0)
        parts = [
            part if part.largest else StackedFixedPoint(part.words, shift, 0) for part in parts
        ]
        most = sum(
            (part.largest << part.shift - shift) * _together(place)
            for part, place in zip(parts, places, strict=True)
        )
        n_words, kind = _room(parts, shift, most), _kind(most)
        out = np.zeros((n_words, n_groups, *parts[0].words.shape[2:]), dtype=kind)
        for part, place in zip(parts, places, strict=True):
            add_stacked(out, part.words, place, part.shift - shift)
        total = cls(out, shift, most)
        if n_words > min(_n_words(most), max(len(part.words) for part in parts)):
            total = total.tight()
        if max_bits is not None and not total.fits(max_bits):
            total = total.tight()
            if not total.fits(max_bits):
                raise CapacityError(
                    "the sums of a group are larger than a sketch holds exactly. Multiply all "
                    "weights by one smaller factor."
                )
        return total

    def rows(self, chosen: Places) -> StackedFixedPoint:
        """Select sketches, in the given order."""
        return StackedFixedPoint(np.take(self.words, chosen, axis=1), self.shift, self.largest)

    def fixed_point(self, chosen: Any) -> FixedPoint:
        """Convert the numbers of selected sketches, which must be below ``2**118``."""
        low, high, top = _carried(_spread(self.words[:, chosen], self.shift, 3, np.int64))
        return FixedPoint(high + (top << LOW_BITS), low)

    def integers(self, chosen: Any = slice(None)) -> Any:
        """Convert to Python integers, in nested lists, or to one integer."""
        total: Any = 0
        for k, word in enumerate(self.words):
            total = total + (word[chosen].astype(object) << LOW_BITS * k + self.shift)
        return total.tolist() if isinstance(total, np.ndarray) else total

    @property
    def nbytes(self) -> int:
        """Size of all words in bytes."""
        return self.words.nbytes

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are equal, whatever their words are."""
        if not isinstance(other, StackedFixedPoint):
            return NotImplemented
        if self.words.shape[1:] != other.words.shape[1:]:
            return False
        shift = min(self.shift, other.shift)
        n_words = _room((self, other), shift)
        for rows in self._blocks():
            mine, theirs = (
                _carried(_spread(each.words[:, rows], each.shift - shift, n_words, np.int64))
                for each in (self, other)
            )
            if not np.array_equal(mine, theirs):
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    def _blocks(self) -> Iterator[slice]:
        n_groups, *rest = self.words.shape[1:]
        step = max(_BLOCK_SIZE // max(int(np.prod(rest)), 1), 1)
        return (slice(start, start + step) for start in range(0, n_groups, step))

    def fits(self, max_bits: int) -> bool:
        """Whether no number has more bits."""
        return (self.largest << self.shift).bit_length() <= max_bits

    def tight(self) -> StackedFixedPoint:
        """Reduce the words to the smallest number that holds all numbers."""
        words, n_words = self.words, len(self.words)
        while True:
            top = words[-1]
            size = max(int(top.max(initial=0)), -int(top.min(initial=0)))
            most = size if n_words == 1 else (size + 1) << LOW_BITS * (n_words - 1)
            if n_words == 1 or _n_words(most) == n_words:
                break
            above, n_words = words[-1] << LOW_BITS, n_words - 1
            words = np.concatenate([words[: n_words - 1], (words[n_words - 1] + above)[None]])
        return StackedFixedPoint(words.astype(_kind(most), copy=False), self.shift, most)


def _n_words(largest: int) -> int:
    return 1 + max(-(-(largest.bit_length() - _WORD_BITS) // LOW_BITS), 0)


def _room(stacks: Sequence[StackedFixedPoint], shift: int, largest: int = 0) -> int:
    """Number of words for numbers up to ``largest``, and for the shifted words of some stacks."""
    places = (len(each.words) + (each.shift - shift) // LOW_BITS for each in stacks)
    return max(_n_words(largest), *places)


def _kind(largest: int) -> Any:
    return np.int32 if largest.bit_length() <= _SMALL_BITS else np.int64


def _together(place: Places) -> int:
    """Largest number of rows that are added to the same row."""
    if (place[1:] > place[:-1]).all():
        return min(len(place), 1)
    return int(np.diff(np.flatnonzero(np.r_[True, place[1:] != place[:-1], True])).max())


def _spread(words: Words, shift: int, n_words: int, kind: Any) -> Words:
    """Shift the numbers, in ``n_words`` words, of which the last holds the remaining bits."""
    if n_words == 1:
        return words.astype(kind) << shift
    out = np.zeros((n_words, *words.shape[1:]), dtype=np.int64)
    first, shift = divmod(shift, LOW_BITS)
    for k, word in enumerate(words.astype(np.int64, copy=False), first):
        if k == n_words - 1:
            out[k] += word << shift
        else:
            out[k] += (word & (_MASK >> shift)) << shift
            out[k + 1] += word >> (LOW_BITS - shift)
    return out


def _carried(words: Words) -> Words:
    """Carry the excess of all words but the last, in place."""
    for k in range(len(words) - 1):
        words[k + 1] += words[k] >> LOW_BITS
        words[k] &= _MASK
    return words
