"""Exact sums of many sketches in one array: whole numbers in as few words as hold all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.dense import COMPILING
from dask_sketch.features.kernels.fixed_point import LOW_BITS, FixedPoint
from dask_sketch.validation.arrays import Rebuilt

# The loop that adds stacked sums to others: one reading of what is added, and no copies.

_MASK = 2**LOW_BITS - 1


def add_stacked(out: Any, words: Any, places: Any, shift: int) -> None:
    """Add the rows of ``2**shift`` times some numbers to rows of others, in place.

    Parameters
    ----------
    out
        Shape (n_words, n, ...), of int32 or int64: ``sum_k out[k] 2**(56 k)``, all words but the
        last in 0 to ``2**56 - 1``. It must hold the sums: that is not checked.
    words
        Shape (m, n_rows, ...) with m at most ``n_words``, of no longer integers.
    places
        Rows of ``out``, shape (n_rows,), int64; several may be one.
    shift
        Bits, ``>= 0``.

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
    flat.flags.writeable = False  # as those of a stack are: one loop to compile
    loop = _loop(n_words == 1, out.dtype, flat.dtype)
    loop(out.reshape(n_words, n, -1), flat, places.astype(np.int64, copy=False), shift)


@lru_cache(maxsize=8)
def _loop(one_word: bool, kind: Any, given: Any) -> Callable[..., None]:
    signature = types.void(
        types.Array(numba.from_dtype(kind), 3, "C"),
        types.Array(numba.from_dtype(given), 3, "C", readonly=True),
        types.Array(types.int64, 1, "C"),
        types.int64,
    )
    with COMPILING:
        made: Callable[..., None] = numba.njit(
            signature, nogil=True, cache=True, error_model="numpy"
        )(_add_word if one_word else _add_words)
    return made


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


_LARGEST = 2**118  # as of FixedPoint
_SMALL_BITS, _WORD_BITS = 31, 62  # of numbers in one word
_NUMBERS = 2**16  # of a block of rows: it is compared in the second cache
Words = NDArray[Any]
Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class StackedFixedPoint(Rebuilt):
    """Arrays of whole numbers, one for each of many sketches: ``sum_k words[k] 2**(56 k + shift)``.

    What ten samples add to a moment is a number of 26 bits in the kernel's steps, and a chunk may
    hold 10**5 groups of ten samples. So one word of 32 bits stands for the two of 64 that
    :class:`FixedPoint` has, as long as they hold all numbers; more are taken where needed. The
    numbers are the same, and so is what they add up to, in any order.

    Attributes
    ----------
    words
        Shape (n_words, n_groups, ...), int32 or int64. All but the last are in 0 to ``2**56 - 1``.
    shift
        Bits, ``>= 0``, that are zero in all numbers.
    largest
        No number is larger in size than this times ``2**shift``. It decides how many words there
        are.

    Examples
    --------
    >>> steps = StackedFixedPoint.of(np.array([[1, -2], [3, 4]]), shift=44)
    >>> total = StackedFixedPoint.sum([steps, steps], [np.array([0, 1]), np.array([1, 2])], 3)
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
        """``values * 2**shift``, of int32 or int64; ``largest`` bounds their size, if known."""
        bound = 2**_WORD_BITS - 1 if largest is None else largest
        stack = cls(values[np.newaxis], shift, bound)
        return stack.tight() if largest is None else stack

    @classmethod
    def from_fixed_point(cls, parts: Sequence[FixedPoint]) -> StackedFixedPoint:
        """Of one array for each sketch, at least one."""
        low, high = ([getattr(part, name) for part in parts] for name in ("low", "high"))
        return cls(np.stack([np.stack(low), np.stack(high)]), 0, _LARGEST - 1).tight()

    @classmethod
    def from_integers(cls, values: Sequence[int]) -> StackedFixedPoint:
        """Of one number for each sketch, Python's, none below zero.

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
        most_bits: int | None = 118,
    ) -> StackedFixedPoint:
        """Add the rows of some stacks to the rows of a new one.

        Parameters
        ----------
        parts
            At least one; each row has one shape.
        places
            Of each part: where its rows go, ascending. Several may go to one place.
        n_groups
            Rows of the new stack.
        most_bits
            Numbers of more are refused, as they are of :class:`FixedPoint`; none if not given.

        Raises
        ------
        CapacityError
            If a number does not fit.
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
        made = cls(out, shift, most)
        if n_words > min(_n_words(most), max(len(part.words) for part in parts)):
            made = made.tight()
        if most_bits is not None and (made.largest << shift).bit_length() > most_bits:
            made = made.tight()
            if (made.largest << shift).bit_length() > most_bits:
                raise CapacityError(
                    "the sums of a group are larger than a sketch holds exactly. Multiply all "
                    "weights by one smaller factor."
                )
        return made

    def rows(self, chosen: Places) -> StackedFixedPoint:
        """Those of some of the sketches, in their order."""
        return StackedFixedPoint(np.take(self.words, chosen, axis=1), self.shift, self.largest)

    def fixed_point(self, chosen: Any) -> FixedPoint:
        """Those of one sketch, or of some; they must be under ``2**118`` in size."""
        low, high, top = _carried(_spread(self.words[:, chosen], self.shift, 3, np.int64))
        return FixedPoint(high + (top << LOW_BITS), low)

    def integers(self, chosen: Any = slice(None)) -> Any:
        """As Python's whole numbers, in nested lists, or the one."""
        total: Any = 0
        for k, word in enumerate(self.words):
            total = total + (word[chosen].astype(object) << LOW_BITS * k + self.shift)
        return total.tolist() if isinstance(total, np.ndarray) else total

    @property
    def nbytes(self) -> int:
        """Of all words."""
        return self.words.nbytes

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are the same, in whatever words."""
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
        step = max(_NUMBERS // max(int(np.prod(rest)), 1), 1)
        return (slice(start, start + step) for start in range(0, n_groups, step))

    def tight(self) -> StackedFixedPoint:
        """The same with as few words as its numbers need."""
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
    """Words that hold numbers up to ``largest``, and each word of some stacks at its place."""
    places = (len(each.words) + (each.shift - shift) // LOW_BITS for each in stacks)
    return max(_n_words(largest), *places)


def _kind(largest: int) -> Any:
    return np.int32 if largest.bit_length() <= _SMALL_BITS else np.int64


def _together(place: Places) -> int:
    """Rows, at most, that go to one place."""
    if (place[1:] > place[:-1]).all():
        return min(len(place), 1)
    return int(np.diff(np.flatnonzero(np.r_[True, place[1:] != place[:-1], True])).max())


def _spread(words: Words, shift: int, n_words: int, kind: Any) -> Words:
    """``2**shift`` times the numbers, in ``n_words`` words of which the last holds what is left."""
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
    """Take the carry of all words but the last, in place."""
    for k in range(len(words) - 1):
        words[k + 1] += words[k] >> LOW_BITS
        words[k] &= _MASK
    return words
